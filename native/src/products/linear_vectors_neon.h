// The vectors of the Arm paths: a panel is four of 4 output rows.
// Included by sources compiled for such a path: everything here has internal linkage.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "products/linear_vectors.h"

namespace relevo {

extern const LinearKernels kLinearPortable;

namespace {

struct NeonVectors {
  using Vector = float32x4_t;
  static constexpr int kVectors = 4;
  static Vector load_floats(const uint8_t* from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
  static Vector load_halves(const uint8_t* from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
  static Vector load_first(const uint8_t* from) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(vld1q_u8(from)), vdupq_n_u32(0xffff0000u)));
  }
  static Vector load_second(const uint8_t* from) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(vld1q_u8(from)), 16));
  }
  static void store_floats(uint8_t* to, Vector value) { vst1q_u8(to, vreinterpretq_u8_f32(value)); }
  static Vector every_lane_float(const uint8_t* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return vdupq_n_f32(value);
  }
  static Vector add_products(Vector sum, Vector a, Vector b) { return vfmaq_f32(sum, a, b); }
  static Vector times(Vector a, Vector b) { return vmulq_f32(a, b); }
  static Vector plus(Vector a, Vector b) { return vaddq_f32(a, b); }
};

struct Neon : Tiles<NeonVectors> {
  static constexpr size_t kStretchBytes = 24 * 1024;   // less than half of a first-level cache of 64 KiB; not measured
  static constexpr size_t kInputsBytes = 384 * 1024;  // less than half of a second-level cache of 1 MiB; not measured
  static constexpr int64_t kFloatGroup = 6;
  static constexpr bool kExpandsFloats = true;
};

// The table of a path whose formats of integers are all `Integers`.
template <Path kOne, template <Format> class Integers>
struct NeonPath {
  static constexpr Path kPath = kOne;
  static constexpr bool kHasUncommon = false;
  static const LinearKernels& kernels_of_uncommon() { return kLinearPortable; }
  template <Format kStored>
  using Floats = relevo::Floats<kStored, Neon>;
  template <Format kFormat>
  using Bytes = Integers<kFormat>;
  template <Format kFormat>
  using Nibbles = Integers<kFormat>;
  template <Format kFormat>
  using WideNibbles = Integers<kFormat>;
};

}  // namespace
}  // namespace relevo
