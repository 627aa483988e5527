// The attention kernels of the portable path.
#include "attention/attention_generic.h"
#include "cpu/simd_portable.h"

namespace relevo {

const AttentionKernels& attention_kernels_portable() {
  static const AttentionKernels kernels = attention_kernels_of<PortableVec>(Path::portable);
  return kernels;
}

}  // namespace relevo
