// Which kernels a path uses for matrix products: its own, or those of the next lower path that has some.
#include "products/linear.h"

namespace relevo {

extern const LinearKernels kLinearPortable;
#if defined(__x86_64__)
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const LinearKernels kLinearAvx512Bf16;
extern const LinearKernels kLinearAmx;
#elif defined(__aarch64__)
extern const LinearKernels kLinearNeon;
extern const LinearKernels kLinearDotprod;
extern const LinearKernels kLinearI8mm;
#endif

const LinearKernels& linear_kernels(Path path) {
#if defined(__x86_64__)
  if (path == Path::amx) return kLinearAmx;
  if (path == Path::avx512) return __builtin_cpu_supports("avx512bf16") ? kLinearAvx512Bf16 : kLinearAvx512;
  if (path == Path::avx2) return kLinearAvx2;
#elif defined(__aarch64__)
#if defined(RELEVO_HAS_I8MM)
  if (path == Path::i8mm) return kLinearI8mm;
#endif
#if defined(RELEVO_HAS_DOTPROD)
  if (path == Path::dotprod) return kLinearDotprod;
#endif
  if (path == Path::neon) return kLinearNeon;
#endif
  (void)path;
  return kLinearPortable;
}

}  // namespace relevo
