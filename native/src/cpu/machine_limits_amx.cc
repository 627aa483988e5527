// Limits with matrix tiles: four products of full tiles in flight, more than their latency asks for.
#include "cpu/machine_limits.h"
#include "cpu/machine_limits_paths.h"
#include "products/tiles_amx.h"

namespace relevo {
namespace {

constexpr int SUM_TILES = 4;
constexpr int SUMS = kTileRows * kTileRowBytes / 4;  // of a tile
constexpr int64_t ROUNDS_KEPT = 1 << 18;             // before the sums are emptied: 32 times as many fit a float

void configure() {
  TileShapes shapes;
  for (int tile = 0; tile < SUM_TILES + 2; ++tile) {
    shapes.row_bytes[tile] = kTileRowBytes;
    shapes.rows[tile] = kTileRows;
  }
  configure_tiles(shapes);
}

template <class Sum>
double empty() {
  alignas(64) Sum sums[SUM_TILES][SUMS];
  tile_store<0>(sums[0], kTileRowBytes);
  tile_store<1>(sums[1], kTileRowBytes);
  tile_store<2>(sums[2], kTileRowBytes);
  tile_store<3>(sums[3], kTileRowBytes);
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  double total = 0;
  for (const auto& tile : sums)
    for (const Sum sum : tile) total += static_cast<double>(sum);
  return total;
}

// `ones` fills a tile with ones of what is multiplied; `multiply` adds the products of tiles 4 and 5 to each sum.
template <class Sum, class One, class Multiply>
double multiply_tiles(int64_t rounds, One one, Multiply multiply) {
  alignas(64) One ones[kTileRows * kTileRowBytes / sizeof(One)];
  for (One& value : ones) value = one;
  configure();
  tile_load<4>(ones, kTileRowBytes);
  tile_load<5>(ones, kTileRowBytes);
  double total = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    multiply();
    if (round % ROUNDS_KEPT == ROUNDS_KEPT - 1) total += empty<Sum>();
  }
  total += empty<Sum>();
  release_tiles();
  return total;
}

double multiply_bytes(int64_t rounds) {
  return multiply_tiles<int32_t>(rounds, int8_t{1}, [] {
    tile_add_signed_products<0, 4, 5>();
    tile_add_signed_products<1, 4, 5>();
    tile_add_signed_products<2, 4, 5>();
    tile_add_signed_products<3, 4, 5>();
  });
}

double multiply_bfloats(int64_t rounds) {
  constexpr uint16_t one = 0x3f80;
  return multiply_tiles<float>(rounds, one, [] {
    tile_add_bfloat_products<0, 4, 5>();
    tile_add_bfloat_products<1, 4, 5>();
    tile_add_bfloat_products<2, 4, 5>();
    tile_add_bfloat_products<3, 4, 5>();
  });
}

}  // namespace

const LimitKernels limits_amx = {
    Path::amx,
    read_with_avx2,
    {multiply_floats_with_avx512, multiply_bfloats, multiply_bytes, multiply_bytes},
    {FLOAT_PRODUCTS_AVX512, SUM_TILES * SUMS * 32, SUM_TILES * SUMS * 64, SUM_TILES * SUMS * 64},
};

}  // namespace relevo
