// The size of a state, and which kernels a path uses.
#include "states/gated_delta.h"

#include "states/gated_delta_layout.h"

namespace relevo {

const DeltaKernels& delta_kernels_portable();
#if defined(__x86_64__)
const DeltaKernels& delta_kernels_avx2();
const DeltaKernels& delta_kernels_avx512();
#elif defined(__aarch64__)
const DeltaKernels& delta_kernels_neon();
#endif

DeltaSizes DeltaSizes::of_state() const {
  if (num_state_heads == 0) return *this;
  return {num_state_heads, num_state_heads * values_per_key(), key_size, value_size, kernel_size};
}

size_t DeltaSizes::state_bytes(KVType type) const {
  const DeltaSizes all = of_state();
  const int64_t element_bytes = type == KVType::f32 ? 4 : 2;
  const int64_t matrices = all.num_value_heads * matrix_floats() * static_cast<int64_t>(sizeof(float));
  return static_cast<size_t>(matrices + (kernel_size - 1) * all.width() * element_bytes);
}

int64_t DeltaSizes::scratch_floats() const {
  return (kernel_size - 1 + 2 * RUN_TOKENS) * head_width(*this) + key_size * MOST_COLUMNS;
}

const DeltaKernels& delta_kernels(Path path) {
  switch (path) {
#if defined(__x86_64__)
    case Path::amx:
    case Path::avx512:
      return delta_kernels_avx512();
    case Path::avx2:
      return delta_kernels_avx2();
#elif defined(__aarch64__)
    case Path::i8mm:
    case Path::dotprod:
    case Path::neon:
      return delta_kernels_neon();
#endif
    default:
      return delta_kernels_portable();
  }
}

}  // namespace relevo
