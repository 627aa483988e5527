// The tiles of the Arm paths, and their float formats: a panel is four vectors of 4 output rows.
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "linear_tiles.h"

namespace relevo {
namespace {

float32x4_t load_floats(const uint8_t* from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
void store_floats(uint8_t* to, float32x4_t value) { vst1q_u8(to, vreinterpretq_u8_f32(value)); }
float32x4_t load_halves(const uint8_t* from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }

// The 4 bytes at `from` in every lane.
float32x4_t every_lane(const uint8_t* from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return vdupq_n_f32(value);
}

struct Neon {
  static constexpr size_t kStretchBytes = 24 * 1024;   // less than half of a first-level cache of 64 KiB; not measured
  static constexpr size_t kInputsBytes = 384 * 1024;  // less than half of a second-level cache of 1 MiB; not measured

  // Its own function, so that the compiler gives the accumulators the registers.
  template <class F, class Weights, int R>
  __attribute__((noinline)) static void add_tile(const uint8_t* w, const uint8_t* x, int64_t blocks, float* sums) {
    float32x4_t acc[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad) acc[r][quad] = vld1q_f32(sums + r * kPanelRows + quad * 4);
    for (int64_t b = 0; b < blocks; ++b) {
      if (Weights::kPrefetch) prefetch(w, Weights::kBytes);
      F::template add_block<Weights, R>(w, x, acc);
      w += Weights::kBytes;
      x += R * F::kInputBlockBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad) vst1q_f32(sums + r * kPanelRows + quad * 4, acc[r][quad]);
  }
};

// ---- f32, f16, bf16: a block is one k. Inputs, R rows: [k][R] float32.

template <Format kStored>
struct Floats {
  using Machine = Neon;
  static constexpr Format kFormat = kStored;
  static constexpr int64_t kGroup = 6;
  static constexpr int64_t kInputBlock = 1;
  static constexpr int64_t kInputBlockBytes = 4;
  static constexpr bool kExpands = kStored != Format::f32;
  static constexpr bool kScalesAtEnd = false;

  struct Packed {
    static constexpr size_t kBytes = kPanelRows * (kStored == Format::f32 ? 4 : 2);
    static constexpr bool kPrefetch = true;
    static float32x4_t weights(const uint8_t* block, int quad) {
      if (kStored == Format::f32) return load_floats(block + quad * 16);
      if (kStored == Format::f16) return load_halves(block + quad * 8);
      return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(block + quad * 8)), 16));
    }
  };

  struct Expanded {
    static constexpr size_t kBytes = kPanelRows * 4;
    static constexpr bool kPrefetch = false;
    static float32x4_t weights(const uint8_t* block, int quad) { return load_floats(block + quad * 16); }
  };

  static void expand(const uint8_t* block, uint8_t* out) {
    for (int quad = 0; quad < 4; ++quad) store_floats(out + quad * 16, Packed::weights(block, quad));
  }

  static void prepare_block(const float* x, int64_t, int64_t, int64_t r, uint8_t* out) {
    std::memcpy(out + r * 4, x, 4);
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, float32x4_t (*acc)[4]) {
    float32x4_t weights[4];
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) weights[quad] = Weights::weights(w, quad);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float32x4_t input = every_lane(x + r * 4);
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad) acc[r][quad] = vfmaq_f32(acc[r][quad], weights[quad], input);
    }
  }
};

}  // namespace
}  // namespace relevo
