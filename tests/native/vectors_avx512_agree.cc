// Compares what the AVX-512 path computes beside products with the portable path: the proof at start must find nothing
// wrong, and must find what is wrong with spoilt kernels; then attention over more shapes, of whole vectors, of halves and
// of less, with windows. Prints the first difference and exits with 1.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/attention_proof.h"
#include "rows/rows_proof.h"
#include "states/delta_proof.h"

namespace relevo {
const AttentionKernels& attention_kernels_portable();
const AttentionKernels& attention_kernels_avx512();
const ElementwiseKernels& elementwise_kernels_portable();
const ElementwiseKernels& elementwise_kernels_avx512();
const SamplingKernels& sampling_kernels_portable();
const SamplingKernels& sampling_kernels_avx512();
const DeltaKernels& delta_kernels_portable();
const DeltaKernels& delta_kernels_avx512();
// Nobody asks for these here.
const AttentionKernels& attention_kernels_avx2() { return attention_kernels_portable(); }
const DeltaKernels& delta_kernels_avx2() { return delta_kernels_portable(); }
}  // namespace relevo

namespace {

using namespace relevo;

bool says(const std::string& defect, const std::string& expected) {
  if (expected.empty() ? defect.empty() : defect.find(expected) != std::string::npos) return true;
  std::printf("the proof says '%s', not '%s'\n", defect.c_str(), expected.c_str());
  return false;
}

// ---- Kernels that compute wrongly: one number of many.

template <KVType kType, int64_t kOnlyForQueries>
void spoilt_attend(const KVCache& cache, int64_t layer, const AttentionStep& step, const AttentionPlan::Task& task,
                   const float* q, int64_t q_stride, float* out, int64_t out_stride, float* scratch) {
  attention_kernels_avx512().attend(cache, layer, step, task, q, q_stride, out, out_stride, scratch);
  if (cache.type != kType || task.partial >= 0) return;
  if (kOnlyForQueries == 0) out[step.num_tokens * out_stride - 1] += 0.01f;
  if (kOnlyForQueries == step.num_tokens) out[cache.head_size] = std::nextafter(out[cache.head_size], 9.0f);
}
void spoilt_store(const KVCache& cache, int64_t layer, const AttentionStep& step, const float* k, const float* v,
                  int64_t stride, int64_t first, int64_t end) {
  attention_kernels_avx512().store(cache, layer, step, k, v, stride, first, end);
  if (cache.type == KVType::i8) cache.base[7] ^= 1;
}
void spoilt_merge(const KVCache& cache, const AttentionStep& step, const AttentionPlan::Merge& merge,
                  const float* scratch, float* out, int64_t out_stride) {
  attention_kernels_avx512().merge(cache, step, merge, scratch, out, out_stride);
  out[3] = std::nextafter(out[3], 9.0f);
}
void spoilt_norm(const float* x, int64_t x_stride, const float* weight, int64_t size, float eps, float* out,
                 int64_t out_stride, int64_t first, int64_t end) {
  elementwise_kernels_avx512().rms_norm(x, x_stride, weight, size, eps, out, out_stride, first, end);
  out[size - 1] += 1e-5f;
}
void spoilt_head(const DeltaRule& rule, const DeltaRow& row, int64_t key_head, float* scratch) {
  delta_kernels_avx512().head(rule, row, key_head, scratch);
  row.out[rule.sizes.num_values() - 1] += 0.01f;
}
void forgetful_head(const DeltaRule& rule, const DeltaRow& row, int64_t key_head, float* scratch) {
  delta_kernels_avx512().head(rule, row, key_head, scratch);
  if (row.num_tokens == 1 && key_head == 0) row.state[1] ^= 1;
}
void spoilt_weights(const float* logits, int64_t size, float peak, float scale, float* weights) {
  sampling_kernels_avx512().weights(logits, size, peak, scale, weights);
  weights[size - 1] = std::nextafter(weights[size - 1], 1.0f);
}

std::string with_attention(AttentionKernels kernels) { return attention_defect(kernels, attention_kernels_portable()); }

bool proofs_hold() {
  const AttentionKernels& attention = attention_kernels_avx512();
  const ElementwiseKernels& elementwise = elementwise_kernels_avx512();
  const SamplingKernels& sampling = sampling_kernels_avx512();
  return says(with_attention(attention), "") && says(elementwise_defect(elementwise, elementwise_kernels_portable()), "") &&
         says(sampling_defect(sampling, sampling_kernels_portable()), "") &&
         says(with_attention({attention.path, spoilt_store, attention.attend, attention.merge}),
              "int8 cache: what is stored differs") &&
         says(with_attention({attention.path, attention.store, spoilt_attend<KVType::bf16, 0>, attention.merge}),
              "bfloat16 cache: ") &&
         says(with_attention({attention.path, attention.store, spoilt_attend<KVType::f16, 1>, attention.merge}),
              "float16 cache: a query alone") &&
         says(with_attention({attention.path, attention.store, attention.attend, spoilt_merge}),
              "float32 cache: a context in pieces") &&
         says(elementwise_defect({elementwise.path, spoilt_norm, elementwise.add, elementwise.activate, elementwise.gate, elementwise.rope},
                                 elementwise_kernels_portable()),
              "gives wrong norms") &&
         says(sampling_defect({sampling.path, sampling.summary, spoilt_weights, sampling.bounds, sampling.hopeful,
                               sampling.mask},
                              sampling_kernels_portable()),
              "gives wrong weights to draw by") &&
         says(delta_defect(delta_kernels_avx512(), delta_kernels_portable()), "") &&
         says(delta_defect({Path::avx512, spoilt_head}, delta_kernels_portable()), "gives wrong results of states") &&
         says(delta_defect({Path::avx512, forgetful_head}, delta_kernels_portable()), "where rows are cut");
}

// ---- Attention over more shapes.

struct Shape {
  KVType type;
  int64_t head_size, kv_heads, heads, context, queries, window;  // heads: per KV head
};

std::vector<float> attended(const AttentionKernels& kernels, const Shape& shape, int64_t first, int64_t end) {
  constexpr int64_t kBlockSize = 16;
  const int64_t num_blocks = (shape.context + kBlockSize - 1) / kBlockSize, num_heads = shape.kv_heads * shape.heads,
                width = num_heads * shape.head_size, kv_width = shape.kv_heads * shape.head_size;
  KVCache cache{nullptr, shape.type, num_blocks, 1, shape.kv_heads, kBlockSize, shape.head_size};
  std::vector<uint8_t> memory(num_blocks * cache.block_bytes(), 0xFF);
  cache.base = memory.data();
  std::vector<int64_t> table, blocks, offsets;
  for (int64_t i = 0; i < num_blocks; ++i) table.push_back(num_blocks - 1 - i);
  for (int64_t t = 0; t < shape.context; ++t) {
    blocks.push_back(table[t / kBlockSize]);
    offsets.push_back(t % kBlockSize);
  }
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> k(shape.context * kv_width), v(k.size()), q(shape.queries * width);
  for (std::vector<float>* values : {&k, &v, &q})
    for (float& value : *values) value = normal(random);
  const int64_t all[2] = {0, shape.context}, some[2] = {0, end - first};
  const int64_t context = shape.context - shape.queries + end;
  const AttentionStep filling{shape.context, 1, all, &shape.context, table.data(), num_blocks, blocks.data(), offsets.data(),
                              shape.window, num_heads};
  const AttentionStep step{end - first, 1, some, &context, table.data(), num_blocks, blocks.data(), offsets.data(),
                           shape.window, num_heads};
  kernels.store(cache, 0, filling, k.data(), v.data(), kv_width, 0, shape.context);
  std::vector<float> out((end - first) * width);
  for (const AttentionPlan::Task& task : plan_attention(step, shape.kv_heads, shape.head_size, 1).tasks)
    kernels.attend(cache, 0, step, task, q.data() + first * width, width, out.data(), width, nullptr);
  return out;
}

bool agree(const Shape& shape) {
  const std::vector<float> expected = attended(attention_kernels_portable(), shape, 0, shape.queries);
  const std::vector<float> found = attended(attention_kernels_avx512(), shape, 0, shape.queries);
  const int64_t last = shape.queries - 1;
  const std::vector<float> alone = attended(attention_kernels_avx512(), shape, last, last + 1);
  bool same = std::memcmp(alone.data(), found.data() + last * alone.size(), sizeof(float) * alone.size()) == 0;
  for (size_t i = 0; i < found.size(); ++i) same = same && std::fabs(found[i] - expected[i]) <= 2e-5f;
  if (!same) std::printf("type %d D=%ld H=%ld K=%ld queries=%ld\n", static_cast<int>(shape.type), long(shape.head_size),
                         long(shape.heads), long(shape.kv_heads), long(shape.queries));
  return same;
}

}  // namespace

int main() {
  if (!proofs_hold()) return 1;
  int compared = 0;
  for (const KVType type : {KVType::f32, KVType::f16, KVType::bf16, KVType::i8})
    for (const int64_t head_size : {8, 16, 40, 64, 128})
      for (const int64_t queries : {2, 9}) {
        const int64_t kv_heads = 1 + compared % 3, heads = 1 + compared % 4;
        if (!agree({type, head_size, kv_heads, heads, 17 + 97 * (compared % 4), queries, compared % 3 == 0 ? 50 : 0})) return 1;
        ++compared;
      }
  std::printf("%d attentions agree\n", compared);
  return 0;
}
