// The gated delta rule on the portable path.
#include "cpu/simd_portable.h"
#include "states/gated_delta_generic.h"

namespace relevo {

const DeltaKernels& delta_kernels_portable() {
  static const DeltaKernels kernels = GatedDelta<PortableVec>::kernels(Path::portable);
  return kernels;
}

}  // namespace relevo
