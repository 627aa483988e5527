// bfloat16 products on matrix tiles: float32 sums of inputs rounded to bfloat16 times weights as they are.
//
// For one output, blocks of 32 k are added in ascending order; within a block the instruction adds even and odd k apart,
// then both. A row of a tile does not depend on the others, so a tile of one row has the bits of that row among 16.
//
// What bounds it: a product of full tiles occupies the multiplier for 16 cycles (16 x 16 x 32 products), a load of 16 rows
// takes 8 cycles of the two load ports. Two panels by two groups of rows make four products from four loads: 64 cycles
// against 32, and four chains hide the latency of a product (52 cycles). Weights of a stretch of k stay in the first-level
// cache (two panels, up to 18 KiB each) while inputs come from the second-level one at 32 bytes per cycle. With few rows a
// tile of weights (1 KiB) is used once: at 5 to 8 bytes per cycle from memory it arrives every 130 to 200 cycles, and the
// prefetches are what matters.
// Included by linear_amx.cc: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "products/linear_tiles.h"
#include "products/tiles_amx.h"

namespace relevo {
namespace {

constexpr size_t kBfloatPrefetchBytes = 2048;
constexpr int64_t kBfloatStretch = 18;             // blocks of a panel that stay in a first-level cache, times two panels
constexpr size_t kBfloatInputsBytes = 1024 * 1024;  // prepared inputs that stay in a second-level cache
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;

// Up to 16 rows are one group of just as many; more are groups of 16, the last filled with zeros, so that all tiles of a
// product have one shape. Inputs of a group of R rows: [blocks][R][32] bfloat16,
// k = 2 g + 1 before k = 2 g, as weights are packed.
int64_t bfloat_group_rows(int64_t m) { return m < kTileRows ? m : kTileRows; }
int64_t num_bfloat_groups(int64_t m) { return (m + kTileRows - 1) / kTileRows; }
size_t bfloat_input_bytes(int64_t m, int64_t k) {
  return num_bfloat_groups(m) * bfloat_group_rows(m) * num_blocks(Format::bf16, k) * kTileRowBytes;
}

void prepare_bfloats(const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end, uint8_t* inputs) {
  const int64_t blocks = num_blocks(Format::bf16, k), group_rows = bfloat_group_rows(m);
  const int64_t padded_end = end == m ? num_bfloat_groups(m) * group_rows : end;
  for (int64_t row = first; row < padded_end; ++row) {
    uint8_t* out = inputs + (row / kTileRows * group_rows * blocks + row % kTileRows) * kTileRowBytes;
    for (int64_t b = 0; b < blocks; ++b, out += group_rows * kTileRowBytes) {
      const int64_t left = k - b * kBlock, count = row >= m ? 0 : left < kBlock ? left : kBlock;
      uint16_t values[kBlock] = {};
      for (int64_t i = 0; i < count; ++i) values[i ^ 1] = float_to_bfloat(x[(row - first) * x_stride + b * kBlock + i]);
      std::memcpy(out, values, sizeof values);
    }
  }
}

// Sums are tiles 0 to 3 (by group, then panel), inputs 4 and 5, weights 6 and 7.
void configure_bfloat_tiles(int64_t group_rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.row_bytes[tile] = kTileRowBytes;
    shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? group_rows : kTileRows);
  }
  configure_tiles(shapes);
}

// Prefetching past the end of a weight is harmless: it is not an access.
void prefetch_bfloats(const uint8_t* from) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(from) + kBfloatPrefetchBytes;
  for (size_t i = 0; i < kBfloatBlockBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(start + i), _MM_HINT_T0);
}

// What one to two panels by one to two groups of rows multiply.
struct BfloatTiles {
  const uint8_t* weights;  // of the first panel; the second is `panel_stride` bytes behind
  size_t panel_stride;
  const uint8_t* inputs;  // of the first group; the second is `group_stride` bytes behind
  size_t group_stride, input_block_bytes;
  int64_t blocks;
  float* sums;  // [16 rows][16] of the first group and panel, followed by the second group's
  size_t sums_panel_stride;
};

template <int kTile>
void start_sums(const float* sums, bool is_first) {
  if (is_first)
    tile_zero<kTile>();
  else
    tile_load<kTile>(sums, kTileRowBytes);
}

template <int kPanels, int kGroups, bool kPrefetches>
void add_bfloat_tiles(const BfloatTiles& t, bool is_first) {
  constexpr int64_t kGroupSums = kTileRows * kPanelRows;
  float* second_panel = t.sums + t.sums_panel_stride;
  start_sums<0>(t.sums, is_first);
  if constexpr (kPanels > 1) start_sums<1>(second_panel, is_first);
  if constexpr (kGroups > 1) start_sums<2>(t.sums + kGroupSums, is_first);
  if constexpr (kPanels > 1 && kGroups > 1) start_sums<3>(second_panel + kGroupSums, is_first);
  const uint8_t* w = t.weights;
  const uint8_t* x = t.inputs;
  for (int64_t b = 0; b < t.blocks; ++b, w += kBfloatBlockBytes, x += t.input_block_bytes) {
    if constexpr (kPrefetches) prefetch_bfloats(w);
    if constexpr (kPrefetches && kPanels > 1) prefetch_bfloats(w + t.panel_stride);
    tile_load<6>(w, kTileRowBytes);
    tile_load<4>(x, kTileRowBytes);
    tile_add_bfloat_products<0, 4, 6>();
    if constexpr (kPanels > 1) {
      tile_load<7>(w + t.panel_stride, kTileRowBytes);
      tile_add_bfloat_products<1, 4, 7>();
    }
    if constexpr (kGroups > 1) {
      tile_load<5>(x + t.group_stride, kTileRowBytes);
      tile_add_bfloat_products<2, 5, 6>();
    }
    if constexpr (kPanels > 1 && kGroups > 1) tile_add_bfloat_products<3, 5, 7>();
  }
  tile_store<0>(t.sums, kTileRowBytes);
  if constexpr (kPanels > 1) tile_store<1>(second_panel, kTileRowBytes);
  if constexpr (kGroups > 1) tile_store<2>(t.sums + kGroupSums, kTileRowBytes);
  if constexpr (kPanels > 1 && kGroups > 1) tile_store<3>(second_panel + kGroupSums, kTileRowBytes);
}

// The first rows bring weights into the cache, the others find them there.
template <int kPanels>
void add_bfloat_groups(const BfloatTiles& t, int64_t groups, bool is_first) {
  if (groups == 1) return add_bfloat_tiles<kPanels, 1, true>(t, is_first);
  add_bfloat_tiles<kPanels, 2, true>(t, is_first);
  BfloatTiles pair = t;
  for (int64_t group = 2; group < groups; group += 2) {
    pair.inputs += 2 * t.group_stride;
    pair.sums += 2 * kTileRows * kPanelRows;
    if (groups - group > 1)
      add_bfloat_tiles<kPanels, 2, false>(pair, is_first);
    else
      add_bfloat_tiles<kPanels, 1, false>(pair, is_first);
  }
}

struct Bfloats {  // what store_tile asks
  static constexpr Format kFormat = Format::bf16;
  static constexpr bool kScalesAtEnd = false;
};

// Rows [first_row, end_row) of one or two panels; first_row is a multiple of 16.
template <int kPanels>
void multiply_bfloat_panels(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_row, int64_t end_row,
                            int64_t panel, const Output& output) {
  const int64_t blocks = num_blocks(Format::bf16, w.k), groups = num_bfloat_groups(end_row - first_row);
  const int64_t stretches = (blocks + kBfloatStretch - 1) / kBfloatStretch;
  const int64_t stretch = (blocks + stretches - 1) / stretches;
  alignas(64) float sums[kPanels][kMostRowsPerPass * kPanelRows];
  BfloatTiles t;
  t.panel_stride = panel_bytes(Format::bf16, w.k);
  t.input_block_bytes = bfloat_group_rows(m) * kTileRowBytes;
  t.group_stride = blocks * t.input_block_bytes;
  t.sums = sums[0];
  t.sums_panel_stride = kMostRowsPerPass * kPanelRows;
  for (int64_t first = 0; first < blocks; first += stretch) {
    t.weights = w.packed + panel * t.panel_stride + first * kBfloatBlockBytes;
    t.inputs = inputs + first_row / kTileRows * t.group_stride + first * t.input_block_bytes;
    t.blocks = blocks - first < stretch ? blocks - first : stretch;
    add_bfloat_groups<kPanels>(t, groups, first == 0);
  }
  for (int p = 0; p < kPanels; ++p) store_tile<Bfloats>(w, panel + p, sums[p], first_row, end_row - first_row, output);
}

int64_t bfloat_rows_per_pass(int64_t k) {
  const int64_t fitting = static_cast<int64_t>(kBfloatInputsBytes) / (num_blocks(Format::bf16, k) * kTileBytes) * kTileRows;
  return fitting < 128 ? 128 : fitting > kMostRowsPerPass ? kMostRowsPerPass : fitting;
}

void multiply_bfloats(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                      const Output& output) {
  const int64_t step = bfloat_rows_per_pass(w.k);
  configure_bfloat_tiles(bfloat_group_rows(m));
  for (int64_t row = 0; row < m; row += step) {
    const int64_t end_row = m - row < step ? m : row + step;
    int64_t panel = first_panel;
    for (; panel + 1 < end_panel; panel += 2) multiply_bfloat_panels<2>(w, inputs, m, row, end_row, panel, output);
    if (panel < end_panel) multiply_bfloat_panels<1>(w, inputs, m, row, end_row, panel, output);
  }
  release_tiles();
}

}  // namespace
}  // namespace relevo
