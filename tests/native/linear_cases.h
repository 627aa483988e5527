// Products to compare: random weights as a file holds them, inputs, and what a path makes of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "products/linear.h"

namespace {

using namespace relevo;

struct Case {
  Format format;
  int64_t n, k, m;
};

struct Aligned {
  explicit Aligned(size_t size) : data(static_cast<uint8_t*>(::operator new(size, std::align_val_t{64}))) {}
  ~Aligned() { ::operator delete(data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  uint8_t* data;
};

// Rows of random bytes, with scales (and whole elements) that are finite and of ordinary size.
std::vector<uint8_t> random_rows(const Case& c, std::mt19937& random) {
  const Format stored = narrowed(c.format);
  const size_t row_bytes = raw_row_bytes(stored, c.k);
  std::vector<uint8_t> raw(c.n * row_bytes);
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal;
  const auto put_half = [&](size_t at) {
    const uint16_t half = static_cast<uint16_t>(0x2000 + random() % 0x1000 + (random() % 2 << 15));
    std::memcpy(raw.data() + at, &half, 2);
  };
  if (stored == Format::f32 || stored == Format::q8_channel) {
    for (size_t at = 0; at < raw.size(); at += 4) {
      const float value = normal(random);
      std::memcpy(raw.data() + at, &value, 4);
    }
  } else if (stored == Format::f16) {
    for (size_t at = 0; at < raw.size(); at += 2) put_half(at);
  } else if (stored == Format::bf16) {
    for (size_t at = 0; at < raw.size(); at += 2) {
      const uint16_t bits = static_cast<uint16_t>(0x3e00 + random() % 0x200 + (random() % 2 << 15));
      std::memcpy(raw.data() + at, &bits, 2);
    }
  } else if (is_super(stored)) {
    const size_t block = row_bytes / (c.k / 256);
    for (size_t at = 0; at < raw.size(); at += block) {
      put_half(stored == Format::q6_k ? at + 208 : at);
      if (stored != Format::q6_k) put_half(at + 2);
    }
  } else {
    const size_t block = row_bytes / (c.k / 32);
    for (size_t at = 0; at < raw.size(); at += block) {
      put_half(at);
      if (stored == Format::q4_1 || stored == Format::q5_1) put_half(at + 2);
    }
  }
  return raw;
}

std::vector<float> random_floats(size_t count, std::mt19937& random) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> product(const LinearKernels& kernels, const Case& c, const std::vector<uint8_t>& raw,
                           const std::vector<float>& x, const float* bias, bool accumulate, std::vector<float> y) {
  const int64_t panels = (c.n + kernels.panel_rows(c.format) - 1) / kernels.panel_rows(c.format);
  const Aligned packed(panels * kernels.panel_bytes(c.format, c.k));
  const Aligned inputs(kernels.input_bytes(c.format, c.m, c.k));
  const Linear w{c.format, c.n, c.k, packed.data};
  const size_t row_bytes = raw_row_bytes(c.format, c.k);
  for (int64_t panel = 0; panel < panels; ++panel) {
    std::vector<const uint8_t*> rows;
    for (int64_t row = panel * kernels.panel_rows(c.format); row < c.n && rows.size() < 16; ++row)
      rows.push_back(raw.data() + row * row_bytes);
    kernels.pack(w, panel, rows.data(), static_cast<int64_t>(rows.size()));
  }
  const int64_t group = kernels.input_group(c.format);
  for (int64_t first = 0; first < c.m; first += group)
    kernels.prepare(c.format, x.data() + first * c.k, c.k, c.m, c.k, first, std::min(first + group, c.m), inputs.data);
  const int64_t half = panels / 2;
  kernels.multiply(w, inputs.data, c.m, 0, half, bias, accumulate, y.data(), c.n);
  kernels.multiply(w, inputs.data, c.m, half, panels, bias, accumulate, y.data(), c.n);
  return y;
}

}  // namespace
