// The sampling kernels of the neon path.
#include "sampling_generic.h"
#include "simd_neon.h"

namespace relevo {

const SamplingKernels& sampling_kernels_neon() {
  static const SamplingKernels kernels = sampling_kernels_of<NeonVec>(Path::neon);
  return kernels;
}

}  // namespace relevo
