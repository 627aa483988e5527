// Limits with what every 64-bit Arm processor has. Products of bytes have 16 bits and are added by pairs.
#include <arm_neon.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int FLOAT_SUMS = 24;       // up to four multipliers, latency four: at least sixteen in flight
constexpr int BYTE_SUMS = 16;        // the same, latency three or four
constexpr size_t WORDS_AHEAD = 256;  // 2 KiB; not measured
static_assert(FLOAT_SUMS * 4 == FLOAT_PRODUCTS_NEON, "a vector holds 4 floats");

double multiply_with_neon(int64_t rounds) {
  return multiply_in_registers<int32_t, BYTE_SUMS>(
      rounds, vdupq_n_s32(0), vdupq_n_s8(1), [](int32x4_t sum, int8x16_t x, int8x16_t y) {
        const int16x8_t products = vmlal_high_s8(vmull_s8(vget_low_s8(x), vget_low_s8(y)), x, y);
        return vpadalq_s16(sum, products);
      });
}

}  // namespace

uint64_t read_with_neon(const uint64_t* words, size_t num_words) {
  uint64x2_t sums[4] = {};
  size_t i = 0;
  for (; i + 8 <= num_words; i += 8) {  // a cache line
    __builtin_prefetch(words + i + WORDS_AHEAD);
    for (int part = 0; part < 4; ++part) sums[part] = vaddq_u64(sums[part], vld1q_u64(words + i + 2 * part));
  }
  uint64_t total = vaddvq_u64(vaddq_u64(vaddq_u64(sums[0], sums[1]), vaddq_u64(sums[2], sums[3])));
  for (; i < num_words; ++i) total += words[i];
  return total;
}

double multiply_floats_with_neon(int64_t rounds) {
  return multiply_in_registers<float, FLOAT_SUMS>(
      rounds, vdupq_n_f32(0.0f), vdupq_n_f32(1.0f),
      [](float32x4_t sum, float32x4_t x, float32x4_t y) { return vfmaq_f32(sum, x, y); });
}

const LimitKernels limits_neon = {
    Path::neon,
    read_with_neon,
    {multiply_floats_with_neon, multiply_floats_with_neon, multiply_with_neon, multiply_with_neon},
    {FLOAT_PRODUCTS_NEON, FLOAT_PRODUCTS_NEON, BYTE_SUMS * 16, BYTE_SUMS * 16},
};

}  // namespace relevo
