// The packed form of bfloat16 weights for matrix tiles.
//
// A panel holds 16 output rows. Along k it is a sequence of blocks of 32 k (the last is filled with zeros), each a tile as
// the instruction reads it: 16 groups of [16 rows][2 elements], k = 2 g + i.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/linear.h"

namespace relevo {

constexpr int64_t kPairBlock = 32;          // k of a tile
constexpr size_t kPairBlockBytes = 1024;  // of 16 rows

int64_t num_pair_blocks(int64_t k);
size_t pair_panel_bytes(int64_t k);
void pack_pairs(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows);
void unpack_pairs(const Linear& w, int64_t row, float* out);

}  // namespace relevo
