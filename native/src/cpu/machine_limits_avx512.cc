// Limits with AVX-512 and VNNI. Memory is read as with AVX2: that is no matter of width.
#include <immintrin.h>

#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "cpu/machine_limits_registers.h"

namespace relevo {
namespace {

constexpr int SUMS = 12;  // two multipliers, latency four or five: at least ten in flight
static_assert(SUMS * 16 == FLOAT_PRODUCTS_AVX512, "a vector holds 16 floats");
static_assert(SUMS * 64 == BYTE_PRODUCTS_AVX512, "a vector holds 64 bytes");

}  // namespace

double multiply_bytes_with_avx512(int64_t rounds) {
  return multiply_in_registers<int32_t, SUMS>(
      rounds, _mm512_setzero_si512(), _mm512_set1_epi32(0x01010101),
      [](const __m512i& sum, const __m512i& x, const __m512i& y) { return _mm512_dpbusd_epi32(sum, x, y); });
}

double multiply_floats_with_avx512(int64_t rounds) {
  return multiply_in_registers<float, SUMS>(
      rounds, _mm512_set1_ps(0.0f), _mm512_set1_ps(1.0f),
      [](const __m512& sum, const __m512& x, const __m512& y) { return _mm512_fmadd_ps(x, y, sum); });
}

const LimitKernels limits_avx512 = {
    Path::avx512,
    read_with_avx2,
    {multiply_floats_with_avx512, multiply_floats_with_avx512, multiply_bytes_with_avx512,
     multiply_bytes_with_avx512},
    {FLOAT_PRODUCTS_AVX512, FLOAT_PRODUCTS_AVX512, BYTE_PRODUCTS_AVX512, BYTE_PRODUCTS_AVX512},
};

}  // namespace relevo
