// Exponentials for every vector interface (simd_*.h): at most 2 units in the last place where the result is a normal
// number, not a number where the argument is not. `vector_exp` is 0 from -104 down and infinity from 88.73 up.
//
// Range reduction by Cody and Waite ("Software Manual for the Elementary Functions", chapter 6), then the Taylor
// polynomial on [-ln 2 / 2, ln 2 / 2], whose rest is below 1e-8 of the result at degree 7.
#pragma once

namespace relevo {
namespace {

// exp(r) for |r| <= ln 2 / 2, and the reduction that leads there: x = n * ln 2 + r.
template <class V>
inline typename V::F reduced_exp(typename V::F x, typename V::F& n) {
  using F = typename V::F;
  n = V::round(V::mul(x, V::set1(1.44269504f)));
  F r = V::fma(n, V::set1(-0.693359375f), x);  // ln 2 in two parts; the product with the first is exact
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.0f / 5040.0f);
  p = V::fma(p, r, V::set1(1.0f / 720.0f));
  p = V::fma(p, r, V::set1(1.0f / 120.0f));
  p = V::fma(p, r, V::set1(1.0f / 24.0f));
  p = V::fma(p, r, V::set1(1.0f / 6.0f));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::fma(p, r, V::set1(1.0f));
}

template <class V>
inline typename V::F vector_exp(typename V::F x) {
  using F = typename V::F;
  F n;
  const F p = reduced_exp<V>(V::min(V::set1(89.0f), V::max(V::set1(-104.5f), x)), n);
  const F half = V::round(V::mul(n, V::set1(0.5f)));  // 2^n may not be a float where the result is
  return V::mul(V::mul(p, V::pow2(half)), V::pow2(V::sub(n, half)));
}

// For x <= 0 (minus infinity too); what is below 1e-38 may be 0, and is 0 from -88 down.
template <class V>
inline typename V::F vector_exp_of_negative(typename V::F x) {
  typename V::F n;
  const typename V::F p = reduced_exp<V>(V::max(V::set1(-88.0f), x), n);
  return V::mul(p, V::pow2(n));  // n = -127 gives the bits of 0
}

}  // namespace
}  // namespace relevo
