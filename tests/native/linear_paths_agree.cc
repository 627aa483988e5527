// Compares the kernels of a path (KERNELS) with the portable ones bit for bit: every format, short and long k, a last panel
// that is not full, one to many rows, parts of the panels, bias, accumulation. Prints the first difference and exits with 1.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "linear_cases.h"

#if !defined(KERNELS)
#define KERNELS kLinearAvx512
#endif

namespace relevo {
extern const LinearKernels kLinearPortable;
extern const LinearKernels KERNELS;
}  // namespace relevo

namespace {

bool agree(const Case& c, std::mt19937& random) {
  const std::vector<uint8_t> raw = random_rows(c, random);
  std::vector<float> x = random_floats(c.m * c.k, random);
  for (int64_t i = 0; i < std::min<int64_t>(c.k, 32); ++i) x[i] = 0.0f;
  const std::vector<float> bias = random_floats(c.n, random), y = random_floats(c.m * c.n, random);
  const bool accumulate = random() % 2;
  const float* bias_data = random() % 2 ? bias.data() : nullptr;
  const std::vector<float> expected = product(kLinearPortable, c, raw, x, bias_data, accumulate, y);
  const std::vector<float> found = product(KERNELS, c, raw, x, bias_data, accumulate, y);
  for (size_t i = 0; i < found.size(); ++i)
    if (!std::isfinite(expected[i]) || std::memcmp(&found[i], &expected[i], sizeof(float)) != 0) {
      std::printf("format %d n=%ld k=%ld m=%ld: y[%zu] is %.9g, not %.9g\n", static_cast<int>(c.format), long(c.n),
                  long(c.k), long(c.m), i, found[i], expected[i]);
      return false;
    }
  return true;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  int compared = 0;
  for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::bf16_rounded, Format::q8_0, Format::q4_0, Format::q4_1,
                              Format::q8_channel, Format::q8_0_wide, Format::q4_0_wide, Format::q4_1_wide,
                              Format::q8_channel_wide, Format::q5_0, Format::q5_1, Format::q4_k, Format::q5_k, Format::q6_k,
                              Format::q5_0_wide, Format::q5_1_wide, Format::q4_k_wide, Format::q5_k_wide, Format::q6_k_wide}) {
    const Format stored = narrowed(format);
    const bool has_blocks = stored >= Format::q8_0 && stored != Format::q8_channel;
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 29})
      for (int64_t k : {32, 96, has_blocks ? 704 : 709}) {
        if (is_super(format)) k = (k + 255) / 256 * 256;
        if (!agree({format, 1 + static_cast<int64_t>(random() % 50), k, m}, random)) return 1;
        ++compared;
      }
  }
  std::printf("%d products agree\n", compared);
  return 0;
}
