// The attention kernels of the neon path.
#include "attention/attention_generic.h"
#include "cpu/simd_neon.h"

namespace relevo {

const AttentionKernels& attention_kernels_neon() {
  static const AttentionKernels kernels = attention_kernels_of<NeonVec>(Path::neon);
  return kernels;
}

}  // namespace relevo
