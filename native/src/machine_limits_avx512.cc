// Limits with AVX-512 and VNNI. Memory is read as with AVX2: that is no matter of width.
#include <immintrin.h>

#include "machine_limits.h"
#include "machine_limits_paths.h"

namespace relevo {
namespace {

constexpr int SUMS = 12;  // two multipliers, latency four or five: at least ten in flight
static_assert(SUMS * 16 == FLOAT_PRODUCTS_AVX512, "a vector holds 16 floats");

// Makes a register unknown to the compiler, so that what depends on it is computed again.
inline void hide(__m512& value) { asm volatile("" : "+v"(value)); }
inline void hide(__m512i& value) { asm volatile("" : "+v"(value)); }

double multiply_bytes(int64_t rounds) {
  __m512i sums[SUMS];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi32(0x01010101);
  const __m512i y = _mm512_set1_epi32(0x01010101);
  for (int64_t round = 0; round < rounds; ++round) {
    hide(x);
    for (__m512i& sum : sums) {
      __m512i next = _mm512_dpbusd_epi32(sum, x, y);
      hide(next);  // stays in its register
      sum = next;
    }
  }
  double total = 0;
  for (const __m512i& sum : sums) {
    alignas(64) int32_t lanes[16];
    _mm512_storeu_si512(lanes, sum);
    for (const int32_t lane : lanes) total += lane;
  }
  return total;
}

}  // namespace

double multiply_floats_with_avx512(int64_t rounds) {
  __m512 sums[SUMS];
  for (__m512& sum : sums) sum = _mm512_set1_ps(0.0f);
  __m512 x = _mm512_set1_ps(1.0f);
  const __m512 y = _mm512_set1_ps(1.0f);
  for (int64_t round = 0; round < rounds; ++round) {
    hide(x);
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(x, y, sum);
  }
  double total = 0;
  for (const __m512& sum : sums) {
    alignas(64) float lanes[16];
    _mm512_storeu_ps(lanes, sum);
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

const LimitKernels limits_avx512 = {
    Path::avx512,
    read_with_avx2,
    {multiply_floats_with_avx512, multiply_floats_with_avx512, multiply_bytes, multiply_bytes},
    {FLOAT_PRODUCTS_AVX512, FLOAT_PRODUCTS_AVX512, SUMS * 64, SUMS * 64},
};

}  // namespace relevo
