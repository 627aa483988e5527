// Layers that keep a state of each sequence: a gated delta rule behind a short causal convolution.
//
// A state of one sequence and layer lies in memory as float32 matrices [value heads, key size, value size], and behind
// them the last inputs of the convolution [kernel size - 1, C] as the cache stores numbers. C are queries, keys and
// values of all heads. What is convolved is rounded to what the cache stores, a token's own inputs too.
//
// A rank of several has some of the key heads, and the value heads that share them, and reads and writes only their parts
// of a state.
//
// Tokens are computed one after the other: on one path a token has the same bits however its row is cut into steps, and
// whatever else is in a step. Source: Gated Delta Networks (arXiv:2412.06464).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention.h"
#include "cpu/cpu.h"

namespace relevo {

struct DeltaSizes {
  int64_t num_key_heads;
  int64_t num_value_heads;  // a multiple of them
  int64_t key_size, value_size;  // elements of a head
  int64_t kernel_size;           // tokens that the convolution sees, its own included
  int64_t num_state_heads = 0;   // key heads of the state, where these are some of them; 0: these are all
  int64_t first_head = 0;        // of the state's key heads, the first one here
  DeltaSizes of_state() const;   // of all that lies in the state
  bool is_tiled = false;         // value heads of `out`: by their number among those of a key head, then by key head
  int64_t values_per_key() const { return num_value_heads / num_key_heads; }
  int64_t out_head(int64_t value_head) const {
    if (!is_tiled) return value_head;
    return value_head % values_per_key() * num_key_heads + value_head / values_per_key();
  }
  int64_t num_keys() const { return num_key_heads * key_size; }
  int64_t num_values() const { return num_value_heads * value_size; }
  int64_t width() const { return 2 * num_keys() + num_values(); }  // C
  int64_t matrix_floats() const { return key_size * value_size; }
  size_t state_bytes(KVType type) const;
  // What a key head is computed in.
  int64_t scratch_floats() const;
};

struct DeltaRule {
  DeltaSizes sizes;
  KVType type;               // that the convolution's inputs are stored as: one of floats
  const float* convolution;  // [kernel size, C]
  const float* decay;        // [value heads], below 0: of a state e to the power of it times a token's step is kept
  const float* decay_bias;   // [value heads]
};

// Tokens of one sequence, in order, and the state that the token before them has left.
struct DeltaRow {
  const float* x;  // [n, C]: queries, keys, values
  int64_t x_stride;
  const float* gates;  // [n, 2 * value heads]: how much each head writes, then how much it keeps
  int64_t gates_stride;
  float* out;  // [n, value heads * value size], head by head as `out_head` says
  int64_t out_stride;
  int64_t num_tokens;
  bool is_fresh;   // begins with zeros, whatever lies in the state
  uint8_t* state;  // of any alignment
};

struct DeltaKernels {
  Path path;
  // One key head and the value heads that share it: their columns of `out`, and their part of the state.
  void (*head)(const DeltaRule& rule, const DeltaRow& row, int64_t key_head, float* scratch);
};

const DeltaKernels& delta_kernels(Path path);

}  // namespace relevo
