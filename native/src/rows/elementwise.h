// The operations between matrix products. Each works on rows [first, end), so that threads share them by rows.
#pragma once

#include <cstdint>

#include "cpu/cpu.h"

namespace relevo {

// What becomes of a gate and of the value beside it.
struct Activation {
  enum class Kind {
    silu,       // silu(gate) * up
    gelu_tanh,  // gelu(gate) * up, gelu by its tanh approximation
    clamped,    // (up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`, up within it
  } kind = Kind::silu;
  float alpha = 1.0f, limit = 0.0f;  // of `clamped`
};

struct ElementwiseKernels {
  Path path;
  // out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight over `size` elements; groups of `size` lie `x_stride` apart.
  // x and out may be the same.
  void (*rms_norm)(const float* x, int64_t x_stride, const float* weight, int64_t size, float eps, float* out,
                   int64_t out_stride, int64_t first, int64_t end);
  // x[t] += y[t]
  void (*add)(float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t size, int64_t first, int64_t end);
  // out[t, i] = activation of the gate x[t, i] and the value x[t, size + i] for i < size
  void (*activate)(const Activation& activation, const float* x, int64_t x_stride, int64_t size, float* out,
                   int64_t out_stride, int64_t first, int64_t end);
  // out[t, i] = x[t, i] times the sigmoid (SiLU: and the score itself) of scores[t, i], or of scores[t, 0] for all i. x and
  // out may be the same.
  void (*gate)(const float* x, int64_t x_stride, const float* scores, int64_t scores_stride, bool has_one_score,
               bool is_silu, int64_t size, float* out, int64_t out_stride, int64_t first, int64_t end);
  // Rotate the first `rotated` elements of heads in place: x[t] holds num_heads * head_size floats; dimension i pairs with
  // i + rotated / 2. cos and sin: [T, rotated / 2], row t for token t.
  void (*rope)(float* x, int64_t x_stride, int64_t num_heads, int64_t head_size, int64_t rotated, const float* cos,
               const float* sin, int64_t first, int64_t end);
};

const ElementwiseKernels& elementwise_kernels(Path path);

// cos/sin [T, half] of position * inv_freq, times scale. The angle is a float32 product, as in the implementations that
// models are trained with: a more exact one would be another model at large positions. The rest is rounded once.
void rope_angles(const int64_t* positions, int64_t num_tokens, const float* inv_freq, int64_t half, float scale,
                 float* cos, float* sin);

}  // namespace relevo
