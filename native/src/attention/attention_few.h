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
  using Sums::finish, Sums::group, Sums::has_half_chunk, Sums::largest, Sums::largest_score;
  using Sums::merge_into, Sums::out_of, Sums::padded, Sums::partial_of, Sums::place, Sums::record, Sums::scaled_query;
  using Sums::weight_sum, Sums::weights_of;
  static constexpr int64_t MAX_HEADS = 3;  // of one pass over the keys: 12 accumulators
  static constexpr int64_t LEAST_KEYS = 32;  // measured: 16 and 64 are slower
  static constexpr int64_t USUAL_CHUNKS = 64 / W;  // of a head of 64, whose loop over d is unrolled

  const int64_t num_kv_heads, run_bytes;
  const int64_t keys_in_turn;  // of a KV head, before the next has its turn

  FewQueries(const KVCache& c, int64_t l, const AttentionStep& step, const AttentionPlan::Task& task)
      : Sums(c, l, step, task.row, task.kv_head),
        num_kv_heads(task.num_kv_heads),
        run_bytes(static_cast<int64_t>(c.run_bytes())),
        keys_in_turn(larger(LEAST_KEYS, CHUNK / num_kv_heads / LEAST_KEYS * LEAST_KEYS)) {}

  // q [N, padded], scaled; scores [N, SCORES] of keys [first, end) of the split's range (counted from its start), and of up to
  // 7 more that mean nothing. Rows lie `offset` after those of the first KV head. C: chunks of a row, all whole; 0:
  // whatever the cache has.
  template <class KV, int N, int64_t C>
  void scores_of_heads(const Split& split, int64_t offset, Range keys_of, const float* q, float* scores) const {
    constexpr int64_t KEYS = W > 8 && C > 0 ? 8 : 4;  // measured: with a loop over d, 8 are slower
    const int64_t num_chunks = C > 0 ? C : chunks(), width = num_chunks * W, row_bytes = width * KV::BYTES;
    const int64_t last = split.count - 1;
    const bool half = C == 0 && has_half_chunk();
    for (int64_t i = keys_of.low; i < keys_of.high; i += KEYS) {
      const uint8_t* keys[KEYS];
      for (int64_t j = 0; j < KEYS; ++j) {
        const int64_t row = smaller(i + j, last);
        keys[j] = split.rows[row] + offset;
        const uint8_t* next = split.rows[row + AHEAD] + offset;
        for (int64_t at = 0; at < row_bytes; at += 64) fetch_line(next + at);
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
    for (int64_t first = 0; first < split.count; first += keys_in_turn) {
      const Range keys{first, smaller(first + keys_in_turn, split.count)};
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
      largest(result_of(n)) = largest_score(split, split.range, scores + n * SCORES);
      V::store(totals + n * W, V::zero());
    }
    const int64_t padded_end = (split.range.high + W - 1) / W * W;
    for (int64_t low = split.range.low / W * W; low < split.range.high; low += keys_in_turn) {
      const int64_t end = smaller(low + keys_in_turn, padded_end);
      const Range keys{larger(low, split.range.low), smaller(end, split.range.high)};
      for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
        const CachedRows row_of{split.values(), split.range.low, kv * run_bytes};
        each_pass(kv, [&](auto count, int64_t n) {
          for (int64_t i = n; i < n + decltype(count)::value; ++i) {
            F total = V::load(totals + i * W);
            weights_of(split, low, end, V::set1(largest(result_of(i))), scores + i * SCORES, total);
            V::store(totals + i * W, total);
          }
          this->template sum_values<KV, decltype(count)::value>(scores + n * SCORES, keys, keys.low == split.range.low,
                                                                result_of(n), row_of);
        });
      }
    }
    for (int64_t n = 0; n < num_heads; ++n) weight_sum(result_of(n)) = V::sum_lanes(V::load(totals + n * W));
  }

  void attend_query(const AttentionPlan::Task& task, int64_t query, const float* q, int64_t q_stride, float* out,
                    int64_t out_stride, float* scratch) const {
    const int64_t heads = num_kv_heads * group.num_heads;
    float* scaled = attention_scratch(static_cast<size_t>(heads * (padded + 2 * record + SCORES + W)));
    float* results = scaled + heads * padded;
    float* fresh = results + heads * record;
    float* scores = fresh + heads * record;
    float* totals = scores + heads * SCORES;
    for (int64_t n = 0; n < heads; ++n) {
      scaled_query(q, q_stride, query, n, scaled + n * padded);
      clear(results + n * record);
    }
    const bool is_partial = task.partial >= 0;
    const int64_t stride = (is_partial ? task.partials_per_head : group.num_heads) * record;
    Split split;
    for (int64_t start = task.first_key; start < task.end_key; start += SPLIT_TOKENS) {
      const Range range = in_split(group.first_visible(query), group.end_visible(query), start);
      float* target = is_partial ? partial_of(task, start, query, scratch) : fresh;
      if (range.empty()) {
        for (int64_t n = 0; n < heads; ++n) clear(target + n / group.num_heads * stride + n % group.num_heads * record);
        continue;
      }
      place(start, range, smaller(task.end_key, group.end_visible(query)), split);
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
