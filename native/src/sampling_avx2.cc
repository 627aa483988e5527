// The sampling kernels of the avx2 path.
#include "sampling_generic.h"
#include "simd_avx2.h"

namespace relevo {

const SamplingKernels& sampling_kernels_avx2() {
  static const SamplingKernels kernels = sampling_kernels_of<Avx2Vec>(Path::avx2);
  return kernels;
}

}  // namespace relevo
