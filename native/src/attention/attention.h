// Attention over a paged key-value cache, and the writes into it.
//
// A block lies in memory as [L, 2 (K, V), K heads, S tokens, D]. An i8 cache holds, for each [layer, K or V, head], S * D
// int8 values followed by S float32 scales (one per token), so D + 4 bytes per token. A cache of latents is [L, S tokens,
// D]: one row per token for all heads, whose first numbers are also its value.
//
// On one path the result for a query depends on the query, its context and the cache alone. Contexts are cut at fixed
// multiples of SPLIT_TOKENS from position 0; each piece is summed key by key in order; pieces are merged in order. So a
// query has the same bits alone, in a batch, in a chunk of any size and on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/cpu.h"

namespace relevo {

enum class KVType { f32, f16, bf16, i8 };

constexpr int64_t SPLIT_TOKENS = 256;

struct KVCache {
  uint8_t* base;
  KVType type;
  int64_t num_blocks;
  int64_t num_layers;
  int64_t num_kv_heads;
  int64_t block_size;  // S
  int64_t head_size;   // D, a multiple of 8
  bool is_latent = false;
  int64_t latent_size = 0;  // of a latent cache: numbers of a row that are its value, a multiple of 8
  int64_t stored_kv_heads = 0;  // of a block, where num_kv_heads are a part of them; 0: num_kv_heads
  int64_t first_kv_head = 0;    // of that part
  int64_t value_size() const { return is_latent ? latent_size : head_size; }
  size_t block_bytes() const;
  size_t row_bytes() const;  // the D numbers of one token and head, without an i8 row's scale
  size_t run_bytes() const;  // one [layer, K or V, head]
  int64_t heads_in_block() const { return stored_kv_heads > 0 ? stored_kv_heads : num_kv_heads; }
  // Heads [first, first + count) alone, of a cache that is no part itself.
  KVCache of_heads(int64_t first, int64_t count) const;
  // First byte of [block, layer, 0 = K or 1 = V, head].
  uint8_t* run(int64_t block, int64_t layer, int64_t which, int64_t head) const;
};

// One step, as the scheduler packed it: T tokens, B rows. Tokens of a row are consecutive; the last token of row b is at
// position context_lengths[b] - 1.
struct AttentionStep {
  int64_t num_tokens;
  int64_t num_rows;
  const int64_t* row_first_token;  // [B + 1]
  const int64_t* context_lengths;  // [B]
  const int64_t* block_tables;     // [B, table_width]
  int64_t table_width;
  const int64_t* block_of_token;   // [T]
  const int64_t* offset_of_token;  // [T]
  int64_t sliding_window;          // tokens a query sees, its own included; 0: all
  int64_t num_heads;               // H, a multiple of the cache's num_kv_heads
  int64_t chunk = 0;               // a query sees keys from the last multiple of it on; 0: all
  float scale = 0.0f;              // of scores; 0: D ** -0.5
  const float* sinks = nullptr;    // [H], a score beside those of the keys, without a value; or null: there is none
  const float* rotated = nullptr;  // over latents: the second part of queries [T, H * (D - latent_size)]
  int64_t rotated_stride = 0;
  // The first key that a query sees whose last one is before `end`.
  int64_t first_visible(int64_t end) const {
    const int64_t of_window = sliding_window > 0 && end > sliding_window ? end - sliding_window : 0;
    const int64_t of_chunk = chunk > 0 ? (end - 1) / chunk * chunk : 0;
    return of_window > of_chunk ? of_window : of_chunk;
  }
};

// How a step's attention is cut into independent tasks; made once per step and used by every layer.
struct AttentionPlan {
  struct Task {
    int64_t row, first_query, end_query;  // queries are counted within the row
    int64_t kv_head;
    int64_t first_key, end_key;  // multiples of SPLIT_TOKENS (the end: or the end of the context)
    int64_t partial;             // where the unmerged results go, or -1: the task covers its whole context
    int64_t num_kv_heads = 1;    // from kv_head on
    int64_t partials_per_head = 0;  // records of one KV head, those of the next following them
    Task of_head(int64_t head) const {
      Task one = *this;
      one.kv_head += head;
      one.num_kv_heads = 1;
      if (partial >= 0) one.partial += head * partials_per_head;
      return one;
    }
  };
  std::vector<Task> tasks;
  // Partials are numbered records of `partial_floats`: [splits][queries of the row][query heads of the KV head].
  struct Merge {
    int64_t row, kv_head, first_partial, num_partials;  // num_partials: splits
  };
  std::vector<Merge> merges;  // to be run when all tasks are done; empty for most steps
  size_t scratch_floats = 0;  // size of the area for partial results
};

// Floats of one partial record: the weighted sum of values, then the largest score and the sum of weights.
int64_t partial_floats(int64_t value_size);

AttentionPlan plan_attention(const AttentionStep& step, int64_t num_kv_heads, int64_t value_size, int num_threads);

struct AttentionKernels {
  Path path;
  // Write k and v of tokens [first, end) into their slots; k and v point to token 0, `stride` floats apart per token. Of a
  // latent cache k is the whole row, and v is not read.
  void (*store)(const KVCache& cache, int64_t layer, const AttentionStep& step, const float* k, const float* v,
                int64_t stride, int64_t first, int64_t end);
  // q [T, H * D] with row stride q_stride (already rotated), over latents [T, H * latent_size], the rest being `rotated`;
  // out [T, H * value size] with row stride out_stride.
  void (*attend)(const KVCache& cache, int64_t layer, const AttentionStep& step, const AttentionPlan::Task& task,
                 const float* q, int64_t q_stride, float* out, int64_t out_stride, float* scratch);
  void (*merge)(const KVCache& cache, const AttentionStep& step, const AttentionPlan::Merge& merge, const float* scratch,
                float* out, int64_t out_stride);
};

const AttentionKernels& attention_kernels(Path path);

}  // namespace relevo
