// Sixteen floats at a time with AVX-512. The interface is simd_portable.h's.
//
// Numbers of a cache are stored by halves, as Avx2Vec does it: that is done once per token.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/simd_avx2.h"

namespace relevo {
namespace {

struct Avx512Vec {
  static constexpr int W = 16;
  using F = __m512;
  using Half = Avx2Vec;
  static constexpr int LEAVES[W] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static void store_part(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

  // In a register: the compiler would load what is used several times from memory for each of them.
  static F held(F x) {
#if defined(__AVX512F__)  // not where the instructions are emulated
    asm("" : "+v"(x));
#endif
    return x;
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // *a for every lane. Measured (Zen 4): from memory it is free, where a broadcast of its own takes a cycle.
  static F fma_of(const float* a, F b, F c) {
#if defined(__AVX512F__)
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
#else
    return fma(set1(*a), b, c);
#endif
  }
  static F abs(F a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F pow2(F n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static __m256 low_half(F x) { return _mm512_castps512_ps256(x); }
  static __m256 high_half(F x) { return _mm512_extractf32x8_ps(x, 1); }
  static float first(F x) { return Half::first(low_half(x)); }
  static float max_lane(F x) { return Half::max_lane(Half::max(low_half(x), high_half(x))); }
  // a0+a2 a1+a3 b2+b0 b3+b1 of each quarter. A blend is free where a second shuffle would wait for the first.
  static F sums_of_pairs(F a, F b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, a, b), _mm512_shuffle_ps(a, b, 0x4E));
  }
  static __m128 sums(F a, F b, F c, F d) {
    const F ab = sums_of_pairs(a, b), cd = sums_of_pairs(c, d);
    const F abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xDD));
    const __m256 halves = _mm256_add_ps(low_half(abcd), high_half(abcd));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  }
  static float sum_lanes(F x) { return _mm_cvtss_f32(sums(x, x, x, x)); }
  static void sum_lanes4(F a, F b, F c, F d, float* out) { _mm_storeu_ps(out, sums(a, b, c, d)); }
  static uint32_t equal_mask(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

  // Within each quarter of the registers, then quarters among each other.
  static void transpose(F (&rows)[W]) {
    F pairs[W], quads[W];
    for (int i = 0; i < W; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < W; i += 4) {  // quads[i + j]: columns j, 4 + j, 8 + j, 12 + j of rows i to i + 3
      quads[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
      quads[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      const F even_low = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0x88);  // columns i and 8 + i
      const F even_high = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0x88);
      const F odd_low = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0xDD);  // columns 4 + i and 12 + i
      const F odd_high = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0xDD);
      rows[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      rows[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xDD);
      rows[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      rows[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
    }
  }

  static __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static F from_f16(const uint8_t* p) { return _mm512_cvtph_ps(load32(p)); }
  static F from_bf16(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
  }
  static F from_i8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Half::load16(p))); }
  static F from_f16_8(const uint8_t* p) { return _mm512_zextps256_ps512(Half::from_f16(p)); }
  static F from_bf16_8(const uint8_t* p) { return _mm512_zextps256_ps512(Half::from_bf16(p)); }
  static F from_i8_8(const uint8_t* p) { return _mm512_zextps256_ps512(Half::from_i8(p)); }

  static int64_t of_low_half(int64_t n) { return n < 8 ? n : 8; }
  static void to_f16(F x, uint8_t* p, int64_t n) {
    Half::to_f16(low_half(x), p, of_low_half(n));
    if (n > 8) Half::to_f16(high_half(x), p + 16, n - 8);
  }
  static void to_bf16(F x, uint8_t* p, int64_t n) {
    Half::to_bf16(low_half(x), p, of_low_half(n));
    if (n > 8) Half::to_bf16(high_half(x), p + 16, n - 8);
  }
  static void to_i8(F x, uint8_t* p, int64_t n) {
    Half::to_i8(low_half(x), p, of_low_half(n));
    if (n > 8) Half::to_i8(high_half(x), p + 8, n - 8);
  }
};

}  // namespace
}  // namespace relevo
