// The sampling kernels of the neon path.
#include "cpu/simd_neon.h"
#include "rows/sampling_generic.h"

namespace relevo {

const SamplingKernels& sampling_kernels_neon() {
  static const SamplingKernels kernels = sampling_kernels_of<NeonVec>(Path::neon);
  return kernels;
}

}  // namespace relevo
