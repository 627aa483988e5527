// Limits with Arm's dot products.
#include "machine_limits.h"
#include "machine_limits_neon.h"
#include "machine_limits_paths.h"

namespace relevo {
namespace {

double multiply_with_dots(int64_t rounds) {
  return multiply_bytes(rounds, [](int32x4_t sum, int8x16_t x, int8x16_t y) { return vdotq_s32(sum, x, y); });
}

}  // namespace

const LimitKernels limits_dotprod = {
    Path::dotprod,
    read_with_neon,
    {multiply_floats_with_neon, multiply_floats_with_neon, multiply_with_dots, multiply_with_dots},
    {FLOAT_PRODUCTS_NEON, FLOAT_PRODUCTS_NEON, BYTE_SUMS * 16, BYTE_SUMS * 16},
};

}  // namespace relevo
