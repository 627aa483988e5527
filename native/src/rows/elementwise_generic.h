// The kernels of elementwise.h over a vector interface V (simd_*.h). Included by one file per path.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/simd_exp.h"
#include "rows/elementwise.h"

namespace relevo {
namespace {

template <class V>
struct Elementwise {
  using F = typename V::F;
  static constexpr int W = V::W;

  // Calls f(offset, load, store) over [0, size): whole vectors, then the rest.
  template <class Function>
  static void each_vector(int64_t size, Function function) {
    int64_t i = 0;
    for (; i + W <= size; i += W) {
      function(
          i, [](const float* p) { return V::load(p); }, [](float* p, F x) { V::store(p, x); });
    }
    if (i == size) return;
    const int64_t rest = size - i;
    function(
        i, [rest](const float* p) { return V::load_part(p, rest); },
        [rest](float* p, F x) { V::store_part(p, x, rest); });
  }

  static float sum_of_squares(const float* x, int64_t size) {
    F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t i = 0;
    for (; i + 4 * W <= size; i += 4 * W) {
      for (int part = 0; part < 4; ++part) {
        const F v = V::load(x + i + part * W);
        sums[part] = V::fma(v, v, sums[part]);
      }
    }
    for (int part = 0; i < size; i += W, ++part) {
      const F v = i + W <= size ? V::load(x + i) : V::load_part(x + i, size - i);
      sums[part] = V::fma(v, v, sums[part]);
    }
    return V::sum_lanes(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  }

  static void rms_norm(const float* x, int64_t x_stride, const float* weight, int64_t size, float eps, float* out,
                       int64_t out_stride, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      const float* from = x + t * x_stride;
      float* to = out + t * out_stride;
      const F inverse = V::set1(1.0f / std::sqrt(sum_of_squares(from, size) / static_cast<float>(size) + eps));
      each_vector(size, [&](int64_t i, auto load, auto store) {
        store(to + i, V::mul(V::mul(load(from + i), inverse), load(weight + i)));
      });
    }
  }

  static void add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t size, int64_t first,
                  int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      float* to = x + t * x_stride;
      const float* from = y + t * y_stride;
      each_vector(size, [&](int64_t i, auto load, auto store) { store(to + i, V::add(load(to + i), load(from + i))); });
    }
  }

  // x * sigmoid(y)
  static F times_sigmoid(F x, F y) {
    return V::div(x, V::add(V::set1(1.0f), vector_exp<V>(V::sub(V::zero(), y))));
  }

  // Calls store(function(gate, up)) for every pair of rows [first, end).
  template <class Function>
  static void each_gate(const float* x, int64_t x_stride, int64_t size, float* out, int64_t out_stride, int64_t first,
                        int64_t end, Function function) {
    for (int64_t t = first; t < end; ++t) {
      const float* gate = x + t * x_stride;
      const float* up = gate + size;
      float* to = out + t * out_stride;
      each_vector(size, [&](int64_t i, auto load, auto store) { store(to + i, function(load(gate + i), load(up + i))); });
    }
  }

  static void activate(const Activation& activation, const float* x, int64_t x_stride, int64_t size, float* out,
                       int64_t out_stride, int64_t first, int64_t end) {
    switch (activation.kind) {
      case Activation::Kind::silu:
        return each_gate(x, x_stride, size, out, out_stride, first, end,
                         [](F gate, F up) { return V::mul(times_sigmoid(gate, gate), up); });
      case Activation::Kind::gelu_tanh:  // (1 + tanh(u)) / 2 is the sigmoid of 2 u
        return each_gate(x, x_stride, size, out, out_stride, first, end, [](F gate, F up) {
          const F cubic = V::mul(V::set1(0.044715f), V::mul(gate, V::mul(gate, gate)));
          const F twice = V::mul(V::set1(1.59576912f), V::add(gate, cubic));  // 2 * sqrt(2 / pi)
          return V::mul(times_sigmoid(gate, twice), up);
        });
      case Activation::Kind::clamped: {
        const F alpha = V::set1(activation.alpha), most = V::set1(activation.limit), least = V::set1(-activation.limit);
        return each_gate(x, x_stride, size, out, out_stride, first, end, [&](F gate, F up) {
          const F low = V::min(most, gate);  // what is no number comes through: it is the second operand
          const F value = V::max(least, V::min(most, up));
          return V::mul(V::add(value, V::set1(1.0f)), times_sigmoid(low, V::mul(alpha, low)));
        });
      }
    }
  }

  static void gate(const float* x, int64_t x_stride, const float* scores, int64_t scores_stride, bool has_one_score,
                   bool is_silu, int64_t size, float* out, int64_t out_stride, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      const float* from = x + t * x_stride;
      const float* score = scores + t * scores_stride;
      float* to = out + t * out_stride;
      const F one = V::set1(*score);
      each_vector(size, [&](int64_t i, auto load, auto store) {
        const F y = has_one_score ? one : load(score + i);
        const F value = load(from + i);
        store(to + i, is_silu ? V::mul(value, times_sigmoid(y, y)) : times_sigmoid(value, y));
      });
    }
  }

  static void rope(float* x, int64_t x_stride, int64_t num_heads, int64_t head_size, int64_t rotated,
                   const float* cos, const float* sin, int64_t first, int64_t end) {
    const int64_t half = rotated / 2;
    for (int64_t t = first; t < end; ++t) {
      const float* c = cos + t * half;
      const float* s = sin + t * half;
      for (int64_t head = 0; head < num_heads; ++head) {
        float* low = x + t * x_stride + head * head_size;
        float* high = low + half;
        each_vector(half, [&](int64_t i, auto load, auto store) {
          const F a = load(low + i), b = load(high + i), cosine = load(c + i), sine = load(s + i);
          store(low + i, V::fma(V::sub(V::zero(), b), sine, V::mul(a, cosine)));
          store(high + i, V::fma(a, sine, V::mul(b, cosine)));
        });
      }
    }
  }

  static ElementwiseKernels kernels(Path path) { return {path, rms_norm, add, activate, gate, rope}; }
};

}  // namespace
}  // namespace relevo
