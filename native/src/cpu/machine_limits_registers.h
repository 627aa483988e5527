// Multiply-adds in registers, as many as a processor can do of them. `Lane` is what a vector of sums holds.
// Included by one source per path, which is compiled for it: everything here is internal.
#pragma once

#include <cstdint>
#include <cstring>

namespace relevo {
namespace {

// Makes a register unknown to the compiler, so that what depends on it is computed again.
template <class Vector>
inline void hide(Vector& value) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(value));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

template <class Lane, class Total = double, class Vector>
Total sum_lanes(Vector value) {
  Lane lanes[sizeof value / sizeof(Lane)];
  std::memcpy(lanes, &value, sizeof value);
  Total total = 0;
  for (const Lane lane : lanes) total += static_cast<Total>(lane);
  return total;
}

// In each round `add(sum, ones, ones)`, which adds products to a vector of sums, for `kSums` sums that do not depend on
// one another. Returns what they have become in all.
template <class Lane, int kSums, class Sum, class Ones, class Add>
double multiply_in_registers(int64_t rounds, const Sum& zero, const Ones& ones, const Add& add) {
  Sum sums[kSums];
#pragma GCC unroll 32
  for (Sum& sum : sums) sum = zero;
  Ones x = ones, y = ones;
  hide(y);  // else it is known that multiplying by it changes nothing
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
    for (Sum& sum : sums) {
      hide(x);  // else products are computed once for all sums
      Sum next = add(sum, x, y);
      hide(next);  // stays in its register
      sum = next;
    }
  }
  double total = 0;
#pragma GCC unroll 32
  for (const Sum& sum : sums) total += sum_lanes<Lane>(sum);
  return total;
}

}  // namespace
}  // namespace relevo
