// Attention of many queries: they share a copy of a split in float32, keys transposed so that lanes are keys, and add
// the same numbers in the same order as the form for few.
#pragma once

#include "attention/attention_scratch.h"
#include "attention/attention_sums.h"

namespace relevo {
namespace {

template <class V>
struct ManyQueries : WeightedSums<V> {
  using Sums = WeightedSums<V>;
  using typename Sums::F, typename Sums::Split;
  using Sums::WeightedSums, Sums::W, Sums::SCORES, Sums::CHUNK, Sums::cache, Sums::chunks, Sums::clear, Sums::finish;
  using Sums::value_chunks, Sums::group, Sums::has_half_chunk, Sums::largest, Sums::merge_into, Sums::out_of;
  using Sums::has_scales, Sums::padded, Sums::partial_of, Sums::place, Sums::place_scales, Sums::record;
  using Sums::scaled_query, Sums::weigh, Sums::weight_sum;
  static constexpr int64_t TILE = 6;       // queries of one pass over transposed keys: 12 accumulators
  static constexpr int64_t STRIP = 2 * W;  // keys of one pass
  static constexpr int64_t TILES = 8;      // that use a strip or chunk while it is in the nearest cache

  struct CopiedRows {
    const float* values;
    int64_t width;
    const uint8_t* operator()(int64_t i) const { return reinterpret_cast<const uint8_t*>(values + i * width); }
    template <int64_t BYTES>
    void fetch(int64_t, int64_t) const {}
  };
  static int64_t leaf_of_lane(int64_t lane) {
    int64_t leaf = 0;
    while (V::LEAVES[leaf] != lane) ++leaf;
    return leaf;
  }

  // Keys of the split as strips [STRIP keys]: [W lanes, in the order of their addition][chunks][keys]; 0 where none is.
  template <class KV>
  void transpose_keys(const Split& split, float* strips) const {
    const int64_t num_chunks = chunks();
    const bool half = has_half_chunk();
    int64_t leaves[W];
    for (int64_t lane = 0; lane < W; ++lane) leaves[lane] = leaf_of_lane(lane);
    const int64_t end = (split.range.high + STRIP - 1) / STRIP * STRIP;
    for (int64_t i = split.range.low / STRIP * STRIP; i < end; i += W) {
      float* strip = strips + i / STRIP * STRIP * padded + i % STRIP;
      for (int64_t c = 0; c < num_chunks; ++c) {
        F rows[W];
        for (int64_t j = 0; j < W; ++j) {
          const int64_t key = i + j - split.range.low;
          const bool there = key >= 0 && key < split.count;
          const bool is_half = half && c == num_chunks - 1;
          rows[j] = there ? Sums::template load_chunk<KV>(split.keys()[key], c, is_half) : V::zero();
        }
        V::transpose(rows);
        for (int64_t j = 0; j < W; ++j) V::store(strip + (leaves[j] * num_chunks + c) * STRIP, rows[j]);
      }
    }
  }

  template <class KV>
  void copy_values(const Split& split, float* tile) const {
    const int64_t num_chunks = value_chunks(), last = has_half_chunk() ? chunks() - 1 : -1;
    for (int64_t i = 0; i < split.count; ++i) {
      float* to = tile + (split.range.low + i) * padded;
      for (int64_t c = 0; c < num_chunks; ++c) {
        V::store(to + c * W, Sums::template load_chunk<KV>(split.values()[i], c, c == last));
      }
    }
  }

  // TILE scaled queries [TILE, padded], laid out as [lanes, in the order of their addition][chunks][TILE].
  void interleave_tile(const float* scaled, float* tile) const {
    const int64_t num_chunks = chunks();
    for (int64_t c = 0; c < num_chunks; ++c) {
      for (int64_t first = 0; first < TILE; first += W) {  // of a narrow path, more than once
        const int64_t count = smaller(W, TILE - first);
        F rows[W];
        for (int64_t r = 0; r < W; ++r) {
          rows[r] = r < count ? V::load(scaled + (first + r) * padded + c * W) : V::zero();
        }
        V::transpose(rows);
        for (int64_t leaf = 0; leaf < W; ++leaf) {
          float* to = tile + (leaf * num_chunks + c) * TILE + first;
          Sums::store_up_to(to, rows[V::LEAVES[leaf]], count);
        }
      }
    }
  }

  // Products of one lane of TILE queries with one strip, added chunk by chunk; moves on to the next lane.
  static void products_of_lane(const float*& q, const float*& strip, int64_t num_chunks, F (&sums)[TILE][2]) {
    for (int r = 0; r < TILE; ++r) sums[r][0] = sums[r][1] = V::zero();
    for (int64_t c = 0; c < num_chunks; ++c, q += TILE, strip += STRIP) {
      const F low = V::load(strip), high = V::load(strip + W);
      for (int r = 0; r < TILE; ++r) {
        const F query = V::set1(q[r]);
        sums[r][0] = V::fma(query, low, sums[r][0]);
        sums[r][1] = V::fma(query, high, sums[r][1]);
      }
    }
  }

  // Scores of TILE queries and one strip. Sums of single lanes are added as soon as a node of the tree is complete: two by
  // two in registers, further ones through memory.
  void scores_of_strip(const float* q, const float* strip, float* scores) const {
    const int64_t num_chunks = chunks();
    F waiting[3][TILE][2];
    for (int64_t pair = 0; pair < W / 2; ++pair) {
      F left[TILE][2], sums[TILE][2];
      products_of_lane(q, strip, num_chunks, left);
      products_of_lane(q, strip, num_chunks, sums);
      for (int r = 0; r < TILE; ++r) {
        sums[r][0] = V::add(left[r][0], sums[r][0]);
        sums[r][1] = V::add(left[r][1], sums[r][1]);
      }
      int64_t level = 0;
      for (; (pair >> level) & 1; ++level) {
        for (int r = 0; r < TILE; ++r) {
          sums[r][0] = V::add(waiting[level][r][0], sums[r][0]);
          sums[r][1] = V::add(waiting[level][r][1], sums[r][1]);
        }
      }
      const bool complete = pair == W / 2 - 1;
      for (int r = 0; r < TILE; ++r) {
        if (complete) {
          V::store(scores + r * SCORES, sums[r][0]);
          V::store(scores + r * SCORES + W, sums[r][1]);
        } else {
          waiting[level][r][0] = sums[r][0];
          waiting[level][r][1] = sums[r][1];
        }
      }
    }
  }

  // Weights of one row of a tile over the whole range of the tile; the row's own range may be smaller or empty.
  void weigh_row(const Split& split, Range tile, Range own, float* scores, float* result) const {
    if (own.empty()) {
      for (int64_t i = tile.low; i < tile.high; ++i) scores[i] = 0.0f;
      clear(result);
      return;
    }
    weigh(split, own, scores, largest(result), weight_sum(result));
    for (int64_t i = tile.low; i < own.low / W * W; ++i) scores[i] = 0.0f;
    for (int64_t i = (own.high + W - 1) / W * W; i < tile.high; ++i) scores[i] = 0.0f;
  }

  // Which keys of a split the rows of a tile see, and the range that spans them.
  struct TileRanges {
    Range own[TILE];
    Range all;
  };

  TileRanges ranges_of(const AttentionPlan::Task& task, int64_t first_row, int64_t start) const {
    const int64_t end_row = (task.end_query - task.first_query) * group.num_heads;
    TileRanges ranges;
    ranges.all = {SPLIT_TOKENS, 0};
    for (int64_t r = 0; r < TILE; ++r) {
      Range& own = ranges.own[r];
      own = {0, 0};
      if (first_row + r >= end_row) continue;
      const int64_t query = task.first_query + (first_row + r) / group.num_heads;
      own = in_split(group.first_visible(query), group.end_visible(query), start);
      if (own.empty()) continue;
      ranges.all = {smaller(ranges.all.low, own.low), larger(ranges.all.high, own.high)};
    }
    return ranges;
  }

  // One split for `num_tiles` tiles: TILE results for each.
  void split_of_tiles(const Split& split, const TileRanges* tiles, int64_t num_tiles, const float* q,
                      const float* strips, const float* values, float* scores, float* results) const {
    for (int64_t i = split.range.low / STRIP * STRIP; i < split.range.high; i += STRIP) {
      for (int64_t t = 0; t < num_tiles; ++t) {
        if (i + STRIP <= tiles[t].all.low || i >= tiles[t].all.high) continue;
        scores_of_strip(q + t * TILE * padded, strips + i * padded, scores + t * TILE * SCORES + i);
      }
    }
    for (int64_t r = 0; r < num_tiles * TILE; ++r) {
      const TileRanges& tile = tiles[r / TILE];
      weigh_row(split, tile.all, tile.own[r % TILE], scores + r * SCORES, results + r * record);
    }
    const CopiedRows row_of{values, padded};
    for (int64_t low = split.range.low; low < split.range.high; low += CHUNK) {
      for (int64_t r = 0; r < num_tiles * TILE; r += 3) {
        const Range all = tiles[r / TILE].all;
        const Range keys{larger(low, all.low), smaller(low + CHUNK, all.high)};
        if (keys.empty()) continue;
        this->template sum_values<F32Cache<V>, 3>(scores + r * SCORES, keys, low <= all.low, results + r * record,
                                                  row_of);
      }
    }
  }

  // The queries of a task, scaled and interleaved by tiles; the last tile is filled up with zeros.
  void interleave_queries(const AttentionPlan::Task& task, const float* q, int64_t q_stride, float* scaled,
                          float* queries) const {
    const int64_t num_rows = (task.end_query - task.first_query) * group.num_heads;
    for (int64_t r = 0; r < (num_rows + TILE - 1) / TILE * TILE; ++r) {
      float* row = scaled + r % TILE * padded;
      if (r < num_rows) {
        scaled_query(q, q_stride, task.first_query + r / group.num_heads, r % group.num_heads, row);
      } else {
        std::memset(row, 0, sizeof(float) * static_cast<size_t>(padded));
      }
      if (r % TILE == TILE - 1) interleave_tile(scaled, queries + r / TILE * TILE * padded);
    }
  }

  // Takes the result of row r of a task, of the split at `start`, to where it belongs.
  void take_result(const AttentionPlan::Task& task, int64_t start, int64_t r, float* fresh, float* results,
                   float* scratch) const {
    if (task.partial < 0) {
      merge_into(results + r * record, fresh);
      return;
    }
    const int64_t query = task.first_query + r / group.num_heads;
    float* target = partial_of(task, start, query, scratch) + r % group.num_heads * record;
    std::memcpy(target, fresh, sizeof(float) * static_cast<size_t>(record));
  }

  void attend_queries(const AttentionPlan::Task& task, const float* q, int64_t q_stride, float* out,
                      int64_t out_stride, float* scratch) const {
    constexpr int64_t BLOCK = TILES * TILE;
    const int64_t num_rows = (task.end_query - task.first_query) * group.num_heads;
    const int64_t num_tiles = (num_rows + TILE - 1) / TILE;
    const int64_t num_floats = num_tiles * TILE * (padded + record) + (2 * SPLIT_TOKENS + TILE) * padded +
                               BLOCK * (SCORES + record);
    float* queries = attention_scratch(static_cast<size_t>(num_floats));
    float* strips = queries + num_tiles * TILE * padded;
    float* values = strips + SPLIT_TOKENS * padded;
    float* scaled = values + SPLIT_TOKENS * padded;
    float* results = scaled + TILE * padded;
    float* fresh = results + num_tiles * TILE * record;
    float* scores = fresh + BLOCK * record;
    interleave_queries(task, q, q_stride, scaled, queries);
    for (int64_t r = 0; r < num_rows; ++r) clear(results + r * record);
    alignas(64) float scales[2 * SPLIT_TOKENS];
    Split split;
    for (int64_t start = task.first_key; start < task.end_key; start += SPLIT_TOKENS) {
      split.range = in_split(group.first_visible(task.first_query), group.end_visible(task.end_query - 1), start);
      if (!split.range.empty()) {
        place(start, split.range, start + split.range.high, split);
        if (has_scales) {
          for (int64_t which = 0; which < 2; ++which) place_scales(start, split.range, which, 1, scales + which * SPLIT_TOKENS);
          split.scales = scales;
        }
        with_numbers<V>(cache.type, [&](auto numbers) {
          this->template transpose_keys<decltype(numbers)>(split, strips);
          this->template copy_values<decltype(numbers)>(split, values);
        });
      }
      for (int64_t first = 0; first < num_tiles; first += TILES) {
        const int64_t count = smaller(TILES, num_tiles - first);
        TileRanges tiles[TILES];
        for (int64_t t = 0; t < count; ++t) tiles[t] = ranges_of(task, (first + t) * TILE, start);
        split_of_tiles(split, tiles, count, queries + first * TILE * padded, strips, values, scores, fresh);
        const int64_t end = smaller(num_rows - first * TILE, count * TILE);
        for (int64_t r = 0; r < end; ++r) {
          take_result(task, start, first * TILE + r, fresh + r * record, results, scratch);
        }
      }
    }
    if (task.partial >= 0) return;
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t query = task.first_query + r / group.num_heads;
      const int64_t head = r % group.num_heads;
      finish(results + r * record, head, out_of(out, out_stride, query, head));
    }
  }
};

}  // namespace
}  // namespace relevo
