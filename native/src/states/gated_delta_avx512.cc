// The gated delta rule on the avx512 path, which the amx path uses, too.
// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "cpu/simd_avx512.h"
#include "states/gated_delta_generic.h"

namespace relevo {

const DeltaKernels& delta_kernels_avx512() {
  static const DeltaKernels kernels = GatedDelta<Avx512Vec>::kernels(Path::avx512);
  return kernels;
}

}  // namespace relevo
