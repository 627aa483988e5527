// The gated delta rule on the neon path.
#include "cpu/simd_neon.h"
#include "states/gated_delta_generic.h"

namespace relevo {

const DeltaKernels& delta_kernels_neon() {
  static const DeltaKernels kernels = GatedDelta<NeonVec>::kernels(Path::neon);
  return kernels;
}

}  // namespace relevo
