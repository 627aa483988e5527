// Multiply-adds of bytes in registers on the Arm paths. Included by one source per path: everything here is internal.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace relevo {
namespace {

constexpr int BYTE_SUMS = 16;  // up to four multipliers, latency three or four

// Makes a register unknown to the compiler, so that what depends on it is computed again.
template <class Vector>
inline void hide(Vector& value) {
  asm volatile("" : "+w"(value));
}

// `add` adds the products of two vectors of bytes to a vector of 32-bit sums.
template <class Add>
double multiply_bytes(int64_t rounds, Add add) {
  int32x4_t sums[BYTE_SUMS];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  int8x16_t x = vdupq_n_s8(1);
  const int8x16_t y = vdupq_n_s8(1);
  for (int64_t round = 0; round < rounds; ++round) {
    hide(x);
    for (int32x4_t& sum : sums) {
      sum = add(sum, x, y);
      hide(sum);  // stays in its register
    }
  }
  double total = 0;
  for (const int32x4_t& sum : sums) total += static_cast<double>(vaddlvq_s32(sum));
  return total;
}

}  // namespace
}  // namespace relevo
