// Attention of one or two queries: lanes along d, each key and value read once for all query heads that share it, and KV
// heads some keys at a time in turn: those of a token lie side by side, so memory is read in longer runs.
//
// Keys and values of the whole context come from memory: every loop over them fetches what is wanted AHEAD rows later,
// into the second-level cache, and exponentials are taken a chunk at a time between chunks of values, while fetched rows
// are on their way.
#pragma once

#include <type_traits>

#include "attention/attention_scratch.h"
#include "attention/attention_sums.h"

namespace relevo {
namespace {

template <class V>
struct FewQueries : WeightedSums<V> {
  using Sums = WeightedSums<V>;
  using typename Sums::F, typename Sums::Split;
  using Sums::WeightedSums, Sums::W, Sums::AHEAD, Sums::SCORES, Sums::CHUNK, Sums::cache, Sums::chunks, Sums::clear;
  using Sums::finish, Sums::group, Sums::has_half_chunk, Sums::has_scales, Sums::largest, Sums::largest_score;
  using Sums::merge_into, Sums::out_of, Sums::padded, Sums::partial_of, Sums::place, Sums::record, Sums::scaled_query;
  using Sums::each_block, Sums::place_scales, Sums::weight_sum, Sums::weights_of;
  static constexpr int64_t MAX_HEADS = 3;  // of one pass over the keys: 12 accumulators
  static constexpr int64_t USUAL_CHUNKS = 64 / W;  // of a head of 64, whose loop over d is unrolled

  const int64_t num_kv_heads, run_bytes;

  FewQueries(const KVCache& c, int64_t l, const AttentionStep& step, const AttentionPlan::Task& task)
      : Sums(c, l, step, task.row, task.kv_head),
        num_kv_heads(task.num_kv_heads),
        run_bytes(static_cast<int64_t>(c.run_bytes())) {}

  // q [N, padded], scaled; scores [N, SCORES] of keys [first, end) of the split's range (counted from its start), and of up to
  // 7 more that mean nothing. Rows lie `offset` after those of the first KV head. C: chunks of a row, all whole; 0:
  // whatever the cache has.
  template <class KV, int N, int64_t C>
  void scores_of_heads(const Split& split, int64_t offset, Range keys_of, const float* q, float* scores) const {
    constexpr int64_t KEYS = W > 8 && C > 0 ? 8 : 4;  // measured: with a loop over d, 8 are slower
    const int64_t num_chunks = C > 0 ? C : chunks(), width = num_chunks * W;
    const int64_t last = split.count - 1;
    const bool half = C == 0 && has_half_chunk();
    for (int64_t i = keys_of.low; i < keys_of.high; i += KEYS) {
      const uint8_t* keys[KEYS];
      for (int64_t j = 0; j < KEYS; ++j) {
        keys[j] = split.rows[smaller(i + j, last)] + offset;
      }
      F sums[N][KEYS];
      for (int n = 0; n < N; ++n) {
        for (int j = 0; j < KEYS; ++j) sums[n][j] = V::zero();
      }
#pragma GCC unroll 8
      for (int64_t c = 0; c < num_chunks; ++c) {
        const bool is_half = half && c == num_chunks - 1;
        F query[N];
        for (int n = 0; n < N; ++n) query[n] = V::load(q + n * width + c * W);
#pragma GCC unroll 8
        for (int j = 0; j < KEYS; ++j) {
          const int64_t at = c * W * KV::BYTES;
          if (at % 64 == 0) fetch_line(split.rows[smaller(i + j, last) + AHEAD] + offset + at);
          const F key = Sums::template load_chunk<KV>(keys[j], c, is_half);
          for (int n = 0; n < N; ++n) sums[n][j] = V::fma(query[n], key, sums[n][j]);
        }
      }
      for (int n = 0; n < N; ++n) {
        float* to = scores + n * SCORES + split.range.low + i;
        for (int j = 0; j < KEYS; j += 4) V::sum_lanes4(sums[n][j], sums[n][j + 1], sums[n][j + 2], sums[n][j + 3], to + j);
      }
    }
  }
  // Values of a split that lie in the cache; while one is used, another is fetched.
  struct CachedRows {
    const uint8_t* const* rows;
    int64_t first;   // the key of rows[0]
    int64_t offset;  // of the KV head
    const uint8_t* operator()(int64_t i) const { return rows[i - first] + offset; }
    template <int64_t BYTES>
    void fetch(int64_t i, int64_t column) const {
      const uint8_t* next = rows[i - first + AHEAD] + offset + column;
      for (int64_t at = 0; at < BYTES; at += 64) fetch_line(next + at);
    }
  };

  // Calls call(N, head, kv) for all query heads of a KV head, N at a time.
  template <class Call>
  void each_pass(int64_t kv, const Call& call) const {
    const int64_t end = (kv + 1) * group.num_heads;
    for (int64_t n = kv * group.num_heads; n < end;) {
      const int64_t left = end - n, taken = left == 4 ? 2 : smaller(left, MAX_HEADS);
      if (taken == 3) call(std::integral_constant<int, 3>{}, n);
      if (taken == 2) call(std::integral_constant<int, 2>{}, n);
      if (taken == 1) call(std::integral_constant<int, 1>{}, n);
      n += taken;
    }
  }

  // One split of one query. `results` of a KV head lie `stride` floats after those of the one before; totals [heads, W].
  template <class KV>
  void split_of_query(const Split& split, const float* q, float* scores, float* totals, float* results,
                      int64_t stride) const {
    const auto result_of = [&](int64_t n) {
      return results + n / group.num_heads * stride + n % group.num_heads * record;
    };
    for (int64_t first = 0; first < split.count; first += CHUNK) {
      const Range keys{first, smaller(first + CHUNK, split.count)};
      for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
        each_pass(kv, [&](auto count, int64_t n) {
          constexpr int N = decltype(count)::value;
          const float* queries = q + n * padded;
          if (chunks() == USUAL_CHUNKS && !has_half_chunk()) {
            this->template scores_of_heads<KV, N, USUAL_CHUNKS>(split, kv * run_bytes, keys, queries, scores + n * SCORES);
          } else {
            this->template scores_of_heads<KV, N, 0>(split, kv * run_bytes, keys, queries, scores + n * SCORES);
          }
        });
      }
    }
    const int64_t num_heads = num_kv_heads * group.num_heads;
    for (int64_t n = 0; n < num_heads; ++n) {
      largest(result_of(n)) = largest_score(split.scales_of(n / group.num_heads, 0), split.range, scores + n * SCORES);
      V::store(totals + n * W, V::zero());
    }
    const int64_t padded_end = (split.range.high + W - 1) / W * W;
    for (int64_t low = split.range.low / W * W; low < split.range.high; low += CHUNK) {
      const int64_t end = smaller(low + CHUNK, padded_end);
      const Range keys{larger(low, split.range.low), smaller(end, split.range.high)};
      for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
        const CachedRows row_of{split.values(), split.range.low, kv * run_bytes};
        each_pass(kv, [&](auto count, int64_t n) {
          for (int64_t i = n; i < n + decltype(count)::value; ++i) {
            F total = V::load(totals + i * W);
            weights_of(split.scales_of(kv, 1), low, end, V::set1(largest(result_of(i))), scores + i * SCORES, total);
            V::store(totals + i * W, total);
          }
          this->template sum_values<KV, decltype(count)::value>(scores + n * SCORES, keys, keys.low == split.range.low,
                                                                result_of(n), row_of);
        });
      }
    }
    for (int64_t n = 0; n < num_heads; ++n) weight_sum(result_of(n)) = V::sum_lanes(V::load(totals + n * W));
  }

  // What a query sees of the split at `start`, in a task.
  Range seen(const AttentionPlan::Task& task, int64_t query, int64_t start) const {
    return in_split(group.first_visible(query), smaller(task.end_key, group.end_visible(query)), start);
  }

  // What no split before this one has fetched.
  void fetch_first_keys(const Split& split) const {
    const int64_t row_bytes = static_cast<int64_t>(cache.row_bytes());
    for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
      for (int64_t i = 0; i < smaller(split.count, AHEAD); ++i) {
        for (int64_t at = 0; at < row_bytes; at += 64) fetch_line(split.rows[i] + kv * run_bytes + at);
      }
    }
  }

  void fetch_scales(int64_t start, Range range) const {
    if (!has_scales) return;
    const int64_t behind_rows = cache.block_size * static_cast<int64_t>(cache.row_bytes());
    for (int64_t which = 0; which < 2; ++which) {
      each_block(start, range, which, [&](const uint8_t* run, int64_t first, int64_t end, int64_t) {
        for (int64_t head = 0; head < num_kv_heads; ++head) {
          const uint8_t* scales = run + head * run_bytes + behind_rows;
          for (int64_t i = first; i < end; i += 16) fetch_line(scales + static_cast<size_t>(i) * sizeof(float));
        }
      });
    }
  }

  void read_scales(int64_t start, Split& split, float* scales) const {
    if (!has_scales) return;
    split.scales = scales;
    for (int64_t which = 0; which < 2; ++which) {
      place_scales(start, split.range, which, num_kv_heads, scales + which * SPLIT_TOKENS);
    }
  }

  void attend_query(const AttentionPlan::Task& task, int64_t query, const float* q, int64_t q_stride, float* out,
                    int64_t out_stride, float* scratch) const {
    const int64_t heads = num_kv_heads * group.num_heads;
    const int64_t num_scales = has_scales ? num_kv_heads * 2 * SPLIT_TOKENS : 0;
    float* scaled = attention_scratch(static_cast<size_t>(heads * (padded + 2 * record + SCORES + W) + num_scales));
    float* results = scaled + heads * padded;
    float* fresh = results + heads * record;
    float* scores = fresh + heads * record;
    float* totals = scores + heads * SCORES;
    float* scales = totals + heads * W;
    fetch_scales(task.first_key, seen(task, query, task.first_key));
    for (int64_t n = 0; n < heads; ++n) {
      scaled_query(q, q_stride, query, n, scaled + n * padded);
      clear(results + n * record);
    }
    const bool is_partial = task.partial >= 0;
    const int64_t stride = (is_partial ? task.partials_per_head : group.num_heads) * record;
    Split split;
    for (int64_t start = task.first_key; start < task.end_key; start += SPLIT_TOKENS) {
      const Range range = seen(task, query, start);
      float* target = is_partial ? partial_of(task, start, query, scratch) : fresh;
      if (range.empty()) {
        for (int64_t n = 0; n < heads; ++n) clear(target + n / group.num_heads * stride + n % group.num_heads * record);
        continue;
      }
      place(start, range, smaller(task.end_key, group.end_visible(query)), split);
      if (start == task.first_key) fetch_first_keys(split);
      read_scales(start, split, scales);
      fetch_scales(start + SPLIT_TOKENS, seen(task, query, start + SPLIT_TOKENS));
      with_numbers<V>(cache.type, [&](auto numbers) {
        this->template split_of_query<decltype(numbers)>(split, scaled, scores, totals, target, stride);
      });
      if (is_partial) continue;
      for (int64_t n = 0; n < heads; ++n) merge_into(results + n * record, fresh + n * record);
    }
    if (is_partial) return;
    for (int64_t n = 0; n < heads; ++n) finish(results + n * record, n, out_of(out, out_stride, query, n));
  }
};

}  // namespace
}  // namespace relevo
