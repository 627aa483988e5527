// Which experts a token passes, and with what weight: the choice that a router's scores make.
#pragma once

#include <cstdint>
#include <vector>

namespace relevo {

struct RoutingRule {
  int64_t num_experts;
  int64_t num_active;       // per token
  bool is_sigmoid;          // scores are sigmoids of logits; otherwise their softmax
  bool normalises;          // weights of a token sum to `scale`
  float scale;              // of all weights
  int64_t num_groups;       // of consecutive experts
  int64_t num_used_groups;  // those with the best sums may be chosen from
  int64_t group_sum_of;     // 1 or 2: of a group's best experts
};

// The experts of one token, ascending, and their weights. `logits` [num_experts]; `bias` [num_experts] or null is added to
// what is chosen by, never to a weight; of equals the first is chosen. `scratch` keeps its memory between calls.
void choose_experts(const RoutingRule& rule, const float* logits, const float* bias, std::vector<float>& scratch,
                    int32_t* chosen, float* weights);

}  // namespace relevo
