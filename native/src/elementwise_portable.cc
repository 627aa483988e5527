// The elementwise kernels of the portable path.
#include "elementwise_generic.h"
#include "simd_portable.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_portable() {
  static const ElementwiseKernels kernels = Elementwise<PortableVec>::kernels(Path::portable);
  return kernels;
}

}  // namespace relevo
