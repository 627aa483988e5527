// A small attention over every type of cache, on the path in question and by definition.
//
// What is stored must have the bits of the definition. Results must agree within rounding, since paths add in different
// orders; and a query must have the same bits alone as among others, and when its context is shared by several tasks.
#include "attention/attention_proof.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/proof_numbers.h"

namespace relevo {
namespace {

// More than one split, heads of whole vectors and a rest, more heads than one pass takes; blocks in descending order.
constexpr int64_t kContext = 300, kQueries = 3, kHeads = 5, kHeadSize = 72, kBlockSize = 16;
constexpr int64_t kBlocks = (kContext + kBlockSize - 1) / kBlockSize, kWidth = kHeads * kHeadSize;
constexpr float kTolerance = 1e-4f;  // of results up to 4; roundings are a hundredth of it, a wrong number far above

struct Named {
  KVType type;
  const char* name;
};
constexpr Named kTypes[] = {
    {KVType::f32, "float32"}, {KVType::f16, "float16"}, {KVType::bf16, "bfloat16"}, {KVType::i8, "int8"}};

// A cache of one head that `kernels` filled.
class Sequence {
 public:
  Sequence(const AttentionKernels& kernels, KVType type)
      : kernels_(kernels), cache_{nullptr, type, kBlocks, 1, 1, kBlockSize, kHeadSize}, memory_(kBlocks * cache_.block_bytes()) {
    cache_.base = memory_.data();
    for (int64_t block = 0; block < kBlocks; ++block) table_.push_back(kBlocks - 1 - block);
    for (int64_t t = 0; t < kContext; ++t) {
      blocks_.push_back(table_[t / kBlockSize]);
      offsets_.push_back(t % kBlockSize);
    }
    Numbers numbers;
    std::vector<float> k(kContext * kHeadSize), v(kContext * kHeadSize);
    for (float& value : k) value = numbers.uneven() * 1.03f;
    for (float& value : v) value = numbers.uneven() * 7.03f;
    for (int64_t i = 0; i < kHeadSize; ++i) k[7 * kHeadSize + i] = 0.0f;
    const int64_t rows[2] = {0, kContext};
    kernels.store(cache_, 0, step(rows, kContext), k.data(), v.data(), kHeadSize, 0, kContext);
  }

  const std::vector<uint8_t>& memory() const { return memory_; }

  // Results [queries, kWidth] for queries [first, end) of q, whose last is at the end of the context.
  std::vector<float> results(const std::vector<float>& q, int64_t first, int64_t end, int num_threads) {
    const int64_t rows[2] = {0, end - first}, context = kContext - (kQueries - end);
    const AttentionStep queries = step(rows, context);
    const AttentionPlan plan = plan_attention(queries, 1, kHeadSize, num_threads);
    std::vector<float> out((end - first) * kWidth), scratch(plan.scratch_floats);
    for (const AttentionPlan::Task& task : plan.tasks)
      kernels_.attend(cache_, 0, queries, task, q.data() + first * kWidth, kWidth, out.data(), kWidth, scratch.data());
    for (const AttentionPlan::Merge& merge : plan.merges)
      kernels_.merge(cache_, queries, merge, scratch.data(), out.data(), kWidth);
    return out;
  }

 private:
  AttentionStep step(const int64_t* rows, const int64_t& context) const {
    return {rows[1], 1, rows, &context, table_.data(), kBlocks, blocks_.data(), offsets_.data(), 0, kHeads};
  }

  const AttentionKernels& kernels_;
  KVCache cache_;
  std::vector<uint8_t> memory_;
  std::vector<int64_t> table_, blocks_, offsets_;
};

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, sizeof(float) * static_cast<size_t>(count)) == 0;
}

std::string distance(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::fabs(found[i] - expected[i]) <= kTolerance))
      return std::to_string(found[i]) + " instead of about " + std::to_string(expected[i]);
  return "";
}

std::string defect_of_type(const AttentionKernels& kernels, const AttentionKernels& reference, KVType type) {
  Sequence sequence(kernels, type), defined(reference, type);
  if (sequence.memory() != defined.memory()) return "what is stored differs";
  Numbers numbers;
  std::vector<float> q(kQueries * kWidth);
  for (float& value : q) value = 4.0f * numbers.uneven();
  const std::vector<float> out = sequence.results(q, 0, kQueries, 1);
  const std::string defect = distance(out, defined.results(q, 0, kQueries, 1));
  if (!defect.empty()) return defect;
  for (int64_t query = 0; query < kQueries; ++query)
    if (!same_bits(sequence.results(q, query, query + 1, 1).data(), out.data() + query * kWidth, kWidth))
      return "a query alone differs from the same among others";
  if (sequence.results(q, 0, kQueries, 4) != out) return "a context in pieces differs from the whole";
  return "";
}

}  // namespace

std::string attention_defect(const AttentionKernels& kernels, const AttentionKernels& reference) {
  for (const Named& named : kTypes) {
    const std::string defect = defect_of_type(kernels, reference, named.type);
    if (!defect.empty()) return std::string("gives wrong attention over a ") + named.name + " cache: " + defect;
  }
  return "";
}

}  // namespace relevo
