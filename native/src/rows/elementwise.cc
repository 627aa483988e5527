// Which elementwise kernels a path uses, and the angles of rotary embeddings.
#include "rows/elementwise.h"

#include <cmath>

namespace relevo {

const ElementwiseKernels& elementwise_kernels_portable();
#if defined(__x86_64__)
const ElementwiseKernels& elementwise_kernels_avx2();
const ElementwiseKernels& elementwise_kernels_avx512();
#elif defined(__aarch64__)
const ElementwiseKernels& elementwise_kernels_neon();
#endif

const ElementwiseKernels& elementwise_kernels(Path path) {
  switch (path) {
#if defined(__x86_64__)
    case Path::amx:
    case Path::avx512:
      return elementwise_kernels_avx512();
    case Path::avx2:
      return elementwise_kernels_avx2();
#elif defined(__aarch64__)
    case Path::i8mm:
    case Path::dotprod:
    case Path::neon:
      return elementwise_kernels_neon();
#endif
    default:
      return elementwise_kernels_portable();
  }
}

void rope_angles(const int64_t* positions, int64_t num_tokens, const float* inv_freq, int64_t half, float scale,
                 float* cos, float* sin) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float position = static_cast<float>(positions[t]);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position * inv_freq[i]);  // float32, as checkpoints were trained
      cos[t * half + i] = static_cast<float>(std::cos(angle) * static_cast<double>(scale));
      sin[t * half + i] = static_cast<float>(std::sin(angle) * static_cast<double>(scale));
    }
  }
}

}  // namespace relevo
