// The attention kernels of the avx512 path, which the amx path uses, too.
// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "attention/attention_generic.h"
#include "cpu/simd_avx512.h"

namespace relevo {

const AttentionKernels& attention_kernels_avx512() {
  static const AttentionKernels kernels = attention_kernels_of<Avx512Vec>(Path::avx512);
  return kernels;
}

}  // namespace relevo
