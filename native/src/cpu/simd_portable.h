// Eight floats at a time in plain C++: what the kernels are written against, and the version that runs anywhere.
//
// Owns the words of the vector interface (simd_avx2.h and simd_avx512.h have the same): loads and stores, arithmetic,
// conversions of stored numbers, and sums over lanes in a fixed order. A multiply-add is fused or not as the path says;
// it is the same everywhere on one path. Everything here is internal to the file that includes it, since each is
// compiled for other instructions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace relevo {
namespace {

struct PortableVec {
  static constexpr int W = 8;
  struct F {
    float lane[W];
  };
  // A sum over lanes is a balanced tree; these are its leaves from left to right.
  static constexpr int LEAVES[W] = {0, 2, 1, 3, 4, 6, 5, 7};

  template <class Function>
  static F each(Function function) {
    F out;
    for (int i = 0; i < W; ++i) out.lane[i] = function(i);
    return out;
  }
  static F zero() { return set1(0.0f); }
  static F set1(float x) {
    return each([&](int) { return x; });
  }
  static F load(const float* p) {
    F out;
    std::memcpy(out.lane, p, sizeof out.lane);
    return out;
  }
  static void store(float* p, F x) { std::memcpy(p, x.lane, sizeof x.lane); }
  // The first n < W lanes; the others are 0.
  static F load_part(const float* p, int64_t n) {
    F out = zero();
    std::memcpy(out.lane, p, sizeof(float) * static_cast<size_t>(n));
    return out;
  }
  static void store_part(float* p, F x, int64_t n) { std::memcpy(p, x.lane, sizeof(float) * static_cast<size_t>(n)); }

  static F held(F x) { return x; }

  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static F fma_of(const float* a, F b, F c) { return fma(set1(*a), b, c); }
  static F abs(F a) {
    return each([&](int i) { return std::fabs(a.lane[i]); });
  }
  // If b is not a number, neither is the result.
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // Nearest integer, ties to even; |x| < 2^22.
  static F round(F x) {
    constexpr float SHIFT = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction bits left
    return each([&](int i) { return (x.lane[i] + SHIFT) - SHIFT; });
  }
  // 2^n for an integer n in [-126, 127]; 0 for -127. Any number for what is not a number.
  static F pow2(F n) {
    return each([&](int i) {
      const bool inside = n.lane[i] >= -127.0f && n.lane[i] <= 127.0f;
      const uint32_t bits = static_cast<uint32_t>((inside ? static_cast<int32_t>(n.lane[i]) : 0) + 127) << 23;
      float out;
      std::memcpy(&out, &bits, sizeof out);
      return out;
    });
  }
  static float first(F x) { return x.lane[0]; }
  static float max_lane(F x) {
    float most = x.lane[0];
    for (int i = 1; i < W; ++i) most = x.lane[i] > most ? x.lane[i] : most;
    return most;
  }
  static float sum_lanes(F x) {
    const float* v = x.lane;
    return ((v[0] + v[2]) + (v[1] + v[3])) + ((v[4] + v[6]) + (v[5] + v[7]));
  }
  // out[i] = sum_lanes of the i-th argument.
  static void sum_lanes4(F a, F b, F c, F d, float* out) {
    out[0] = sum_lanes(a);
    out[1] = sum_lanes(b);
    out[2] = sum_lanes(c);
    out[3] = sum_lanes(d);
  }
  // Bit i is set where lane i is equal.
  static uint32_t equal_mask(F a, F b) {
    uint32_t mask = 0;
    for (int i = 0; i < W; ++i) mask |= static_cast<uint32_t>(a.lane[i] == b.lane[i]) << i;
    return mask;
  }
  static void transpose(F (&rows)[W]) {
    for (int i = 0; i < W; ++i) {
      for (int j = 0; j < i; ++j) {
        const float kept = rows[i].lane[j];
        rows[i].lane[j] = rows[j].lane[i];
        rows[j].lane[i] = kept;
      }
    }
  }

  static float f16_value(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1Fu, fraction = half & 0x3FFu;
    uint32_t bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    if (exponent == 31) bits = sign | 0x7F800000u | (fraction << 13) | (fraction ? 0x400000u : 0u);
    float out;
    std::memcpy(&out, &bits, sizeof out);
    if (exponent == 0) {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      out = sign ? -magnitude : magnitude;
    }
    return out;
  }
  // Nearest, ties to even.
  static uint16_t f16_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((bits >> 13) & 0x1FFu));
    if (bits >= 0x477FF000u) return sign | 0x7C00u;
    if (bits < 0x38800000u) {  // subnormal: adding 0.5 leaves units of 2^-24 in the low bits
      float magnitude;
      std::memcpy(&magnitude, &bits, sizeof magnitude);
      magnitude += 0.5f;
      std::memcpy(&bits, &magnitude, sizeof bits);
      return static_cast<uint16_t>(sign | (bits - 0x3F000000u));
    }
    const uint32_t rounded = bits + 0xFFFu + ((bits >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
  static uint16_t bf16_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }

  static F from_f16(const uint8_t* p) {
    uint16_t halves[W];
    std::memcpy(halves, p, sizeof halves);
    return each([&](int i) { return f16_value(halves[i]); });
  }
  static F from_bf16(const uint8_t* p) {
    uint16_t halves[W];
    std::memcpy(halves, p, sizeof halves);
    return each([&](int i) {
      const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
      float out;
      std::memcpy(&out, &bits, sizeof out);
      return out;
    });
  }
  static F from_i8(const uint8_t* p) {
    int8_t values[W];
    std::memcpy(values, p, sizeof values);
    return each([&](int i) { return static_cast<float>(values[i]); });
  }
  // The first 8 numbers of a row's rest; only called where W > 8.
  static F from_f16_8(const uint8_t* p) { return from_f16(p); }
  static F from_bf16_8(const uint8_t* p) { return from_bf16(p); }
  static F from_i8_8(const uint8_t* p) { return from_i8(p); }

  // n <= W numbers.
  static void to_f16(F x, uint8_t* p, int64_t n) {
    uint16_t halves[W];
    for (int i = 0; i < W; ++i) halves[i] = f16_bits(x.lane[i]);
    std::memcpy(p, halves, 2 * static_cast<size_t>(n));
  }
  static void to_bf16(F x, uint8_t* p, int64_t n) {
    uint16_t halves[W];
    for (int i = 0; i < W; ++i) halves[i] = bf16_bits(x.lane[i]);
    std::memcpy(p, halves, 2 * static_cast<size_t>(n));
  }
  // |x| <= 127; nearest, ties to even.
  static void to_i8(F x, uint8_t* p, int64_t n) {
    int8_t values[W];
    for (int i = 0; i < W; ++i) values[i] = static_cast<int8_t>(round(x).lane[i]);
    std::memcpy(p, values, static_cast<size_t>(n));
  }
};

}  // namespace
}  // namespace relevo
