// Attention of one or two queries: lanes along d, each key and value read once for all query heads that share it.
//
// Keys and values of the whole context come from memory: every loop over them fetches what is wanted AHEAD rows later,
// and exponentials are taken a chunk at a time between chunks of values, while fetched rows are on their way.
#pragma once

#include "attention/attention_scratch.h"
#include "attention/attention_sums.h"

namespace relevo {
namespace {

template <class V>
struct FewQueries : WeightedSums<V> {
  using Sums = WeightedSums<V>;
  using typename Sums::F, typename Sums::Split;
  using Sums::WeightedSums, Sums::W, Sums::AHEAD, Sums::SCORES, Sums::CHUNK, Sums::cache, Sums::chunks, Sums::clear;
  using Sums::finish, Sums::group, Sums::has_half_chunk, Sums::largest, Sums::largest_score;
  using Sums::merge_into, Sums::out_of, Sums::padded, Sums::partial_of, Sums::place, Sums::record, Sums::scaled_query;
  using Sums::weight_sum, Sums::weights_of;
  static constexpr int64_t MAX_HEADS = 3;  // of one pass over the keys: 12 accumulators

  void prefetch_row(const uint8_t* row) const {
    const int64_t bytes = static_cast<int64_t>(cache.row_bytes());
    for (int64_t at = 0; at < bytes; at += 64) V::prefetch(row + at);
  }

  // q [N, padded], scaled; scores [N, SCORES] of the keys in the split's range, and of up to 3 more that mean nothing.
  template <class KV, int N>
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
          const F key = Sums::template load_chunk<KV>(keys[j], c, is_half);
          for (int n = 0; n < N; ++n) sums[n][j] = V::fma(query[n], key, sums[n][j]);
        }
      }
      for (int n = 0; n < N; ++n) {
        V::sum_lanes4(sums[n][0], sums[n][1], sums[n][2], sums[n][3], scores + n * SCORES + split.range.low + i);
      }
    }
  }
  // Values of a split that lie in the cache; while one is used, another is fetched.
  struct CachedRows {
    const uint8_t* const* rows;
    int64_t first;  // the key of rows[0]
    const uint8_t* operator()(int64_t i) const { return rows[i - first]; }
    template <int64_t BYTES>
    void fetch(int64_t i, int64_t offset) const {
      const uint8_t* next = rows[i - first + AHEAD] + offset;
      for (int64_t at = 0; at < BYTES; at += 64) V::prefetch(next + at);
    }
  };
  // One split for N heads of one query: N results.
  template <class KV, int N>
  void split_of_heads(const Split& split, const float* q, float* scores, float* results) const {
    scores_of_heads<KV, N>(split, q, scores);
    F total[N], shift[N];
    for (int n = 0; n < N; ++n) {
      float* result = results + n * record;
      total[n] = V::zero();
      largest(result) = largest_score(split, split.range, scores + n * SCORES);
      shift[n] = V::set1(largest(result));
    }
    const CachedRows row_of{split.values(), split.range.low};
    for (int64_t low = split.range.low / W * W; low < split.range.high; low += CHUNK) {
      const int64_t end = smaller(low + CHUNK, (split.range.high + W - 1) / W * W);
      for (int n = 0; n < N; ++n) weights_of(split, low, end, shift[n], scores + n * SCORES, total[n]);
      const Range keys{larger(low, split.range.low), smaller(end, split.range.high)};
      this->template sum_values<KV, N>(scores, keys, keys.low == split.range.low, results, row_of);
    }
    for (int n = 0; n < N; ++n) weight_sum(results + n * record) = V::sum_lanes(total[n]);
  }

  template <class KV>
  void split_of_query(const Split& split, const float* q, float* scores, float* results) const {
    for (int64_t n = 0; n < group.num_heads;) {
      const int64_t left = group.num_heads - n;
      const int64_t taken = left == 4 ? 2 : smaller(left, MAX_HEADS);
      if (taken == 3) split_of_heads<KV, 3>(split, q + n * padded, scores, results + n * record);
      if (taken == 2) split_of_heads<KV, 2>(split, q + n * padded, scores, results + n * record);
      if (taken == 1) split_of_heads<KV, 1>(split, q + n * padded, scores, results + n * record);
      n += taken;
    }
  }
  void attend_query(const AttentionPlan::Task& task, int64_t query, const float* q, int64_t q_stride, float* out,
                    int64_t out_stride, float* scratch) const {
    const int64_t heads = group.num_heads;
    float* scaled = attention_scratch(static_cast<size_t>(heads * (padded + 2 * record) + MAX_HEADS * SCORES));
    float* results = scaled + heads * padded;
    float* fresh = results + heads * record;
    float* scores = fresh + heads * record;
    for (int64_t n = 0; n < heads; ++n) {
      scaled_query(q, q_stride, query, n, scaled + n * padded);
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
      with_numbers<V>(cache.type, [&](auto numbers) {
        this->template split_of_query<decltype(numbers)>(split, scaled, scores, target);
      });
      if (task.partial >= 0) continue;
      for (int64_t n = 0; n < heads; ++n) merge_into(results + n * record, fresh + n * record);
    }
    if (task.partial >= 0) return;
    for (int64_t n = 0; n < heads; ++n) finish(results + n * record, n, out_of(out, out_stride, query, n));
  }
};

}  // namespace
}  // namespace relevo
