// Matrix products with AVX2, FMA and F16C: the arithmetic of linear_portable.cc, to the bit, with 8 output rows per vector.
//
// One tile is a panel (16 output rows, two vectors) by up to 6 or 4 input rows, accumulated in registers. With few input
// rows a tile reads the packed panel itself; with many, a stretch of the panel is expanded once into a buffer that stays in
// the first-level cache and is used by all of them, as many input rows at a time as the second-level cache holds.
#include <immintrin.h>

#include "products/flushing_x86.h"
#include "products/linear_inputs_avx2.h"
#include "products/linear_supers.h"
#include "products/linear_vectors.h"

namespace relevo {
namespace {

constexpr size_t kVector = 32;  // bytes

__m256i load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
__m128i load_16_bytes(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void store_bytes(uint8_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }

// The 4 bytes at `from` in every lane.
__m256i every_lane(const uint8_t* from) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
}

// Adds now and in place: otherwise the compiler makes a tree of a chain of integer sums, with more terms than registers.
void add_words(__m256i* sum, __m256i value) {
  *sum = _mm256_add_epi16(*sum, value);
  __asm__("" : "+x"(*sum));
}
void add_doublewords(__m256i* sum, __m256i value) {
  *sum = _mm256_add_epi32(*sum, value);
  __asm__("" : "+x"(*sum));
}

struct Avx2Vectors {
  using Vector = __m256;
  static constexpr int kVectors = 2;
  static Vector load_floats(const uint8_t* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
  static Vector load_halves(const uint8_t* from) { return _mm256_cvtph_ps(load_16_bytes(from)); }
  static Vector load_first(const uint8_t* from) {
    return _mm256_castsi256_ps(_mm256_and_si256(load_bytes(from), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Vector load_second(const uint8_t* from) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_bytes(from), 16)); }
  static void store_floats(uint8_t* to, Vector value) { _mm256_storeu_ps(reinterpret_cast<float*>(to), value); }
  static Vector every_lane_float(const uint8_t* from) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(from));
  }
  static Vector add_products(Vector sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
  static Vector times(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector plus(Vector a, Vector b) { return _mm256_add_ps(a, b); }
};

struct Avx2 : Tiles<Avx2Vectors> {
  static constexpr size_t kStretchBytes = 18 * 1024;  // half of a first-level cache
  static constexpr size_t kInputsBytes = 288 * 1024;  // half of a second-level cache
  static constexpr int64_t kFloatGroup = 6;
  static constexpr bool kExpandsFloats = true;
};

// ---- q4_0, q4_1: unsigned nibbles times int8. Eight products of pairs fit into 16 bits: 8 * 2 * 15 * 127 = 30480.
// Inputs are prepared as bytes.

template <Format kOne>
struct Nibbles {
  using Machine = Avx2;
  static constexpr Format kFormat = kOne;
  static constexpr bool kHasMinimum = kOne == Format::q4_1;
  static constexpr int kRaised = kHasMinimum ? 0 : 8;
  static constexpr int64_t kGroup = 4;
  static constexpr int64_t kInputBlock = kBlock;
  static constexpr int64_t kInputBlockBytes = kInputBlock + end_bytes(kHasMinimum, kRaised);  // of one row
  static constexpr bool kExpands = true;
  static constexpr bool kScalesAtEnd = false;
  static constexpr size_t kScalesAt = 4 * kGroupBytes;

  struct Packed {
    static constexpr size_t kBytes = kScalesAt + (kHasMinimum ? 64 : 32);
    static constexpr bool kPrefetch = true;
    static __m256i weights(const uint8_t* block, int step, int vector) {
      const __m256i low = _mm256_set1_epi8(15);
      const __m256i bytes = load_bytes(block + (step & 3) * kGroupBytes + vector * kVector);
      return _mm256_and_si256(step < 4 ? bytes : _mm256_srli_epi16(bytes, 4), low);
    }
    static __m256 scale(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + vector * 16); }
    static __m256 minimum(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + 32 + vector * 16); }
  };

  // [8 steps][2 vectors] of unpacked nibbles, float32 scales and minima.
  struct Expanded {
    static constexpr size_t kBytes = 8 * kGroupBytes + (kHasMinimum ? 128 : 64);
    static constexpr bool kPrefetch = false;
    static __m256i weights(const uint8_t* block, int step, int vector) {
      return load_bytes(block + step * kGroupBytes + vector * kVector);
    }
    static __m256 scale(const uint8_t* block, int vector) {
      return Avx2::load_floats(block + 8 * kGroupBytes + vector * kVector);
    }
    static __m256 minimum(const uint8_t* block, int vector) {
      return Avx2::load_floats(block + 8 * kGroupBytes + 64 + vector * kVector);
    }
  };

  static void expand(const uint8_t* block, uint8_t* out) { expand_block<Packed>(block, out); }

  template <class Packed>
  static void expand_block(const uint8_t* block, uint8_t* out) {
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
      uint8_t* to = out + vector * kVector;
#pragma GCC unroll 16
      for (int step = 0; step < 8; ++step) store_bytes(to + step * kGroupBytes, Packed::weights(block, step, vector));
      Avx2::store_floats(to + 8 * kGroupBytes, Packed::scale(block, vector));
      if (kHasMinimum) Avx2::store_floats(to + 8 * kGroupBytes + 64, Packed::minimum(block, vector));
    }
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    prepare_rounded<Nibbles, RoundedBytes>(x, k_left, rows, r, out);
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    __m256i sums[R][2];
#pragma GCC unroll 16
    for (int step = 0; step < 8; ++step) {
      const __m256i w0 = Weights::weights(w, step, 0), w1 = Weights::weights(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + r * 32 + step * 4);
        if (step == 0) {
          sums[r][0] = _mm256_maddubs_epi16(w0, input);
          sums[r][1] = _mm256_maddubs_epi16(w1, input);
        } else {
          add_words(&sums[r][0], _mm256_maddubs_epi16(w0, input));
          add_words(&sums[r][1], _mm256_maddubs_epi16(w1, input));
        }
      }
    }
    const uint8_t* ends = x + R * 32;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256 scale = Weights::scale(w, v);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        __m256i dot = _mm256_madd_epi16(sums[r][v], _mm256_set1_epi16(1));
        if (kRaised != 0) dot = _mm256_add_epi32(dot, every_lane(ends + (R + r) * 4));
        const __m256 product = _mm256_mul_ps(scale, Avx2::every_lane_float(ends + r * 4));
        acc[r][v] = _mm256_fmadd_ps(product, _mm256_cvtepi32_ps(dot), acc[r][v]);
        if (kHasMinimum)
          acc[r][v] = _mm256_fmadd_ps(Weights::minimum(w, v), Avx2::every_lane_float(ends + (R + r) * 4), acc[r][v]);
      }
    }
  }
};

// ---- Products of pairs of k in 16 bits: q8_0, q8_channel, q5_0, q5_1 and parts of q6_k, narrow and wide, and wide q4_0 and
// q4_1. Of 4 consecutive k, the
// even ones make one vector of pairs and the odd ones the other.
// Inputs are prepared as pairs in that order.

template <Format kOne>
struct Pairs {
  using Machine = Avx2;
  static constexpr Format kFormat = kOne;
  static constexpr bool kPerChannel = narrowed(kOne) == Format::q8_channel;
  static constexpr bool kHasMinimum = kOne == Format::q4_1_wide || narrowed(kOne) == Format::q5_1;
  static constexpr int kRaised = kOne == Format::q4_0_wide ? 8 : raised_by(kOne);
  static constexpr int64_t kGroup = 4;
  static constexpr int kSteps = kPerChannel ? 16 : narrowed(kOne) == Format::q6_k ? 4 : 8;
  static constexpr int64_t kInputBlock = kSteps * 4;
  static constexpr int64_t kInputBlockBytes = kInputBlock * 2 + end_bytes(kHasMinimum, kRaised);
  static constexpr bool kExpands = true;
  static constexpr bool kScalesAtEnd = kPerChannel;

  // [steps][even, odd][2 vectors] of int16, then float32 scales and minima.
  struct Expanded {
    static constexpr size_t kScalesAt = kSteps * 2 * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (kPerChannel ? 0 : 64) + (kHasMinimum ? 64 : 0);
    static constexpr bool kPrefetch = false;
    static __m256i even(const uint8_t* block, int step, int vector) {
      return load_bytes(block + step * 2 * kGroupBytes + vector * kVector);
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      return load_bytes(block + (step * 2 + 1) * kGroupBytes + vector * kVector);
    }
    static __m256 scale(const uint8_t* block, int vector) { return Avx2::load_floats(block + kScalesAt + vector * kVector); }
    static __m256 minimum(const uint8_t* block, int vector) {
      return Avx2::load_floats(block + kScalesAt + 64 + vector * kVector);
    }
  };

  template <class Packed>
  static void expand_block(const uint8_t* block, uint8_t* out) {
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
      uint8_t* to = out + vector * kVector;
#pragma GCC unroll 16
      for (int step = 0; step < kSteps; ++step) {
        store_bytes(to + step * 2 * kGroupBytes, Packed::even(block, step, vector));
        store_bytes(to + (step * 2 + 1) * kGroupBytes, Packed::odd(block, step, vector));
      }
      if (!kPerChannel) Avx2::store_floats(to + Expanded::kScalesAt, Packed::scale(block, vector));
      if constexpr (kHasMinimum) Avx2::store_floats(to + Expanded::kScalesAt + 64, Packed::minimum(block, vector));
    }
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    prepare_rounded<Pairs, RoundedPairs>(x, k_left, rows, r, out);
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    __m256i sums[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) {
      const __m256i e0 = Weights::even(w, step, 0), e1 = Weights::even(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + (r * kSteps + step) * 8);
        add_doublewords(&sums[r][0], _mm256_madd_epi16(e0, input));
        add_doublewords(&sums[r][1], _mm256_madd_epi16(e1, input));
      }
      const __m256i o0 = Weights::odd(w, step, 0), o1 = Weights::odd(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + (r * kSteps + step) * 8 + 4);
        add_doublewords(&sums[r][0], _mm256_madd_epi16(o0, input));
        add_doublewords(&sums[r][1], _mm256_madd_epi16(o1, input));
      }
    }
    const uint8_t* ends = x + R * kSteps * 8;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        __m256i dot = sums[r][v];
        if (kRaised != 0) dot = _mm256_add_epi32(dot, every_lane(ends + (R + r) * 4));
        __m256 scale = Avx2::every_lane_float(ends + r * 4);
        if (!kPerChannel) scale = _mm256_mul_ps(Weights::scale(w, v), scale);
        acc[r][v] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), acc[r][v]);
        if constexpr (kHasMinimum)
          acc[r][v] = _mm256_fmadd_ps(Weights::minimum(w, v), Avx2::every_lane_float(ends + (R + r) * 4), acc[r][v]);
      }
  }
};

template <Format kOne>
struct Bytes : Pairs<kOne> {
  using Shared = Pairs<kOne>;

  struct Packed {
    static constexpr size_t kScalesAt = Shared::kSteps * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (Shared::kPerChannel ? 0 : 32);
    static constexpr bool kPrefetch = true;
    static __m256i even(const uint8_t* block, int step, int vector) {
      return _mm256_srai_epi16(_mm256_slli_epi16(load_bytes(block + step * kGroupBytes + vector * kVector), 8), 8);
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      return _mm256_srai_epi16(load_bytes(block + step * kGroupBytes + vector * kVector), 8);
    }
    static __m256 scale(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + vector * 16); }
  };

  static void expand(const uint8_t* block, uint8_t* out) { Shared::template expand_block<Packed>(block, out); }
};

// Steps 0 to 3 are low nibbles, 4 to 7 high ones.
template <Format kOne>
struct WideNibbles : Pairs<kOne> {
  using Shared = Pairs<kOne>;

  struct Packed {
    static constexpr size_t kScalesAt = 4 * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (Shared::kHasMinimum ? 64 : 32);
    static constexpr bool kPrefetch = true;
    static __m256i group(const uint8_t* block, int step, int vector) {
      return load_bytes(block + (step & 3) * kGroupBytes + vector * kVector);
    }
    static __m256i even(const uint8_t* block, int step, int vector) {
      const __m256i bytes = group(block, step, vector);
      return _mm256_and_si256(step < 4 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(15));
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      const __m256i bytes = group(block, step, vector);
      if (step >= 4) return _mm256_srli_epi16(bytes, 12);
      return _mm256_and_si256(_mm256_srli_epi16(bytes, 8), _mm256_set1_epi16(15));
    }
    static __m256 scale(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + vector * 16); }
    static __m256 minimum(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + 32 + vector * 16); }
  };

  static void expand(const uint8_t* block, uint8_t* out) { Shared::template expand_block<Packed>(block, out); }
};

// ---- Nibbles with bits above them: q5_0, q5_1, parts of q5_k and q6_k. The first half of the steps are low nibbles.

template <Format kOne>
struct NibblesAndBits : Pairs<kOne> {
  using Shared = Pairs<kOne>;
  static constexpr int kBits = bits_above(kOne);

  struct Packed {
    static constexpr size_t kScalesAt = part_bytes(kOne);
    static constexpr size_t kBytes = kScalesAt + (Shared::kHasMinimum ? 64 : 32);
    static constexpr bool kPrefetch = true;
    static constexpr int kHalf = Shared::kSteps / 2;
    static __m256i group(const uint8_t* block, int step, int vector) {
      return load_bytes(block + (step % kHalf) * kGroupBytes + vector * kVector);
    }
    // The bits of a step of the low or high bytes, where they belong: above a nibble.
    static __m256i above(const uint8_t* block, int step, int vector, int byte) {
      const __m256i bits = load_bytes(block + nibble_bytes(kOne) + vector * kVector);
      const int at = byte * 8 + step * kBits;
      const __m256i moved = at < 4 ? _mm256_slli_epi16(bits, 4 - at) : _mm256_srli_epi16(bits, at - 4);
      return _mm256_and_si256(moved, _mm256_set1_epi16(((1 << kBits) - 1) << 4));
    }
    static __m256i even(const uint8_t* block, int step, int vector) {
      const __m256i bytes = group(block, step, vector);
      const __m256i nibbles = _mm256_and_si256(step < kHalf ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(15));
      return _mm256_or_si256(nibbles, above(block, step, vector, 0));
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      const __m256i bytes = _mm256_srli_epi16(group(block, step, vector), step < kHalf ? 8 : 12);
      const __m256i nibbles = step < kHalf ? _mm256_and_si256(bytes, _mm256_set1_epi16(15)) : bytes;
      return _mm256_or_si256(nibbles, above(block, step, vector, 1));
    }
    static __m256 scale(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + vector * 16); }
    static __m256 minimum(const uint8_t* block, int vector) { return Avx2::load_halves(block + kScalesAt + 32 + vector * 16); }
  };

  static void expand(const uint8_t* block, uint8_t* out) { Shared::template expand_block<Packed>(block, out); }
};

// ---- q4_k, q5_k, q6_k: a block is kParts parts, each a block of `Part`, whose scales and minima lie at the end of the whole.

// Of `Part`, as packed; `kPart`: which, since that says how far away its scales are.
template <Format kStored, class Part, int kPart>
struct PackedPart : Part::Packed {
  static __m256 product(const uint8_t* part, int end, int vector) {
    const uint8_t* block = part - kPart * part_bytes(kStored);
    const uint8_t* at = block + codes_at(kStored) + (kPart * num_ends(kStored) + end) * kPanelRows + vector * 8;
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    const __m256i wide = kStored == Format::q6_k ? _mm256_cvtepi8_epi32(codes) : _mm256_cvtepu8_epi32(codes);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), Avx2::load_halves(block + halves_at(kStored) + end * 32 + vector * 16));
  }
  static __m256 scale(const uint8_t* part, int vector) { return product(part, 0, vector); }
  static __m256 minimum(const uint8_t* part, int vector) { return product(part, 1, vector); }
};

template <Format kOne, class Part>
struct SuperBlocks : SuperShape<kOne, Part> {
  using Shape = SuperShape<kOne, Part>;
  using Shape::kParts;

  struct Packed {
    static constexpr size_t kPartBytes = part_bytes(kOne);
    static constexpr size_t kBytes = Shape::kPackedBytes;
    static constexpr bool kPrefetch = true;
    template <int kPart>
    using At = PackedPart<Shape::kStored, Part, kPart>;
  };

  struct Expanded {
    static constexpr size_t kPartBytes = Part::Expanded::kBytes;
    static constexpr size_t kBytes = kParts * kPartBytes;
    static constexpr bool kPrefetch = false;
    template <int kPart>
    using At = typename Part::Expanded;
  };

  static void expand(const uint8_t* block, uint8_t* out) { expand_from<0>(block, out); }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    if constexpr (std::is_same_v<Weights, Packed>) {
      add_from<R, 0>(w, x, acc);
    } else {
      for (int part = 0; part < kParts; ++part, w += Weights::kPartBytes, x += R * Part::kInputBlockBytes)
        Part::template add_block<typename Part::Expanded, R>(w, x, acc);
    }
  }

 private:
  template <int kPart>
  static void expand_from(const uint8_t* block, uint8_t* out) {
    if constexpr (kPart < kParts) {
      using One = typename Packed::template At<kPart>;
      Part::template expand_block<One>(block + kPart * Packed::kPartBytes, out + kPart * Expanded::kPartBytes);
      expand_from<kPart + 1>(block, out);
    }
  }

  template <int R, int kPart>
  static void add_from(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    if constexpr (kPart < kParts) {
      using One = typename Packed::template At<kPart>;
      Part::template add_block<One, R>(w + kPart * Packed::kPartBytes, x + kPart * R * Part::kInputBlockBytes, acc);
      add_from<R, kPart + 1>(w, x, acc);
    }
  }
};

struct Avx2Path {
  static constexpr Path kPath = Path::avx2;
  static constexpr bool kHasUncommon = true;
  using WhileRounded = Flushing;
  using FourK = SuperBlocks<Format::q4_k, relevo::Nibbles<Format::q4_1>>;
  using WideFourK = SuperBlocks<Format::q4_k_wide, relevo::WideNibbles<Format::q4_1_wide>>;
  template <Format kOne>
  using FiveK = SuperBlocks<kOne, NibblesAndBits<is_wide(kOne) ? Format::q5_1_wide : Format::q5_1>>;
  template <Format kOne>
  using SixK = SuperBlocks<kOne, NibblesAndBits<kOne>>;
  template <Format kOne>
  using Fives = NibblesAndBits<kOne>;
  template <Format kStored>
  using Floats = relevo::Floats<kStored, Avx2>;
  template <Format kOne>
  using Bytes = relevo::Bytes<kOne>;
  template <Format kOne>
  using Nibbles = relevo::Nibbles<kOne>;
  template <Format kOne>
  using WideNibbles = relevo::WideNibbles<kOne>;
};

}  // namespace

extern const LinearKernels kLinearAvx2;
const LinearKernels kLinearAvx2 = kernels_of<Avx2Path>();

}  // namespace relevo
