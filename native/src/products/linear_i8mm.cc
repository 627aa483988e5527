// Matrix products with Arm's matrices of bytes (I8MM): the arithmetic of linear_portable.cc, to the bit.
//
// One instruction multiplies 2 rows of inputs by 2 output rows over 8 k. A row of inputs alone is multiplied by dots.
#include "products/linear_dots_neon.h"

namespace relevo {
namespace {

struct MixedDots {
  static constexpr bool kMixesSigns = true;
  template <int kLane>
  static int32x4_t mixed(int32x4_t sum, int8x16_t weights, uint8x16_t input) {
    return vsudotq_laneq_s32(sum, weights, input, kLane);
  }
};

// Inputs of a block, R rows: [planes: high, low][pairs of rows][k / 8][2 rows][8] bytes; the last of an odd number of
// rows is a pair of one: [k / 8][8].
template <Format kOne>
struct Matrices : Integers<kOne> {
  using Shared = Integers<kOne>;
  using Alone = Dots<kOne, MixedDots>;
  using Shared::kInputBlock, Shared::kIsNibbles;
  static constexpr int64_t kGroup = 8;
  static constexpr bool kHasLow = Alone::kHasLow;
  static constexpr int64_t kRowBytes = Alone::kRowBytes;
  static constexpr int64_t kInputBlockBytes = Alone::kInputBlockBytes;
  static constexpr int kSlices = Shared::kGroups / 2;  // of 8 k: two groups
  static constexpr bool kExpands = true;

  // pair(): 8 k of output rows 2 * (4 * half + index) and the next.
  struct Packed : Shared::PackedBlock {
    template <bool kHigh>
    static int8x16_t pair(const uint8_t* block, int slice, int half, int index) {
      const int quad = half * 2 + index / 2;
      const int32x4_t first = vreinterpretq_s32_s8(Packed::template weights<kHigh>(block, 2 * slice, quad));
      const int32x4_t second = vreinterpretq_s32_s8(Packed::template weights<kHigh>(block, 2 * slice + 1, quad));
      return vreinterpretq_s8_s32(index % 2 == 0 ? vzip1q_s32(first, second) : vzip2q_s32(first, second));
    }
  };

  // [k / 8][halves][4 pairs of output rows][2][8] bytes.
  struct Expanded : Shared::template ExpandedBlock<Shared::kInputBlock * kPanelRows> {
    template <bool kHigh>
    static int8x16_t pair(const uint8_t* block, int slice, int half, int index) {
      return vreinterpretq_s8_u8(vld1q_u8(block + (((kHigh ? kSlices : 0) + slice) * 8 + half * 4 + index) * 16));
    }
  };

  template <bool kHigh>
  static void expand_slices(const uint8_t* block, uint8_t* out) {
    for (int slice = 0; slice < kSlices; ++slice)
      for (int index = 0; index < 8; ++index, out += 16)
        vst1q_u8(out, vreinterpretq_u8_s8(Packed::template pair<kHigh>(block, slice, index / 4, index % 4)));
  }

  static void expand(const uint8_t* block, uint8_t* out) {
    expand_slices<false>(block, out);
    if (kIsNibbles) expand_slices<true>(block, out + kSlices * 8 * 16);
    Expanded::take_scales(block, out);
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    int16_t q[kInputBlock];
    Shared::round_block(x, k_left, rows, r, q, out + rows * kRowBytes);
    const bool alone = r == rows - 1 && r % 2 == 0;
    uint8_t* to = out + r / 2 * 2 * kInputBlock + r % 2 * 8;
    for (int64_t i = 0; i < kInputBlock; i += 8) {
      const typename Alone::Planes planes = Alone::planes_of(q + i);
      const int64_t at = alone ? i : 2 * i;
      vst1_u8(to + at, planes.high);
      if (kHasLow) vst1_u8(to + rows * kInputBlock + at, planes.low);
    }
  }

  // Slice `slice` of pair p of a plane with R rows; a row that is alone comes twice.
  template <int R>
  static uint8x16_t inputs(const uint8_t* plane, int p, int slice) {
    const uint8_t* of_pair = plane + p * 2 * kInputBlock;
    if (2 * p + 1 < R) return vld1q_u8(of_pair + slice * 16);
    const uint8x8_t row = vld1_u8(of_pair + slice * 8);
    return vcombine_u8(row, row);
  }

  // Sums of 8 output rows: [4 pairs of them] of [2 rows of inputs][2 output rows].
  template <class Weights, int R, bool kLow, bool kHigh>
  static void add_slices(const uint8_t* w, const uint8_t* plane, int half, int32x4_t (*sums)[4]) {
    for (int slice = 0; slice < kSlices; ++slice)
#pragma GCC unroll 4
      for (int index = 0; index < 4; ++index) {
        const int8x16_t weights = Weights::template pair<kHigh>(w, slice, half, index);
#pragma GCC unroll 4
        for (int p = 0; p < (R + 1) / 2; ++p) {
          const uint8x16_t x = inputs<R>(plane, p, slice + (kHigh ? kSlices : 0));
          sums[p][index] = kLow ? vusmmlaq_s32(sums[p][index], x, weights)
                                : vmmlaq_s32(sums[p][index], vreinterpretq_s8_u8(x), weights);
        }
      }
  }

  template <class Weights, int R, bool kLow>
  static void add_plane(const uint8_t* w, const uint8_t* plane, int half, int32x4_t (*sums)[4]) {
    add_slices<Weights, R, kLow, false>(w, plane, half, sums);
    if constexpr (kIsNibbles) add_slices<Weights, R, kLow, true>(w, plane, half, sums);
  }

  template <class Weights, int R>
  static void add_matrices(const uint8_t* w, const uint8_t* x, float32x4_t (*acc)[4]) {
    constexpr int kPairs = (R + 1) / 2;
    for (int half = 0; half < 2; ++half) {
      int32x4_t sums[kPairs][4] = {};
      add_plane<Weights, R, false>(w, x, half, sums);
      if constexpr (kHasLow) {
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 4
          for (int index = 0; index < 4; ++index) sums[p][index] = vshlq_n_s32(sums[p][index], 8);
        add_plane<Weights, R, true>(w, x + R * kInputBlock, half, sums);
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        int32x4_t dots[2 * kPairs];
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          const int64x2_t first = vreinterpretq_s64_s32(sums[p][2 * v]), second = vreinterpretq_s64_s32(sums[p][2 * v + 1]);
          dots[2 * p] = vreinterpretq_s32_s64(vzip1q_s64(first, second));
          dots[2 * p + 1] = vreinterpretq_s32_s64(vzip2q_s64(first, second));
        }
        Shared::template add_dots<Weights, R>(w, x + R * kRowBytes, half * 2 + v, dots, acc);
      }
    }
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, float32x4_t (*acc)[4]) {
    if constexpr (R == 1 && !std::is_same_v<Weights, Expanded>)
      Alone::template add_block<Weights, R>(w, x, acc);
    else
      add_matrices<Weights, R>(w, x, acc);
  }
};

}  // namespace

extern const LinearKernels kLinearI8mm;
const LinearKernels kLinearI8mm = kernels_of<NeonPath<Path::i8mm, Matrices>>();

}  // namespace relevo
