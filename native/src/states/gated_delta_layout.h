// What a key head is computed in: tokens are taken in runs, of which inputs and convolved inputs lie in scratch memory.
#pragma once

#include <cstdint>

#include "states/gated_delta.h"

namespace relevo {
namespace {

constexpr int64_t RUN_TOKENS = 32;      // arbitrary: bounds the scratch memory
constexpr int64_t MOST_COLUMNS = 2 * 16;  // of a matrix that are computed together: two of the widest vectors

// Columns of one key head: its query, its key, the values of all heads that share it.
inline int64_t head_width(const DeltaSizes& sizes) { return 2 * sizes.key_size + sizes.values_per_key() * sizes.value_size; }

}  // namespace
}  // namespace relevo
