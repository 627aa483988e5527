// Matrix products with AVX-512 and VNNI: the arithmetic of linear_portable.cc, to the bit, with the 16 output rows of a
// panel in one vector.
//
// One tile is a panel by up to 8 input rows. Unpacking weights costs little beside 8 rows of products, so every tile reads
// the packed panel.
#include <immintrin.h>

#include <cstring>

// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "products/flushing_x86.h"
#include "products/linear_inputs_avx2.h"
#include "products/linear_supers.h"
#include "products/linear_vectors_avx512.h"

namespace relevo {

namespace {

// Float16 numbers of a row beside a block or part: scale and minimum.
constexpr int num_halves(Format format) {
  const Format stored = narrowed(format);
  return stored == Format::q4_1 || stored == Format::q5_1 ? 2 : 1;
}

__m512i load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }

// The 4 bytes at `from` in every lane.
__m512i every_lane(const uint8_t* from) {
  int32_t bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// ---- Weights as packed, `at` a block or part of them. bytes(step): [16 rows][4 of k], unsigned. even(step), odd(step): of the
// same 4 of k the first and third, the second and fourth: [16 rows][2] int16. scale(), minimum(): [16 rows].

struct Packed {
  const uint8_t* at;
};

// q8_0, q8_channel: bytes are raised by 128, pairs are not.
template <Format kOne>
struct StoredBytes : Packed {
  static constexpr bool kPerChannel = narrowed(kOne) == Format::q8_channel;
  static constexpr size_t kScalesAt = (kPerChannel ? kChannelBlock : kBlock) * kPanelRows;
  static constexpr size_t kBytes = kScalesAt + (kPerChannel ? 0 : 32);
  __m512i group(int step) const { return load_bytes(at + step * kGroupBytes); }
  __m512i bytes(int step) const { return _mm512_xor_si512(group(step), _mm512_set1_epi32(static_cast<int>(0x80808080u))); }
  __m512i even(int step) const { return _mm512_srai_epi16(_mm512_slli_epi16(group(step), 8), 8); }
  __m512i odd(int step) const { return _mm512_srai_epi16(group(step), 8); }
  __m512 scale() const { return Avx512::load_halves(at + kScalesAt); }
};

// q4_0, q4_1, q5_0, q5_1, parts of the formats with blocks of 256. The first half of the steps are low nibbles.
template <Format kOne>
struct StoredNibbles : Packed {
  static constexpr int kBits = bits_above(kOne);
  static constexpr int kHalf = part_size(kOne) / 8;  // steps
  static constexpr size_t kScalesAt = part_bytes(kOne);
  static constexpr size_t kBytes = kScalesAt + 32 * num_halves(kOne);
  __m512i group(int step) const { return load_bytes(at + step % kHalf * kGroupBytes); }
  __m512i nibbles(int step) const {
    const __m512i both = group(step);
    return _mm512_and_si512(step < kHalf ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi32(0x0f0f0f0f));
  }
  // The bits of a step where they belong: above a nibble.
  __m512i above(int step) const {
    const __m512i bits = load_bytes(at + nibble_bytes(kOne));
    const int from = step * kBits;
    const __m512i moved = from < 4 ? _mm512_slli_epi16(bits, 4 - from) : _mm512_srli_epi16(bits, from - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi32(kBits == 1 ? 0x10101010 : 0x30303030));
  }
  __m512i bytes(int step) const {
    if constexpr (kBits == 0) return nibbles(step);
    return _mm512_or_si512(nibbles(step), above(step));
  }
  __m512i even(int step) const {
    if constexpr (kBits != 0) return _mm512_and_si512(bytes(step), _mm512_set1_epi32(0x00ff00ff));
    const __m512i both = group(step);
    return _mm512_and_si512(step < kHalf ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi32(0x000f000f));
  }
  __m512i odd(int step) const {
    if constexpr (kBits != 0) return _mm512_srli_epi16(bytes(step), 8);
    if (step >= kHalf) return _mm512_srli_epi16(group(step), 12);
    return _mm512_and_si512(_mm512_srli_epi16(group(step), 8), _mm512_set1_epi32(0x000f000f));
  }
  __m512 scale() const { return Avx512::load_halves(at + kScalesAt); }
  __m512 minimum() const { return Avx512::load_halves(at + kScalesAt + 32); }
};

// By how much unsigned weights are larger than what they stand for.
constexpr int raise_of(Format format) {
  const Format stored = narrowed(format);
  if (stored == Format::q8_0 || stored == Format::q8_channel) return is_wide(format) ? 0 : 128;
  return stored == Format::q4_0 ? 8 : raised_by(format);
}

// ---- Blocks of integers. Inputs of 8 bits are prepared as bytes and multiplied four of k at a time; those of 16 bits as pairs in
// the order of weights, two at a time.

template <Format kOne, class OfFormat>
struct Integers {
  using Machine = Avx512;
  using Stored = OfFormat;
  static constexpr Format kFormat = kOne;
  static constexpr bool kIsWide = is_wide(kOne);
  static constexpr bool kPerChannel = narrowed(kOne) == Format::q8_channel;
  static constexpr bool kIsSmall = narrowed(kOne) == Format::q6_k;
  static constexpr bool kHasMinimum = num_halves(kOne) == 2;
  static constexpr int kRaised = raise_of(kOne);
  static constexpr int64_t kGroup = 8;
  static constexpr int64_t kInputBlock = kPerChannel ? kChannelBlock : kIsSmall ? kSmallBlock : kBlock;
  static constexpr int kSteps = kInputBlock / 4;
  static constexpr int64_t kStepBytes = kIsWide ? 8 : 4;  // of inputs
  static constexpr int64_t kInputBlockBytes = kSteps * kStepBytes + end_bytes(kHasMinimum, kRaised);
  static constexpr bool kExpands = false;
  static constexpr bool kScalesAtEnd = kPerChannel;

  struct Packed {
    static constexpr size_t kBytes = Stored::kBytes;
    static constexpr bool kPrefetch = true;
  };
  using Expanded = Packed;

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    using Narrow = std::conditional_t<kIsSmall, RoundedSixteen, RoundedBytes>;
    prepare_rounded<Integers, std::conditional_t<kIsWide, RoundedPairs, Narrow>>(x, k_left, rows, r, out);
  }

  template <class, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    add<R>(Stored{{w}}, x, acc);
  }

  template <int R, class Weights>
  static void add(const Weights& w, const uint8_t* x, __m512 (*acc)[1]) {
    const uint8_t* ends = x + R * kSteps * kStepBytes;
    __m512i sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = kRaised ? every_lane(ends + (R + r) * 4) : _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) add_step<R>(w, step, x, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 scale = Avx512::every_lane_float(ends + r * 4);
      if constexpr (!kPerChannel) scale = _mm512_mul_ps(w.scale(), scale);
      acc[r][0] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[r]), acc[r][0]);
      if constexpr (kHasMinimum) acc[r][0] = _mm512_fmadd_ps(w.minimum(), Avx512::every_lane_float(ends + (R + r) * 4), acc[r][0]);
    }
  }

 private:
  template <int R, class Weights>
  static void add_step(const Weights& w, int step, const uint8_t* x, __m512i* sums) {
    if constexpr (kIsWide) {
      add_pairs<R>(w.even(step), x + step * kStepBytes, sums);
      add_pairs<R>(w.odd(step), x + step * kStepBytes + 4, sums);
    } else {
      const __m512i weights = w.bytes(step);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        sums[r] = _mm512_dpbusd_epi32(sums[r], weights, every_lane(x + (r * kSteps + step) * kStepBytes));
    }
  }

  // All rows in turn, so that no product waits for the one before it.
  template <int R>
  static void add_pairs(__m512i weights, const uint8_t* x, __m512i* sums) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = _mm512_dpwssd_epi32(sums[r], weights, every_lane(x + r * kSteps * kStepBytes));
  }
};

template <Format kOne>
using Nibbles = Integers<kOne, StoredNibbles<kOne>>;

// ---- q4_k, q5_k, q6_k: parts, whose scales and minima are integers times floats of the whole block.

template <Format kOne, class Part>
struct SuperBlocks : SuperShape<kOne, Part> {
  using Shape = SuperShape<kOne, Part>;

  struct Packed {
    static constexpr size_t kBytes = Shape::kPackedBytes;
    static constexpr bool kPrefetch = true;
  };
  using Expanded = Packed;

  struct OfPart : Part::Stored {
    __m512 of_scale, of_minimum;
    __m512 scale() const { return of_scale; }
    __m512 minimum() const { return of_minimum; }
  };

  template <class, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
    constexpr int kEnds = num_ends(kOne);
    const uint8_t *codes = w + codes_at(kOne), *halves = w + halves_at(kOne);
    const __m512 unit = Avx512::load_halves(halves), least = Avx512::load_halves(halves + (kEnds - 1) * 32);
#pragma GCC unroll 1
    for (int part = 0; part < Shape::kParts; ++part) {
      const uint8_t* of_part = codes + part * kEnds * kPanelRows;
      const __m512 scale = _mm512_mul_ps(of_codes(of_part), unit);
      const __m512 minimum = kEnds == 2 ? _mm512_mul_ps(of_codes(of_part + (kEnds - 1) * kPanelRows), least) : scale;
      Part::template add<R>(OfPart{{{w + part * part_bytes(kOne)}}, scale, minimum}, x + part * R * Part::kInputBlockBytes, acc);
    }
  }

 private:
  static __m512 of_codes(const uint8_t* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(Shape::kStored == Format::q6_k ? _mm512_cvtepi8_epi32(codes) : _mm512_cvtepu8_epi32(codes));
  }
};

struct Avx512Path {
  static constexpr Path kPath = Path::avx512;
  static constexpr bool kHasUncommon = true;
  using WhileRounded = Flushing;
  using FourK = SuperBlocks<Format::q4_k, relevo::Nibbles<Format::q4_1>>;
  using WideFourK = SuperBlocks<Format::q4_k_wide, relevo::Nibbles<Format::q4_1_wide>>;
  template <Format kOne>
  using FiveK = SuperBlocks<kOne, relevo::Nibbles<is_wide(kOne) ? Format::q5_1_wide : Format::q5_1>>;
  template <Format kOne>
  using SixK = SuperBlocks<kOne, relevo::Nibbles<kOne>>;
  template <Format kOne>
  using Fives = relevo::Nibbles<kOne>;
  template <Format kStored>
  using Floats = relevo::Floats<kStored, Avx512>;
  template <Format kOne>
  using Bytes = Integers<kOne, StoredBytes<kOne>>;
  template <Format kOne>
  using Nibbles = relevo::Nibbles<kOne>;
  template <Format kOne>
  using WideNibbles = relevo::Nibbles<kOne>;
};

}  // namespace

extern const LinearKernels kLinearAvx512;
const LinearKernels kLinearAvx512 = kernels_of<Avx512Path>();

}  // namespace relevo
