// The AVX-512 instructions that the kernels use, in plain C++ after the pseudocode of Intel's Intrinsics Guide, so that
// kernels for them can be run on any x86 processor with AVX2. Included before a kernel's source (g++ -include).
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <class Lane, int kLanes>
struct Lanes {
  Lane at[kLanes];
  template <class Vector>
  explicit Lanes(const Vector& vector) {
    static_assert(sizeof(Vector) == sizeof at);
    std::memcpy(at, &vector, sizeof at);
  }
  Lanes() = default;
  template <class Vector>
  Vector as() const {
    static_assert(sizeof(Vector) == sizeof at);
    Vector vector;
    std::memcpy(&vector, at, sizeof at);
    return vector;
  }
};
using F32 = Lanes<float, 16>;
using I32 = Lanes<int32_t, 16>;
using U32 = Lanes<uint32_t, 16>;
using U16 = Lanes<uint16_t, 32>;
using I16 = Lanes<int16_t, 32>;
using U8 = Lanes<uint8_t, 64>;
using I8 = Lanes<int8_t, 64>;
using Halves = Lanes<uint16_t, 16>;

template <class Vector>
Vector loaded(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Result, class Out, class Each>
Result each_lane(Out out, const Each& each) {
  int i = 0;
  for (auto& lane : out.at) lane = each(i++);
  return out.template as<Result>();
}

inline void storeu_ps(void* to, __m512 value) { std::memcpy(to, &value, sizeof value); }

inline __m512i set1_epi32(int32_t value) {
  return each_lane<__m512i>(I32(), [&](int) { return value; });
}
inline __m512 set1_ps(float value) {
  return each_lane<__m512>(F32(), [&](int) { return value; });
}
inline __m512i and_si512(__m512i a, __m512i b) {
  return each_lane<__m512i>(U32(), [x = U32(a), y = U32(b)](int i) { return x.at[i] & y.at[i]; });
}
inline __m512i xor_si512(__m512i a, __m512i b) {
  return each_lane<__m512i>(U32(), [x = U32(a), y = U32(b)](int i) { return x.at[i] ^ y.at[i]; });
}
inline __m512i srli_epi16(__m512i a, unsigned count) {
  return each_lane<__m512i>(U16(), [&, x = U16(a)](int i) { return static_cast<uint16_t>(x.at[i] >> count); });
}
inline __m512i slli_epi16(__m512i a, unsigned count) {
  return each_lane<__m512i>(U16(), [&, x = U16(a)](int i) { return static_cast<uint16_t>(x.at[i] << count); });
}
inline __m512i srai_epi16(__m512i a, unsigned count) {
  return each_lane<__m512i>(I16(), [&, x = I16(a)](int i) { return static_cast<int16_t>(x.at[i] >> count); });
}
inline __m512i slli_epi32(__m512i a, unsigned count) {
  return each_lane<__m512i>(U32(), [&, x = U32(a)](int i) { return x.at[i] << count; });
}
// Four products of an unsigned and a signed byte, added to a doubleword without saturation.
inline __m512i dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  return each_lane<__m512i>(I32(), [s = I32(sums), x = U8(a), y = I8(b)](int i) {
    int32_t sum = s.at[i];
    for (int j = 0; j < 4; ++j) sum += static_cast<int32_t>(x.at[4 * i + j]) * y.at[4 * i + j];
    return sum;
  });
}
// Two products of signed words, added to a doubleword without saturation.
inline __m512i dpwssd_epi32(__m512i sums, __m512i a, __m512i b) {
  return each_lane<__m512i>(I32(), [s = I32(sums), x = I16(a), y = I16(b)](int i) {
    int32_t sum = s.at[i];
    for (int j = 0; j < 2; ++j) sum += static_cast<int32_t>(x.at[2 * i + j]) * y.at[2 * i + j];
    return sum;
  });
}
inline __m512i cvtepu16_epi32(__m256i a) {
  return each_lane<__m512i>(U32(), [x = Halves(a)](int i) { return x.at[i]; });
}
inline __m512 cvtepi32_ps(__m512i a) {
  return each_lane<__m512>(F32(), [x = I32(a)](int i) { return static_cast<float>(x.at[i]); });
}
inline __m512 cvtph_ps(__m256i a) {
  return each_lane<__m512>(F32(), [x = Halves(a)](int i) { return _cvtsh_ss(x.at[i]); });
}
inline __m512 mul_ps(__m512 a, __m512 b) {
  return each_lane<__m512>(F32(), [x = F32(a), y = F32(b)](int i) { return x.at[i] * y.at[i]; });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return each_lane<__m512>(F32(), [x = F32(a), y = F32(b), z = F32(c)](int i) {
    return std::fma(x.at[i], y.at[i], z.at[i]);
  });
}
inline __m512 castsi512_ps(__m512i a) { return loaded<__m512>(&a); }

}  // namespace emulated

#define _mm512_loadu_ps(from) emulated::loaded<__m512>(from)
#define _mm512_loadu_si512(from) emulated::loaded<__m512i>(from)
#define _mm512_storeu_ps(to, value) emulated::storeu_ps(to, value)
#define _mm512_setzero_si512() emulated::set1_epi32(0)
#define _mm512_set1_epi32(value) emulated::set1_epi32(value)
#define _mm512_set1_ps(value) emulated::set1_ps(value)
#define _mm512_and_si512(a, b) emulated::and_si512(a, b)
#define _mm512_xor_si512(a, b) emulated::xor_si512(a, b)
#define _mm512_srli_epi16(a, count) emulated::srli_epi16(a, count)
#define _mm512_slli_epi16(a, count) emulated::slli_epi16(a, count)
#define _mm512_srai_epi16(a, count) emulated::srai_epi16(a, count)
#define _mm512_slli_epi32(a, count) emulated::slli_epi32(a, count)
#define _mm512_dpbusd_epi32(sums, a, b) emulated::dpbusd_epi32(sums, a, b)
#define _mm512_dpwssd_epi32(sums, a, b) emulated::dpwssd_epi32(sums, a, b)
#define _mm512_cvtepu16_epi32(a) emulated::cvtepu16_epi32(a)
#define _mm512_cvtepi32_ps(a) emulated::cvtepi32_ps(a)
#define _mm512_cvtph_ps(a) emulated::cvtph_ps(a)
#define _mm512_mul_ps(a, b) emulated::mul_ps(a, b)
#define _mm512_fmadd_ps(a, b, c) emulated::fmadd_ps(a, b, c)
#define _mm512_castsi512_ps(a) emulated::castsi512_ps(a)
