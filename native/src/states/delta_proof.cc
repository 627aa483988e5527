// A few tokens through a small state, on the path in question and by definition.
//
// Results must agree within rounding, since paths fuse multiply-adds and add in different orders. Tokens in one row and
// one at a time must have the same bits.
#include "states/delta_proof.h"

#include <cmath>
#include <vector>

#include "cpu/proof_numbers.h"

namespace relevo {
namespace {

// Whole columns and a rest, keys that are no multiple of four.
constexpr DeltaSizes kSizes{2, 4, 21, 45, 4};
constexpr int64_t kTokens = 5;
constexpr float kTolerance = 1e-4f;  // of results up to 2; roundings are a hundredth of it

struct Passed {
  std::vector<float> out;
  std::vector<uint8_t> state;
};

// Tokens [0, kTokens) in rows of so many.
Passed passed(const DeltaKernels& kernels, KVType type, int64_t length) {
  Numbers numbers;
  const auto some = [&](int64_t count, float scale) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = scale * numbers.uneven();
    return values;
  };
  const int64_t heads = kSizes.num_value_heads, width = kSizes.width(), num_values = kSizes.num_values();
  const std::vector<float> x = some(kTokens * width, 8.0f), gates = some(kTokens * 2 * heads, 8.0f);
  const std::vector<float> convolution = some(kSizes.kernel_size * width, 4.0f), bias = some(heads, 4.0f);
  const std::vector<float> decay(static_cast<size_t>(heads), -0.3f);
  const DeltaRule rule{kSizes, type, convolution.data(), decay.data(), bias.data()};
  std::vector<float> scratch(static_cast<size_t>(kSizes.scratch_floats()));
  Passed result{std::vector<float>(static_cast<size_t>(kTokens * num_values)),
                std::vector<uint8_t>(kSizes.state_bytes(type))};
  for (int64_t first = 0; first < kTokens; first += length) {
    const DeltaRow row{x.data() + first * width, width,      gates.data() + first * 2 * heads,
                       2 * heads,                result.out.data() + first * num_values,
                       num_values,               length,     first == 0,
                       result.state.data()};
    for (int64_t head = 0; head < kSizes.num_key_heads; ++head) kernels.head(rule, row, head, scratch.data());
  }
  return result;
}

}  // namespace

std::string delta_defect(const DeltaKernels& kernels, const DeltaKernels& reference) {
  for (const KVType type : {KVType::f32, KVType::f16, KVType::bf16}) {
    const Passed found = passed(kernels, type, kTokens), expected = passed(reference, type, kTokens);
    for (size_t i = 0; i < found.out.size(); ++i) {
      if (!(std::fabs(found.out[i] - expected.out[i]) <= kTolerance)) return "gives wrong results of states";
    }
    const Passed alone = passed(kernels, type, 1);
    if (alone.out != found.out || alone.state != found.state) return "gives other states where rows are cut";
  }
  return "";
}

}  // namespace relevo
