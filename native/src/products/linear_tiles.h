// The loops around the tiles of a vector path: which rows, panels and stretches of k a tile covers.
//
// A path gives a kernel F for each format, with
//   kFormat, kGroup (input rows of a tile), kInputBlock (k), kInputBlockBytes (prepared, of one row), kScalesAtEnd
//   Packed, Expanded: how a tile reads a block of weights, with kBytes
//   kExpands, expand(packed block, out): whether many rows share weights that were expanded once
//   prepare_block(x, k_left, rows, r, out): row r of a group of `rows`; only q8_channel's last block has fewer than
//   kInputBlock values left
//   Machine: kStretchBytes (expanded weights at a time), kInputsBytes (prepared inputs at a time) and
//   add_tile<F, Weights, R>(w, x, blocks, sums [R][16]), which adds blocks to the accumulators of a tile
// and a table of them: Path::Floats<Format>, Path::Bytes<Format>, Path::Nibbles<Format>, Path::WideNibbles<Format>,
// Path::kPath; Path::Fives<Format>, FourK, WideFourK, FiveK<Format> and SixK<Format> if Path::kHasUncommon, else
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

template <class F, class Weights>
void add_tile_of(int64_t rows, const uint8_t* w, const uint8_t* x, int64_t blocks, float* sums) {
  switch (rows) {
    case 1:
      return F::Machine::template add_tile<F, Weights, 1>(w, x, blocks, sums);
    case 2:
      return F::Machine::template add_tile<F, Weights, 2>(w, x, blocks, sums);
    case 3:
      return F::Machine::template add_tile<F, Weights, 3>(w, x, blocks, sums);
    case 4:
      return F::Machine::template add_tile<F, Weights, 4>(w, x, blocks, sums);
  }
  if constexpr (F::kGroup >= 6) {
    if (rows == 5) return F::Machine::template add_tile<F, Weights, 5>(w, x, blocks, sums);
    if (rows == 6) return F::Machine::template add_tile<F, Weights, 6>(w, x, blocks, sums);
  }
  if constexpr (F::kGroup >= 8) {
    if (rows == 7) return F::Machine::template add_tile<F, Weights, 7>(w, x, blocks, sums);
    if (rows == 8) return F::Machine::template add_tile<F, Weights, 8>(w, x, blocks, sums);
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

template <class F>
void store_tile(const Linear& w, int64_t panel, float* sums, int64_t first_row, int64_t rows, const Output& output) {
  const int64_t first = panel * kPanelRows;
  float scales[kPanelRows];
  if (F::kScalesAtEnd) {
    const size_t bytes = panel_bytes(F::kFormat, w.k);
    std::memcpy(scales, w.packed + (panel + 1) * bytes - sizeof scales, sizeof scales);
  }
  const float* scales_at_end = F::kScalesAtEnd ? scales : nullptr;
  if (w.n - first >= kPanelRows)
    store_rows(sums, scales_at_end, output, first_row, rows, first, std::integral_constant<int64_t, kPanelRows>());
  else
    store_rows(sums, scales_at_end, output, first_row, rows, first, w.n - first);
}

// Rows whose outputs go to y as soon as a tile has them.
template <class F>
void multiply_tiles(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t panel,
                    const Output& output) {
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  for (int64_t row = first_row; row < end_row; row += F::kGroup) {
    const int64_t rows = end_row - row < F::kGroup ? end_row - row : F::kGroup;
    float sums[F::kGroup * kPanelRows] = {};
    add_tile_of<F, typename F::Packed>(rows, packed, inputs + row * blocks * F::kInputBlockBytes, blocks, sums);
    store_tile<F>(w, panel, sums, row, rows, output);
  }
}

// Rows of inputs that one pass over the panels uses.
template <class F>
int64_t rows_per_pass(int64_t blocks) {
  const int64_t fitting = static_cast<int64_t>(F::Machine::kInputsBytes) / (blocks * F::kInputBlockBytes) / F::kGroup * F::kGroup;
  const int64_t least = 8 * F::kGroup, most = kMostRowsPerPass / F::kGroup * F::kGroup;
  return fitting < least ? least : fitting > most ? most : fitting;
}

template <class F>
void multiply_panel(const Linear& w, const uint8_t* inputs, int64_t first_row, int64_t end_row, int64_t panel,
                    const Output& output) {
  using Weights = typename std::conditional<F::kExpands, typename F::Expanded, typename F::Packed>::type;
  constexpr int64_t kStretch = F::Machine::kStretchBytes / Weights::kBytes;
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const uint8_t* packed = w.packed + panel * panel_bytes(F::kFormat, w.k);
  alignas(64) uint8_t expanded[F::kExpands ? kStretch * Weights::kBytes : 1];
  alignas(64) float sums[kMostRowsPerPass * kPanelRows];
  std::memset(sums, 0, (end_row - first_row) * kPanelRows * sizeof(float));
  for (int64_t first = 0; first < blocks; first += kStretch) {
    const int64_t count = blocks - first < kStretch ? blocks - first : kStretch;
    const uint8_t* weights = packed + first * F::Packed::kBytes;
    if constexpr (F::kExpands) {
      for (int64_t b = 0; b < count; ++b) F::expand(weights + b * F::Packed::kBytes, expanded + b * Weights::kBytes);
      weights = expanded;
    }
    for (int64_t row = first_row; row < end_row; row += F::kGroup) {
      const int64_t rows = end_row - row < F::kGroup ? end_row - row : F::kGroup;
      const uint8_t* x = inputs + (row * blocks + first * rows) * F::kInputBlockBytes;
      add_tile_of<F, Weights>(rows, weights, x, count, sums + (row - first_row) * kPanelRows);
    }
  }
  store_tile<F>(w, panel, sums, first_row, end_row - first_row, output);
}

template <class F>
void multiply_format(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                     const Output& output) {
  const int64_t blocks = num_blocks(F::kFormat, w.k);
  const bool stays = !F::kExpands && blocks * F::Packed::kBytes <= F::Machine::kStretchBytes;
  const bool is_few = m <= 2 * F::kGroup;
  const int64_t step = is_few ? m : rows_per_pass<F>(blocks);
  for (int64_t row = 0; row < m; row += step)
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      const int64_t end_row = m - row < step ? m : row + step;
      if (is_few || stays)
        multiply_tiles<F>(w, inputs, row, end_row, panel, output);
      else
        multiply_panel<F>(w, inputs, row, end_row, panel, output);
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
