// Python bindings of linear.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_linear(nanobind::module_&) {}

}  // namespace relevo
