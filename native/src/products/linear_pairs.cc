// Packing of bfloat16 weights into tiles of pairs, and its inverse.
#include "products/linear_pairs.h"

#include <cstring>

#include "products/linear_layout.h"

namespace relevo {
namespace {

constexpr size_t kElement = sizeof(uint16_t);

size_t place(int64_t row, int64_t k) { return ((k / 2) * kPanelRows + row) * 2 * kElement + k % 2 * kElement; }

}  // namespace

int64_t num_pair_blocks(int64_t k) { return (k + kPairBlock - 1) / kPairBlock; }

size_t pair_panel_bytes(int64_t k) { return num_pair_blocks(k) * kPairBlockBytes; }

void pack_pairs(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows) {
  uint8_t* to = w.packed + panel * pair_panel_bytes(w.k);
  if (num_rows < kPanelRows || w.k % kPairBlock != 0) std::memset(to, 0, pair_panel_bytes(w.k));
  for (int64_t k = 0; k < w.k; ++k)
    for (int64_t row = 0; row < num_rows; ++row) std::memcpy(to + place(row, k), raw[row] + k * kElement, kElement);
}

void unpack_pairs(const Linear& w, int64_t row, float* out) {
  const uint8_t* panel = w.packed + row / kPanelRows * pair_panel_bytes(w.k);
  for (int64_t k = 0; k < w.k; ++k) {
    uint16_t bits;
    std::memcpy(&bits, panel + place(row % kPanelRows, k), sizeof bits);
    out[k] = bfloat_to_float(bits);
  }
}

}  // namespace relevo
