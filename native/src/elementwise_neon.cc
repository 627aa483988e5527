// The elementwise kernels of the neon path.
#include "elementwise_generic.h"
#include "simd_neon.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_neon() {
  static const ElementwiseKernels kernels = Elementwise<NeonVec>::kernels(Path::neon);
  return kernels;
}

}  // namespace relevo
