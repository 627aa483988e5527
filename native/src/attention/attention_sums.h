// From scores to weights, and sums of weighted values: one code for few queries and for many.
#pragma once

#include "attention/attention_row.h"

namespace relevo {
namespace {

template <class V>
struct WeightedSums : AttentionRow<V> {
  using Row = AttentionRow<V>;
  using typename Row::F, typename Row::Split;
  using Row::AttentionRow, Row::W, Row::SCORES, Row::value_chunks, Row::has_half_value_chunk, Row::record;

  // Turns the scores of a range into weights: the largest of all first, then piece by piece. Scales may be null.
  float largest_score(const float* scales, Range range, float* scores) const {
    const int64_t first = range.low / W * W, end = (range.high + W - 1) / W * W;
    if (scales != nullptr) {
      for (int64_t i = first; i < end; i += W) V::store(scores + i, V::mul(V::load(scores + i), V::load(scales + i)));
    }
    for (int64_t i = first; i < range.low; ++i) scores[i] = -INFINITY;
    for (int64_t i = range.high; i < end; ++i) scores[i] = -INFINITY;
    F largest_of_lane = V::load(scores + first);
    for (int64_t i = first + W; i < end; i += W) largest_of_lane = V::max(largest_of_lane, V::load(scores + i));
    return V::max_lane(largest_of_lane);
  }

  // Scores of keys [first, end), whole vectors, become weights; their sum by lanes is added to `total`.
  void weights_of(const float* scales, int64_t first, int64_t end, F shift, float* scores, F& total) const {
    for (int64_t i = first; i < end; i += W) {
      const F weight = vector_exp_of_negative<V>(V::sub(V::load(scores + i), shift));
      total = V::add(total, weight);
      V::store(scores + i, scales != nullptr ? V::mul(weight, V::load(scales + i)) : weight);
    }
  }

  // Turns scores of the range into weights (whole vectors around it, 0 outside); the largest score and the sum.
  void weigh(const Split& split, Range range, float* scores, float& most, float& sum) const {
    const int64_t first = range.low / W * W, end = (range.high + W - 1) / W * W;
    most = largest_score(split.scales_of(0, 0), range, scores);
    F total = V::zero();
    weights_of(split.scales_of(0, 1), first, end, V::set1(most), scores, total);
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
      const uint8_t* row = row_of(i) + column * W * From::BYTES;
      row_of.template fetch<M * W * From::BYTES>(i, column * W * From::BYTES);
      for (int m = 0; m < M; ++m) {
        const F value = V::held(HALF ? From::load_8(row) : From::load(row + m * W * From::BYTES));
        for (int n = 0; n < N; ++n) sums[n][m] = V::fma_of(weights + n * SCORES + i, value, sums[n][m]);
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int m = 0; m < M; ++m) V::store(results + n * record + (column + m) * W, sums[n][m]);
    }
  }

  template <class From, int N, class RowOf>
  void sum_values(const float* weights, Range keys, bool fresh, float* results, const RowOf& row_of) const {
    const int64_t whole = value_chunks() - (has_half_value_chunk() ? 1 : 0);
    int64_t c = 0;
    if constexpr (N == 1) {
      for (; c + 8 <= whole; c += 8) add_values<From, N, 8, false>(weights, keys, c, fresh, results, record, row_of);
    }
    for (; c + 4 <= whole; c += 4) add_values<From, N, 4, false>(weights, keys, c, fresh, results, record, row_of);
    for (; c + 2 <= whole; c += 2) add_values<From, N, 2, false>(weights, keys, c, fresh, results, record, row_of);
    for (; c < whole; ++c) add_values<From, N, 1, false>(weights, keys, c, fresh, results, record, row_of);
    if constexpr (W > 8) {
      if (c < value_chunks()) add_values<From, N, 1, true>(weights, keys, c, fresh, results, record, row_of);
    }
  }
};

}  // namespace
}  // namespace relevo
