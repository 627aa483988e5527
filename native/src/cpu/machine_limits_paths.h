// The limit kernels of each path that is compiled for this architecture.
#pragma once

#include "cpu/machine_limits.h"

namespace relevo {

extern const LimitKernels limits_portable;
#if defined(__x86_64__)
extern const LimitKernels limits_avx2;
extern const LimitKernels limits_avx512;
extern const LimitKernels limits_avx512bf16;
extern const LimitKernels limits_amx;

// What a wider path has no better way to do.
uint64_t read_with_avx2(const uint64_t* words, size_t num_words);
double multiply_floats_with_avx512(int64_t rounds);
double multiply_bytes_with_avx512(int64_t rounds);
constexpr int64_t FLOAT_PRODUCTS_AVX512 = 12 * 16, BYTE_PRODUCTS_AVX512 = 12 * 64;  // of a round
#elif defined(__aarch64__)
extern const LimitKernels limits_neon;
extern const LimitKernels limits_dotprod;
extern const LimitKernels limits_i8mm;

// What a wider path has no better way to do.
uint64_t read_with_neon(const uint64_t* words, size_t num_words);
double multiply_floats_with_neon(int64_t rounds);
constexpr int64_t FLOAT_PRODUCTS_NEON = 24 * 4;  // of a round
#endif

}  // namespace relevo
