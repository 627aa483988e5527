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
  static Vector load_bfloats(const uint8_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from)), 16));
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

}  // namespace
}  // namespace relevo
