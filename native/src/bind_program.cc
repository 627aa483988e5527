// Python bindings of program.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_program(nanobind::module_&) {}

}  // namespace relevo
