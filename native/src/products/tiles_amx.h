// The matrix instructions of AMX, one function each, with the memory they touch declared to the compiler. (The intrinsics
// of gcc 12 declare too little: eight bytes of a configuration, and nothing of what a tile is loaded from.)
//
// Eight tile registers hold up to 16 rows of up to 64 bytes. A configuration gives each its size; it holds, and costs the
// system a larger context to save, until tiles are released.
// Included by sources compiled for AMX: everything here has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relevo {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // by tile
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64, "the instruction reads 64 bytes");

#if !defined(RELEVO_EMULATED_TILES)  // by which tests run kernels where there are no tiles

// Clears all tiles.
inline void configure_tiles(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }
inline void release_tiles() { __asm__ volatile("tilerelease" : :); }

template <int kTile>
void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Rows of a tile are `stride` bytes apart.
template <int kTile>
void tile_load(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void tile_store(void* to, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// sums[m][n] (int32) += sum over j < 4 and k of a[m][4 k + j] * b[k][4 n + j], int8 by int8.
template <int kSums, int kA, int kB>
void tile_add_signed_products() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}
// The same with unsigned bytes in a.
template <int kSums, int kA, int kB>
void tile_add_unsigned_products() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}
// sums[m][n] (float32) += the products of even k, then those of odd k, each added with k ascending; bfloat16 pairs.
template <int kSums, int kA, int kB>
void tile_add_bfloat_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

#endif

}  // namespace
}  // namespace relevo
