// The elementwise kernels of the avx2 path.
#include "cpu/simd_avx2.h"
#include "rows/elementwise_generic.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_avx2() {
  static const ElementwiseKernels kernels = Elementwise<Avx2Vec>::kernels(Path::avx2);
  return kernels;
}

}  // namespace relevo
