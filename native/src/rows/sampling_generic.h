// The kernels of sampling.h. `summary` is over a vector interface V (simd_*.h); the others are plain loops that the
// compiler widens, without fused multiply-adds, so that they give the same bits on every path.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "rows/sampling.h"

namespace relevo {
namespace {

// exp(x) for x in [-104, 0]: reduction by multiples of ln 2 and the Taylor polynomial of degree 9 in double, whose rest
// is below 1e-11 of the result; then rounded.
inline float weight_of(float x) {
  constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: the sum is an integer in its lowest bits
  const double wide = static_cast<double>(x > -104.0f ? x : -104.0f);
  const double shifted = wide * 1.4426950408889634 + SHIFT;
  const double r = wide - (shifted - SHIFT) * 0.6931471805599453;
  double p = 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + (uint64_t{1023} << 52);
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return static_cast<float>(p * power);
}

inline void weights_of(const float* logits, int64_t size, float peak, float scale, float* weights) {
  for (int64_t i = 0; i < size; ++i) weights[i] = weight_of((logits[i] - peak) * scale);
}

// 2^y is convex, so that the line between its values at two integers is above it; that line is what the bits of a float
// make of a fraction.
template <class V>
float bounds_of(const float* logits, int64_t size, float peak, float scale, float* bounds) {
  constexpr float UNITS = 12102203.0f;  // 2^23 / ln 2
  for (int64_t i = 0; i < size; ++i) {
    const float x = (logits[i] - peak) * scale;
    const float near = x > -87.0f ? x : -87.0f;
    const int32_t bits = static_cast<int32_t>(near * UNITS) + 0x3F800000;
    float bound;
    std::memcpy(&bound, &bits, sizeof bound);
    bounds[i] = bound * 1.0001f;  // more than all roundings above together
  }
  typename V::F largest = V::zero();
  const int64_t whole = size / V::W * V::W;
  for (int64_t i = 0; i < whole; i += V::W) largest = V::max(largest, V::load(bounds + i));
  float most = V::max_lane(largest);
  for (int64_t i = whole; i < size; ++i) most = bounds[i] > most ? bounds[i] : most;
  return most;
}

// GROUP tokens at a time without a branch; most groups hold none that is fast enough.
inline int64_t hopeful_of(const float* bounds, const int32_t* shortest, int64_t size, float pace, int32_t* hopeful) {
  constexpr int64_t GROUP = 32;
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += GROUP) {
    const int64_t end = first + GROUP < size ? first + GROUP : size;
    int32_t any = 0;
    for (int64_t i = first; i < end; ++i) any |= bounds[i] >= pace * static_cast<float>(shortest[i]);
    if (any == 0) continue;
    for (int64_t i = first; i < end; ++i) {
      if (bounds[i] >= pace * static_cast<float>(shortest[i])) hopeful[count++] = static_cast<int32_t>(i);
    }
  }
  return count;
}

// A word of the mask at a time; whole words are mostly all set or all clear.
inline void mask_of(const float* logits, const uint32_t* mask, int64_t size, float* masked) {
  constexpr float NEVER = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < size; first += 32) {
    const int64_t count = size - first < 32 ? size - first : 32;
    const uint32_t word = mask[first / 32];
    for (int64_t i = 0; i < count; ++i) masked[first + i] = (word >> i & 1u) != 0 ? logits[first + i] : NEVER;
  }
}

template <class V>
RowSummary summary_of(const float* logits, int64_t vocab_size) {
  using F = typename V::F;
  constexpr int64_t W = V::W;
  const int64_t whole = vocab_size / W * W;
  float most = logits[0], zero = 0.0f;
  if (whole > 0) {
    F largest = V::load(logits), nothing = V::zero();  // a number times 0 is 0, anything else is not a number
    for (int64_t i = 0; i < whole; i += W) {
      const F x = V::load(logits + i);
      largest = V::max(largest, x);
      nothing = V::fma(x, V::zero(), nothing);
    }
    most = V::max_lane(largest);
    zero = V::sum_lanes(nothing);
  }
  for (int64_t i = whole; i < vocab_size; ++i) {
    most = logits[i] > most ? logits[i] : most;
    zero += logits[i] * 0.0f;
  }
  const bool finite = zero == 0.0f;
  const F sought = V::set1(most);
  for (int64_t i = 0; i < whole; i += W) {
    const uint32_t found = V::equal_mask(V::load(logits + i), sought);
    if (found != 0) return {i + __builtin_ctz(found), finite};
  }
  for (int64_t i = whole; i < vocab_size; ++i) {
    if (logits[i] == most) return {i, finite};
  }
  return {0, finite};
}

template <class V>
SamplingKernels sampling_kernels_of(Path path) {
  return {path, summary_of<V>, weights_of, bounds_of<V>, hopeful_of, mask_of};
}

}  // namespace
}  // namespace relevo
