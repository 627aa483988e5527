// The kernels of attention.h over a vector interface V (simd_*.h). Included by one file per path.
//
// Keys are looked at in splits of SPLIT_TOKENS. In each, a score is the sum over d of q * k, lane l of a vector adding
// the elements with d % W = l in ascending order, and the lanes being added as V::sum_lanes adds them. Weights are
// exp(score - largest of the split); values are added key by key. There are two forms of this. A row with one or two
// queries reads each key once, lanes along d. More queries share a copy of the split in float32, keys transposed so
// that lanes are keys, and add the same numbers in the same order. Hidden keys have the weight 0 in both. The heads of one
// query over latents are as many queries of one key, and always share copies.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/attention.h"
#include "attention/attention_few.h"
#include "attention/attention_many.h"
#include "attention/attention_scratch.h"
#include "attention/attention_store.h"

namespace relevo {
namespace {

template <class V>
struct Attention {
  static constexpr int64_t FEW_QUERIES = 2;  // measured: from 3 on, sharing a transposed split is faster

  static void attend(const KVCache& cache, int64_t layer, const AttentionStep& step, const AttentionPlan::Task& task,
                     const float* q, int64_t q_stride, float* out, int64_t out_stride, float* scratch) {
    if (!cache.is_latent && task.end_query - task.first_query <= FEW_QUERIES) {
      const FewQueries<V> few(cache, layer, step, task);
      for (int64_t query = task.first_query; query < task.end_query; ++query) {
        few.attend_query(task, query, q, q_stride, out, out_stride, scratch);
      }
      return;
    }
    if (task.num_kv_heads > 1) {
      for (int64_t head = 0; head < task.num_kv_heads; ++head) {
        attend(cache, layer, step, task.of_head(head), q, q_stride, out, out_stride, scratch);
      }
      return;
    }
    const ManyQueries<V> many(cache, layer, step, task.row, task.kv_head);
    many.attend_queries(task, q, q_stride, out, out_stride, scratch);
  }

  static void merge(const KVCache& cache, const AttentionStep& step, const AttentionPlan::Merge& merge,
                    const float* scratch, float* out, int64_t out_stride) {
    const AttentionRow<V> row(cache, 0, step, merge.row, merge.kv_head);
    const int64_t record = row.record, num_heads = row.group.num_heads;
    const int64_t per_split = row.group.num_queries * num_heads;
    float* result = attention_scratch(static_cast<size_t>(2 * record));
    float* more = result + record;
    for (int64_t r = 0; r < per_split; ++r) {
      row.clear(result);
      for (int64_t split = 0; split < merge.num_partials; ++split) {
        const float* from = scratch + (merge.first_partial + split * per_split + r) * record;
        std::memcpy(more, from, sizeof(float) * static_cast<size_t>(record));
        row.merge_into(result, more);
      }
      row.finish(result, r % num_heads, row.out_of(out, out_stride, r / num_heads, r % num_heads));
    }
  }
};

template <class V>
AttentionKernels attention_kernels_of(Path path) {
  return {path, Store<V>::store, Attention<V>::attend, Attention<V>::merge};
}

}  // namespace
}  // namespace relevo
