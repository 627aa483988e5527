// What kernels for q4_k, q5_k and q6_k share, whatever their vectors: a block is parts, each of which is multiplied as a
// block of `Part`, the kernel of a smaller format.
// Included by sources compiled for a path: everything here has internal linkage.
#pragma once

#include "products/linear_layout.h"

namespace relevo {
namespace {

template <Format kOne, class Part>
struct SuperShape {
  using Machine = typename Part::Machine;
  static constexpr Format kFormat = kOne;
  static constexpr Format kStored = narrowed(kOne);
  static constexpr int kParts = num_parts(kOne);
  static constexpr int64_t kGroup = Part::kGroup;
  static constexpr int64_t kInputBlock = kSuperBlock;
  static constexpr int64_t kInputBlockBytes = kParts * Part::kInputBlockBytes;
  static constexpr bool kExpands = Part::kExpands;
  static constexpr bool kScalesAtEnd = false;
  static constexpr size_t kPackedBytes = halves_at(kStored) + num_ends(kStored) * kPanelRows * 2;

  static void prepare_block(const float* x, int64_t, int64_t rows, int64_t r, uint8_t* out) {
    for (int part = 0; part < kParts; ++part)
      Part::prepare_block(x + part * Part::kInputBlock, Part::kInputBlock, rows, r, out + part * rows * Part::kInputBlockBytes);
  }
};

}  // namespace
}  // namespace relevo
