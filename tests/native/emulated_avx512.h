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

inline void storeu_si512(void* to, __m512i value) { std::memcpy(to, &value, sizeof value); }
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
inline __m512i or_si512(__m512i a, __m512i b) {
  return each_lane<__m512i>(U32(), [x = U32(a), y = U32(b)](int i) { return x.at[i] | y.at[i]; });
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
inline __m512i rol_epi32(__m512i a, int count) {
  return each_lane<__m512i>(U32(), [&, x = U32(a)](int i) { return x.at[i] << count | x.at[i] >> (32 - count); });
}

// Subnormal numbers count as zero.
inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

// To nearest, ties to even: the lower half of the result from b, the upper one from a.
inline __m512bh cvtne2ps_pbh(__m512 a, __m512 b) {
  return each_lane<__m512bh>(U16(), [x = F32(a), y = F32(b)](int i) {
    const float value = flushed((i < 16 ? y : x).at[i % 16]);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  });
}

// The product of the second numbers of a pair, then that of the first, each added with one rounding.
inline __m512 dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  return each_lane<__m512>(F32(), [s = F32(sums), x = U16(a), y = U16(b)](int i) {
    const auto number = [](uint16_t half) {
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return flushed(value);
    };
    float sum = flushed(s.at[i]);
    for (int j = 1; j >= 0; --j) sum = flushed(std::fma(number(x.at[2 * i + j]), number(y.at[2 * i + j]), sum));
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
inline __m512 castsi512_ps(__m512i a) { return loaded<__m512>(&a); }

// What an instruction does to each half of a register is what its narrower twin does to a register.
struct TwoHalves {
  __m256 low, high;
  explicit TwoHalves(__m512 x) { std::memcpy(this, &x, sizeof x); }
  TwoHalves(__m256 first, __m256 second) : low(first), high(second) {}
  __m512 both() const { return loaded<__m512>(this); }
};
template <class Each>
__m512 each_half(__m512 a, __m512 b, const Each& each) {
  const TwoHalves x(a), y(b);
  return TwoHalves(each(x.low, y.low), each(x.high, y.high)).both();
}
inline __m512 add_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); });
}
inline __m512 sub_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_sub_ps(x, y); });
}
inline __m512 mul_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_mul_ps(x, y); });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const TwoHalves x(a), y(b), z(c);
  return TwoHalves(_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)).both();
}
inline __m512 div_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_div_ps(x, y); });
}
inline __m512 max_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}
inline __m512 min_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); });
}
inline __m512 andnot_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_andnot_ps(x, y); });
}
inline __m512 unpacklo_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_unpacklo_ps(x, y); });
}
inline __m512 unpackhi_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_unpackhi_ps(x, y); });
}
template <int kImmediate>
__m512 shuffle_ps(__m512 a, __m512 b) {
  return each_half(a, b, [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, kImmediate); });
}
// To nearest integers, ties to even; the scale is in the upper bits of the immediate.
template <int kImmediate>
__m512 roundscale_ps(__m512 a) {
  static_assert(kImmediate == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), "another rounding is not emulated");
  return each_half(a, a, [](__m256 x, __m256) { return _mm256_round_ps(x, kImmediate); });
}
// Quarters of a register, two of a and then two of b.
template <int kImmediate>
__m512 shuffle_f32x4(__m512 a, __m512 b) {
  return each_lane<__m512>(F32(), [x = F32(a), y = F32(b)](int i) {
    const int quarter = (kImmediate >> (i / 4 * 2)) & 3;
    return (i < 8 ? x : y).at[quarter * 4 + i % 4];
  });
}
inline __m512i add_epi32(__m512i a, __m512i b) {
  return each_lane<__m512i>(U32(), [x = U32(a), y = U32(b)](int i) { return x.at[i] + y.at[i]; });
}
// Rounded as the current mode says, which is to nearest; what does not fit is the least integer.
inline __m512i cvtps_epi32(__m512 a) {
  return each_lane<__m512i>(I32(), [x = F32(a)](int i) { return _mm_cvtss_si32(_mm_set_ss(x.at[i])); });
}
inline __m512i cvtepi8_epi32(__m128i a) {
  const auto bytes = Lanes<int8_t, 16>(a);
  return each_lane<__m512i>(I32(), [&](int i) { return bytes.at[i]; });
}
inline __m512i cvtepu8_epi32(__m128i a) {
  const auto bytes = Lanes<uint8_t, 16>(a);
  return each_lane<__m512i>(I32(), [&](int i) { return bytes.at[i]; });
}
inline __m512 zextps256_ps512(__m256 a) { return TwoHalves(a, _mm256_setzero_ps()).both(); }
template <int kHalf>
__m256 extractf32x8_ps(__m512 a) {
  return kHalf == 0 ? TwoHalves(a).low : TwoHalves(a).high;
}
// Lanes that are not in the mask are not touched in memory.
inline __m512 maskz_loadu_ps(__mmask16 mask, const float* from) {
  return each_lane<__m512>(F32(), [&](int i) { return (mask >> i) & 1 ? from[i] : 0.0f; });
}
inline void mask_storeu_ps(float* to, __mmask16 mask, __m512 value) {
  const F32 x(value);
  for (int i = 0; i < 16; ++i)
    if ((mask >> i) & 1) to[i] = x.at[i];
}
inline __m512 mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return each_lane<__m512>(F32(), [mask, x = F32(a), y = F32(b)](int i) { return ((mask >> i) & 1 ? y : x).at[i]; });
}
inline __mmask16 equal_lanes(__m512 a, __m512 b) {
  const F32 x(a), y(b);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<unsigned>(x.at[i] == y.at[i]) << i;
  return static_cast<__mmask16>(mask);
}
template <int kPredicate>
__mmask16 cmp_ps_mask(__m512 a, __m512 b) {
  static_assert(kPredicate == _CMP_EQ_OQ, "another comparison is not emulated");
  return equal_lanes(a, b);
}

}  // namespace emulated

#define _mm512_loadu_ps(from) emulated::loaded<__m512>(from)
#define _mm512_loadu_si512(from) emulated::loaded<__m512i>(from)
#define _mm512_storeu_si512(to, value) emulated::storeu_si512(to, value)
#define _mm512_storeu_ps(to, value) emulated::storeu_ps(to, value)
#define _mm512_setzero_si512() emulated::set1_epi32(0)
#define _mm512_set1_epi32(value) emulated::set1_epi32(value)
#define _mm512_set1_ps(value) emulated::set1_ps(value)
#define _mm512_and_si512(a, b) emulated::and_si512(a, b)
#define _mm512_or_si512(a, b) emulated::or_si512(a, b)
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
#define _mm512_rol_epi32(a, count) emulated::rol_epi32(a, count)
#define _mm512_cvtne2ps_pbh(a, b) emulated::cvtne2ps_pbh(a, b)
#define _mm512_dpbf16_ps(sums, a, b) emulated::dpbf16_ps(sums, a, b)
#define _mm512_castsi512_ps(a) emulated::castsi512_ps(a)
#define _mm512_setzero_ps() emulated::set1_ps(0.0f)
#define _mm512_add_ps(a, b) emulated::add_ps(a, b)
#define _mm512_sub_ps(a, b) emulated::sub_ps(a, b)
#define _mm512_div_ps(a, b) emulated::div_ps(a, b)
#define _mm512_max_ps(a, b) emulated::max_ps(a, b)
#define _mm512_min_ps(a, b) emulated::min_ps(a, b)
#define _mm512_andnot_ps(a, b) emulated::andnot_ps(a, b)
#define _mm512_unpacklo_ps(a, b) emulated::unpacklo_ps(a, b)
#define _mm512_unpackhi_ps(a, b) emulated::unpackhi_ps(a, b)
#define _mm512_shuffle_ps(a, b, immediate) emulated::shuffle_ps<immediate>(a, b)
#define _mm512_shuffle_f32x4(a, b, immediate) emulated::shuffle_f32x4<immediate>(a, b)
#define _mm512_roundscale_ps(a, immediate) emulated::roundscale_ps<immediate>(a)
#define _mm512_add_epi32(a, b) emulated::add_epi32(a, b)
#define _mm512_cvtps_epi32(a) emulated::cvtps_epi32(a)
#define _mm512_cvtepi8_epi32(a) emulated::cvtepi8_epi32(a)
#define _mm512_cvtepu8_epi32(a) emulated::cvtepu8_epi32(a)
#define _mm512_zextps256_ps512(a) emulated::zextps256_ps512(a)
#define _mm512_castps512_ps256(a) emulated::extractf32x8_ps<0>(a)
#define _mm512_extractf32x8_ps(a, half) emulated::extractf32x8_ps<half>(a)
#define _mm512_maskz_loadu_ps(mask, from) emulated::maskz_loadu_ps(mask, from)
#define _mm512_mask_blend_ps(mask, a, b) emulated::mask_blend_ps(mask, a, b)
#define _mm512_mask_storeu_ps(to, mask, value) emulated::mask_storeu_ps(to, mask, value)
#define _mm512_cmp_ps_mask(a, b, predicate) emulated::cmp_ps_mask<predicate>(a, b)
