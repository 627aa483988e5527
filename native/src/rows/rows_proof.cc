// A few rows, on the path in question and by definition: whole vectors, groups of them and a rest.
//
// Sums, norms, rotations and activations may round differently (paths fuse multiply-adds and add in different orders);
// additions and everything that a draw depends on must have the bits of the definition.
#include "rows/rows_proof.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/proof_numbers.h"

namespace relevo {
namespace {

constexpr int64_t kRows = 2, kSize = 93, kHeads = 2, kHalf = 21, kStride = 2 * kSize;  // arbitrary, with remainders
constexpr int64_t kVocab = 1051;

using Rows = std::vector<float>;

Rows some_rows(float scale) {
  Numbers numbers;
  Rows rows(kRows * kStride);
  for (float& value : rows) value = scale * numbers.uneven();
  return rows;
}

// Whether two results are the same but for roundings: a few units in the last place of numbers up to `magnitude`.
bool agree(const Rows& a, const Rows& b, float magnitude) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::fabs(a[i] - b[i]) <= 1e-6f * std::fmax(magnitude, std::fabs(b[i])))) return false;
  return true;
}

bool same_bits(const Rows& a, const Rows& b) { return std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0; }

Rows normed(const ElementwiseKernels& kernels) {
  const Rows x = some_rows(1.0f), weight = some_rows(2.0f);
  Rows out(kRows * kStride);
  kernels.rms_norm(x.data(), kStride, weight.data(), kSize, 1e-5f, out.data(), kStride, 0, kRows);
  return out;
}

Rows added(const ElementwiseKernels& kernels) {
  Rows x = some_rows(1.0f);
  const Rows y = some_rows(0.37f);
  kernels.add(x.data(), kStride, y.data(), kStride, kSize, 0, kRows);
  return x;
}

Rows activated(const ElementwiseKernels& kernels, const Activation& activation, float scale) {
  const Rows x = some_rows(scale);
  Rows out(kRows * kStride);
  kernels.activate(activation, x.data(), kStride, kSize, out.data(), kStride, 0, kRows);
  return out;
}

Rows gated(const ElementwiseKernels& kernels, bool has_one_score, bool is_silu) {
  const Rows x = some_rows(1.0f), scores = some_rows(20.0f);
  Rows out(kRows * kStride);
  kernels.gate(x.data(), kStride, scores.data(), kStride, has_one_score, is_silu, kSize, out.data(), kStride, 0, kRows);
  return out;
}

Rows rotated(const ElementwiseKernels& kernels) {
  Rows x = some_rows(1.0f);
  const Rows cos = some_rows(0.9f), sin = some_rows(0.7f);
  kernels.rope(x.data(), kStride, kHeads, 2 * kHalf, 2 * kHalf, cos.data(), sin.data(), 0, kRows);
  return x;
}

// What a draw takes from a row of logits.
struct Drawn {
  RowSummary summary, infinite, held;
  Rows weights, bounds, masked;
  float most;
  std::vector<int32_t> hopeful;
};

Drawn drawn(const SamplingKernels& kernels) {
  Numbers numbers;
  Rows logits(kVocab);
  for (float& value : logits) value = 9.0f * numbers.uneven();
  std::vector<int32_t> shortest(kVocab);
  for (int32_t& value : shortest) value = static_cast<int32_t>(numbers.bits() % (1 << 23));
  std::vector<uint32_t> mask(kVocab / 32 + 1);
  for (uint32_t& word : mask) word = static_cast<uint32_t>(numbers.bits());
  const RowSummary summary = kernels.summary(logits.data(), kVocab);
  Drawn result{summary, {}, {}, Rows(kVocab), Rows(kVocab), Rows(kVocab), 0.0f, std::vector<int32_t>(kVocab)};
  const float peak = logits[static_cast<size_t>(result.summary.best)], scale = 1.25f;
  kernels.weights(logits.data(), kVocab, peak, scale, result.weights.data());
  result.most = kernels.bounds(logits.data(), kVocab, peak, scale, result.bounds.data());
  const int64_t count = kernels.hopeful(result.bounds.data(), shortest.data(), kVocab, 0x1p-24f, result.hopeful.data());
  result.hopeful.resize(static_cast<size_t>(count));
  kernels.mask(logits.data(), mask.data(), kVocab, result.masked.data());
  result.held = kernels.summary(result.masked.data(), kVocab);
  logits[37] = std::numeric_limits<float>::infinity();
  result.infinite = kernels.summary(logits.data(), kVocab);
  return result;
}

bool same_summary(RowSummary a, RowSummary b) { return a.best == b.best && a.finite == b.finite; }

}  // namespace

std::string elementwise_defect(const ElementwiseKernels& kernels, const ElementwiseKernels& reference) {
  if (!agree(normed(kernels), normed(reference), 1.0f)) return "gives wrong norms";
  if (!same_bits(added(kernels), added(reference))) return "gives wrong sums of rows";
  const Activation silu{}, gelu{Activation::Kind::gelu_tanh}, clamped{Activation::Kind::clamped, 1.702f, 7.0f};
  if (!agree(activated(kernels, silu, 40.0f), activated(reference, silu, 40.0f), 1e-30f) ||
      !agree(activated(kernels, gelu, 4.0f), activated(reference, gelu, 4.0f), 1.0f) ||
      !agree(activated(kernels, clamped, 12.0f), activated(reference, clamped, 12.0f), 8.0f)) {
    return "gives wrong activations";
  }
  for (const auto& [has_one_score, is_silu] : {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    if (!agree(gated(kernels, has_one_score, is_silu), gated(reference, has_one_score, is_silu), 1.0f)) {
      return "gives wrong gates";
    }
  }
  if (!agree(rotated(kernels), rotated(reference), 1.0f)) return "gives wrong rotations";
  return "";
}

std::string sampling_defect(const SamplingKernels& kernels, const SamplingKernels& reference) {
  const Drawn found = drawn(kernels), expected = drawn(reference);
  if (!same_summary(found.summary, expected.summary)) return "finds another token likeliest";
  if (!same_summary(found.infinite, expected.infinite)) return "gives a wrong account of a row that is not finite";
  if (!same_bits(found.weights, expected.weights)) return "gives wrong weights to draw by";
  if (!same_bits(found.bounds, expected.bounds) || found.most != expected.most || found.hopeful != expected.hopeful)
    return "gives wrong bounds of the weights to draw by";
  if (!same_bits(found.masked, expected.masked) || found.held.best != expected.held.best)
    return "lets tokens through a mask that it holds back";
  return "";
}

}  // namespace relevo
