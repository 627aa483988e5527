// Limits with Arm's matrices of bytes.
#include <arm_neon.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int BYTE_SUMS = 16;  // up to four multipliers, latency three or four

double multiply_with_matrices(int64_t rounds) {
  return multiply_in_registers<int32_t, BYTE_SUMS>(
      rounds, vdupq_n_s32(0), vdupq_n_s8(1),
      [](int32x4_t sum, int8x16_t x, int8x16_t y) { return vmmlaq_s32(sum, x, y); });
}

}  // namespace

const LimitKernels limits_i8mm = {
    Path::i8mm,
    read_with_neon,
    {multiply_floats_with_neon, multiply_floats_with_neon, multiply_with_matrices, multiply_with_matrices},
    {FLOAT_PRODUCTS_NEON, FLOAT_PRODUCTS_NEON, BYTE_SUMS * 32, BYTE_SUMS * 32},
};

}  // namespace relevo
