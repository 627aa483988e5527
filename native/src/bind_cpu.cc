// Python bindings of cpu.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_cpu(nanobind::module_&) {}

}  // namespace relevo
