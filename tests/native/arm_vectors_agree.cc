// Compares every operation of the Arm vectors with the portable ones, bit for bit, on ordinary numbers and on zeros,
// infinities, subnormal numbers and what is no number, where the interface promises something. Multiply-adds are fused.
// Prints the first difference and exits with 1.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/simd_neon.h"
#include "cpu/simd_portable.h"

namespace {

using relevo::NeonVec;
using relevo::PortableVec;
constexpr int W = 8;
int compared = 0;

void expect(const char* what, const void* found, const void* expected, size_t bytes) {
  ++compared;
  if (std::memcmp(found, expected, bytes) == 0) return;
  float a, b;
  std::memcpy(&a, found, 4);
  std::memcpy(&b, expected, 4);
  std::printf("%s differs: starts with %.9g, not %.9g\n", what, a, b);
  std::exit(1);
}

void expect(const char* what, NeonVec::F found, PortableVec::F expected) {
  float lanes[W];
  NeonVec::store(lanes, found);
  expect(what, lanes, expected.lane, sizeof lanes);
}

struct Numbers {
  std::mt19937 random{7};
  float ordinary() { return std::normal_distribution<float>(0.0f, 50.0f)(random); }
  float any_number() {
    static constexpr float SPECIAL[] = {0.0f, -0.0f, 1e-45f, -1e-40f, 65504.0f, 65520.0f, 6e-8f, 3e-5f, 1e38f, -1e38f};
    const uint32_t choice = random() % 16;
    return choice < 10 ? SPECIAL[choice] : ordinary();
  }
  float anything() {
    const uint32_t choice = random() % 16;
    if (choice == 0) return std::numeric_limits<float>::infinity();
    if (choice == 1) return -std::numeric_limits<float>::infinity();
    if (choice == 2) return std::numeric_limits<float>::quiet_NaN();
    return any_number();
  }
};

void compare_arithmetic(Numbers& numbers) {
  float a[W], b[W], c[W];
  for (int i = 0; i < W; ++i) a[i] = numbers.any_number(), b[i] = numbers.any_number(), c[i] = numbers.any_number();
  const auto na = NeonVec::load(a), nb = NeonVec::load(b), nc = NeonVec::load(c);
  const auto pa = PortableVec::load(a), pb = PortableVec::load(b);
  expect("add", NeonVec::add(na, nb), PortableVec::add(pa, pb));
  expect("sub", NeonVec::sub(na, nb), PortableVec::sub(pa, pb));
  expect("mul", NeonVec::mul(na, nb), PortableVec::mul(pa, pb));
  expect("fma", NeonVec::fma(na, nb, nc), PortableVec::each([&](int i) { return std::fma(a[i], b[i], c[i]); }));
  expect("abs", NeonVec::abs(na), PortableVec::abs(pa));
  const float sum = NeonVec::sum_lanes(na), other_sum = PortableVec::sum_lanes(pa);
  expect("sum_lanes", &sum, &other_sum, sizeof sum);
  float sums[4], other_sums[4];
  NeonVec::sum_lanes4(na, nb, nc, na, sums);
  PortableVec::sum_lanes4(pa, pb, PortableVec::load(c), pa, other_sums);
  expect("sum_lanes4", sums, other_sums, sizeof sums);
  const float most = NeonVec::max_lane(NeonVec::abs(na)), other_most = PortableVec::max_lane(PortableVec::abs(pa));
  expect("max_lane", &most, &other_most, sizeof most);
  for (float& x : b) x = numbers.ordinary();
  expect("div", NeonVec::div(na, NeonVec::load(b)), PortableVec::div(pa, PortableVec::load(b)));
  const auto no_sign = NeonVec::add(NeonVec::round(NeonVec::load(b)), NeonVec::zero());  // of a zero, which may be either
  expect("round", no_sign, PortableVec::round(PortableVec::load(b)));
  for (float& x : b) x = static_cast<float>(static_cast<int>(numbers.random() % 255) - 127);
  expect("pow2", NeonVec::pow2(NeonVec::load(b)), PortableVec::pow2(PortableVec::load(b)));
}

void compare_choices(Numbers& numbers) {
  float a[W], b[W];
  for (int i = 0; i < W; ++i) a[i] = numbers.anything(), b[i] = numbers.random() % 4 ? numbers.anything() : a[i];
  const auto na = NeonVec::load(a), nb = NeonVec::load(b);
  const auto pa = PortableVec::load(a), pb = PortableVec::load(b);
  expect("max", NeonVec::max(na, nb), PortableVec::max(pa, pb));
  expect("min", NeonVec::min(na, nb), PortableVec::min(pa, pb));
  const uint32_t mask = NeonVec::equal_mask(na, nb), other_mask = PortableVec::equal_mask(pa, pb);
  expect("equal_mask", &mask, &other_mask, sizeof mask);
}

void compare_parts(Numbers& numbers) {
  float from[W];
  for (float& x : from) x = numbers.anything();
  for (int n = 0; n < W; ++n) {
    const std::vector<float> some(from, from + n);
    expect("load_part", NeonVec::load_part(some.data(), n), PortableVec::load_part(some.data(), n));
    float to[W] = {}, other_to[W] = {};
    NeonVec::store_part(to, NeonVec::load(from), n);
    PortableVec::store_part(other_to, PortableVec::load(from), n);
    expect("store_part", to, other_to, sizeof to);
  }
  NeonVec::F rows[W];
  PortableVec::F other_rows[W];
  for (int i = 0; i < W; ++i) {
    for (float& x : from) x = numbers.anything();
    rows[i] = NeonVec::load(from);
    other_rows[i] = PortableVec::load(from);
  }
  NeonVec::transpose(rows);
  PortableVec::transpose(other_rows);
  for (int i = 0; i < W; ++i) expect("transpose", rows[i], other_rows[i]);
}

void compare_conversions(Numbers& numbers) {
  uint8_t stored[2 * W];
  for (uint8_t& byte : stored) byte = static_cast<uint8_t>(numbers.random());
  for (int i = 0; i < W; ++i)
    if ((stored[2 * i + 1] & 0x7C) == 0x7C) stored[2 * i + 1] = 0x3C;  // a half that is no number keeps no bits
  expect("from_f16", NeonVec::from_f16(stored), PortableVec::from_f16(stored));
  expect("from_bf16", NeonVec::from_bf16(stored), PortableVec::from_bf16(stored));
  expect("from_i8", NeonVec::from_i8(stored), PortableVec::from_i8(stored));
  float a[W], small[W];
  for (float& x : a) x = numbers.any_number();
  for (float& x : small) x = static_cast<float>(static_cast<int>(numbers.random() % 509) - 254) / 2.0f;
  uint8_t to[2 * W] = {}, other_to[2 * W] = {};
  const int64_t n = 1 + numbers.random() % W;
  NeonVec::to_f16(NeonVec::load(a), to, n);
  PortableVec::to_f16(PortableVec::load(a), other_to, n);
  expect("to_f16", to, other_to, sizeof to);
  NeonVec::to_bf16(NeonVec::load(a), to, n);
  PortableVec::to_bf16(PortableVec::load(a), other_to, n);
  expect("to_bf16", to, other_to, sizeof to);
  NeonVec::to_i8(NeonVec::load(small), to, n);
  PortableVec::to_i8(PortableVec::load(small), other_to, n);
  expect("to_i8", to, other_to, sizeof to);
}

}  // namespace

int main() {
  Numbers numbers;
  for (int round = 0; round < 500; ++round) {
    compare_arithmetic(numbers);
    compare_choices(numbers);
    compare_parts(numbers);
    compare_conversions(numbers);
  }
  std::printf("%d results agree\n", compared);
  return 0;
}
