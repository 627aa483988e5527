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

  static void silu_mul(const float* x, int64_t x_stride, int64_t size, float* out, int64_t out_stride, int64_t first,
                       int64_t end) {
    const F one = V::set1(1.0f);
    for (int64_t t = first; t < end; ++t) {
      const float* gate = x + t * x_stride;
      const float* up = gate + size;
      float* to = out + t * out_stride;
      each_vector(size, [&](int64_t i, auto load, auto store) {
        const F g = load(gate + i);
        const F silu = V::div(g, V::add(one, vector_exp<V>(V::sub(V::zero(), g))));
        store(to + i, V::mul(silu, load(up + i)));
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

  static ElementwiseKernels kernels(Path path) { return {path, rms_norm, add, silu_mul, rope}; }
};

}  // namespace
}  // namespace relevo
