// Eight floats at a time with what every 64-bit Arm processor has: two vectors of four. The interface is simd_portable.h's.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace relevo {
namespace {

struct NeonVec {
  static constexpr int W = 8;
  struct F {
    float32x4_t low, high;
  };
  static constexpr int LEAVES[W] = {0, 2, 1, 3, 4, 6, 5, 7};

  static F zero() { return set1(0.0f); }
  static F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static void store(float* p, F x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
  }
  static F load_part(const float* p, int64_t n) {
    float lanes[W] = {};
    std::memcpy(lanes, p, sizeof(float) * static_cast<size_t>(n));
    return load(lanes);
  }
  static void store_part(float* p, F x, int64_t n) {
    float lanes[W];
    store(lanes, x);
    std::memcpy(p, lanes, sizeof(float) * static_cast<size_t>(n));
  }

  static F held(F x) { return x; }

  static F add(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static F sub(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static F mul(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static F div(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
  static F fma_of(const float* a, F b, F c) { return fma(set1(*a), b, c); }
  static F abs(F a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
  // Compared and chosen: the instruction for the larger one gives another zero, and another result for what is no number.
  static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F max(F a, F b) { return {larger(a.low, b.low), larger(a.high, b.high)}; }
  static F min(F a, F b) { return {smaller(a.low, b.low), smaller(a.high, b.high)}; }
  static F round(F x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
  static float32x4_t pow2(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  static F pow2(F n) { return {pow2(n.low), pow2(n.high)}; }
  static float first(F x) { return vgetq_lane_f32(x.low, 0); }
  static float max_lane(F x) { return vmaxvq_f32(larger(x.low, x.high)); }

  // x0 + x2, x1 + x3 of a, then of b.
  static float32x4_t halves_added(float32x4_t a, float32x4_t b) {
    const float64x2_t wide_a = vreinterpretq_f64_f32(a), wide_b = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(wide_a, wide_b)), vreinterpretq_f32_f64(vzip2q_f64(wide_a, wide_b)));
  }
  static float32x4_t sums(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    return vpaddq_f32(halves_added(a, b), halves_added(c, d));
  }
  static float sum_lanes(F x) {
    const float32x2_t both = vpadd_f32(vadd_f32(vget_low_f32(x.low), vget_high_f32(x.low)),
                                       vadd_f32(vget_low_f32(x.high), vget_high_f32(x.high)));
    return vpadds_f32(both);
  }
  static void sum_lanes4(F a, F b, F c, F d, float* out) {
    vst1q_f32(out, vaddq_f32(sums(a.low, b.low, c.low, d.low), sums(a.high, b.high, c.high, d.high)));
  }
  static uint32_t equal_mask(F a, F b) {
    constexpr uint32_t LOW[4] = {1, 2, 4, 8}, HIGH[4] = {16, 32, 64, 128};
    const uint32x4_t low = vandq_u32(vceqq_f32(a.low, b.low), vld1q_u32(LOW));
    const uint32x4_t high = vandq_u32(vceqq_f32(a.high, b.high), vld1q_u32(HIGH));
    return vaddvq_u32(vorrq_u32(low, high));
  }

  static void transpose4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float32x4_t* out) {
    const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    out[0] = vreinterpretq_f32_f64(vzip1q_f64(ab_even, cd_even));
    out[1] = vreinterpretq_f32_f64(vzip1q_f64(ab_odd, cd_odd));
    out[2] = vreinterpretq_f32_f64(vzip2q_f64(ab_even, cd_even));
    out[3] = vreinterpretq_f32_f64(vzip2q_f64(ab_odd, cd_odd));
  }
  static void transpose(F (&rows)[W]) {
    float32x4_t top_low[4], top_high[4], bottom_low[4], bottom_high[4];
    transpose4(rows[0].low, rows[1].low, rows[2].low, rows[3].low, top_low);
    transpose4(rows[0].high, rows[1].high, rows[2].high, rows[3].high, top_high);
    transpose4(rows[4].low, rows[5].low, rows[6].low, rows[7].low, bottom_low);
    transpose4(rows[4].high, rows[5].high, rows[6].high, rows[7].high, bottom_high);
    for (int i = 0; i < 4; ++i) {
      rows[i] = {top_low[i], bottom_low[i]};
      rows[i + 4] = {top_high[i], bottom_high[i]};
    }
  }

  static uint16x8_t load_halves(const uint8_t* p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }
  static F from_f16(const uint8_t* p) {
    const float16x8_t halves = vreinterpretq_f16_u16(load_halves(p));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  static F from_bf16(const uint8_t* p) {
    const uint16x8_t halves = load_halves(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16))};
  }
  static F from_i8(const uint8_t* p) {
    const int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
  }
  static F from_f16_8(const uint8_t* p) { return from_f16(p); }
  static F from_bf16_8(const uint8_t* p) { return from_bf16(p); }
  static F from_i8_8(const uint8_t* p) { return from_i8(p); }

  static void to_f16(F x, uint8_t* p, int64_t n) {
    const float16x8_t halves = vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high);
    std::memcpy(p, &halves, 2 * static_cast<size_t>(n));
  }
  // The upper half of each lane, to nearest, ties to even.
  static uint16x4_t bf16_bits(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), nearest, quiet), 16);
  }
  static void to_bf16(F x, uint8_t* p, int64_t n) {
    const uint16x8_t halves = vcombine_u16(bf16_bits(x.low), bf16_bits(x.high));
    std::memcpy(p, &halves, 2 * static_cast<size_t>(n));
  }
  static void to_i8(F x, uint8_t* p, int64_t n) {
    const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(x.low)), high = vqmovn_s32(vcvtnq_s32_f32(x.high));
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(low, high));
    std::memcpy(p, &bytes, static_cast<size_t>(n));
  }
};

}  // namespace
}  // namespace relevo
