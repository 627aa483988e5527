// Matrix products with weights that stay in their stored format.
//
// y[t, n] = sum_k x[t, k] * w[n, k]. Weights are packed once at load into panels of `panel_rows` output rows, in the
// order in which the kernels read them. Inputs are prepared once per product (quantised or rounded to what the kernel
// multiplies) and then used by every panel.
//
// On one path, y[t, n] depends on row t of x and row n of w alone: not on how many rows there are, which panel range a
// call covers or which thread calls. Every output is accumulated in one fixed order, so that a token computed alone, in
// a batch or in a chunk of a prompt has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/cpu.h"

namespace relevo {

// Stored formats. q8_0, q4_0, q4_1, q5_0 and q5_1 are GGUF's: blocks of 32 along k with a float16 scale (and minimum).
// q8_channel: int8 with one float32 scale per output row, made at load. q4_k, q5_k and q6_k are GGUF's, too: blocks of 256
// whose parts have scales (and minima) that are an integer times one float16 of the block. These round a product's inputs to
// 8 bits; their wide twins, in the same order, are the same weights, packed alike, whose products round inputs to 16 bits.
// bf16_rounded is bf16, packed alike, whose products round inputs to bfloat16; those of bf16 do so on matrix tiles alone.
enum class Format {
  f32,
  f16,
  bf16,
  bf16_rounded,
  q8_0,
  q4_0,
  q4_1,
  q8_channel,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  q8_0_wide,
  q4_0_wide,
  q4_1_wide,
  q8_channel_wide,
  q5_0_wide,
  q5_1_wide,
  q4_k_wide,
  q5_k_wide,
  q6_k_wide
};
constexpr int kTwin = static_cast<int>(Format::q8_0_wide) - static_cast<int>(Format::q8_0);

constexpr bool is_wide(Format format) { return format >= Format::q8_0_wide; }

// The twin whose products round inputs to 16 bits where they are integers; a float format is its own.
constexpr Format widened(Format format) {
  return format < Format::q8_0 || is_wide(format) ? format : static_cast<Format>(static_cast<int>(format) + kTwin);
}

// The twin that says how weights are stored, whatever inputs are rounded to.
constexpr Format narrowed(Format format) {
  if (format == Format::bf16_rounded) return Format::bf16;
  return is_wide(format) ? static_cast<Format>(static_cast<int>(format) - kTwin) : format;
}

// The twin whose products round inputs to bfloat16; only bf16 has one.
constexpr Format rounded(Format format) { return format == Format::bf16 ? Format::bf16_rounded : format; }

// Whether scales have scales: blocks of 256.
constexpr bool is_super(Format format) {
  const Format stored = narrowed(format);
  return stored == Format::q4_k || stored == Format::q5_k || stored == Format::q6_k;
}

// Whether not every path has kernels for it: then it uses those of another.
constexpr bool is_uncommon(Format format) {
  if (format == Format::bf16_rounded) return true;
  return is_super(format) || narrowed(format) == Format::q5_0 || narrowed(format) == Format::q5_1;
}

// Bytes of one row of k weights as it comes from the file (for q8_channel: float32, quantised while packing).
size_t raw_row_bytes(Format format, int64_t k);

struct Linear {
  Format format;
  int64_t n;  // output rows
  int64_t k;  // inputs; a multiple of a stored block for the block formats
  uint8_t* packed;  // ceil(n / panel_rows) * panel_bytes bytes, 64-byte aligned
};

struct LinearKernels {
  Path path;
  int64_t (*panel_rows)(Format format);
  size_t (*panel_bytes)(Format format, int64_t k);

  // Pack panel `panel` of `w`; raw[i] is row panel * panel_rows + i of the file, for i < num_rows <= panel_rows (the
  // last panel may be short; its missing rows are packed as zeros).
  void (*pack)(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows);

  // Row `row` of w as float32[k], from its packed panel (embedding lookups on a tied head).
  void (*unpack_row)(const Linear& w, int64_t row, float* out);

  // Inputs are prepared in groups of `input_group(format)` rows; `input_bytes` is the size of m prepared rows, which
  // does not shrink with more of them.
  int64_t (*input_group)(Format format);
  size_t (*input_bytes)(Format format, int64_t m, int64_t k);
  // Prepare rows [first, end) of m rows of k floats, `x_stride` apart, into `inputs` (the whole area, 64-byte aligned). x
  // points to row `first`, which is a multiple of input_group; `end` is too, or m.
  void (*prepare)(Format format, const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end,
                  uint8_t* inputs);

  // y [m, n] (row stride `y_stride` floats) for the output rows of panels [first_panel, end_panel); adds to what is in y
  // if `accumulate`; `bias` [n] or null. Thread-safe: keeps no state.
  void (*multiply)(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                   const float* bias, bool accumulate, float* y, int64_t y_stride);
};

const LinearKernels& linear_kernels(Path path);

}  // namespace relevo
