// The sampling kernels of the avx2 path.
#include "cpu/simd_avx2.h"
#include "rows/sampling_generic.h"

namespace relevo {

const SamplingKernels& sampling_kernels_avx2() {
  static const SamplingKernels kernels = sampling_kernels_of<Avx2Vec>(Path::avx2);
  return kernels;
}

}  // namespace relevo
