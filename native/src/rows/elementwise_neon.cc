// The elementwise kernels of the neon path.
#include "cpu/simd_neon.h"
#include "rows/elementwise_generic.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_neon() {
  static const ElementwiseKernels kernels = Elementwise<NeonVec>::kernels(Path::neon);
  return kernels;
}

}  // namespace relevo
