// The sampling kernels of the portable path.
#include "cpu/simd_portable.h"
#include "rows/sampling_generic.h"

namespace relevo {

const SamplingKernels& sampling_kernels_portable() {
  static const SamplingKernels kernels = sampling_kernels_of<PortableVec>(Path::portable);
  return kernels;
}

}  // namespace relevo
