// exp for every vector interface (simd_*.h): at most 2 units in the last place where the result is a normal number, 0
// from -104 down, infinity from 88.73 up, not a number where the argument is not.
//
// Range reduction by Cody and Waite ("Software Manual for the Elementary Functions", chapter 6), then the Taylor
// polynomial on [-ln 2 / 2, ln 2 / 2], whose rest is below 1e-8 of the result at degree 7.
#pragma once

namespace relevo {
namespace {

template <class V>
inline typename V::F vector_exp(typename V::F x) {
  using F = typename V::F;
  x = V::min(V::set1(89.0f), V::max(V::set1(-104.5f), x));
  const F n = V::round(V::mul(x, V::set1(1.44269504f)));
  F r = V::fma(n, V::set1(-0.693359375f), x);  // ln 2 in two parts; the product with the first is exact
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.0f / 5040.0f);
  p = V::fma(p, r, V::set1(1.0f / 720.0f));
  p = V::fma(p, r, V::set1(1.0f / 120.0f));
  p = V::fma(p, r, V::set1(1.0f / 24.0f));
  p = V::fma(p, r, V::set1(1.0f / 6.0f));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  const F half = V::round(V::mul(n, V::set1(0.5f)));  // 2^n may not be a float where the result is
  return V::mul(V::mul(p, V::pow2(half)), V::pow2(V::sub(n, half)));
}

}  // namespace
}  // namespace relevo
