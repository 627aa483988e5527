// Matrix products with AVX512_BF16: weights of bfloat16 by inputs rounded to bfloat16, to the bit as linear_portable.cc
// has them. All other formats as with AVX-512.
//
// One instruction adds the product of the second elements of a pair, then that of the first, each rounded once: pairs are
// packed in descending k, inputs alike, so that k ascends. It does twice the products of `vfmadd` and takes as long.
#include <immintrin.h>

#include <cstring>

// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "products/flushing_x86.h"
#include "products/linear_vectors_avx512.h"

namespace relevo {

extern const LinearKernels kLinearAvx512;

namespace {

// Inputs of a block, R rows: bfloat16 [R][32 k], k = 2 g + 1 before k = 2 g.
struct BfloatPairs {
  using Machine = Avx512;
  static constexpr Format kFormat = Format::bf16_rounded;
  static constexpr int64_t kGroup = 8;
  static constexpr int64_t kInputBlock = kBlock;
  static constexpr int64_t kInputBlockBytes = kInputBlock * 2;
  static constexpr bool kExpands = false;
  static constexpr bool kScalesAtEnd = false;

  struct Packed {
    static constexpr size_t kBytes = kBfloatBlockBytes;
    static constexpr bool kPrefetch = false;  // add_block does, a line at a time
  };

  static void prepare_block(const float* x, int64_t k_left, int64_t, int64_t r, uint8_t* out) {
    float filled[kInputBlock];
    x = whole_block(x, k_left, filled);
    const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    _mm512_storeu_si512(out + r * kInputBlockBytes, _mm512_rol_epi32(reinterpret_cast<__m512i>(halves), 16));
  }

  template <class, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m512 (*acc)[1]) {
#pragma GCC unroll 16
    for (int step = 0; step < kInputBlock / 2; ++step) {
      prefetch(w + step * kGroupBytes, kGroupBytes);
      const __m512bh weights = pairs(_mm512_loadu_si512(w + step * kGroupBytes));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], weights, every_lane(x + r * kInputBlockBytes + step * 4));
    }
  }

 private:
  static __m512bh pairs(__m512i value) { return reinterpret_cast<__m512bh>(value); }

  // The pair at `from` in every lane.
  static __m512bh every_lane(const uint8_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return pairs(_mm512_set1_epi32(pair));
  }
};

int64_t input_group_bf16(Format format) {
  return format == Format::bf16_rounded ? BfloatPairs::kGroup : kLinearAvx512.input_group(format);
}

size_t input_bytes_bf16(Format format, int64_t m, int64_t k) {
  if (format != Format::bf16_rounded) return kLinearAvx512.input_bytes(format, m, k);
  return static_cast<size_t>(m * num_blocks(format, k) * BfloatPairs::kInputBlockBytes);
}

void prepare_bf16(Format format, const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end,
                  uint8_t* inputs) {
  if (format != Format::bf16_rounded) return kLinearAvx512.prepare(format, x, x_stride, m, k, first, end, inputs);
  prepare_format<BfloatPairs>(x, x_stride, m, k, first, end, inputs);
}

void multiply_bf16(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                   const float* bias, bool accumulate, float* y, int64_t y_stride) {
  if (w.format != Format::bf16_rounded)
    return kLinearAvx512.multiply(w, inputs, m, first_panel, end_panel, bias, accumulate, y, y_stride);
  const Flushing flushing;  // what is added to sums
  multiply_format<BfloatPairs>(w, inputs, m, first_panel, end_panel, {bias, accumulate, y, y_stride});
}

}  // namespace

extern const LinearKernels kLinearAvx512Bf16;
const LinearKernels kLinearAvx512Bf16 = {Path::avx512,     panel_rows,       panel_bytes,  pack_panel,   unpack_packed_row,
                                         input_group_bf16, input_bytes_bf16, prepare_bf16, multiply_bf16};

}  // namespace relevo
