// The gated delta rule on the avx2 path.
#include "cpu/simd_avx2.h"
#include "states/gated_delta_generic.h"

namespace relevo {

const DeltaKernels& delta_kernels_avx2() {
  static const DeltaKernels kernels = GatedDelta<Avx2Vec>::kernels(Path::avx2);
  return kernels;
}

}  // namespace relevo
