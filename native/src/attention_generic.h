// The kernels of attention.h over a vector interface V (simd_*.h). Included by one file per path.
//
// Keys are looked at in splits of SPLIT_TOKENS. In each, a score is the sum over d of q * k, lane l of a vector adding
// the elements with d % W = l in ascending order, and the lanes being added as V::sum_lanes adds them. Weights are
// exp(score - largest of the split); values are added key by key. There are two forms of this. A row with one or two
// queries reads each key once, lanes along d. More queries share a copy of the split in float32, keys transposed so
// that lanes are keys, and add the same numbers in the same order. Hidden keys have the weight 0 in both.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_scratch.h"
#include "simd_exp.h"

namespace relevo {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// How a cache's numbers become floats.
template <class V>
struct F32Cache {
  static constexpr bool SCALED = false;
  static constexpr int64_t BYTES = 4;
  static typename V::F load(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static typename V::F load_8(const uint8_t* p) { return V::load_part(reinterpret_cast<const float*>(p), 8); }
};
template <class V>
struct F16Cache {
  static constexpr bool SCALED = false;
  static constexpr int64_t BYTES = 2;
  static typename V::F load(const uint8_t* p) { return V::from_f16(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_f16_8(p); }
};
template <class V>
struct BF16Cache {
  static constexpr bool SCALED = false;
  static constexpr int64_t BYTES = 2;
  static typename V::F load(const uint8_t* p) { return V::from_bf16(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_bf16_8(p); }
};
template <class V>
struct I8Cache {
  static constexpr bool SCALED = true;
  static constexpr int64_t BYTES = 1;
  static typename V::F load(const uint8_t* p) { return V::from_i8(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_i8_8(p); }
};

// The query heads of one KV head over one row of the step.
struct Group {
  const AttentionStep& step;
  int64_t row, num_queries, context, num_heads, first_head;  // num_heads: of this group
  Group(const KVCache& cache, const AttentionStep& s, int64_t row_, int64_t kv_head)
      : step(s),
        row(row_),
        num_queries(s.row_first_token[row_ + 1] - s.row_first_token[row_]),
        context(s.context_lengths[row_]),
        num_heads(s.num_heads / cache.num_kv_heads),
        first_head(kv_head * num_heads) {}
  int64_t token(int64_t query) const { return step.row_first_token[row] + query; }
  int64_t end_visible(int64_t query) const { return context - num_queries + query + 1; }
  int64_t first_visible(int64_t query) const {
    return step.sliding_window > 0 ? larger(0, end_visible(query) - step.sliding_window) : 0;
  }
};

// Keys [low, high) of a split, counted from its start.
struct Range {
  int64_t low, high;
  bool empty() const { return low >= high; }
};

inline Range in_split(int64_t first, int64_t end, int64_t start) {
  return {larger(first - start, 0), smaller(end - start, SPLIT_TOKENS)};
}

template <class V, class KV>
struct Attention {
  using F = typename V::F;
  static constexpr int64_t W = V::W;
  static constexpr int64_t AHEAD = 64;  // rows prefetched ahead of use; measured, flat from 48 to 96
  static constexpr int64_t SCORES = SPLIT_TOKENS + 16;  // between the scores of two queries
  static constexpr int64_t MAX_HEADS = 3;               // of one pass over the keys: 12 accumulators
  static constexpr int64_t TILE = 6;                    // queries of one pass over transposed keys: 12 accumulators
  static constexpr int64_t STRIP = 2 * W;               // keys of one pass
  static constexpr int64_t TILES = 8;                   // that use a strip or chunk while it is in the nearest cache
  static constexpr int64_t CHUNK = 64;                  // values that stay there

  // Where the visible rows of one split lie: keys, then values, then some of the keys that are wanted next.
  struct Split {
    Range range;
    int64_t count;
    const uint8_t* rows[2 * SPLIT_TOKENS + AHEAD];
    alignas(64) float key_scales[SPLIT_TOKENS];
    alignas(64) float value_scales[SPLIT_TOKENS];
    const uint8_t* const* keys() const { return rows; }
    const uint8_t* const* values() const { return rows + count; }
  };

  const KVCache& cache;
  const int64_t layer, kv_head;
  const Group group;
  const int64_t padded;  // D rounded up to whole vectors
  const int64_t record;  // floats of a result: padded sum of values, largest score, sum of weights

  Attention(const KVCache& c, int64_t l, const AttentionStep& step, int64_t row, int64_t head)
      : cache(c),
        layer(l),
        kv_head(head),
        group(c, step, row, head),
        padded((c.head_size + W - 1) / W * W),
        record(partial_floats(c.head_size)) {}

  int64_t chunks() const { return padded / W; }
  bool has_half_chunk() const { return W > 8 && cache.head_size % W != 0; }
  float& largest(float* result) const { return result[record - 16]; }
  float& weight_sum(float* result) const { return result[record - 15]; }

  static F load_chunk(const uint8_t* row, int64_t chunk, bool half) {
    const uint8_t* p = row + chunk * W * KV::BYTES;
    if constexpr (W > 8) {
      if (half) return KV::load_8(p);
    }
    return KV::load(p);
  }

  // ---- finding keys and values ----

  void place(int64_t start, Range range, int64_t end_key, Split& split) const {
    split.range = range;
    split.count = range.high - range.low;
    const int64_t ahead = smaller(end_key - start - range.high, AHEAD);
    place_rows(start, range, 0, split.rows, split.key_scales);
    place_rows(start, range, 1, split.rows + split.count, split.value_scales);
    const uint8_t** next = split.rows + 2 * split.count;
    if (ahead > 0) place_rows(start, {range.high, range.high + ahead}, 0, next, nullptr);
    for (int64_t i = larger(ahead, 0); i < AHEAD; ++i) next[i] = split.rows[0];
  }

  void place_rows(int64_t start, Range range, int64_t which, const uint8_t** rows, float* scales) const {
    const int64_t size = cache.block_size;
    const int64_t row_bytes = static_cast<int64_t>(cache.row_bytes());
    const int64_t* table = group.step.block_tables + group.row * group.step.table_width;
    if (KV::SCALED && scales != nullptr) std::memset(scales, 0, sizeof(float) * SPLIT_TOKENS);
    for (int64_t i = range.low; i < range.high;) {
      const int64_t block = (start + i) / size;
      const int64_t first = (start + i) % size;
      const int64_t end = smaller(size, first + range.high - i);
      const uint8_t* run = cache.run(table[block], layer, which, kv_head);
      if (KV::SCALED && scales != nullptr) {
        const uint8_t* of_run = run + size * row_bytes + first * static_cast<int64_t>(sizeof(float));
        std::memcpy(scales + i, of_run, sizeof(float) * static_cast<size_t>(end - first));
      }
      i += end - first;
      for (int64_t offset = first; offset < end; ++offset) *rows++ = run + offset * row_bytes;
    }
  }

  void prefetch_row(const uint8_t* row) const {
    const int64_t bytes = cache.head_size * KV::BYTES;
    for (int64_t at = 0; at < bytes; at += 64) V::prefetch(row + at);
  }

  // ---- one query, lanes along d ----

  // q [N, padded], scaled; scores [N, SCORES] of the keys in the split's range, and of up to 3 more that mean nothing.
  template <int N>
  void scores_of_heads(const Split& split, const float* q, float* scores) const {
    const int64_t last = split.count - 1, num_chunks = chunks(), width = padded;
    const bool half = has_half_chunk();
    for (int64_t i = 0; i < split.count; i += 4) {
      const uint8_t* keys[4];
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t row = smaller(i + j, last);
        keys[j] = split.rows[row];
        prefetch_row(split.rows[row + AHEAD]);
      }
      F sums[N][4];
      for (int n = 0; n < N; ++n) {
        for (int j = 0; j < 4; ++j) sums[n][j] = V::zero();
      }
      for (int64_t c = 0; c < num_chunks; ++c) {
        const bool is_half = half && c == num_chunks - 1;
        F query[N];
        for (int n = 0; n < N; ++n) query[n] = V::load(q + n * width + c * W);
        for (int j = 0; j < 4; ++j) {
          const F key = load_chunk(keys[j], c, is_half);
          for (int n = 0; n < N; ++n) sums[n][j] = V::fma(query[n], key, sums[n][j]);
        }
      }
      for (int n = 0; n < N; ++n) {
        V::sum_lanes4(sums[n][0], sums[n][1], sums[n][2], sums[n][3], scores + n * SCORES + split.range.low + i);
      }
    }
  }

  // Turns scores of the range into weights (whole vectors around it: 0 outside); the largest score and the weights' sum.
  static void weigh(const Split& split, Range range, float* scores, float& most, float& sum) {
    const int64_t first = range.low / W * W, end = (range.high + W - 1) / W * W;
    if constexpr (KV::SCALED) {
      for (int64_t i = first; i < end; i += W) {
        V::store(scores + i, V::mul(V::load(scores + i), V::load(split.key_scales + i)));
      }
    }
    for (int64_t i = first; i < range.low; ++i) scores[i] = -INFINITY;
    for (int64_t i = range.high; i < end; ++i) scores[i] = -INFINITY;
    F largest_of_lane = V::load(scores + first);
    for (int64_t i = first + W; i < end; i += W) largest_of_lane = V::max(largest_of_lane, V::load(scores + i));
    most = V::max_lane(largest_of_lane);
    const F shift = V::set1(most);
    F total = V::zero();
    for (int64_t i = first; i < end; i += W) {
      const F weight = vector_exp_of_negative<V>(V::sub(V::load(scores + i), shift));
      total = V::add(total, weight);
      V::store(scores + i, KV::SCALED ? V::mul(weight, V::load(split.value_scales + i)) : weight);
    }
    sum = V::sum_lanes(total);
  }

  // Adds weight * value for keys [low, high) to columns [first, first + M) (in vectors) of N results, key by key.
  // `row_of(i)` points to the numbers of key i, stored as From says.
  template <class From, int N, int M, bool HALF, class RowOf>
  static void add_values(const float* weights, Range keys, int64_t column, bool fresh, float* results, int64_t record,
                         const RowOf& row_of) {
    F sums[N][M];
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) sums[n][m] = fresh ? V::zero() : V::load(results + n * record + (column + m) * W);
    }
    for (int64_t i = keys.low; i < keys.high; ++i) {
      F weight[N];
      for (int n = 0; n < N; ++n) weight[n] = V::set1(weights[n * SCORES + i]);
      const uint8_t* row = row_of(i) + column * W * From::BYTES;
      for (int m = 0; m < M; ++m) {
        const F value = HALF ? From::load_8(row) : From::load(row + m * W * From::BYTES);
        for (int n = 0; n < N; ++n) sums[n][m] = V::fma(weight[n], value, sums[n][m]);
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) V::store(results + n * record + (column + m) * W, sums[n][m]);
    }
  }

  template <class From, int N, class RowOf>
  void sum_values(const float* weights, Range keys, bool fresh, float* results, const RowOf& row_of) const {
    const int64_t whole = chunks() - (has_half_chunk() ? 1 : 0);
    int64_t c = 0;
    if constexpr (N == 1) {
      for (; c + 8 <= whole; c += 8) add_values<From, N, 8, false>(weights, keys, c, fresh, results, record, row_of);
    }
    for (; c + 4 <= whole; c += 4) add_values<From, N, 4, false>(weights, keys, c, fresh, results, record, row_of);
    for (; c + 2 <= whole; c += 2) add_values<From, N, 2, false>(weights, keys, c, fresh, results, record, row_of);
    for (; c < whole; ++c) add_values<From, N, 1, false>(weights, keys, c, fresh, results, record, row_of);
    if (c < chunks()) add_values<From, N, 1, true>(weights, keys, c, fresh, results, record, row_of);
  }

  // One split for N heads of one query: N results.
  template <int N>
  void split_of_heads(const Split& split, const float* q, float* scores, float* results) const {
    scores_of_heads<N>(split, q, scores);
    for (int n = 0; n < N; ++n) {
      float* result = results + n * record;
      weigh(split, split.range, scores + n * SCORES, largest(result), weight_sum(result));
    }
    const auto row_of = [values = split.values(), low = split.range.low](int64_t i) { return values[i - low]; };
    for (int64_t low = split.range.low; low < split.range.high; low += CHUNK) {
      const Range keys{low, smaller(low + CHUNK, split.range.high)};
      for (int64_t i = keys.low; i < keys.high; ++i) prefetch_row(split.values()[i - split.range.low + AHEAD]);
      sum_values<KV, N>(scores, keys, low == split.range.low, results, row_of);
    }
  }

  void split_of_query(const Split& split, const float* q, float* scores, float* results) const {
    for (int64_t n = 0; n < group.num_heads;) {
      const int64_t left = group.num_heads - n;
      const int64_t taken = left == 4 ? 2 : smaller(left, MAX_HEADS);
      if (taken == 3) split_of_heads<3>(split, q + n * padded, scores, results + n * record);
      if (taken == 2) split_of_heads<2>(split, q + n * padded, scores, results + n * record);
      if (taken == 1) split_of_heads<1>(split, q + n * padded, scores, results + n * record);
      n += taken;
    }
  }

  // ---- results ----

  // Adds what `more` saw, to the right of it, to what `result` has seen.
  void merge_into(float* result, float* more) const {
    if (largest(more) == -INFINITY) return;
    if (largest(result) == -INFINITY) {
      std::memcpy(result, more, sizeof(float) * static_cast<size_t>(record));
      return;
    }
    const float most = larger_of(largest(result), largest(more));
    const F keep = vector_exp_of_negative<V>(V::set1(largest(result) - most));
    const F take = vector_exp_of_negative<V>(V::set1(largest(more) - most));
    for (int64_t i = 0; i < padded; i += W) {
      V::store(result + i, V::fma(V::load(result + i), keep, V::mul(V::load(more + i), take)));
    }
    const F sum = V::fma(V::set1(weight_sum(result)), keep, V::mul(V::set1(weight_sum(more)), take));
    weight_sum(result) = V::first(sum);
    largest(result) = most;
  }

  static float larger_of(float a, float b) { return a > b ? a : b; }

  void clear(float* result) const {
    largest(result) = -INFINITY;
    weight_sum(result) = 0.0f;
  }

  void finish(float* result, float* out) const {
    const F inverse = V::set1(1.0f / weight_sum(result));
    for (int64_t i = 0; i < cache.head_size; i += W) {
      const F value = V::mul(V::load(result + i), inverse);
      if (i + W <= cache.head_size) {
        V::store(out + i, value);
      } else {
        V::store_part(out + i, value, cache.head_size - i);
      }
    }
  }

  float* out_of(float* out, int64_t out_stride, int64_t query, int64_t head) const {
    return out + group.token(query) * out_stride + (group.first_head + head) * cache.head_size;
  }

  // The records of one split of a task, for query `query` of the row.
  float* partial_of(const AttentionPlan::Task& task, int64_t start, int64_t query, float* scratch) const {
    const int64_t split = (start - task.first_key) / SPLIT_TOKENS;
    return scratch + (task.partial + (split * group.num_queries + query) * group.num_heads) * record;
  }

  void scaled_query(const float* q, float* to) const {
    const F scale = V::set1(1.0f / std::sqrt(static_cast<float>(cache.head_size)));
    for (int64_t i = 0; i < padded; i += W) {
      const int64_t left = cache.head_size - i;
      V::store(to + i, V::mul(left >= W ? V::load(q + i) : V::load_part(q + i, left), scale));
    }
  }

  // ---- the form for few queries ----

  void attend_query(const AttentionPlan::Task& task, int64_t query, const float* q, int64_t q_stride, float* out,
                    int64_t out_stride, float* scratch) const {
    const int64_t heads = group.num_heads;
    float* scaled = attention_scratch(static_cast<size_t>(heads * (padded + 2 * record) + MAX_HEADS * SCORES));
    float* results = scaled + heads * padded;
    float* fresh = results + heads * record;
    float* scores = fresh + heads * record;
    const float* from = q + group.token(query) * q_stride + group.first_head * cache.head_size;
    for (int64_t n = 0; n < heads; ++n) {
      scaled_query(from + n * cache.head_size, scaled + n * padded);
      clear(results + n * record);
    }
    Split split;
    for (int64_t start = task.first_key; start < task.end_key; start += SPLIT_TOKENS) {
      const Range range = in_split(group.first_visible(query), group.end_visible(query), start);
      float* target = task.partial >= 0 ? partial_of(task, start, query, scratch) : fresh;
      if (range.empty()) {
        for (int64_t n = 0; n < heads; ++n) clear(target + n * record);
        continue;
      }
      place(start, range, smaller(task.end_key, group.end_visible(query)), split);
      split_of_query(split, scaled, scores, target);
      if (task.partial >= 0) continue;
      for (int64_t n = 0; n < heads; ++n) merge_into(results + n * record, fresh + n * record);
    }
    if (task.partial >= 0) return;
    for (int64_t n = 0; n < heads; ++n) finish(results + n * record, out_of(out, out_stride, query, n));
  }

  // ---- the form for many queries, lanes along keys ----

  static int64_t leaf_of_lane(int64_t lane) {
    int64_t leaf = 0;
    while (V::LEAVES[leaf] != lane) ++leaf;
    return leaf;
  }

  // Keys of the split as strips [STRIP keys]: [W lanes, in the order of their addition][chunks][keys]; 0 where none is.
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
          rows[j] = there ? load_chunk(split.keys()[key], c, half && c == num_chunks - 1) : V::zero();
        }
        V::transpose(rows);
        for (int64_t j = 0; j < W; ++j) V::store(strip + (leaves[j] * num_chunks + c) * STRIP, rows[j]);
      }
    }
  }

  void copy_values(const Split& split, float* tile) const {
    const int64_t num_chunks = chunks();
    const bool half = has_half_chunk();
    for (int64_t i = 0; i < split.count; ++i) {
      float* to = tile + (split.range.low + i) * padded;
      for (int64_t c = 0; c < num_chunks; ++c) {
        V::store(to + c * W, load_chunk(split.values()[i], c, half && c == num_chunks - 1));
      }
    }
  }

  // Query r of a tile into place r of [lanes, in the order of their addition][chunks][TILE].
  void interleave_query(const float* scaled, float* tile, int64_t r) const {
    const int64_t num_chunks = chunks();
    for (int64_t leaf = 0; leaf < W; ++leaf) {
      for (int64_t c = 0; c < num_chunks; ++c) {
        tile[(leaf * num_chunks + c) * TILE + r] = scaled[c * W + V::LEAVES[leaf]];
      }
    }
  }

  // Scores of TILE queries and one strip. Sums of single lanes are added as soon as a node of the tree is complete.
  void scores_of_strip(const float* q, const float* strip, float* scores) const {
    const int64_t num_chunks = chunks();
    F waiting[4][TILE][2];
    for (int64_t leaf = 0; leaf < W; ++leaf) {
      F sums[TILE][2];
      for (int r = 0; r < TILE; ++r) sums[r][0] = sums[r][1] = V::zero();
      for (int64_t c = 0; c < num_chunks; ++c, q += TILE, strip += STRIP) {
        const F low = V::load(strip), high = V::load(strip + W);
        for (int r = 0; r < TILE; ++r) {
          const F query = V::set1(q[r]);
          sums[r][0] = V::fma(query, low, sums[r][0]);
          sums[r][1] = V::fma(query, high, sums[r][1]);
        }
      }
      int64_t level = 0;
      for (; (leaf >> level) & 1; ++level) {
        for (int r = 0; r < TILE; ++r) {
          sums[r][0] = V::add(waiting[level][r][0], sums[r][0]);
          sums[r][1] = V::add(waiting[level][r][1], sums[r][1]);
        }
      }
      const bool complete = leaf == W - 1;
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
    const auto row_of = [values, width = padded](int64_t i) {
      return reinterpret_cast<const uint8_t*>(values + i * width);
    };
    for (int64_t low = split.range.low; low < split.range.high; low += CHUNK) {
      for (int64_t r = 0; r < num_tiles * TILE; r += 3) {
        const Range all = tiles[r / TILE].all;
        const Range keys{larger(low, all.low), smaller(low + CHUNK, all.high)};
        if (keys.empty()) continue;
        sum_values<F32Cache<V>, 3>(scores + r * SCORES, keys, low <= all.low, results + r * record, row_of);
      }
    }
  }

  // The queries of a task, scaled and interleaved by tiles; the last tile is filled up with zeros.
  void interleave_queries(const AttentionPlan::Task& task, const float* q, int64_t q_stride, float* scaled,
                          float* queries) const {
    const int64_t num_rows = (task.end_query - task.first_query) * group.num_heads;
    for (int64_t r = 0; r < (num_rows + TILE - 1) / TILE * TILE; ++r) {
      if (r < num_rows) {
        const int64_t query = task.first_query + r / group.num_heads, head = group.first_head + r % group.num_heads;
        scaled_query(q + group.token(query) * q_stride + head * cache.head_size, scaled);
      } else {
        std::memset(scaled, 0, sizeof(float) * static_cast<size_t>(padded));
      }
      interleave_query(scaled, queries + r / TILE * TILE * padded, r % TILE);
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
    const int64_t num_floats = num_tiles * TILE * (padded + record) + (2 * SPLIT_TOKENS + 1) * padded +
                               BLOCK * (SCORES + record);
    float* queries = attention_scratch(static_cast<size_t>(num_floats));
    float* strips = queries + num_tiles * TILE * padded;
    float* values = strips + SPLIT_TOKENS * padded;
    float* scaled = values + SPLIT_TOKENS * padded;
    float* results = scaled + padded;
    float* fresh = results + num_tiles * TILE * record;
    float* scores = fresh + BLOCK * record;
    interleave_queries(task, q, q_stride, scaled, queries);
    for (int64_t r = 0; r < num_rows; ++r) clear(results + r * record);
    Split split;
    for (int64_t start = task.first_key; start < task.end_key; start += SPLIT_TOKENS) {
      split.range = in_split(group.first_visible(task.first_query), group.end_visible(task.end_query - 1), start);
      if (!split.range.empty()) {
        place(start, split.range, start + split.range.high, split);
        transpose_keys(split, strips);
        copy_values(split, values);
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
      finish(results + r * record, out_of(out, out_stride, task.first_query + r / group.num_heads, r % group.num_heads));
    }
  }

  // ---- the entries ----

  static constexpr int64_t FEW_QUERIES = 2;  // measured: from 3 on, sharing a transposed split is faster

  static void attend(const KVCache& cache, int64_t layer, const AttentionStep& step, const AttentionPlan::Task& task,
                     const float* q, int64_t q_stride, float* out, int64_t out_stride, float* scratch) {
    const Attention attention(cache, layer, step, task.row, task.kv_head);
    if (task.end_query - task.first_query > FEW_QUERIES) {
      attention.attend_queries(task, q, q_stride, out, out_stride, scratch);
      return;
    }
    for (int64_t query = task.first_query; query < task.end_query; ++query) {
      attention.attend_query(task, query, q, q_stride, out, out_stride, scratch);
    }
  }

  static void merge(const KVCache& cache, const AttentionStep& step, const AttentionPlan::Merge& merge,
                    const float* scratch, float* out, int64_t out_stride) {
    const Attention attention(cache, 0, step, merge.row, merge.kv_head);
    const int64_t record = attention.record, num_heads = attention.group.num_heads;
    const int64_t per_split = attention.group.num_queries * num_heads;
    float* result = attention_scratch(static_cast<size_t>(2 * record));
    float* more = result + record;
    for (int64_t r = 0; r < per_split; ++r) {
      attention.clear(result);
      for (int64_t split = 0; split < merge.num_partials; ++split) {
        const float* from = scratch + (merge.first_partial + split * per_split + r) * record;
        std::memcpy(more, from, sizeof(float) * static_cast<size_t>(record));
        attention.merge_into(result, more);
      }
      attention.finish(result, attention.out_of(out, out_stride, r / num_heads, r % num_heads));
    }
  }
};

// Writes into the cache.
template <class V>
struct Store {
  using F = typename V::F;
  static constexpr int64_t W = V::W;

  static F load_part(const float* x, int64_t size, int64_t i) {
    return i + W <= size ? V::load(x + i) : V::load_part(x + i, size - i);
  }

  static void row(const KVCache& cache, uint8_t* run, int64_t offset, const float* x) {
    const int64_t size = cache.head_size;
    uint8_t* to = run + static_cast<size_t>(offset) * cache.row_bytes();
    if (cache.type == KVType::f32) {
      std::memcpy(to, x, sizeof(float) * static_cast<size_t>(size));
      return;
    }
    if (cache.type == KVType::i8) {
      quantised_row(cache, run, offset, x);
      return;
    }
    for (int64_t i = 0; i < size; i += W) {
      const F part = load_part(x, size, i);
      if (cache.type == KVType::f16) {
        V::to_f16(part, to + 2 * i, smaller(W, size - i));
      } else {
        V::to_bf16(part, to + 2 * i, smaller(W, size - i));
      }
    }
  }

  static void quantised_row(const KVCache& cache, uint8_t* run, int64_t offset, const float* x) {
    const int64_t size = cache.head_size;
    F most = V::zero();
    for (int64_t i = 0; i < size; i += W) most = V::max(most, V::abs(load_part(x, size, i)));
    const float largest = V::max_lane(most);
    const float scale = largest / 127.0f;
    const F inverse = V::set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    uint8_t* to = run + offset * size;
    for (int64_t i = 0; i < size; i += W) {
      const F limit = V::set1(127.0f);  // a subnormal row overflows the inverse
      const F value = V::max(V::sub(V::zero(), limit), V::min(limit, V::mul(load_part(x, size, i), inverse)));
      V::to_i8(value, to + i, smaller(W, size - i));
    }
    uint8_t* scales = run + cache.block_size * size;
    std::memcpy(scales + offset * static_cast<int64_t>(sizeof scale), &scale, sizeof scale);
  }

  static void store(const KVCache& cache, int64_t layer, const AttentionStep& step, const float* k, const float* v,
                    int64_t stride, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
        const int64_t from = t * stride + head * cache.head_size;
        const int64_t block = step.block_of_token[t], offset = step.offset_of_token[t];
        row(cache, cache.run(block, layer, 0, head), offset, k + from);
        row(cache, cache.run(block, layer, 1, head), offset, v + from);
      }
    }
  }
};

template <class V>
void attend_any(const KVCache& cache, int64_t layer, const AttentionStep& step, const AttentionPlan::Task& task,
                const float* q, int64_t q_stride, float* out, int64_t out_stride, float* scratch) {
  switch (cache.type) {
    case KVType::f32:
      Attention<V, F32Cache<V>>::attend(cache, layer, step, task, q, q_stride, out, out_stride, scratch);
      return;
    case KVType::f16:
      Attention<V, F16Cache<V>>::attend(cache, layer, step, task, q, q_stride, out, out_stride, scratch);
      return;
    case KVType::bf16:
      Attention<V, BF16Cache<V>>::attend(cache, layer, step, task, q, q_stride, out, out_stride, scratch);
      return;
    case KVType::i8:
      Attention<V, I8Cache<V>>::attend(cache, layer, step, task, q, q_stride, out, out_stride, scratch);
      return;
  }
}

template <class V>
AttentionKernels attention_kernels_of(Path path) {
  return {path, Store<V>::store, attend_any<V>, Attention<V, F32Cache<V>>::merge};
}

}  // namespace
}  // namespace relevo
