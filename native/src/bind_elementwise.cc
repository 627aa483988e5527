// Python bindings of elementwise.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_elementwise(nanobind::module_&) {}

}  // namespace relevo
