// What both forms of attention share: which keys a row of the step sees and where they lie, how stored numbers become
// floats, and the records that hold what a query has seen so far.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/attention.h"
#include "cpu/simd_exp.h"

namespace relevo {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// A line of memory, into the second-level cache. Measured (Zen 4): the first has too few misses under way, so that two cores
// read 20 GB/s whether they fetch into it or not, and 27 with this.
inline void fetch_line(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// How a cache's numbers become floats.
template <class V>
struct F32Cache {
  static constexpr int64_t BYTES = 4;
  static typename V::F load(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static typename V::F load_8(const uint8_t* p) { return V::load_part(reinterpret_cast<const float*>(p), 8); }
};
template <class V>
struct F16Cache {
  static constexpr int64_t BYTES = 2;
  static typename V::F load(const uint8_t* p) { return V::from_f16(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_f16_8(p); }
};
template <class V>
struct BF16Cache {
  static constexpr int64_t BYTES = 2;
  static typename V::F load(const uint8_t* p) { return V::from_bf16(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_bf16_8(p); }
};
template <class V>
struct I8Cache {
  static constexpr int64_t BYTES = 1;
  static typename V::F load(const uint8_t* p) { return V::from_i8(p); }
  static typename V::F load_8(const uint8_t* p) { return V::from_i8_8(p); }
};

// Calls `call` with how numbers of `type` become floats.
template <class V, class Call>
void with_numbers(KVType type, const Call& call) {
  switch (type) {
    case KVType::f32:
      return call(F32Cache<V>{});
    case KVType::f16:
      return call(F16Cache<V>{});
    case KVType::bf16:
      return call(BF16Cache<V>{});
    case KVType::i8:
      return call(I8Cache<V>{});
  }
}

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
    return step.first_visible(end_visible(query));
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

// What is compiled for each type of cache is only what reads its numbers: functions with a parameter KV, one of the above.
template <class V>
struct AttentionRow {
  using F = typename V::F;
  static constexpr int64_t W = V::W;
  static constexpr int64_t AHEAD = 64;  // rows fetched ahead of use; measured, 128 is slower
  static constexpr int64_t SCORES = SPLIT_TOKENS + 16;  // between the scores of two queries
  static constexpr int64_t CHUNK = 64;                  // values that stay there

  // Where the visible rows of one split lie: keys, then values, then some of the keys that are wanted next.
  struct Split {
    Range range;
    int64_t count;
    const uint8_t* rows[2 * SPLIT_TOKENS + AHEAD];
    const float* scales = nullptr;  // [KV heads][K, V][SPLIT_TOKENS], or null: numbers have none
    const uint8_t* const* keys() const { return rows; }
    const uint8_t* const* values() const { return rows + count; }
    const float* scales_of(int64_t head, int64_t which) const {
      return scales == nullptr ? nullptr : scales + (head * 2 + which) * SPLIT_TOKENS;
    }
  };

  const KVCache& cache;
  const int64_t layer, kv_head;
  const Group group;
  const bool has_scales;  // numbers of the cache have one per token
  const int64_t padded;   // D rounded up to whole vectors
  const int64_t record;   // floats of a result: padded sum of values, largest score, sum of weights

  AttentionRow(const KVCache& c, int64_t l, const AttentionStep& step, int64_t row, int64_t head)
      : cache(c),
        layer(l),
        kv_head(head),
        group(c, step, row, head),
        has_scales(c.type == KVType::i8),
        padded((c.head_size + W - 1) / W * W),
        record(partial_floats(c.value_size())) {}

  int64_t chunks() const { return padded / W; }
  int64_t value_chunks() const { return (cache.value_size() + W - 1) / W; }
  bool has_half_chunk() const { return W > 8 && cache.head_size % W != 0; }
  bool has_half_value_chunk() const { return W > 8 && cache.value_size() % W != 0; }
  float& largest(float* result) const { return result[record - 16]; }
  float& weight_sum(float* result) const { return result[record - 15]; }

  template <class KV>
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
    place_rows(start, range, 0, split.rows);
    place_rows(start, range, 1, split.rows + split.count);
    const uint8_t** next = split.rows + 2 * split.count;
    if (ahead > 0) place_rows(start, {range.high, range.high + ahead}, 0, next);
    for (int64_t i = larger(ahead, 0); i < AHEAD; ++i) next[i] = split.rows[0];
  }

  // Calls call(run, first, end, i) for the tokens [first, end) of each block of a range, the first being key i; `run` holds
  // keys (which: 0) or values (1) of the first KV head.
  template <class Call>
  void each_block(int64_t start, Range range, int64_t which, const Call& call) const {
    const int64_t size = cache.block_size;
    const uint8_t* of_first = cache.run(0, layer, which, kv_head);
    const int64_t block_bytes = static_cast<int64_t>(cache.block_bytes());
    const int64_t* table = group.step.block_tables + group.row * group.step.table_width;
    for (int64_t i = range.low; i < range.high;) {
      const int64_t first = (start + i) % size;
      const int64_t end = smaller(size, first + range.high - i);
      call(of_first + table[(start + i) / size] * block_bytes, first, end, i);
      i += end - first;
    }
  }

  void place_rows(int64_t start, Range range, int64_t which, const uint8_t** rows) const {
    const int64_t row_bytes = static_cast<int64_t>(cache.row_bytes());
    each_block(start, range, which, [&](const uint8_t* run, int64_t first, int64_t end, int64_t) {
      for (int64_t offset = first; offset < end; ++offset) *rows++ = run + offset * row_bytes;
    });
  }

  // Scales of keys or values of `num_heads` KV heads, those of a head 2 * SPLIT_TOKENS after the ones before; 0 outside
  // the range.
  void place_scales(int64_t start, Range range, int64_t which, int64_t num_heads, float* scales) const {
    const size_t behind_rows = static_cast<size_t>(cache.block_size) * cache.row_bytes(), run_bytes = cache.run_bytes();
    for (int64_t head = 0; head < num_heads; ++head) {
      std::memset(scales + head * 2 * SPLIT_TOKENS, 0, sizeof(float) * SPLIT_TOKENS);
    }
    each_block(start, range, which, [&](const uint8_t* run, int64_t first, int64_t end, int64_t i) {
      const uint8_t* from = run + behind_rows + static_cast<size_t>(first) * sizeof(float);
      const size_t size = sizeof(float) * static_cast<size_t>(end - first);
      for (int64_t head = 0; head < num_heads; ++head, from += run_bytes) {
        std::memcpy(scales + head * 2 * SPLIT_TOKENS + i, from, size);
      }
    });
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
    for (int64_t i = 0; i < value_chunks() * W; i += W) {
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

  // What scales the sum of values of `head` (counted within the group), the sink being part of the denominator.
  F inverse_of(float* result, int64_t head) const {
    if (group.step.sinks == nullptr) return V::set1(1.0f / weight_sum(result));
    const float sink = group.step.sinks[group.first_head + head];
    const float most = larger_of(largest(result), sink);
    const F keep = vector_exp_of_negative<V>(V::set1(largest(result) - most));
    const F of_sink = vector_exp_of_negative<V>(V::set1(sink - most));
    return V::div(keep, V::fma(V::set1(weight_sum(result)), keep, of_sink));
  }

  void finish(float* result, int64_t head, float* out) const {
    const F inverse = inverse_of(result, head);
    for (int64_t i = 0; i < cache.value_size(); i += W) {
      store_up_to(out + i, V::mul(V::load(result + i), inverse), cache.value_size() - i);
    }
  }

  float* out_of(float* out, int64_t out_stride, int64_t query, int64_t head) const {
    return out + group.token(query) * out_stride + (group.first_head + head) * cache.value_size();
  }

  // The records of one split of a task, for query `query` of the row.
  float* partial_of(const AttentionPlan::Task& task, int64_t start, int64_t query, float* scratch) const {
    const int64_t split = (start - task.first_key) / SPLIT_TOKENS;
    return scratch + (task.partial + (split * group.num_queries + query) * group.num_heads) * record;
  }

  static void store_up_to(float* to, F value, int64_t left) {
    if (left >= W) {
      V::store(to, value);
    } else {
      V::store_part(to, value, left);
    }
  }

  static void scaled(const float* q, int64_t size, F scale, float* to) {
    for (int64_t i = 0; i < size; i += W) {
      const int64_t left = size - i;
      store_up_to(to + i, V::mul(left >= W ? V::load(q + i) : V::load_part(q + i, left), scale), left);
    }
  }

  // Head `head` (counted within the group) of query `query` of the row, [padded].
  void scaled_query(const float* q, int64_t q_stride, int64_t query, int64_t head, float* to) const {
    const float own = group.step.scale;
    const F scale = V::set1(own > 0.0f ? own : 1.0f / std::sqrt(static_cast<float>(cache.head_size)));
    const int64_t token = group.token(query), place = group.first_head + head, size = cache.value_size();
    scaled(q + token * q_stride + place * size, size, scale, to);
    if (cache.is_latent) {
      const int64_t rest = cache.head_size - size;
      scaled(group.step.rotated + token * group.step.rotated_stride + place * rest, rest, scale, to + size);
    }
    for (int64_t i = cache.head_size; i < padded; ++i) to[i] = 0.0f;
  }
};

}  // namespace
}  // namespace relevo
