// The elementwise kernels of the avx2 path.
#include "elementwise_generic.h"
#include "simd_avx2.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_avx2() {
  static const ElementwiseKernels kernels = Elementwise<Avx2Vec>::kernels(Path::avx2);
  return kernels;
}

}  // namespace relevo
