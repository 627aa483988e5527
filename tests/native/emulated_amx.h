// The tile instructions that the kernels use (native/src/products/tiles_amx.h), in plain C++ after the pseudocode of Intel's
// Software Developer's Manual, and what the AMX sources need of AVX-512 beside it. Included before a kernel's source
// (g++ -include). What would fault on a processor ends the program with a sentence.
#pragma once

#include "emulated_avx512.h"

#include <cstdio>
#include <cstdlib>

#define RELEVO_EMULATED_TILES

namespace emulated {

inline __m512i sub_epi8(__m512i a, __m512i b) {
  return each_lane<__m512i>(U8(), [x = U8(a), y = U8(b)](int i) { return static_cast<uint8_t>(x.at[i] - y.at[i]); });
}

constexpr int kMaxRows = 16;
constexpr int kMaxRowBytes = 64;

struct Tile {
  int rows, row_bytes;
  uint8_t data[kMaxRows][kMaxRowBytes];
};
struct Tiles {
  bool configured = false;
  Tile tile[8];
};
inline Tiles& state() {
  static thread_local Tiles tiles;
  return tiles;
}

inline void require(bool holds, const char* otherwise) {
  if (holds) return;
  std::printf("tile instruction: %s\n", otherwise);
  std::abort();
}
inline Tile& tile_of(int index) {
  require(state().configured, "tiles are not configured");
  Tile& tile = state().tile[index];
  require(tile.rows > 0, "the tile has no size");
  return tile;
}

template <class Element>
Element element(const Tile& tile, int row, int index) {
  Element value;
  std::memcpy(&value, tile.data[row] + index * sizeof value, sizeof value);
  return value;
}
inline float bfloat(const Tile& tile, int row, int index) {
  const uint32_t bits = static_cast<uint32_t>(element<uint16_t>(tile, row, index)) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

inline void require_shapes(const Tile& sums, const Tile& a, const Tile& b) {
  require(sums.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0, "a row is no multiple of 4 bytes");
  require(sums.rows == a.rows, "a and the sums differ in rows");
  require(a.row_bytes / 4 == b.rows, "a's columns are not b's rows");
  require(sums.row_bytes == b.row_bytes, "b and the sums differ in columns");
}

template <class Byte>
void add_byte_products(int sums_tile, int a_tile, int b_tile) {
  require(sums_tile != a_tile && sums_tile != b_tile && a_tile != b_tile, "a tile is used twice");
  Tile &sums = tile_of(sums_tile), &a = tile_of(a_tile), &b = tile_of(b_tile);
  require_shapes(sums, a, b);
  for (int m = 0; m < sums.rows; ++m)
    for (int k = 0; k < a.row_bytes / 4; ++k)
      for (int n = 0; n < sums.row_bytes / 4; ++n) {
        int32_t sum = element<int32_t>(sums, m, n);
        for (int j = 0; j < 4; ++j)
          sum += static_cast<int32_t>(element<Byte>(a, m, 4 * k + j)) * element<int8_t>(b, k, 4 * n + j);
        std::memcpy(sums.data[m] + 4 * n, &sum, 4);
      }
}

}  // namespace emulated

namespace relevo {

template <class Shapes>
void configure_tiles(const Shapes& shapes) {
  uint8_t bytes[64];
  static_assert(sizeof shapes == sizeof bytes);
  std::memcpy(bytes, &shapes, sizeof bytes);
  emulated::require(bytes[0] == 1, "the palette is not 1");
  emulated::require(bytes[1] == 0, "the start row is not 0");
  for (int i = 2; i < 16; ++i) emulated::require(bytes[i] == 0, "reserved bytes are not 0");
  for (int i = 0; i < 16; ++i) {
    const int row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], rows = bytes[48 + i];
    emulated::require(i < 8 || (row_bytes == 0 && rows == 0), "there are eight tiles");
    emulated::require(row_bytes <= emulated::kMaxRowBytes && rows <= emulated::kMaxRows, "a tile is too large");
    emulated::require((row_bytes == 0) == (rows == 0), "a tile has rows or columns only");
    if (i < 8) emulated::state().tile[i] = {rows, row_bytes, {}};
  }
  emulated::state().configured = true;
}

inline void release_tiles() { emulated::state().configured = false; }

template <int kTile>
void tile_zero() {
  std::memset(emulated::tile_of(kTile).data, 0, sizeof(emulated::Tile::data));
}
template <int kTile>
void tile_load(const void* from, size_t stride) {
  emulated::Tile& tile = emulated::tile_of(kTile);
  std::memset(tile.data, 0, sizeof tile.data);
  for (int row = 0; row < tile.rows; ++row)
    std::memcpy(tile.data[row], static_cast<const uint8_t*>(from) + row * stride, tile.row_bytes);
}
template <int kTile>
void tile_store(void* to, size_t stride) {
  const emulated::Tile& tile = emulated::tile_of(kTile);
  for (int row = 0; row < tile.rows; ++row)
    std::memcpy(static_cast<uint8_t*>(to) + row * stride, tile.data[row], tile.row_bytes);
}

template <int kSums, int kA, int kB>
void tile_add_signed_products() {
  emulated::add_byte_products<int8_t>(kSums, kA, kB);
}
template <int kSums, int kA, int kB>
void tile_add_unsigned_products() {
  emulated::add_byte_products<uint8_t>(kSums, kA, kB);
}

// Two sums per output, of even and of odd k, by fused multiply-adds; then their sum is added to what is there. Rounds to
// nearest, ties to even; subnormal operands and results count as zero.
template <int kSums, int kA, int kB>
void tile_add_bfloat_products() {
  using namespace emulated;
  static_assert(kSums != kA && kSums != kB && kA != kB, "a tile is used twice");
  Tile &sums = tile_of(kSums), &a = tile_of(kA), &b = tile_of(kB);
  require_shapes(sums, a, b);
  for (int m = 0; m < sums.rows; ++m)
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      float halves[2] = {0.0f, 0.0f};
      for (int k = 0; k < a.row_bytes / 4; ++k)
        for (int j = 0; j < 2; ++j)
          halves[j] = flushed(std::fma(bfloat(a, m, 2 * k + j), bfloat(b, k, 2 * n + j), halves[j]));
      const float both = flushed(halves[0] + halves[1]);
      const float sum = flushed(flushed(element<float>(sums, m, n)) + both);
      std::memcpy(sums.data[m] + 4 * n, &sum, 4);
    }
}

}  // namespace relevo

#define _mm512_sub_epi8(a, b) emulated::sub_epi8(a, b)
