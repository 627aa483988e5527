// What a machine can do at most: how fast its cores read memory, how fast they multiply. Only measurements use this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/cpu.h"

namespace relevo {

// What is multiplied. int4: unsigned 4-bit by signed 8-bit, whose sums may stay narrow for longer than those of int8.
// bf16 is multiplied as f32 where a path or processor has nothing faster.
enum class Operand { f32, bf16, int8, int4 };

constexpr int NUM_OPERANDS = 4;
constexpr Operand OPERANDS[NUM_OPERANDS] = {Operand::f32, Operand::bf16, Operand::int8, Operand::int4};

const char* operand_name(Operand operand);

struct LimitKernels {
  Path path;
  // The sum of `num_words` 64-bit words, modulo 2^64, read in order with prefetches.
  uint64_t (*read)(const uint64_t* words, size_t num_words);
  // Multiply-adds of ones in registers, `rounds` times as many as `products`; returns their sum, which is their number
  // (exact for f32 up to 2^24 rounds). Nothing is loaded: this is what the multipliers can do.
  double (*multiply[NUM_OPERANDS])(int64_t rounds);  // by Operand
  int64_t products[NUM_OPERANDS];                    // multiply-adds of a round
};

const LimitKernels& limit_kernels(Path path);

// Seconds of `repeats` passes over `num_bytes` bytes of huge pages, shared by one thread on each of `cores`.
// Throws std::runtime_error if something else was read than was written, std::bad_alloc.
std::vector<double> time_reads(const LimitKernels& kernels, size_t num_bytes, const std::vector<int>& cores,
                               int repeats);

struct MultiplyTimes {
  std::vector<double> seconds;  // of each pass
  double operations;            // of a pass, over all cores: two for each multiply-add
};

// `repeats` passes of `rounds` rounds on every core at once. Throws std::runtime_error if a product is missing.
MultiplyTimes time_multiplies(const LimitKernels& kernels, Operand operand, int64_t rounds,
                              const std::vector<int>& cores, int repeats);

}  // namespace relevo
