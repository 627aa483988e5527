// Owns the checks of operations on states, and of what a step says of them.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "program/program.h"

namespace relevo {

namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

std::string text(int64_t value) { return std::to_string(value); }

}  // namespace

void Program::check(const op::PassStates& pass) {
  const DeltaSizes& sizes = pass.sizes;
  if (std::min({sizes.num_key_heads, sizes.num_value_heads, sizes.key_size, sizes.value_size}) < 1 ||
      sizes.num_value_heads % sizes.num_key_heads != 0 || sizes.kernel_size < 2) {
    refuse(text(sizes.num_value_heads) + " value heads of " + text(sizes.value_size) + " cannot share " +
           text(sizes.num_key_heads) + " key heads of " + text(sizes.key_size) + " behind a convolution of " +
           text(sizes.kernel_size));
  }
  const bool is_part = sizes.num_state_heads != 0 || sizes.first_head != 0;
  if (sizes.first_head < 0 || (is_part && sizes.first_head + sizes.num_key_heads > sizes.num_state_heads)) {
    refuse("key heads " + text(sizes.first_head) + " to " + text(sizes.first_head + sizes.num_key_heads) +
           " are not among the " + text(sizes.num_state_heads) + " of a state");
  }
  const auto has = [](const Vector& weights, int64_t size) { return static_cast<int64_t>(weights.size()) == size; };
  if (!has(pass.convolution, sizes.kernel_size * sizes.width()) || !has(pass.decay, sizes.num_value_heads) ||
      !has(pass.decay_bias, sizes.num_value_heads)) {
    refuse("the weights of a state do not have the sizes of its heads");
  }
  check_view(pass.in, sizes.width());
  check_view(pass.gates, 2 * sizes.num_value_heads);
  check_view(pass.out, sizes.num_values());
  if (pass.out.buffer == pass.in.buffer || pass.out.buffer == pass.gates.buffer) {
    refuse("a state cannot overwrite what it is computed from");
  }
  if (pass.layer < 0) refuse("a layer's number cannot be negative");
  passing_.emplace_back(pass.layer, sizes);
}

void Program::check(const op::Gate& gate) {
  check_view(gate.in, gate.width);
  check_view(gate.scores, gate.has_one_score ? 1 : gate.width);
  check_view(gate.out, gate.width);
  if (gate.out.buffer == gate.in.buffer || gate.out.buffer == gate.scores.buffer) {
    refuse("a gate cannot overwrite its own input");
  }
  if (gate.gain != nullptr && (gate.head_size < 1 || gate.width % gate.head_size != 0)) {
    refuse(text(gate.width) + " columns are not heads of " + text(gate.head_size));
  }
}

void Program::check_states(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs) const {
  const StatePlaces& states = places.states;
  if (inputs.states.size() != states.state_bytes.size()) refuse("a step says of each group of states where they lie");
  for (const auto& [layer, sizes] : passing_) {
    const int64_t group = states.group_of(layer);
    if (group < 0) refuse("the cache has no state of layer " + text(layer));
    const size_t needed = sizes.state_bytes(cache.type), found = states.state_bytes[static_cast<size_t>(group)];
    if (found != needed) {
      refuse("the cache has states of " + std::to_string(found) + " bytes, the model needs " + std::to_string(needed));
    }
    const StateTable& table = inputs.states[static_cast<size_t>(group)];
    const int64_t entry = states.entry_of(cache, layer);
    if (entry >= table.width) refuse("a row's state has " + text(table.width) + " blocks, which are too few");
    for (int64_t row = 0; row < inputs.attention.num_rows; ++row) {
      const int64_t block = table.blocks[row * table.width + entry];
      if (block < 0 || block >= cache.num_blocks) refuse("block " + text(block) + " is outside the cache");
    }
  }
}

}  // namespace relevo
