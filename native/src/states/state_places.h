// Where layers keep their states in the blocks of a cache: whole layers in a block, so many as it has room for.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace relevo {

// Of one group of states, which blocks each row's lies in.
struct StateTable {
  const int64_t* blocks;  // [B, width]
  int64_t width;
};

struct StatePlaces {
  std::vector<int64_t> groups, places;  // by layer: -1, and any, where it keeps none
  std::vector<size_t> state_bytes;      // by group, of a sequence in a layer
  int64_t group_of(int64_t layer) const {
    return layer < static_cast<int64_t>(groups.size()) ? groups[static_cast<size_t>(layer)] : -1;
  }
  int64_t layers_per_block(const KVCache& cache, int64_t group) const {
    return static_cast<int64_t>(cache.block_bytes() / state_bytes[static_cast<size_t>(group)]);
  }
  // Which of a row's blocks a layer's state is in.
  int64_t entry_of(const KVCache& cache, int64_t layer) const {
    return places[static_cast<size_t>(layer)] / layers_per_block(cache, group_of(layer));
  }
  uint8_t* find(const KVCache& cache, const std::vector<StateTable>& tables, int64_t layer, int64_t row) const {
    const int64_t group = group_of(layer);
    const StateTable& table = tables[static_cast<size_t>(group)];
    const int64_t block = table.blocks[row * table.width + entry_of(cache, layer)];
    const int64_t place = places[static_cast<size_t>(layer)] % layers_per_block(cache, group);
    return cache.run(block, 0, 0, 0) + static_cast<size_t>(place) * state_bytes[static_cast<size_t>(group)];
  }
};

}  // namespace relevo
