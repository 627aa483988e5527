// Integer products on matrix tiles: the arithmetic of linear_portable.cc, to the bit.
//
// A tile of weights is one packed block of 16 output rows: 32 k of q8_0 and 64 of q8_channel as they lie there, 32 k of
// q4_0 and q4_1 after their nibbles were spread once for all rows of a pass. The products of 16 rows by 16 outputs are exact
// 32-bit sums; every block's are stored, converted and added to 16 float32 sums per row, which stay in vector registers
// while k advances.
//
// What bounds it: one product of tiles occupies the multiplier for 16 cycles, also when it is only 32 k deep. Its 16 rows of
// sums then need a conversion, the product of two scales (but for q8_channel) and one multiply-add (two for q4_1) each, two
// vector instructions per cycle: 16 cycles for q8_channel, 24 for q8_0 and q4_0, 32 for q4_1. Loads are two per cycle: 16
// rows of inputs, 8 or 16 of weights, 16 of sums and the scales, 28 to 36 cycles. So 230 (q4_1) to 580 (q8_channel)
// products per cycle, where VNNI reaches 90. While vectors work on some blocks, tiles multiply the next ones.
//
// Wide formats have inputs of 16 bits, q = 256 high + low: a plane of signed and one of unsigned bytes, twice the products
// and two more vector instructions.
//
// Up to `kFewRows` rows left over go to the AVX-512 kernels, which have the same bits: with so few, tiles would not be
// faster, and reading weights is what costs.
// Included by linear_amx.cc: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "products/linear_inputs_avx2.h"
#include "products/linear_vectors_avx512.h"
#include "products/tiles_amx.h"

namespace relevo {
namespace {

constexpr int64_t kFewRows = 4;
constexpr int kSumTiles = 4;

struct Amx {
  static constexpr size_t kStretchBytes = 32 * 1024;   // spread weights that stay in a first-level cache
  static constexpr size_t kInputsBytes = 1024 * 1024;  // inputs that stay in a second-level cache
};

// Of m rows, those that tiles multiply: groups of 16, the last filled with zeros unless only a few rows are left.
int64_t num_tiled_groups(int64_t m) { return m / kTileRows + (m % kTileRows > kFewRows ? 1 : 0); }

// Inputs of a block, 16 rows: planes of int8 [16][k], scales [16], x_scale * sum [16].
template <Format kInputsAs>
struct IntegerTiles {
  using Machine = Amx;
  static constexpr Format kFormat = kInputsAs;
  static constexpr Format kStored = narrowed(kFormat);
  static constexpr bool kIsNibbles = kStored == Format::q4_0 || kStored == Format::q4_1;
  static constexpr bool kHasMinimum = kStored == Format::q4_1;
  static constexpr bool kScalesAtEnd = kStored == Format::q8_channel;
  static constexpr int kPlanes = is_wide(kFormat) ? 2 : 1;
  static constexpr int kBlocksAtOnce = kSumTiles / kPlanes;
  static constexpr int64_t kGroup = kTileRows;
  static constexpr int64_t kInputBlock = kScalesAtEnd ? kChannelBlock : kBlock;
  static constexpr int64_t kPlaneBytes = kGroup * kInputBlock;
  static constexpr int64_t kInputBlockBytes = kPlanes * kInputBlock + 8;  // of one row
  static constexpr int64_t kInputGroupBytes = kGroup * kInputBlockBytes;
  static constexpr size_t kTileBytes = kInputBlock * kPanelRows;
  static constexpr size_t kHalvesBytes = kPanelRows * sizeof(uint16_t);
  static constexpr size_t kPackedBytes =
      kIsNibbles ? kTileBytes / 2 + (kHasMinimum ? 2 : 1) * kHalvesBytes : kTileBytes + (kScalesAtEnd ? 0 : kHalvesBytes);
  // Spread nibbles: a tile, float32 scales and minima.
  static constexpr size_t kSpreadBytes = kTileBytes + (kHasMinimum ? 2 : 1) * kGroupBytes;
  static constexpr size_t kWeightBytes = kIsNibbles ? kSpreadBytes : kPackedBytes;  // as tiles read them
};

void store_32_bytes(uint8_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }

// Rounds 32 values into a row of each plane; returns their sum.
template <class F>
int32_t store_rounded(const float* x, float inverse, uint8_t* row) {
  if constexpr (F::kPlanes == 1) {
    const __m256i bytes = RoundedBytes::of(x, inverse);
    store_32_bytes(row, bytes);
    return RoundedBytes::sum(bytes);
  }
  const __m256i words[2] = {RoundedPairs::of(x, inverse), RoundedPairs::of(x + 16, inverse)};
  const __m256i low_byte = _mm256_set1_epi16(255);
  const __m256i high = _mm256_packs_epi16(_mm256_srai_epi16(words[0], 8), _mm256_srai_epi16(words[1], 8));
  const __m256i low = _mm256_packus_epi16(_mm256_and_si256(words[0], low_byte), _mm256_and_si256(words[1], low_byte));
  const __m256i order = _mm256_broadcastsi128_si256(  // of the pairs, back to that of the values
      _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  store_32_bytes(row, _mm256_shuffle_epi8(_mm256_permute4x64_epi64(high, 0xd8), order));
  store_32_bytes(row + F::kPlaneBytes, _mm256_shuffle_epi8(_mm256_permute4x64_epi64(low, 0xd8), order));
  return RoundedPairs::sum(words[0]) + RoundedPairs::sum(words[1]);
}

template <class F>
void prepare_integer_block(const float* x, int64_t k_left, int64_t r, uint8_t* out) {
  float filled[F::kInputBlock];
  x = whole_block(x, k_left, filled);
  const BlockScale s = block_scale<F>(x);
  int32_t sum = 0;
  for (int i = 0; i < F::kInputBlock; i += 32) sum += store_rounded<F>(x + i, s.inverse, out + r * F::kInputBlock + i);
  const float ends[2] = {s.scale, s.scale * static_cast<float>(sum)};
  for (int i = 0; i < 2; ++i) std::memcpy(out + F::kPlanes * F::kPlaneBytes + (i * F::kGroup + r) * 4, &ends[i], 4);
}

template <class F>
void prepare_integers(const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end, uint8_t* inputs) {
  const int64_t blocks = num_blocks(F::kFormat, k);
  for (int64_t group = first / kTileRows; group * kTileRows < end && group < num_tiled_groups(m); ++group) {
    const int64_t row = group * kTileRows, rows = m - row < kTileRows ? m - row : kTileRows;
    uint8_t* out = inputs + group * blocks * F::kInputGroupBytes;
    if (rows < kTileRows) std::memset(out, 0, blocks * F::kInputGroupBytes);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < blocks; ++b)
        prepare_integer_block<F>(x + (row - first + r) * x_stride + b * F::kInputBlock, k - b * F::kInputBlock, r,
                                 out + b * F::kInputGroupBytes);
  }
}

// Low nibbles are k 0 to 15 of a block, high ones 16 to 31.
template <class F>
void spread_nibbles(const uint8_t* block, uint8_t* out) {
  const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
  const __m512i raised = _mm512_set1_epi32(F::kHasMinimum ? 0 : 0x08080808);
  for (int g = 0; g < 4; ++g) {
    const __m512i bytes = _mm512_loadu_si512(block + g * kGroupBytes);
    const __m512i first = _mm512_and_si512(bytes, low);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
    _mm512_storeu_si512(out + g * kGroupBytes, _mm512_sub_epi8(first, raised));
    _mm512_storeu_si512(out + (g + 4) * kGroupBytes, _mm512_sub_epi8(second, raised));
  }
  for (size_t i = 0; i < (F::kHasMinimum ? 2 : 1); ++i)
    _mm512_storeu_ps(out + F::kTileBytes + i * kGroupBytes, Avx512Vectors::load_halves(block + 4 * kGroupBytes + i * F::kHalvesBytes));
}

// Sums are tiles 0 to 3 (by block and plane), inputs 4 and 5, weights 6 and 7.
template <class F>
void configure_integer_tiles() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const bool is_inputs = tile == 4 || tile == 5;
    shapes.row_bytes[tile] = static_cast<uint16_t>(is_inputs ? F::kInputBlock : kTileRowBytes);
    shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? kTileRows : F::kInputBlock / 4);
  }
  configure_tiles(shapes);
}

// Sums of 16 rows by 16 outputs of some blocks, by block and plane.
using BlockSums = int32_t[kSumTiles][kTileRows * kPanelRows];

template <class F, int kBlockIndex>
void multiply_block(const uint8_t* w, const uint8_t* x, BlockSums& sums) {
  constexpr int kSums = kBlockIndex * F::kPlanes, kWeights = 6 + kBlockIndex % 2, kInputs = 4 + kBlockIndex % 2;
  x += kBlockIndex * F::kInputGroupBytes;
  tile_load<kWeights>(w + kBlockIndex * F::kWeightBytes, kTileRowBytes);
  tile_load<kInputs>(x, F::kInputBlock);
  tile_zero<kSums>();
  tile_add_signed_products<kSums, kInputs, kWeights>();
  if constexpr (F::kPlanes == 2) {
    tile_load<kInputs>(x + F::kPlaneBytes, F::kInputBlock);
    tile_zero<kSums + 1>();
    tile_add_unsigned_products<kSums + 1, kInputs, kWeights>();
    tile_store<kSums + 1>(sums[kSums + 1], kTileRowBytes);
  }
  tile_store<kSums>(sums[kSums], kTileRowBytes);
}

template <class F>
void multiply_blocks(const uint8_t* w, const uint8_t* x, BlockSums& sums) {
  multiply_block<F, 0>(w, x, sums);
  multiply_block<F, 1>(w, x, sums);
  if constexpr (F::kBlocksAtOnce > 2) multiply_block<F, 2>(w, x, sums);
  if constexpr (F::kBlocksAtOnce > 2) multiply_block<F, 3>(w, x, sums);
}

template <class F>
__m512 weight_scale(const uint8_t* w) {
  if constexpr (F::kIsNibbles) return Avx512Vectors::load_floats(w + F::kTileBytes);
  if constexpr (!F::kScalesAtEnd) return Avx512Vectors::load_halves(w + F::kTileBytes);
  return _mm512_set1_ps(1.0f);
}

template <class F>
__m512 row_sums(const int32_t (*sums)[kTileRows * kPanelRows], int r) {
  __m512i row = _mm512_loadu_si512(sums[0] + r * kPanelRows);
  if constexpr (F::kPlanes == 2)
    row = _mm512_add_epi32(_mm512_slli_epi32(row, 8), _mm512_loadu_si512(sums[1] + r * kPanelRows));
  return _mm512_cvtepi32_ps(row);
}

template <class F>
inline __attribute__((always_inline)) void add_block_sums(const uint8_t* w, const uint8_t* x,
                                                          const int32_t (*sums)[kTileRows * kPanelRows],
                                                          __m512 (&acc)[kTileRows]) {
  const __m512 w_scale = weight_scale<F>(w);
  const __m512 minimum = F::kHasMinimum ? Avx512Vectors::load_floats(w + F::kTileBytes + kGroupBytes) : w_scale;
  const uint8_t* scales = x + F::kPlanes * F::kPlaneBytes;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    __m512 scale = Avx512Vectors::every_lane_float(scales + r * 4);
    if (!F::kScalesAtEnd) scale = _mm512_mul_ps(w_scale, scale);
    acc[r] = _mm512_fmadd_ps(scale, row_sums<F>(sums, r), acc[r]);
    if (F::kHasMinimum) acc[r] = _mm512_fmadd_ps(minimum, Avx512Vectors::every_lane_float(scales + (F::kGroup + r) * 4), acc[r]);
  }
}

// Prefetching past the end of a weight is harmless: it is not an access.
void prefetch_packed(const uint8_t* from, size_t bytes) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(from);
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(start + i), _MM_HINT_T1);
}

// Adds `blocks` blocks of a panel to the sums [16][16] of a group of rows. Meanwhile as many packed blocks at `ahead` (null:
// none) come nearer: with few rows, memory would rest while tiles multiply.
template <class F>
__attribute__((noinline)) void add_integer_blocks(const uint8_t* w, const uint8_t* x, int64_t blocks, const uint8_t* ahead,
                                                  float* group_sums) {
  alignas(64) BlockSums sums[2];
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = _mm512_loadu_ps(group_sums + r * kPanelRows);
  const int64_t rounds = blocks / F::kBlocksAtOnce;
  if (rounds > 0) multiply_blocks<F>(w, x, sums[0]);
  for (int64_t round = 0; round < rounds; ++round) {
    const uint8_t* next_w = w + F::kBlocksAtOnce * F::kWeightBytes;
    const uint8_t* next_x = x + F::kBlocksAtOnce * F::kInputGroupBytes;
    constexpr size_t kPackedAtOnce = F::kBlocksAtOnce * F::kPackedBytes;
    if (ahead) prefetch_packed(ahead + round * kPackedAtOnce, kPackedAtOnce);
    if (round + 1 < rounds) multiply_blocks<F>(next_w, next_x, sums[(round + 1) % 2]);
    for (int i = 0; i < F::kBlocksAtOnce; ++i)
      add_block_sums<F>(w + i * F::kWeightBytes, x + i * F::kInputGroupBytes, sums[round % 2] + i * F::kPlanes, acc);
    w = next_w;
    x = next_x;
  }
  for (int64_t b = rounds * F::kBlocksAtOnce; b < blocks; ++b, w += F::kWeightBytes, x += F::kInputGroupBytes) {
    multiply_block<F, 0>(w, x, sums[0]);
    add_block_sums<F>(w, x, sums[0], acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_storeu_ps(group_sums + r * kPanelRows, acc[r]);
}

// Rows [first_row, end_row) of a panel; first_row is a multiple of 16.
template <class F>
void multiply_integer_panel(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t panel,
                            const Output& output) {
  constexpr int64_t kStretch = F::Machine::kStretchBytes / F::kWeightBytes;
  const int64_t blocks = num_blocks(F::kFormat, w.k), rows = end_row - first_row;
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  alignas(64) uint8_t spread[F::kIsNibbles ? kStretch * F::kSpreadBytes : 1];
  alignas(64) float sums[kMostRowsPerPass * kPanelRows];
  std::memset(sums, 0, (rows + kTileRows - 1) / kTileRows * kTileRows * kPanelRows * sizeof(float));
  for (int64_t first = 0; first < blocks; first += kStretch) {
    const int64_t count = blocks - first < kStretch ? blocks - first : kStretch;
    const uint8_t* weights = packed + first * F::kPackedBytes;
    const uint8_t* next = weights + count * F::kPackedBytes;
    if constexpr (F::kIsNibbles) {
      for (int64_t b = 0; b < count; ++b) spread_nibbles<F>(weights + b * F::kPackedBytes, spread + b * F::kSpreadBytes);
      weights = spread;
    }
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const uint8_t* x = inputs + ((first_row + row) / kTileRows * blocks + first) * F::kInputGroupBytes;
      add_integer_blocks<F>(weights, x, count, row == 0 ? next : nullptr, sums + row * kPanelRows);
    }
  }
  store_tile<F>(w, panel, sums, first_row, rows, output);
}

// Rows [0, num_rows), which tiles multiply.
template <class F>
void multiply_integers(const Linear& w, const uint8_t* inputs, int64_t num_rows, int64_t first_panel, int64_t end_panel,
                       const Output& output) {
  const int64_t step = rows_per_pass<F>(num_blocks(F::kFormat, w.k));
  configure_integer_tiles<F>();
  for (int64_t row = 0; row < num_rows; row += step)
    for (int64_t panel = first_panel; panel < end_panel; ++panel)
      multiply_integer_panel<F>(w, inputs, row, num_rows - row < step ? num_rows : row + step, panel, output);
  release_tiles();
}

}  // namespace
}  // namespace relevo
