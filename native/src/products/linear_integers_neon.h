// What the Arm paths share of formats that multiply integers: how inputs are rounded, and what becomes of exact sums.
//
// A prepared block of R rows: the rounded inputs in an order of the path's own, then scales [R] and terms [R]:
// x_scale * sum (q4_1) or int32 8 * sum (q4_0).
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include "products/linear_vectors_neon.h"

namespace relevo {
namespace {

// Rounds `size` (a multiple of 8) inputs; returns their sum.
int32_t rounded(const float* x, int64_t size, float inverse, int16_t* out) {
  int32_t sum = 0;
  for (int64_t i = 0; i < size; i += 8) {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
    const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse));
    const int16x8_t words = vqmovn_high_s32(vqmovn_s32(low), high);
    vst1q_s16(out + i, words);
    sum += vaddlvq_s16(words);
  }
  return sum;
}

// Compared as bits, so that a NaN among the values is the result.
float largest_magnitude(const float* x, int64_t size) {
  uint32x4_t largest = vdupq_n_u32(0);
  for (int64_t i = 0; i < size; i += 4)
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  const uint32_t bits = vmaxvq_u32(largest);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <Format kOne>
struct Integers {
  using Machine = Neon;
  static constexpr Format kFormat = kOne;
  static constexpr Format kStored = narrowed(kOne);
  static constexpr bool kPerChannel = kStored == Format::q8_channel;
  static constexpr bool kIsNibbles = kStored == Format::q4_0 || kStored == Format::q4_1;
  static constexpr bool kHasMinimum = kStored == Format::q4_1;
  static constexpr bool kHasOffset = kStored == Format::q4_0;
  static constexpr bool kScalesAtEnd = kPerChannel;
  static constexpr int kSteps = kPerChannel ? 16 : 8;               // of 4 k
  static constexpr int kGroups = kIsNibbles ? kSteps / 2 : kSteps;  // of 4 bytes of a row
  static constexpr int64_t kInputBlock = kSteps * 4;
  static constexpr int64_t kEndBytes = 8;  // of one row

  // A packed block: groups of weights, then float16 scales and minima. A group of nibbles is two steps: step `group` in the
  // low ones and step `group + kGroups` in the high ones. Which of them is known where the code is made (kHigh).
  struct PackedBlock {
    static constexpr size_t kScalesAt = kGroups * kGroupBytes;
    static constexpr size_t kBytes = kScalesAt + (kPerChannel ? 0 : 32) + (kHasMinimum ? 32 : 0);
    static constexpr bool kPrefetch = true;
    static float32x4_t scale(const uint8_t* block, int quad) { return Neon::load_halves(block + kScalesAt + quad * 8); }
    static float32x4_t minimum(const uint8_t* block, int quad) { return scale(block + 32, quad); }
    template <bool kHigh>
    static int8x16_t values(uint8x16_t bytes) {
      if (!kIsNibbles) return vreinterpretq_s8_u8(bytes);
      return vreinterpretq_s8_u8(kHigh ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15)));
    }
    // 4 k of 4 output rows.
    template <bool kHigh>
    static int8x16_t weights(const uint8_t* block, int group, int quad) {
      return values<kHigh>(vld1q_u8(block + group * kGroupBytes + quad * 16));
    }
  };

  // A block whose weights were expanded to `kWeightsBytes`, then float32 scales and minima.
  template <size_t kWeightsBytes>
  struct ExpandedBlock {
    static constexpr size_t kBytes = kWeightsBytes + (kPerChannel ? 0 : 64) + (kHasMinimum ? 64 : 0);
    static constexpr bool kPrefetch = false;
    static float32x4_t scale(const uint8_t* block, int quad) { return Neon::load_floats(block + kWeightsBytes + quad * 16); }
    static float32x4_t minimum(const uint8_t* block, int quad) { return scale(block + 64, quad); }
    static void take_scales(const uint8_t* packed, uint8_t* out) {
      for (int quad = 0; quad < 4 && !kPerChannel; ++quad) {
        Neon::store_floats(out + kWeightsBytes + quad * 16, PackedBlock::scale(packed, quad));
        if (kHasMinimum) Neon::store_floats(out + kWeightsBytes + 64 + quad * 16, PackedBlock::minimum(packed, quad));
      }
    }
  };

  // Rounds a block of row r of R into q [kInputBlock]; writes its scale and term.
  static void round_block(const float* x, int64_t k_left, int64_t rows, int64_t r, int16_t* q, uint8_t* ends) {
    float filled[kInputBlock];
    x = whole_block(x, k_left, filled);
    const BlockScale s = scale_of(largest_magnitude(x, kInputBlock), kFormat);
    const int32_t sum = rounded(x, kInputBlock, s.inverse, q);
    const float scaled_sum = s.scale * static_cast<float>(sum);
    const int32_t offset = 8 * sum;
    std::memcpy(ends + r * 4, &s.scale, 4);
    std::memcpy(ends + (rows + r) * 4, kHasMinimum ? static_cast<const void*>(&scaled_sum) : &offset, 4);
  }

  // Adds a block's products for the 4 output rows `quad`: dots [R] are exact.
  template <class Weights, int R>
  static void add_dots(const uint8_t* w, const uint8_t* ends, int quad, const int32x4_t* dots, float32x4_t (*acc)[4]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32x4_t dot = dots[r];
      if (kHasOffset) dot = vsubq_s32(dot, vreinterpretq_s32_f32(Neon::every_lane_float(ends + (R + r) * 4)));
      float32x4_t scale = Neon::every_lane_float(ends + r * 4);
      if constexpr (!kPerChannel) scale = vmulq_f32(Weights::scale(w, quad), scale);
      acc[r][quad] = vfmaq_f32(acc[r][quad], scale, vcvtq_f32_s32(dot));
      if constexpr (kHasMinimum)
        acc[r][quad] = vfmaq_f32(acc[r][quad], Weights::minimum(w, quad), Neon::every_lane_float(ends + (R + r) * 4));
    }
  }
};

}  // namespace
}  // namespace relevo
