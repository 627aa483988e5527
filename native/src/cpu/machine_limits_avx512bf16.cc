// Limits with AVX512_BF16: as with AVX-512, but for products of bfloat16.
#include <immintrin.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int SUMS = 12;                     // latency six: as many in flight as the other products of AVX-512
constexpr int64_t ROUNDS_COUNTED = 1 << 23;  // two products a round and lane: beyond it a float does not count

double multiply_some(int64_t rounds) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  return multiply_in_registers<float, SUMS>(
      rounds, _mm512_setzero_ps(), ones, [](const __m512& sum, const __m512i& x, const __m512i& y) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
      });
}

double multiply_bfloats(int64_t rounds) {
  const int64_t first = rounds < ROUNDS_COUNTED ? rounds : ROUNDS_COUNTED;
  return multiply_some(first) + multiply_some(rounds - first);
}

}  // namespace

const LimitKernels limits_avx512bf16 = {
    Path::avx512,
    read_with_avx2,
    {multiply_floats_with_avx512, multiply_bfloats, multiply_bytes_with_avx512, multiply_bytes_with_avx512},
    {FLOAT_PRODUCTS_AVX512, SUMS * 32, BYTE_PRODUCTS_AVX512, BYTE_PRODUCTS_AVX512},
};

}  // namespace relevo
