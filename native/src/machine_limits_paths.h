// The limit kernels of each path that is compiled for this architecture.
#pragma once

#include "machine_limits.h"

namespace relevo {

extern const LimitKernels limits_portable;
#if defined(__x86_64__)
extern const LimitKernels limits_avx2;
#endif

}  // namespace relevo
