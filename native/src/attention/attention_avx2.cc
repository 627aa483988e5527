// The attention kernels of the avx2 path.
#include "attention/attention_generic.h"
#include "cpu/simd_avx2.h"

namespace relevo {

const AttentionKernels& attention_kernels_avx2() {
  static const AttentionKernels kernels = attention_kernels_of<Avx2Vec>(Path::avx2);
  return kernels;
}

}  // namespace relevo
