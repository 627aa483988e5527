// Limits with AVX2 and FMA.
#include <immintrin.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int FLOAT_SUMS = 12;   // two multipliers, latency four or five: at least ten in flight
constexpr int BYTE_SUMS = 4;
constexpr int NARROW_DEPTH = 8;  // sums of 4-bit by 8-bit products that fit 16 bits: 8 * 2 * 15 * 127 < 32768
constexpr size_t WORDS_AHEAD = 256;  // 2 KiB; measured best at 64 to 256 MB

double multiply_floats(int64_t rounds) {
  return multiply_in_registers<float, FLOAT_SUMS>(
      rounds, _mm256_setzero_ps(), _mm256_set1_ps(1.0f),
      [](const __m256& sum, const __m256& x, const __m256& y) { return _mm256_fmadd_ps(x, y, sum); });
}

// `Depth` products are added in 16 bits before they are widened.
template <int Depth>
double multiply_bytes(int64_t rounds) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i x = _mm256_set1_epi8(1);
  const __m256i y = _mm256_set1_epi8(1);
  __m256i sums[BYTE_SUMS];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t round = 0; round < rounds; ++round) {
    __m256i narrow[BYTE_SUMS];
    for (__m256i& sum : narrow) {
      hide(x);
      sum = _mm256_maddubs_epi16(x, y);
    }
    for (int step = 1; step < Depth; ++step) {
      for (__m256i& sum : narrow) {
        hide(x);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, y));
      }
    }
    for (int i = 0; i < BYTE_SUMS; ++i) sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(narrow[i], ones));
  }
  double total = 0;
  for (const __m256i& sum : sums) total += sum_lanes<int32_t>(sum);
  return total;
}

}  // namespace

uint64_t read_with_avx2(const uint64_t* words, size_t num_words) {
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  size_t i = 0;
  for (; i + 16 <= num_words; i += 16) {  // two cache lines
    _mm_prefetch(reinterpret_cast<const char*>(words + i + WORDS_AHEAD), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(words + i + WORDS_AHEAD + 8), _MM_HINT_T0);
    for (int part = 0; part < 4; ++part) {
      const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i + 4 * part));
      sums[part] = _mm256_add_epi64(sums[part], loaded);
    }
  }
  uint64_t total = 0;
  for (const __m256i& sum : sums) total += sum_lanes<uint64_t, uint64_t>(sum);
  for (; i < num_words; ++i) total += words[i];
  return total;
}

const LimitKernels limits_avx2 = {
    Path::avx2,
    read_with_avx2,
    {multiply_floats, multiply_floats, multiply_bytes<1>, multiply_bytes<NARROW_DEPTH>},
    {FLOAT_SUMS * 8, FLOAT_SUMS * 8, BYTE_SUMS * 32, BYTE_SUMS * 32 * NARROW_DEPTH},
};

}  // namespace relevo
