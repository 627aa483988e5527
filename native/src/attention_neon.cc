// The attention kernels of the neon path.
#include "attention_generic.h"
#include "simd_neon.h"

namespace relevo {

const AttentionKernels& attention_kernels_neon() {
  static const AttentionKernels kernels = attention_kernels_of<NeonVec>(Path::neon);
  return kernels;
}

}  // namespace relevo
