// Limits with Arm's dot products.
#include <arm_neon.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int BYTE_SUMS = 16;  // up to four multipliers, latency three or four

double multiply_with_dots(int64_t rounds) {
  return multiply_in_registers<int32_t, BYTE_SUMS>(
      rounds, vdupq_n_s32(0), vdupq_n_s8(1),
      [](int32x4_t sum, int8x16_t x, int8x16_t y) { return vdotq_s32(sum, x, y); });
}

}  // namespace

const LimitKernels limits_dotprod = {
    Path::dotprod,
    read_with_neon,
    {multiply_floats_with_neon, multiply_floats_with_neon, multiply_with_dots, multiply_with_dots},
    {FLOAT_PRODUCTS_NEON, FLOAT_PRODUCTS_NEON, BYTE_SUMS * 16, BYTE_SUMS * 16},
};

}  // namespace relevo
