// The vectors of the paths with AVX-512: the 16 output rows of a panel are one.
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "products/linear_vectors.h"

namespace relevo {
namespace {

struct Avx512Vectors {
  using Vector = __m512;
  static constexpr int kVectors = 1;
  static __m256i load_half(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Vector load_floats(const uint8_t* from) { return _mm512_loadu_ps(from); }
  static Vector load_halves(const uint8_t* from) { return _mm512_cvtph_ps(load_half(from)); }
  static Vector load_first(const uint8_t* from) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Vector load_second(const uint8_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
  }
  static void store_floats(uint8_t* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector every_lane_float(const uint8_t* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return _mm512_set1_ps(value);
  }
  static Vector add_products(Vector sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
  static Vector times(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector plus(Vector a, Vector b) { return _mm512_add_ps(a, b); }
};

struct Avx512 : Tiles<Avx512Vectors> {
  static constexpr size_t kStretchBytes = 32 * 1024;  // weights that stay in a first-level cache
  static constexpr size_t kInputsBytes = 768 * 1024;  // inputs that stay in a second-level cache
  static constexpr int64_t kFloatGroup = 8;
  static constexpr bool kExpandsFloats = false;
};

}  // namespace
}  // namespace relevo
