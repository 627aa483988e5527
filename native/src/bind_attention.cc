// Python bindings of attention.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_attention(nanobind::module_&) {}

}  // namespace relevo
