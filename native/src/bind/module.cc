// The extension module: everything Python sees.
#include <nanobind/nanobind.h>

namespace relevo {

void bind_cpu(nanobind::module_& module);
void bind_linear(nanobind::module_& module);
void bind_attention(nanobind::module_& module);
void bind_elementwise(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);
void bind_program(nanobind::module_& module);
void bind_machine_limits(nanobind::module_& module);
void bind_states(nanobind::module_& module);

}  // namespace relevo

NB_MODULE(_native, module) {
  relevo::bind_cpu(module);
  relevo::bind_linear(module);
  relevo::bind_attention(module);
  relevo::bind_elementwise(module);
  relevo::bind_sampling(module);
  relevo::bind_program(module);
  relevo::bind_machine_limits(module);
  relevo::bind_states(module);
}
