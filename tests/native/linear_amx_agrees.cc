// Compares the AMX kernels with what they must compute. Integer formats: the portable kernels, bit for bit. bfloat16: the
// order of additions that Intel documents, over inputs rounded to bfloat16. Then the proof at start must find nothing wrong
// with them, and must find what is wrong with spoilt ones. Prints the first difference and exits with 1.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "linear_cases.h"
#include "products/linear_proof.h"

namespace relevo {
extern const LinearKernels kLinearPortable;
extern const LinearKernels kLinearAmx;
}  // namespace relevo

namespace {

float rounded_to_bfloat(float value) {
  int exponent;
  const float fraction = std::frexp(value, &exponent);  // from 1/2 to 1: eight bits are kept
  return std::ldexp(std::nearbyint(fraction * 256.0f), exponent - 8);
}

float stored_bfloat(const uint8_t* raw) {
  uint16_t half;
  std::memcpy(&half, raw, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// 32 products at a time: the even and the odd ones apart, then both.
float tile_order_dot(const float* x, const uint8_t* row, int64_t k) {
  float sum = 0.0f;
  for (int64_t first = 0; first < k; first += 32) {
    float halves[2] = {0.0f, 0.0f};
    for (int64_t i = first; i < std::min(first + 32, k); ++i)
      halves[i % 2] = std::fma(rounded_to_bfloat(x[i]), stored_bfloat(row + 2 * i), halves[i % 2]);
    sum += halves[0] + halves[1];
  }
  return sum;
}

std::vector<float> bfloat_product(const Case& c, const std::vector<uint8_t>& raw, const std::vector<float>& x,
                                  const float* bias, bool accumulate, std::vector<float> y) {
  for (int64_t t = 0; t < c.m; ++t)
    for (int64_t n = 0; n < c.n; ++n) {
      const float dot = tile_order_dot(x.data() + t * c.k, raw.data() + n * c.k * 2, c.k);
      const float value = bias ? dot + bias[n] : dot;
      float& out = y[t * c.n + n];
      out = accumulate ? out + value : value;
    }
  return y;
}

bool agree(const Case& c, std::mt19937& random) {
  const std::vector<uint8_t> raw = random_rows(c, random);
  std::vector<float> x = random_floats(c.m * c.k, random);
  for (int64_t i = 0; i < std::min<int64_t>(c.k, 32); ++i) x[i] = 0.0f;
  const std::vector<float> bias = random_floats(c.n, random), y = random_floats(c.m * c.n, random);
  const bool accumulate = random() % 2;
  const float* bias_data = random() % 2 ? bias.data() : nullptr;
  const std::vector<float> expected = c.format == Format::bf16
                                          ? bfloat_product(c, raw, x, bias_data, accumulate, y)
                                          : product(kLinearPortable, c, raw, x, bias_data, accumulate, y);
  const std::vector<float> found = product(kLinearAmx, c, raw, x, bias_data, accumulate, y);
  for (size_t i = 0; i < found.size(); ++i)
    if (!std::isfinite(expected[i]) || std::memcmp(&found[i], &expected[i], sizeof(float)) != 0) {
      std::printf("format %d n=%ld k=%ld m=%ld: y[%zu] is %.9g, not %.9g\n", static_cast<int>(c.format), long(c.n),
                  long(c.k), long(c.m), i, found[i], expected[i]);
      return false;
    }
  return true;
}

// Areas are reserved for the most rows of a step and used for fewer.
bool inputs_grow_with_rows(Format format, int64_t k) {
  for (int64_t m = 1; m < 70; ++m)
    if (kLinearAmx.input_bytes(format, m, k) > kLinearAmx.input_bytes(format, m + 1, k)) {
      std::printf("format %d: %ld rows take more room than one more\n", static_cast<int>(format), long(m));
      return false;
    }
  return true;
}

bool unpacks(std::mt19937& random) {
  const Case c{Format::bf16, 21, 70, 1};
  const std::vector<uint8_t> raw = random_rows(c, random);
  const Aligned packed(2 * kLinearAmx.panel_bytes(c.format, c.k));
  const Linear w{c.format, c.n, c.k, packed.data};
  for (int64_t panel = 0; panel < 2; ++panel) {
    std::vector<const uint8_t*> rows;
    for (int64_t row = panel * 16; row < std::min<int64_t>(c.n, panel * 16 + 16); ++row)
      rows.push_back(raw.data() + row * c.k * 2);
    kLinearAmx.pack(w, panel, rows.data(), static_cast<int64_t>(rows.size()));
  }
  for (int64_t row = 0; row < c.n; ++row) {
    std::vector<float> values(c.k);
    kLinearAmx.unpack_row(w, row, values.data());
    for (int64_t i = 0; i < c.k; ++i)
      if (values[i] != stored_bfloat(raw.data() + (row * c.k + i) * 2)) {
        std::printf("unpacked [%ld][%ld] is %.9g\n", long(row), long(i), values[i]);
        return false;
      }
  }
  return true;
}

// ---- Kernels that compute wrongly.

using Multiply = decltype(LinearKernels::multiply);

// One bit of one output of products of some formats.
template <Format kFormat, int64_t kOnlyForRows>
void spoilt_multiply(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                     const float* bias, bool accumulate, float* y, int64_t y_stride) {
  kLinearAmx.multiply(w, inputs, m, first_panel, end_panel, bias, accumulate, y, y_stride);
  if (w.format != kFormat || (kOnlyForRows > 0 && m != kOnlyForRows)) return;
  float& spoilt = y[(m / 6) * 6 % m * y_stride + w.n - 1];
  spoilt = kFormat == Format::bf16 && kOnlyForRows == 0 ? spoilt * 1.001f : std::nextafter(spoilt, 1e30f);
}

bool finds(Multiply multiply, const char* words) {
  LinearKernels spoilt = kLinearAmx;
  spoilt.multiply = multiply;
  const std::string defect = linear_defect(spoilt, kLinearPortable);
  if (defect.find(words) != std::string::npos) return true;
  std::printf("the proof says '%s', not '%s'\n", defect.c_str(), words);
  return false;
}

bool proof_holds() {
  const std::string defect = linear_defect(kLinearAmx, kLinearPortable);
  if (!defect.empty()) std::printf("the proof says: %s\n", defect.c_str());
  return defect.empty() && finds(spoilt_multiply<Format::q4_1, 0>, "gives wrong products of q4_1 weights: ") &&
         finds(spoilt_multiply<Format::q8_channel, 0>, "gives wrong products of q8_channel weights: ") &&
         finds(spoilt_multiply<Format::bf16, 0>, "gives wrong products of bfloat16 weights: ") &&
         finds(spoilt_multiply<Format::bf16, 1>, " for fewer rows") &&
         finds(spoilt_multiply<Format::q8_0_wide, 21>, " for fewer rows");
}

}  // namespace

int main() {
  std::mt19937 random(7);
  int compared = 0;
  const auto compare = [&](const Case& c) {
    if (!agree(c, random)) std::exit(1);
    ++compared;
  };
  for (const Format format : {Format::f16, Format::bf16, Format::q8_0, Format::q4_0, Format::q4_1, Format::q8_channel,
                              Format::q8_0_wide, Format::q4_0_wide, Format::q4_1_wide, Format::q8_channel_wide}) {
    const Format stored = narrowed(format);
    const bool has_blocks = stored == Format::q8_0 || stored == Format::q4_0 || stored == Format::q4_1;
    if (!inputs_grow_with_rows(format, 160)) return 1;
    for (const int64_t m : {1, 4, 5, 16, 20, 37})
      for (const int64_t k : {32, 160, has_blocks ? 704 : 709}) {
        if (k > 160 && m > 1 && m < 20) continue;
        compare({format, 1 + static_cast<int64_t>(random() % 50), k, m});
      }
  }
  // More rows than a pass over the panels takes, more k than a stretch.
  compare({Format::bf16, 3, 4128, 130});
  compare({Format::q4_1, 3, 6560, 145});
  if (!unpacks(random) || !proof_holds()) return 1;
  std::printf("%d products agree\n", compared);
  return 0;
}
