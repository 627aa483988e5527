// Python bindings of sampling.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_sampling(nanobind::module_&) {}

}  // namespace relevo
