// Owns the arithmetic of routers, in float32 and one order on every machine.
#include "rows/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace relevo {

namespace {

constexpr float LEAST_SUM = 1e-20f;  // of weights that are divided by their sum

void score(const RoutingRule& rule, const float* logits, float* scores) {
  const int64_t count = rule.num_experts;
  if (rule.is_sigmoid) {
    for (int64_t i = 0; i < count; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    return;
  }
  const float largest = *std::max_element(logits, logits + count);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += scores[i] = std::exp(logits[i] - largest);
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

// The place of the largest; of equals the first. A score that is no number is never larger.
int64_t best_of(const float* values, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

// What is not in the best groups cannot be chosen.
void keep_best_groups(const RoutingRule& rule, float* choice) {
  const int64_t size = rule.num_experts / rule.num_groups;
  std::vector<float> sums(static_cast<size_t>(rule.num_groups));
  for (int64_t group = 0; group < rule.num_groups; ++group) {
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (int64_t i = 0; i < size; ++i) {
      const float value = choice[group * size + i];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    sums[static_cast<size_t>(group)] = size > 1 && rule.group_sum_of > 1 ? first + second : first;
  }
  std::vector<bool> kept(static_cast<size_t>(rule.num_groups), false);
  for (int64_t i = 0; i < rule.num_used_groups; ++i) {
    const int64_t best = best_of(sums.data(), rule.num_groups);
    kept[static_cast<size_t>(best)] = true;
    sums[static_cast<size_t>(best)] = -std::numeric_limits<float>::infinity();
  }
  for (int64_t i = 0; i < rule.num_experts; ++i) {
    if (!kept[static_cast<size_t>(i / size)]) choice[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void choose_experts(const RoutingRule& rule, const float* logits, const float* bias, std::vector<float>& scratch,
                    int32_t* chosen, float* weights) {
  const int64_t count = rule.num_experts;
  scratch.resize(static_cast<size_t>(2 * count));
  float* scores = scratch.data();
  float* choice = scores + count;
  score(rule, logits, scores);
  for (int64_t i = 0; i < count; ++i) choice[i] = bias == nullptr ? scores[i] : scores[i] + bias[i];
  // Scores rise with logits, until they are all 1.
  if (bias == nullptr && rule.num_used_groups == rule.num_groups) std::copy(logits, logits + count, choice);
  if (rule.num_used_groups < rule.num_groups) keep_best_groups(rule, choice);
  std::vector<bool> is_taken(static_cast<size_t>(count), false);
  for (int64_t slot = 0; slot < rule.num_active; ++slot) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (!is_taken[static_cast<size_t>(i)] && (best < 0 || choice[i] > choice[best])) best = i;
    }
    is_taken[static_cast<size_t>(best)] = true;
    chosen[slot] = static_cast<int32_t>(best);
  }
  std::sort(chosen, chosen + rule.num_active);
  float sum = 0.0f;
  for (int64_t slot = 0; slot < rule.num_active; ++slot) sum += weights[slot] = scores[chosen[slot]];
  const float whole = rule.normalises ? sum + LEAST_SUM : 1.0f;
  for (int64_t slot = 0; slot < rule.num_active; ++slot) weights[slot] = weights[slot] / whole * rule.scale;
}

}  // namespace relevo
