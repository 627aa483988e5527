// Integer products by dots of 4 bytes: inputs of 16 bits are two planes of bytes, x = 256 * high + low.
//
// `Instructions` says how weights meet the low plane, whose bytes have no sign:
//   kMixesSigns      whether signed bytes can be multiplied by unsigned ones
//   mixed<kLane>()   their dot
// Where they cannot, weights of 8 bits meet low - 128, and 128 * (sum of weights) is added; nibbles have no sign either.
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include "products/linear_integers_neon.h"

namespace relevo {
namespace {

// Inputs of a block, R rows: [R][planes: high, low][k] bytes. Inputs of 8 bits are one plane.
template <Format kOne, class Instructions>
struct Dots : Integers<kOne> {
  using Shared = Integers<kOne>;
  using Shared::kGroups, Shared::kInputBlock;
  static constexpr int64_t kGroup = 4;
  static constexpr bool kHasLow = is_wide(kOne);
  static constexpr int64_t kRowBytes = kInputBlock * (kHasLow ? 2 : 1);  // of a block's planes
  static constexpr int64_t kInputBlockBytes = kRowBytes + Shared::kEndBytes;
  static constexpr bool kLowersLow = kHasLow && !Shared::kIsNibbles && !Instructions::kMixesSigns;
  static constexpr bool kExpands = false;
  using Packed = typename Shared::PackedBlock;
  using Expanded = Packed;

  // The planes of 8 rounded inputs, as bytes.
  struct Planes {
    uint8x8_t high, low;
  };
  static Planes planes_of(const int16_t* q) {
    const int16x8_t words = vld1q_s16(q);
    if (!kHasLow) return {vreinterpret_u8_s8(vmovn_s16(words)), vdup_n_u8(0)};
    const uint8x8_t low = vmovn_u16(vreinterpretq_u16_s16(words));
    return {vreinterpret_u8_s8(vshrn_n_s16(words, 8)), kLowersLow ? veor_u8(low, vdup_n_u8(0x80)) : low};
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    int16_t q[kInputBlock];
    Shared::round_block(x, k_left, rows, r, q, out + rows * kRowBytes);
    uint8_t* to = out + r * kRowBytes;
    for (int64_t i = 0; i < kInputBlock; i += 8) {
      const Planes planes = planes_of(q + i);
      vst1_u8(to + i, planes.high);
      if (kHasLow) vst1_u8(to + kInputBlock + i, planes.low);
    }
  }

  // Of 8 output rows: two vectors for each row of inputs.
  template <int R>
  struct Sums {
    int32x4_t high[2][R], low[2][R];
    int32x4_t lowered[2];  // minus 128 * (sum of weights)
  };

  template <int kLane>
  static int32x4_t add_low(int32x4_t sum, int8x16_t weights, uint8x16_t input) {
    if constexpr (Instructions::kMixesSigns) {
      return Instructions::template mixed<kLane>(sum, weights, input);
    } else if constexpr (kLowersLow) {
      return vdotq_laneq_s32(sum, weights, vreinterpretq_s8_u8(input), kLane);
    } else {
      return vreinterpretq_s32_u32(
          vdotq_laneq_u32(vreinterpretq_u32_s32(sum), vreinterpretq_u8_s8(weights), input, kLane));
    }
  }

  // Products of 4 k, which are lane kLane of the inputs.
  template <class Weights, int R, int kLane, bool kHigh>
  static void add_step(const uint8_t* w, int group, int half, const uint8x16_t* high, const uint8x16_t* low, Sums<R>* sums) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int8x16_t weights = Weights::template weights<kHigh>(w, group + kLane, half * 2 + v);
      if constexpr (kLowersLow) sums->lowered[v] = vdotq_s32(sums->lowered[v], weights, vdupq_n_s8(-128));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums->high[v][r] = vdotq_laneq_s32(sums->high[v][r], weights, vreinterpretq_s8_u8(high[r]), kLane);
        if constexpr (kHasLow) sums->low[v][r] = add_low<kLane>(sums->low[v][r], weights, low[r]);
      }
    }
  }

  // The whole sums, in place of those of the high plane.
  template <int R>
  static void join_planes(Sums<R>* sums) {
    if (!kHasLow) return;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        int32x4_t low = sums->low[v][r];
        if (kLowersLow) low = vsubq_s32(low, sums->lowered[v]);
        sums->high[v][r] = vaddq_s32(vshlq_n_s32(sums->high[v][r], 8), low);
      }
  }

  template <class Weights, int R, bool kHigh>
  static void add_groups(const uint8_t* w, const uint8_t* x, int half, Sums<R>* sums) {
    const uint8_t* of_step = x + (kHigh ? kGroups : 0) * 4;
    for (int group = 0; group < kGroups; group += 4, of_step += 16) {
      uint8x16_t high[R], low[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        high[r] = vld1q_u8(of_step + r * kRowBytes);
        low[r] = kHasLow ? vld1q_u8(of_step + r * kRowBytes + kInputBlock) : high[r];
      }
      add_step<Weights, R, 0, kHigh>(w, group, half, high, low, sums);
      add_step<Weights, R, 1, kHigh>(w, group, half, high, low, sums);
      add_step<Weights, R, 2, kHigh>(w, group, half, high, low, sums);
      add_step<Weights, R, 3, kHigh>(w, group, half, high, low, sums);
    }
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, float32x4_t (*acc)[4]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Sums<R> sums{};
      add_groups<Weights, R, false>(w, x, half, &sums);
      if constexpr (Shared::kIsNibbles) add_groups<Weights, R, true>(w, x, half, &sums);
      join_planes(&sums);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        Shared::template add_dots<Weights, R>(w, x + R * kRowBytes, half * 2 + v, sums.high[v], acc);
    }
  }
};

}  // namespace
}  // namespace relevo
