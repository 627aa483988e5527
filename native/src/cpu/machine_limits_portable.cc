// Limits by plain C++: what the compiler makes of simple loops.
#include <type_traits>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int SUMS = 8;           // independent vectors, so that latency does not bound the rate
constexpr int DEPTH = 16;         // multiply-adds per vector and round
constexpr int ROUNDS_KEPT = 512;  // before the sums are emptied: 512 * 16 fits 16 bits

// The vectors that every processor of our architectures has; the compiler knows how to compute with them.
using Floats = float __attribute__((vector_size(16)));
using Shorts = int16_t __attribute__((vector_size(16)));

uint64_t read(const uint64_t* words, size_t num_words) {
  uint64_t sums[4] = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 4 <= num_words; i += 4) {
    __builtin_prefetch(words + i + 256);
    for (int lane = 0; lane < 4; ++lane) sums[lane] += words[i + lane];
  }
  for (; i < num_words; ++i) sums[0] += words[i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

template <typename Vector>
double empty(Vector (&sums)[SUMS]) {
  double total = 0;
  for (Vector& sum : sums) {
    total += sum_lanes<std::decay_t<decltype(sum[0])>>(sum);
    sum = Vector{};
  }
  return total;
}

template <typename Vector>
double multiply(int64_t rounds) {
  Vector sums[SUMS] = {};
  Vector x = Vector{} + 1, y = Vector{} + 1;
  double total = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < DEPTH; ++step) {
      for (Vector& sum : sums) {
        hide(x);
        sum += x * y;
      }
    }
    if (round % ROUNDS_KEPT == ROUNDS_KEPT - 1) total += empty(sums);
  }
  return total + empty(sums);
}

}  // namespace

const LimitKernels limits_portable = {
    Path::portable,
    read,
    {multiply<Floats>, multiply<Floats>, multiply<Shorts>, multiply<Shorts>},
    {SUMS * DEPTH * 4, SUMS * DEPTH * 4, SUMS * DEPTH * 8, SUMS * DEPTH * 8},
};

}  // namespace relevo
