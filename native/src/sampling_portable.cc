// The sampling kernels of the portable path.
#include "sampling_generic.h"
#include "simd_portable.h"

namespace relevo {

const SamplingKernels& sampling_kernels_portable() {
  static const SamplingKernels kernels = sampling_kernels_of<PortableVec>(Path::portable);
  return kernels;
}

}  // namespace relevo
