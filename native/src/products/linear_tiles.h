// The loops around the tiles of a vector path: which rows, panels and stretches of k a tile covers.
//
// A path gives a kernel F for each format, with
//   kFormat, kGroup (input rows of a tile), kInputBlock (k), kInputBlockBytes (prepared, of one row), kScalesAtEnd
//   Packed, Expanded: how a tile reads a block of weights, with kBytes
//   kExpands, expand(packed block, out): whether many rows share weights that were expanded once
//   prepare_block(x, k_left, rows, r, out): row r of a group of `rows`; only q8_channel's last block has fewer than
//   kInputBlock values left
//   Machine: kStretchBytes (expanded weights at a time), kInputsBytes (prepared inputs at a time) and
//   add_tile<F, Weights, R>(w, x, blocks, sums [R][16]), which adds blocks to the accumulators of a tile, and
//   whole_tile<F, R>(w, x, blocks, scales, output), which starts at zero and stores the outputs
// and a table of them: Path::Floats<Format>, Path::Bytes<Format>, Path::Nibbles<Format>, Path::WideNibbles<Format>,
// Path::kPath; if Path::kHasUncommon, Fives<Format>, FourK, WideFourK, FiveK<Format>, SixK<Format>, Floats of bf16_rounded and
// WhileRounded, an object of which lives while those are multiplied, so that what is below 2^-126 counts as zero; else
// Path::kernels_of_uncommon(): the kernels of another path that multiply the uncommon formats for it.
// Included by one source per path, which is compiled for it: everything here has internal linkage.
#pragma once

#include <cstring>
#include <type_traits>

#include "products/linear_layout.h"

namespace relevo {
namespace {

constexpr int64_t kMostRowsPerPass = 512;
constexpr size_t kPrefetchBytes = 1024;
constexpr int64_t kFewTiles = 2;             // of rows: up to here weights are read once, as they are
constexpr size_t kPanelsBytes = 96 * 1024;  // panels that stay in a second-level cache beside inputs; more bring nothing

// Fetches what lies kPrefetchBytes further. Past the end of a weight that is harmless: it is not an access.
inline void prefetch(const uint8_t* from, size_t bytes) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(from) + kPrefetchBytes;
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(start + i));
}

// The values of a block of inputs: x or, where a row ends before the block does, a copy in `filled` that zeros follow.
template <int64_t kSize>
const float* whole_block(const float* x, int64_t k_left, float (&filled)[kSize]) {
  if (k_left >= kSize) return x;
  std::memset(filled, 0, sizeof filled);
  std::memcpy(filled, x, static_cast<size_t>(k_left) * sizeof(float));
  return filled;
}

// Calls `call` with the number of rows of a tile as a constant.
template <class F, class Call>
void with_rows(int64_t rows, const Call& call) {
  switch (rows) {
    case 1:
      return call(std::integral_constant<int, 1>());
    case 2:
      return call(std::integral_constant<int, 2>());
    case 3:
      return call(std::integral_constant<int, 3>());
    case 4:
      return call(std::integral_constant<int, 4>());
  }
  if constexpr (F::kGroup >= 6) {
    if (rows == 5) return call(std::integral_constant<int, 5>());
    if (rows == 6) return call(std::integral_constant<int, 6>());
  }
  if constexpr (F::kGroup >= 8) {
    if (rows == 7) return call(std::integral_constant<int, 7>());
    if (rows == 8) return call(std::integral_constant<int, 8>());
  }
}

struct Output {
  const float* bias;
  bool accumulate;
  float* y;
  int64_t y_stride;
};

// Rows of a tile: `count` outputs each, of which the compiler knows how many unless the panel is the last. What is done to
// them is chosen once for all rows, and done in place: outputs do not lie where sums do, which the compiler cannot see.
template <class Count>
void store_rows(float* __restrict sums, const float* __restrict scales, const Output& output, int64_t first_row,
                int64_t rows, int64_t first, Count count) {
  const float* __restrict bias = output.bias ? output.bias + first : nullptr;
  float* __restrict to = output.y + first_row * output.y_stride + first;
  if (scales)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) sums[r * kPanelRows + i] *= scales[i];
  if (bias)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) sums[r * kPanelRows + i] += bias[i];
  if (output.accumulate)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) to[r * output.y_stride + i] += sums[r * kPanelRows + i];
  else
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * output.y_stride, sums + r * kPanelRows, static_cast<size_t>(count) * sizeof(float));
}

// A row of a panel's factors at the end, or null.
template <class F>
const uint8_t* scales_at_end(const Linear& w, int64_t panel) {
  if (!F::kScalesAtEnd) return nullptr;
  return w.packed + (panel + 1) * panel_bytes(F::kFormat, w.k) - kPanelRows * sizeof(float);
}

template <class F>
void store_tile(const Linear& w, int64_t panel, float* sums, int64_t first_row, int64_t rows, const Output& output) {
  const int64_t first = panel * kPanelRows;
  float scales[kPanelRows];
  if (F::kScalesAtEnd) std::memcpy(scales, scales_at_end<F>(w, panel), sizeof scales);
  const float* at_end = F::kScalesAtEnd ? scales : nullptr;
  if (w.n - first >= kPanelRows)
    store_rows(sums, at_end, output, first_row, rows, first, std::integral_constant<int64_t, kPanelRows>());
  else
    store_rows(sums, at_end, output, first_row, rows, first, w.n - first);
}

// One tile, whose outputs go to y. A panel that is not short is stored from registers.
template <class F>
void multiply_tile(const Linear& w, const uint8_t* inputs, int64_t row, int64_t end_row, int64_t panel, const Output& output) {
  using Weights = typename F::Packed;
  const int64_t blocks = num_blocks(F::kFormat, w.k), first = panel * kPanelRows;
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  const uint8_t* x = inputs + row * blocks * F::kInputBlockBytes;
  with_rows<F>(end_row - row < F::kGroup ? end_row - row : F::kGroup, [&](auto rows) {
    if (w.n - first >= kPanelRows) {
      const Output tile{output.bias ? output.bias + first : nullptr, output.accumulate,
                        output.y + row * output.y_stride + first, output.y_stride};
      F::Machine::template whole_tile<F, rows()>(packed, x, blocks, scales_at_end<F>(w, panel), tile);
    } else {
      float sums[rows() * kPanelRows] = {};
      F::Machine::template add_tile<F, Weights, rows()>(packed, x, blocks, sums);
      store_tile<F>(w, panel, sums, row, rows(), output);
    }
  });
}

// Tiles of rows [first_row, end_row) and some panels. Few rows stay in the nearest cache while panels come from memory; of
// more, a tile's inputs stay there while it passes panels that lie in the next one.
template <class F>
void multiply_tiles(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t first_panel,
                    int64_t end_panel, const Output& output) {
  const int64_t fitting = static_cast<int64_t>(kPanelsBytes / panel_bytes(F::kFormat, w.k));
  const int64_t step = end_row - first_row <= kFewTiles * F::kGroup || fitting < 1 ? 1 : fitting;
  for (int64_t begin = first_panel; begin < end_panel; begin += step) {
    const int64_t end = end_panel - begin < step ? end_panel : begin + step;
    for (int64_t row = first_row; row < end_row; row += F::kGroup)
      for (int64_t panel = begin; panel < end; ++panel) multiply_tile<F>(w, inputs, row, end_row, panel, output);
  }
}

// Rows of inputs that one pass over the panels uses.
template <class F>
int64_t rows_per_pass(int64_t blocks) {
  const int64_t fitting = static_cast<int64_t>(F::Machine::kInputsBytes) / (blocks * F::kInputBlockBytes) / F::kGroup * F::kGroup;
  const int64_t least = 8 * F::kGroup, most = kMostRowsPerPass / F::kGroup * F::kGroup;
  return fitting < least ? least : fitting > most ? most : fitting;
}

// Rows of a panel whose weights are expanded once for all of them.
template <class F>
void multiply_panel(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t panel,
                    const Output& output) {
  using Weights = typename F::Expanded;
  constexpr int64_t kStretch = F::Machine::kStretchBytes / Weights::kBytes;
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  alignas(64) uint8_t expanded[kStretch * Weights::kBytes];
  alignas(64) float sums[kMostRowsPerPass * kPanelRows];
  std::memset(sums, 0, (end_row - first_row) * kPanelRows * sizeof(float));
  for (int64_t first = 0; first < blocks; first += kStretch) {
    const int64_t count = blocks - first < kStretch ? blocks - first : kStretch;
    const uint8_t* weights = packed + first * F::Packed::kBytes;
    for (int64_t b = 0; b < count; ++b) F::expand(weights + b * F::Packed::kBytes, expanded + b * Weights::kBytes);
    for (int64_t row = first_row; row < end_row; row += F::kGroup) {
      float* of_rows = sums + (row - first_row) * kPanelRows;
      with_rows<F>(end_row - row < F::kGroup ? end_row - row : F::kGroup, [&](auto rows) {
        const uint8_t* x = inputs + (row * blocks + first * rows()) * F::kInputBlockBytes;
        F::Machine::template add_tile<F, Weights, rows()>(expanded, x, count, of_rows);
      });
    }
  }
  store_tile<F>(w, panel, sums, first_row, end_row - first_row, output);
}

template <class F>
void multiply_format(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                     const Output& output) {
  const bool is_few = m <= kFewTiles * F::kGroup;
  const int64_t step = is_few ? m : rows_per_pass<F>(num_blocks(F::kFormat, w.k));
  for (int64_t row = 0; row < m; row += step) {
    const int64_t end_row = m - row < step ? m : row + step;
    if constexpr (F::kExpands) {
      for (int64_t panel = first_panel; !is_few && panel < end_panel; ++panel)
        multiply_panel<F>(w, inputs, row, end_row, panel, output);
    }
    if (is_few || !F::kExpands) multiply_tiles<F>(w, inputs, row, end_row, first_panel, end_panel, output);
  }
}

template <class F>
void prepare_format(const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end, uint8_t* inputs) {
  const int64_t blocks = num_blocks(F::kFormat, k);
  for (int64_t row = first; row < end; row += F::kGroup) {
    const int64_t rows = m - row < F::kGroup ? m - row : F::kGroup;
    uint8_t* out = inputs + row * blocks * F::kInputBlockBytes;
    for (int64_t r = 0; r < rows && row + r < end; ++r)
      for (int64_t b = 0; b < blocks; ++b)
        F::prepare_block(x + (row - first + r) * x_stride + b * F::kInputBlock, k - b * F::kInputBlock, rows, r,
                         out + b * rows * F::kInputBlockBytes);
  }
}

// Calls `call` with the path's kernel of `format`.
template <class P, class Call>
auto with_format(Format format, const Call& call) {
  if constexpr (P::kHasUncommon) {
    switch (format) {
      case Format::bf16_rounded:
        return call(typename P::template Floats<Format::bf16_rounded>{});
      case Format::q5_0:
        return call(typename P::template Fives<Format::q5_0>{});
      case Format::q5_0_wide:
        return call(typename P::template Fives<Format::q5_0_wide>{});
      case Format::q5_1:
        return call(typename P::template Fives<Format::q5_1>{});
      case Format::q5_1_wide:
        return call(typename P::template Fives<Format::q5_1_wide>{});
      case Format::q4_k:
        return call(typename P::FourK{});
      case Format::q4_k_wide:
        return call(typename P::WideFourK{});
      case Format::q5_k:
        return call(typename P::template FiveK<Format::q5_k>{});
      case Format::q5_k_wide:
        return call(typename P::template FiveK<Format::q5_k_wide>{});
      case Format::q6_k:
        return call(typename P::template SixK<Format::q6_k>{});
      case Format::q6_k_wide:
        return call(typename P::template SixK<Format::q6_k_wide>{});
      default:
        break;
    }
  }
  switch (format) {
    case Format::f32:
      return call(typename P::template Floats<Format::f32>{});
    case Format::f16:
      return call(typename P::template Floats<Format::f16>{});
    case Format::bf16:
      return call(typename P::template Floats<Format::bf16>{});
    case Format::q8_0:
      return call(typename P::template Bytes<Format::q8_0>{});
    case Format::q8_0_wide:
      return call(typename P::template Bytes<Format::q8_0_wide>{});
    case Format::q8_channel:
      return call(typename P::template Bytes<Format::q8_channel>{});
    case Format::q8_channel_wide:
      return call(typename P::template Bytes<Format::q8_channel_wide>{});
    case Format::q4_0:
      return call(typename P::template Nibbles<Format::q4_0>{});
    case Format::q4_0_wide:
      return call(typename P::template WideNibbles<Format::q4_0_wide>{});
    case Format::q4_1_wide:
      return call(typename P::template WideNibbles<Format::q4_1_wide>{});
    default:
      break;
  }
  return call(typename P::template Nibbles<Format::q4_1>{});
}

int64_t panel_rows(Format) { return kPanelRows; }

// Whose kernels multiply a format: those of another path where this one has none for it, else null.
template <class P>
const LinearKernels* others(Format format) {
  if constexpr (!P::kHasUncommon) {
    if (is_uncommon(format)) return &P::kernels_of_uncommon();
  }
  return nullptr;
}

template <class P>
int64_t input_group(Format format) {
  if (const LinearKernels* other = others<P>(format)) return other->input_group(format);
  return with_format<P>(format, [](auto f) { return decltype(f)::kGroup; });
}

template <class P>
size_t input_bytes(Format format, int64_t m, int64_t k) {
  if (const LinearKernels* other = others<P>(format)) return other->input_bytes(format, m, k);
  const int64_t block = with_format<P>(format, [](auto f) { return decltype(f)::kInputBlockBytes; });
  return static_cast<size_t>(m * num_blocks(format, k) * block);
}

template <class P>
void prepare(Format format, const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end,
             uint8_t* inputs) {
  if (const LinearKernels* other = others<P>(format)) return other->prepare(format, x, x_stride, m, k, first, end, inputs);
  with_format<P>(format, [&](auto f) { prepare_format<decltype(f)>(x, x_stride, m, k, first, end, inputs); });
}

template <class P>
void multiply(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
              const float* bias, bool accumulate, float* y, int64_t y_stride) {
  if (const LinearKernels* other = others<P>(w.format))
    return other->multiply(w, inputs, m, first_panel, end_panel, bias, accumulate, y, y_stride);
  const Output output{bias, accumulate, y, y_stride};
  if constexpr (P::kHasUncommon) {
    if (w.format == Format::bf16_rounded) {
      const typename P::WhileRounded rounded;
      return multiply_format<typename P::template Floats<Format::bf16_rounded>>(w, inputs, m, first_panel, end_panel, output);
    }
  }
  with_format<P>(w.format,
                 [&](auto f) { multiply_format<decltype(f)>(w, inputs, m, first_panel, end_panel, output); });
}

template <class P>
constexpr LinearKernels kernels_of() {
  return {P::kPath,       panel_rows,     panel_bytes, pack_panel, unpack_packed_row, input_group<P>,
          input_bytes<P>, prepare<P>, multiply<P>};
}

}  // namespace
}  // namespace relevo
