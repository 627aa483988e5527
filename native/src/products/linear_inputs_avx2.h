// Rounding inputs to 8 or 16 bits with AVX2, the same on every path that has it.
//
// A format F that multiplies integers says kFormat, kInputBlock (k), kHasMinimum and kRaised: by how much its kernel raises
// weights to have them unsigned. A block of R prepared rows is their rounded values, scales [R] and, where outputs need it,
// terms [R]: x_scale * sum for a minimum, else int32 sum of rounded values times -kRaised.
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "products/linear_tiles.h"

namespace relevo {
namespace {

// The largest magnitude of 16 values, compared as bits, so that a NaN among them is the result.
__m256i magnitudes(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 2; ++i)
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i * 8)), mask));
  return largest;
}

float largest_lane(__m256i bits) {
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(v));
}

int32_t sum_of_lanes(__m256i sums) {
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}

// Inputs of 8 bits, in order: int8 [R][k].
struct RoundedBytes {
  static constexpr int kBytes = 1;  // of a value
  static __m256i of(const float* x, float inverse) {
    const __m256 factor = _mm256_set1_ps(inverse);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * 8), factor));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static int32_t sum(__m256i bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    return sum_of_lanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

// Sixteen of them, for blocks of as many.
struct RoundedSixteen {
  static constexpr int kBytes = 1;
  static __m128i of(const float* x, float inverse) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
  static int32_t sum(__m128i bytes) {
    return sum_of_lanes(_mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), _mm256_set1_epi16(1)));
  }
};

// Inputs of 16 bits: int16 [R][k / 4][2 pairs]. Of 4 consecutive ones the first and third make a pair, then the others.
struct RoundedPairs {
  static constexpr int kBytes = 2;
  static __m256i of(const float* x, float inverse) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    return _mm256_shuffle_epi8(words, order);
  }
  static int32_t sum(__m256i words) { return sum_of_lanes(_mm256_madd_epi16(words, _mm256_set1_epi16(1))); }
};

// Of a whole block of inputs.
template <class F>
BlockScale block_scale(const float* x) {
  __m256i largest = magnitudes(x);
  for (int i = 16; i < F::kInputBlock; i += 16) largest = _mm256_max_epi32(largest, magnitudes(x + i));
  return scale_of(largest_lane(largest), F::kFormat);
}

// Bytes of a row's scale and term.
constexpr int64_t end_bytes(bool has_minimum, int raised) { return has_minimum || raised != 0 ? 8 : 4; }

template <class F>
void store_ends(float scale, int32_t sum, int64_t rows, int64_t r, uint8_t* ends) {
  std::memcpy(ends + r * 4, &scale, 4);
  const float scaled_sum = scale * static_cast<float>(sum);
  const int32_t offset = -F::kRaised * sum;
  if (F::kHasMinimum) std::memcpy(ends + (rows + r) * 4, &scaled_sum, 4);
  if (F::kRaised != 0) std::memcpy(ends + (rows + r) * 4, &offset, 4);
}

// Row r of a block, its values as `Rounded` has them.
template <class F, class Rounded>
void prepare_rounded(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
  constexpr int64_t kRowBytes = F::kInputBlock * Rounded::kBytes;
  constexpr int kAtATime = static_cast<int>(sizeof(Rounded::of(x, 0.0f))) / Rounded::kBytes;
  float filled[F::kInputBlock];
  x = whole_block(x, k_left, filled);
  const BlockScale s = block_scale<F>(x);
  int32_t sum = 0;
  for (int i = 0; i < F::kInputBlock; i += kAtATime) {
    const auto q = Rounded::of(x + i, s.inverse);
    if (F::kHasMinimum || F::kRaised != 0) sum += Rounded::sum(q);
    std::memcpy(out + r * kRowBytes + i * Rounded::kBytes, &q, sizeof q);
  }
  store_ends<F>(s.scale, sum, rows, r, out + rows * kRowBytes);
}

}  // namespace
}  // namespace relevo
