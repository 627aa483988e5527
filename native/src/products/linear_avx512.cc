// Matrix products with AVX-512 and VNNI: the arithmetic of linear_portable.cc, to the bit, with the 16 output rows of a
// panel in one vector.
//
// One tile is a panel by up to 8 input rows. Unpacking weights costs little beside 8 rows of products, so every tile reads
// the packed panel.
#include <immintrin.h>

#include <cstring>

// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "products/linear_inputs_avx2.h"
#include "products/linear_vectors_avx512.h"

namespace relevo {

extern const LinearKernels kLinearAvx2;

namespace {

__m512i load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }

// The 4 bytes at `from` in every lane.
__m512i every_lane(const uint8_t* from) {
  int32_t bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

struct Avx512 : Tiles<Avx512Vectors> {
  static constexpr size_t kStretchBytes = 32 * 1024;   // weights that stay in a first-level cache
  static constexpr size_t kInputsBytes = 768 * 1024;  // inputs that stay in a second-level cache
  static constexpr int64_t kFloatGroup = 8;
  static constexpr bool kExpandsFloats = false;
};

// What the formats with inputs of 8 bits share. Inputs are prepared as bytes.
template <Format kOne, int kRaisedBy>
struct Integers {
  using Machine = Avx512;
  static constexpr Format kFormat = kOne;
  static constexpr bool kHasMinimum = kOne == Format::q4_1;
  static constexpr int kRaised = kRaisedBy;
  static constexpr int64_t kGroup = 8;
  static constexpr int64_t kInputBlock = kOne == Format::q8_channel ? kChannelBlock : kBlock;
  static constexpr int64_t kInputBlockBytes = kInputBlock + end_bytes(kHasMinimum, kRaised);
  static constexpr bool kExpands = false;

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    prepare_rounded<Integers, RoundedBytes>(x, k_left, rows, r, out);
  }

  template <int R>
  static __m512i first_sum(const uint8_t* x, int r) {
    return kRaised ? every_lane(x + R * kInputBlock + (R + r) * 4) : _mm512_setzero_si512();
  }
  template <int R>
  static __m512 input_scale(const uint8_t* x, int r) {
    return Avx512::every_lane_float(x + R * kInputBlock + r * 4);
  }
};

// ---- q4_0, q4_1: unsigned nibbles times int8.

template <Format kOne>
struct Nibbles : Integers<kOne, kOne == Format::q4_1 ? 0 : 8> {
  using Shared = Integers<kOne, kOne == Format::q4_1 ? 0 : 8>;
  using Shared::kHasMinimum;
  static constexpr bool kScalesAtEnd = false;
  static constexpr size_t kScalesAt = 4 * kGroupBytes;

  struct Packed {
    static constexpr size_t kBytes = kScalesAt + (kHasMinimum ? 64 : 32);
    static constexpr bool kPrefetch = true;
  };
  using Expanded = Packed;

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = Shared::template first_sum<R>(x, r);
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const __m512i bytes = load_bytes(w + g * kGroupBytes);
      const __m512i first = _mm512_and_si512(bytes, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] = _mm512_dpbusd_epi32(sums[r], first, every_lane(x + r * 32 + g * 4));
        sums[r] = _mm512_dpbusd_epi32(sums[r], second, every_lane(x + r * 32 + 16 + g * 4));
      }
    }
    const __m512 scale = Avx512::load_halves(w + kScalesAt);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 product = _mm512_mul_ps(scale, Shared::template input_scale<R>(x, r));
      acc[r][0] = _mm512_fmadd_ps(product, _mm512_cvtepi32_ps(sums[r]), acc[r][0]);
    }
    if (!kHasMinimum) return;
    const __m512 minimum = Avx512::load_halves(w + kScalesAt + (kHasMinimum ? 32 : 0));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = _mm512_fmadd_ps(minimum, Avx512::every_lane_float(x + R * 32 + (R + r) * 4), acc[r][0]);
  }
};

// ---- q8_0, q8_channel: weights raised by 128 to be unsigned, times int8.

template <Format kOne>
struct NarrowBytes : Integers<kOne, 128> {
  using Shared = Integers<kOne, 128>;
  static constexpr bool kPerChannel = kOne == Format::q8_channel;
  static constexpr bool kScalesAtEnd = kPerChannel;
  static constexpr int kSteps = kPerChannel ? 16 : 8;

  struct Packed {
    static constexpr size_t kBytes = kSteps * kGroupBytes + (kPerChannel ? 0 : 32);
    static constexpr bool kPrefetch = true;
  };
  using Expanded = Packed;

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    const __m512i sign_bits = _mm512_set1_epi32(static_cast<int>(0x80808080u));
    __m512i sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = Shared::template first_sum<R>(x, r);
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) {
      const __m512i raised = _mm512_xor_si512(load_bytes(w + step * kGroupBytes), sign_bits);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        sums[r] = _mm512_dpbusd_epi32(sums[r], raised, every_lane(x + (r * kSteps + step) * 4));
    }
    const __m512 w_scale = kPerChannel ? _mm512_set1_ps(1.0f) : Avx512::load_halves(w + (kPerChannel ? 0 : kSteps * kGroupBytes));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 scale = Shared::template input_scale<R>(x, r);
      if (!kPerChannel) scale = _mm512_mul_ps(w_scale, scale);
      acc[r][0] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[r]), acc[r][0]);
    }
  }
};

// ---- Wide formats: products of pairs of k in 16 bits. Of 4 consecutive k, the even ones make one vector of pairs and the
// odd ones the other. Inputs are prepared as pairs in that order.

template <Format kOne>
struct Pairs {
  using Machine = Avx512;
  static constexpr Format kFormat = kOne;
  static constexpr bool kPerChannel = kOne == Format::q8_channel_wide;
  static constexpr bool kHasMinimum = kOne == Format::q4_1_wide;
  static constexpr int kRaised = kOne == Format::q4_0_wide ? 8 : 0;
  static constexpr int64_t kGroup = 8;
  static constexpr int kSteps = kPerChannel ? 16 : 8;
  static constexpr int64_t kInputBlock = kSteps * 4;
  static constexpr int64_t kInputBlockBytes = kInputBlock * 2 + end_bytes(kHasMinimum, kRaised);
  static constexpr bool kExpands = false;
  static constexpr bool kScalesAtEnd = kPerChannel;

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    prepare_rounded<Pairs, RoundedPairs>(x, k_left, rows, r, out);
  }

  // `Weights`: even(step), odd(step): [16 rows][2] int16; scale(), minimum(): [16 rows].
  template <int R, class Weights>
  static void add_pairs(const Weights& w, const uint8_t* x, __m512 (*acc)[1]) {
    const uint8_t* ends = x + R * kInputBlock * 2;
    __m512i sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = kRaised ? every_lane(ends + (R + r) * 4) : _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) {
      const __m512i even = w.even(step), odd = w.odd(step);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] = _mm512_dpwssd_epi32(sums[r], even, every_lane(x + (r * kSteps + step) * 8));
        sums[r] = _mm512_dpwssd_epi32(sums[r], odd, every_lane(x + (r * kSteps + step) * 8 + 4));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 scale = Avx512::every_lane_float(ends + r * 4);
      if constexpr (!kPerChannel) scale = _mm512_mul_ps(w.scale(), scale);
      acc[r][0] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[r]), acc[r][0]);
      if constexpr (kHasMinimum) acc[r][0] = _mm512_fmadd_ps(w.minimum(), Avx512::every_lane_float(ends + (R + r) * 4), acc[r][0]);
    }
  }
};

// Steps 0 to 3 are low nibbles, 4 to 7 high ones.
template <Format kOne>
struct WideNibbles : Pairs<kOne> {
  struct Packed {
    static constexpr size_t kScalesAt = 4 * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (kOne == Format::q4_1_wide ? 64 : 32);
    static constexpr bool kPrefetch = true;
    const uint8_t* block;
    __m512i even(int step) const {
      const __m512i bytes = load_bytes(block + (step & 3) * kGroupBytes);
      return _mm512_and_si512(step < 4 ? bytes : _mm512_srli_epi16(bytes, 4), _mm512_set1_epi32(0x000f000f));
    }
    __m512i odd(int step) const {
      const __m512i bytes = load_bytes(block + (step & 3) * kGroupBytes);
      if (step >= 4) return _mm512_srli_epi16(bytes, 12);
      return _mm512_and_si512(_mm512_srli_epi16(bytes, 8), _mm512_set1_epi32(0x000f000f));
    }
    __m512 scale() const { return Avx512::load_halves(block + kScalesAt); }
    __m512 minimum() const { return Avx512::load_halves(block + kScalesAt + 32); }
  };
  using Expanded = Packed;

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    Pairs<kOne>::template add_pairs<R>(Packed{w}, x, acc);
  }
};

template <Format kOne>
struct WideBytes : Pairs<kOne> {
  struct Packed {
    static constexpr size_t kScalesAt = Pairs<kOne>::kSteps * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (Pairs<kOne>::kPerChannel ? 0 : 32);
    static constexpr bool kPrefetch = true;
    const uint8_t* block;
    __m512i even(int step) const {
      return _mm512_srai_epi16(_mm512_slli_epi16(load_bytes(block + step * kGroupBytes), 8), 8);
    }
    __m512i odd(int step) const { return _mm512_srai_epi16(load_bytes(block + step * kGroupBytes), 8); }
    __m512 scale() const { return Avx512::load_halves(block + kScalesAt); }
  };
  using Expanded = Packed;

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    Pairs<kOne>::template add_pairs<R>(Packed{w}, x, acc);
  }
};

struct Avx512Path {
  static constexpr Path kPath = Path::avx512;
  static constexpr bool kHasUncommon = false;
  static const LinearKernels& kernels_of_uncommon() { return kLinearAvx2; }
  template <Format kStored>
  using Floats = relevo::Floats<kStored, Avx512>;
  template <Format kOne>
  using Bytes = std::conditional_t<is_wide(kOne), WideBytes<kOne>, NarrowBytes<kOne>>;
  template <Format kOne>
  using Nibbles = relevo::Nibbles<kOne>;
  template <Format kOne>
  using WideNibbles = relevo::WideNibbles<kOne>;
};

}  // namespace

extern const LinearKernels kLinearAvx512;
const LinearKernels kLinearAvx512 = kernels_of<Avx512Path>();

}  // namespace relevo
