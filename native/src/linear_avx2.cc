// Matrix products with AVX2, FMA and F16C: the arithmetic of linear_portable.cc, to the bit, with 8 output rows per vector.
//
// One tile is a panel (16 output rows, two vectors) by up to 6 or 4 input rows, accumulated in registers. With few input
// rows a tile reads the packed panel itself; with many, a stretch of the panel is expanded once into a buffer that stays in
// the first-level cache and is used by all of them, as many input rows at a time as the second-level cache holds.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "linear_layout.h"

namespace relevo {
namespace {

constexpr size_t kVector = 32;              // bytes
constexpr size_t kStretchBytes = 18 * 1024;  // expanded weights: half of a first-level cache
constexpr size_t kInputsBytes = 288 * 1024;  // inputs of one pass over the panels: half of a second-level cache
constexpr size_t kPrefetchBytes = 1024;
constexpr int64_t kMostRowsPerPass = 512;

__m256 load(const float* from) { return _mm256_loadu_ps(from); }
__m256i load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
__m128i load_16_bytes(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void store_bytes(uint8_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
__m256 load_halves(const uint8_t* from) { return _mm256_cvtph_ps(load_16_bytes(from)); }
__m256 load_floats(const uint8_t* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
void store_floats(uint8_t* to, __m256 value) { _mm256_storeu_ps(reinterpret_cast<float*>(to), value); }

// The 4 bytes at `from` in every lane.
__m256i every_lane(const uint8_t* from) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
}
__m256 every_lane_float(const uint8_t* from) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(from)); }

// Adds now and in place: otherwise the compiler makes a tree of a chain of integer sums, with more terms than registers.
void add_words(__m256i* sum, __m256i value) {
  *sum = _mm256_add_epi16(*sum, value);
  __asm__("" : "+x"(*sum));
}
void add_doublewords(__m256i* sum, __m256i value) {
  *sum = _mm256_add_epi32(*sum, value);
  __asm__("" : "+x"(*sum));
}

// Prefetching past the end of a weight is harmless: it is not an access.
void prefetch(const uint8_t* from, size_t bytes) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(from) + kPrefetchBytes;
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(start + i), _MM_HINT_T0);
}

// ---- q4_0, q4_1: unsigned nibbles times int8. Eight products of pairs fit into 16 bits: 8 * 2 * 15 * 127 = 30480.
// Inputs of a block, R rows: int8 [R][32], scales [R], then [R] x_scale * sum (q4_1) or int32 8 * sum (q4_0).

template <bool kHasMinimum>
struct Nibbles {
  static constexpr Format kFormat = kHasMinimum ? Format::q4_1 : Format::q4_0;
  static constexpr int64_t kGroup = 4;
  static constexpr int64_t kInputBlockBytes = 40;  // of one row
  static constexpr bool kExpands = true;
  static constexpr bool kScalesAtEnd = false;
  static constexpr size_t kScalesAt = 4 * kGroupBytes;

  struct Packed {
    static constexpr size_t kBytes = kScalesAt + (kHasMinimum ? 64 : 32);
    static constexpr bool kPrefetch = true;
    static __m256i weights(const uint8_t* block, int step, int vector) {
      const __m256i low = _mm256_set1_epi8(15);
      const __m256i bytes = load_bytes(block + (step & 3) * kGroupBytes + vector * kVector);
      return _mm256_and_si256(step < 4 ? bytes : _mm256_srli_epi16(bytes, 4), low);
    }
    static __m256 scale(const uint8_t* block, int vector) { return load_halves(block + kScalesAt + vector * 16); }
    static __m256 minimum(const uint8_t* block, int vector) { return load_halves(block + kScalesAt + 32 + vector * 16); }
  };

  // [8 steps][2 vectors] of unpacked nibbles, float32 scales and minima.
  struct Expanded {
    static constexpr size_t kBytes = 8 * kGroupBytes + (kHasMinimum ? 128 : 64);
    static constexpr bool kPrefetch = false;
    static __m256i weights(const uint8_t* block, int step, int vector) {
      return load_bytes(block + step * kGroupBytes + vector * kVector);
    }
    static __m256 scale(const uint8_t* block, int vector) {
      return load_floats(block + 8 * kGroupBytes + vector * kVector);
    }
    static __m256 minimum(const uint8_t* block, int vector) {
      return load_floats(block + 8 * kGroupBytes + 64 + vector * kVector);
    }
  };

  static void expand(const uint8_t* block, uint8_t* out) {
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
      uint8_t* to = out + vector * kVector;
#pragma GCC unroll 16
      for (int step = 0; step < 8; ++step) store_bytes(to + step * kGroupBytes, Packed::weights(block, step, vector));
      store_floats(to + 8 * kGroupBytes, Packed::scale(block, vector));
      if (kHasMinimum) store_floats(to + 8 * kGroupBytes + 64, Packed::minimum(block, vector));
    }
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    __m256i sums[R][2];
#pragma GCC unroll 16
    for (int step = 0; step < 8; ++step) {
      const __m256i w0 = Weights::weights(w, step, 0), w1 = Weights::weights(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + r * 32 + step * 4);
        if (step == 0) {
          sums[r][0] = _mm256_maddubs_epi16(w0, input);
          sums[r][1] = _mm256_maddubs_epi16(w1, input);
        } else {
          add_words(&sums[r][0], _mm256_maddubs_epi16(w0, input));
          add_words(&sums[r][1], _mm256_maddubs_epi16(w1, input));
        }
      }
    }
    const uint8_t* ends = x + R * 32;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256 scale = Weights::scale(w, v);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        __m256i dot = _mm256_madd_epi16(sums[r][v], _mm256_set1_epi16(1));
        if (!kHasMinimum) dot = _mm256_sub_epi32(dot, every_lane(ends + (R + r) * 4));
        const __m256 product = _mm256_mul_ps(scale, every_lane_float(ends + r * 4));
        acc[r][v] = _mm256_fmadd_ps(product, _mm256_cvtepi32_ps(dot), acc[r][v]);
        if (kHasMinimum)
          acc[r][v] = _mm256_fmadd_ps(Weights::minimum(w, v), every_lane_float(ends + (R + r) * 4), acc[r][v]);
      }
    }
  }
};

// ---- q8_0, q8_channel: int8 times int8, both widened to 16 bits and multiplied in pairs of k.
// Of 4 consecutive k, bytes 0 and 2 make one vector of pairs and bytes 1 and 3 the other.
// Inputs of a block, R rows: [R][k / 4][2 pairs] of int16 in that order, scales [R].

template <bool kPerChannel>
struct Bytes {
  static constexpr Format kFormat = kPerChannel ? Format::q8_channel : Format::q8_0;
  static constexpr int64_t kGroup = 4;
  static constexpr int kSteps = kPerChannel ? 16 : 8;
  static constexpr int64_t kInputBlockBytes = kSteps * 8 + 4;
  static constexpr bool kExpands = true;
  static constexpr bool kScalesAtEnd = kPerChannel;

  struct Packed {
    static constexpr size_t kBytes = kSteps * kGroupBytes + (kPerChannel ? 0 : 32);
    static constexpr bool kPrefetch = true;
    static __m256i even(const uint8_t* block, int step, int vector) {
      return _mm256_srai_epi16(_mm256_slli_epi16(load_bytes(block + step * kGroupBytes + vector * kVector), 8), 8);
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      return _mm256_srai_epi16(load_bytes(block + step * kGroupBytes + vector * kVector), 8);
    }
    static __m256 scale(const uint8_t* block, int vector) {
      return load_halves(block + kSteps * kGroupBytes + vector * 16);
    }
  };

  // [steps][even, odd][2 vectors] of int16, float32 scales.
  struct Expanded {
    static constexpr size_t kBytes = kSteps * 2 * kGroupBytes + (kPerChannel ? 0 : 64);
    static constexpr bool kPrefetch = false;
    static __m256i even(const uint8_t* block, int step, int vector) {
      return load_bytes(block + step * 2 * kGroupBytes + vector * kVector);
    }
    static __m256i odd(const uint8_t* block, int step, int vector) {
      return load_bytes(block + (step * 2 + 1) * kGroupBytes + vector * kVector);
    }
    static __m256 scale(const uint8_t* block, int vector) {
      return load_floats(block + kSteps * 2 * kGroupBytes + vector * kVector);
    }
  };

  static void expand(const uint8_t* block, uint8_t* out) {
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
      uint8_t* to = out + vector * kVector;
#pragma GCC unroll 16
      for (int step = 0; step < kSteps; ++step) {
        store_bytes(to + step * 2 * kGroupBytes, Packed::even(block, step, vector));
        store_bytes(to + (step * 2 + 1) * kGroupBytes, Packed::odd(block, step, vector));
      }
      if (!kPerChannel) store_floats(to + kSteps * 2 * kGroupBytes, Packed::scale(block, vector));
    }
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    __m256i sums[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) {
      const __m256i e0 = Weights::even(w, step, 0), e1 = Weights::even(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + (r * kSteps + step) * 8);
        add_doublewords(&sums[r][0], _mm256_madd_epi16(e0, input));
        add_doublewords(&sums[r][1], _mm256_madd_epi16(e1, input));
      }
      const __m256i o0 = Weights::odd(w, step, 0), o1 = Weights::odd(w, step, 1);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256i input = every_lane(x + (r * kSteps + step) * 8 + 4);
        add_doublewords(&sums[r][0], _mm256_madd_epi16(o0, input));
        add_doublewords(&sums[r][1], _mm256_madd_epi16(o1, input));
      }
    }
    const uint8_t* scales = x + R * kSteps * 8;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        __m256 scale = every_lane_float(scales + r * 4);
        if (!kPerChannel) scale = _mm256_mul_ps(Weights::scale(w, v), scale);
        acc[r][v] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sums[r][v]), acc[r][v]);
      }
  }
};

// ---- f32, f16, bf16: a block is one k. Inputs, R rows: [k][R] float32.

template <Format kStored>
struct Floats {
  static constexpr Format kFormat = kStored;
  static constexpr int64_t kGroup = 6;
  static constexpr int64_t kInputBlockBytes = 4;
  static constexpr bool kExpands = kStored != Format::f32;
  static constexpr bool kScalesAtEnd = false;

  struct Packed {
    static constexpr size_t kBytes = kPanelRows * (kStored == Format::f32 ? 4 : 2);
    static constexpr bool kPrefetch = true;
    static __m256 weights(const uint8_t* block, int vector) {
      if (kStored == Format::f32) return load_floats(block + vector * kVector);
      if (kStored == Format::f16) return load_halves(block + vector * 16);
      const __m256i wide = _mm256_cvtepu16_epi32(load_16_bytes(block + vector * 16));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
  };

  struct Expanded {
    static constexpr size_t kBytes = kPanelRows * 4;
    static constexpr bool kPrefetch = false;
    static __m256 weights(const uint8_t* block, int vector) { return load_floats(block + vector * kVector); }
  };

  static void expand(const uint8_t* block, uint8_t* out) {
    store_floats(out, Packed::weights(block, 0));
    store_floats(out + kVector, Packed::weights(block, 1));
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, __m256 (*acc)[2]) {
    const __m256 w0 = Weights::weights(w, 0), w1 = Weights::weights(w, 1);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 input = every_lane_float(x + r * 4);
      acc[r][0] = _mm256_fmadd_ps(w0, input, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(w1, input, acc[r][1]);
    }
  }
};

// ---- What all formats share.

// Adds `blocks` blocks to the accumulators [R][16] of a tile.
template <class F, class Weights, int R>
__attribute__((noinline)) void add_tile(const uint8_t* w, const uint8_t* x, int64_t blocks, float* sums) {
  __m256 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) acc[r][v] = load(sums + r * kPanelRows + v * 8);
  for (int64_t b = 0; b < blocks; ++b) {
    if (Weights::kPrefetch) prefetch(w, Weights::kBytes);
    F::template add_block<Weights, R>(w, x, acc);
    w += Weights::kBytes;
    x += R * F::kInputBlockBytes;
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(sums + r * kPanelRows + v * 8, acc[r][v]);
}

template <class F, class Weights>
void add_tile_of(int64_t rows, const uint8_t* w, const uint8_t* x, int64_t blocks, float* sums) {
  switch (rows) {
    case 1:
      return add_tile<F, Weights, 1>(w, x, blocks, sums);
    case 2:
      return add_tile<F, Weights, 2>(w, x, blocks, sums);
    case 3:
      return add_tile<F, Weights, 3>(w, x, blocks, sums);
    case 4:
      return add_tile<F, Weights, 4>(w, x, blocks, sums);
    case 5:
      if constexpr (F::kGroup >= 5) return add_tile<F, Weights, 5>(w, x, blocks, sums);
      return;
    case 6:
      if constexpr (F::kGroup >= 6) return add_tile<F, Weights, 6>(w, x, blocks, sums);
      return;
  }
}

struct Output {
  const float* bias;
  bool accumulate;
  float* y;
  int64_t y_stride;
};

// One row of a tile: 16 outputs, fewer in the last panel.
void store_row(const float* sums, const float* scales, const Output& output, int64_t row, int64_t first, int64_t count) {
  float* to = output.y + row * output.y_stride + first;
  for (int64_t i = 0; i < count; ++i) {
    float value = scales ? sums[i] * scales[i] : sums[i];
    if (output.bias) value += output.bias[first + i];
    to[i] = output.accumulate ? to[i] + value : value;
  }
}

template <class F>
void store_tile(const Linear& w, int64_t panel, const float* sums, int64_t first_row, int64_t rows, const Output& output) {
  const int64_t first = panel * kPanelRows;
  const int64_t count = w.n - first < kPanelRows ? w.n - first : kPanelRows;
  float scales[kPanelRows];
  if (F::kScalesAtEnd) {
    const size_t bytes = panel_bytes(F::kFormat, w.k);
    std::memcpy(scales, w.packed + (panel + 1) * bytes - sizeof scales, sizeof scales);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_sums = sums + r * kPanelRows;
    const float* row_scales = F::kScalesAtEnd ? scales : nullptr;
    if (count == kPanelRows)
      store_row(row_sums, row_scales, output, first_row + r, first, kPanelRows);
    else
      store_row(row_sums, row_scales, output, first_row + r, first, count);
  }
}

template <class F>
void multiply_few(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                  const Output& output) {
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const size_t bytes = panel_bytes(F::kFormat, w.k);
  for (int64_t panel = first_panel; panel < end_panel; ++panel)
    for (int64_t row = 0; row < m; row += F::kGroup) {
      const int64_t rows = m - row < F::kGroup ? m - row : F::kGroup;
      float sums[F::kGroup * kPanelRows] = {};
      add_tile_of<F, typename F::Packed>(rows, w.packed + panel * bytes, inputs + row * blocks * F::kInputBlockBytes, blocks,
                                         sums);
      store_tile<F>(w, panel, sums, row, rows, output);
    }
}

// Rows of inputs that one pass over the panels uses.
template <class F>
int64_t rows_per_pass(int64_t blocks) {
  const int64_t fitting = static_cast<int64_t>(kInputsBytes) / (blocks * F::kInputBlockBytes) / F::kGroup * F::kGroup;
  const int64_t least = 8 * F::kGroup, most = kMostRowsPerPass / F::kGroup * F::kGroup;
  return fitting < least ? least : fitting > most ? most : fitting;
}

template <class F>
void multiply_panel(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t panel,
                    const Output& output) {
  using Weights = typename std::conditional<F::kExpands, typename F::Expanded, typename F::Packed>::type;
  constexpr int64_t kStretch = kStretchBytes / Weights::kBytes;
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  alignas(64) uint8_t expanded[F::kExpands ? kStretch * Weights::kBytes : 1];
  alignas(64) float sums[kMostRowsPerPass * kPanelRows];
  std::memset(sums, 0, (end_row - first_row) * kPanelRows * sizeof(float));
  for (int64_t first = 0; first < blocks; first += kStretch) {
    const int64_t count = blocks - first < kStretch ? blocks - first : kStretch;
    const uint8_t* weights = packed + first * F::Packed::kBytes;
    if (F::kExpands) {
      for (int64_t b = 0; b < count; ++b) F::expand(weights + b * F::Packed::kBytes, expanded + b * Weights::kBytes);
      weights = expanded;
    }
    for (int64_t row = first_row; row < end_row; row += F::kGroup) {
      const int64_t rows = end_row - row < F::kGroup ? end_row - row : F::kGroup;
      const uint8_t* x = inputs + (row * blocks + first * rows) * F::kInputBlockBytes;
      add_tile_of<F, Weights>(rows, weights, x, count, sums + (row - first_row) * kPanelRows);
    }
  }
  store_tile<F>(w, panel, sums, first_row, end_row - first_row, output);
}

template <class F>
void multiply_format(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                     const Output& output) {
  if (m <= 2 * F::kGroup) return multiply_few<F>(w, inputs, m, first_panel, end_panel, output);
  const int64_t step = rows_per_pass<F>(num_blocks(F::kFormat, w.k));
  for (int64_t row = 0; row < m; row += step)
    for (int64_t panel = first_panel; panel < end_panel; ++panel)
      multiply_panel<F>(w, inputs, row, m - row < step ? m : row + step, panel, output);
}

// ---- Preparation of inputs.

// The largest magnitude of 32 values, compared as bits, so that a NaN among them is the result.
__m256i magnitudes(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(load(x + i * 8)), mask));
  return largest;
}

float largest_lane(__m256i bits) {
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(v));
}

// 32 values times `inverse`, rounded to int8 in order.
__m256i quantised(const float* x, float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + i * 8), factor));
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

int32_t sum_of_bytes(__m256i bytes) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}

struct BlockScale {
  float scale, inverse;
};

BlockScale scale_of(float largest) {
  if (largest < kLeastMagnitude) return {0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

// Block `x` of row `r` of a group of `rows`.
template <bool kHasMinimum>
void prepare_block(Nibbles<kHasMinimum>, const float* x, int64_t, int64_t rows, int64_t r, uint8_t* out) {
  const BlockScale s = scale_of(largest_lane(magnitudes(x)));
  const __m256i q = quantised(x, s.inverse);
  const int32_t sum = sum_of_bytes(q);
  uint8_t* ends = out + rows * 32;
  store_bytes(out + r * 32, q);
  std::memcpy(ends + r * 4, &s.scale, 4);
  const float scaled_sum = s.scale * static_cast<float>(sum);
  const int32_t offset = 8 * sum;
  std::memcpy(ends + (rows + r) * 4, kHasMinimum ? static_cast<const void*>(&scaled_sum) : &offset, 4);
}

template <bool kPerChannel>
void prepare_block(Bytes<kPerChannel>, const float* x, int64_t size, int64_t rows, int64_t r, uint8_t* out) {
  constexpr int kSteps = Bytes<kPerChannel>::kSteps;
  float filled[kChannelBlock];
  if (size < kSteps * 4) {
    std::memset(filled, 0, sizeof filled);
    std::memcpy(filled, x, size * sizeof(float));
    x = filled;
  }
  __m256i largest = magnitudes(x);
  if (kPerChannel) largest = _mm256_max_epi32(largest, magnitudes(x + kSteps * 2));
  const BlockScale s = scale_of(largest_lane(largest));
  for (int i = 0; i < kSteps; i += 8) {
    // Even bytes of each 4 as the first pair of int16, odd ones as the second.
    const __m256i q = quantised(x + i * 4, s.inverse);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), odd = _mm256_srai_epi16(q, 8);
    const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
    uint8_t* to = out + (r * kSteps + i) * 8;
    store_bytes(to, _mm256_permute2x128_si256(low, high, 0x20));
    store_bytes(to + kVector, _mm256_permute2x128_si256(low, high, 0x31));
  }
  std::memcpy(out + rows * kSteps * 8 + r * 4, &s.scale, 4);
}

template <Format kStored>
void prepare_block(Floats<kStored>, const float* x, int64_t, int64_t, int64_t r, uint8_t* out) {
  std::memcpy(out + r * 4, x, 4);
}

template <class F>
void prepare_format(const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end, uint8_t* inputs) {
  const int64_t blocks = num_blocks(F::kFormat, k), size = k / blocks == 1 ? 1 : input_block(F::kFormat);
  for (int64_t row = first; row < end; row += F::kGroup) {
    const int64_t rows = m - row < F::kGroup ? m - row : F::kGroup;
    uint8_t* out = inputs + row * blocks * F::kInputBlockBytes;
    for (int64_t r = 0; r < rows && row + r < end; ++r)
      for (int64_t b = 0; b < blocks; ++b)
        prepare_block(F{}, x + (row + r) * x_stride + b * size, k - b * size < size ? k - b * size : size, rows, r,
                      out + b * rows * F::kInputBlockBytes);
  }
}

// Calls `call` with the kernel of `format`.
template <class Call>
auto with_format(Format format, const Call& call) {
  switch (format) {
    case Format::f32:
      return call(Floats<Format::f32>{});
    case Format::f16:
      return call(Floats<Format::f16>{});
    case Format::bf16:
      return call(Floats<Format::bf16>{});
    case Format::q8_0:
      return call(Bytes<false>{});
    case Format::q8_channel:
      return call(Bytes<true>{});
    case Format::q4_0:
      return call(Nibbles<false>{});
    case Format::q4_1:
      break;
  }
  return call(Nibbles<true>{});
}

int64_t panel_rows(Format) { return kPanelRows; }

int64_t input_group(Format format) {
  return with_format(format, [](auto f) { return decltype(f)::kGroup; });
}

size_t input_bytes(Format format, int64_t m, int64_t k) {
  const int64_t block = with_format(format, [](auto f) { return decltype(f)::kInputBlockBytes; });
  return static_cast<size_t>(m * num_blocks(format, k) * block);
}

void prepare(Format format, const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end,
             uint8_t* inputs) {
  with_format(format, [&](auto f) { prepare_format<decltype(f)>(x, x_stride, m, k, first, end, inputs); });
}

void multiply(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
              const float* bias, bool accumulate, float* y, int64_t y_stride) {
  const Output output{bias, accumulate, y, y_stride};
  with_format(w.format,
              [&](auto f) { multiply_format<decltype(f)>(w, inputs, m, first_panel, end_panel, output); });
}

}  // namespace

extern const LinearKernels kLinearAvx2;
const LinearKernels kLinearAvx2 = {Path::avx2,  panel_rows,  panel_bytes, pack_panel, unpack_packed_row,
                                   input_group, input_bytes, prepare,     multiply};

}  // namespace relevo
