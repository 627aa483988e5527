// The elementwise kernels of the portable path.
#include "cpu/simd_portable.h"
#include "rows/elementwise_generic.h"

namespace relevo {

const ElementwiseKernels& elementwise_kernels_portable() {
  static const ElementwiseKernels kernels = Elementwise<PortableVec>::kernels(Path::portable);
  return kernels;
}

}  // namespace relevo
