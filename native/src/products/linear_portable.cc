// Matrix products in plain C++: the definition of what every path computes.
//
// Inputs of the integer formats are quantised per block (32 along k; 64 for q8_channel, 16 for q6_k): scale = max |x| / 127 (32767 for
// the wide formats), values rounded to nearest, ties to even. Per block, in ascending order, with the exact integer dot
// product, which fits into 32 bits:
//   q8_0, q4_0, q5_0    acc = fma(w_scale * x_scale, dot, acc)
//   q4_1, q5_1    the same, then acc = fma(w_minimum, x_scale * sum(q_x), acc)
//   q4_k, q5_k    as q4_1, w_scale and w_minimum being products of two, which are exact
//   q6_k          as q8_0, likewise
//   q8_channel    acc = fma(x_scale, dot, acc); at the end acc *= w_scale of the row
// Float formats: acc = fma(w, x, acc) in float32 with k ascending; bf16_rounded: of x rounded to bfloat16, nearest, ties to
// even, where all operands and results below 2^-126 in magnitude, also when bias and y are added, count as zero of their
// sign, as the instruction of AVX512_BF16 has it. bf16 ends with zeros to a multiple of 32 k. Then y = acc + bias, added to y if asked.
#include <cmath>
#include <cstring>

#include "products/linear_layout.h"

namespace relevo {
namespace {

bool is_float(Format format) { return narrowed(format) < Format::q8_0; }

// A prepared block of one row: int16 values, scale, x_scale * sum, sum.
struct BlockEnd {
  float scale;
  float scaled_sum;
  int32_t sum;
};

size_t input_row_bytes(Format format, int64_t k) {
  if (is_float(format)) return num_blocks(format, k) * stored_block(format) * sizeof(float);
  const int64_t block = input_block(format);
  return (k + block - 1) / block * (block * sizeof(int16_t) + sizeof(BlockEnd));
}

float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

float sum(Format format, float a, float b) { return format == Format::bf16_rounded ? flushed(flushed(a) + flushed(b)) : a + b; }

float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The largest magnitude, compared as bits, so that a NaN among the values is the result.
float largest_magnitude(const float* x, int64_t size) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return float_from_bits(largest);
}

int16_t quantised(float scaled) {
  if (!(std::fabs(scaled) < 32768.0f)) return -32768;  // only where the scale is not finite, and so is the result
  return static_cast<int16_t>(std::nearbyint(scaled));
}

void prepare_block(const float* x, int64_t size, int64_t block, int32_t levels, uint8_t* out) {
  const float largest = largest_magnitude(x, size);
  const float most = static_cast<float>(levels);
  const bool is_zero = largest < kLeastMagnitude;
  const float inverse = is_zero ? 0.0f : most / largest;
  BlockEnd end{is_zero ? 0.0f : largest / most, 0.0f, 0};
  std::memset(out, 0, block * sizeof(int16_t));
  for (int64_t i = 0; i < size; ++i) {
    const int16_t q = quantised(x[i] * inverse);
    std::memcpy(out + i * sizeof q, &q, sizeof q);
    end.sum += q;
  }
  end.scaled_sum = end.scale * static_cast<float>(end.sum);
  std::memcpy(out + block * sizeof(int16_t), &end, sizeof end);
}

void prepare_floats(Format format, const float* x, int64_t k, size_t row_bytes, uint8_t* out) {
  std::memset(out, 0, row_bytes);
  for (int64_t i = 0; i < k; ++i) {
    const float value = format == Format::bf16_rounded ? bfloat_to_float(flushed_bfloat(x[i])) : x[i];
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

void prepare(Format format, const float* x, int64_t x_stride, int64_t, int64_t k, int64_t first, int64_t end,
             uint8_t* inputs) {
  const size_t row_bytes = input_row_bytes(format, k);
  const int64_t block = input_block(format);
  for (int64_t t = first; t < end; ++t) {
    const float* row = x + (t - first) * x_stride;
    uint8_t* out = inputs + t * row_bytes;
    if (is_float(format)) {
      prepare_floats(format, row, k, row_bytes, out);
      continue;
    }
    for (int64_t i = 0; i < k; i += block, out += block * sizeof(int16_t) + sizeof(BlockEnd))
      prepare_block(row + i, k - i < block ? k - i : block, block, input_levels(format), out);
  }
}

int32_t input_at(const uint8_t* x, int64_t i) {
  int16_t q;
  std::memcpy(&q, x + i * sizeof q, sizeof q);
  return q;
}

// dot[row] of one block of a panel with one prepared block; `format` as stored.
void dot_block(Format format, const uint8_t* w, const uint8_t* x, int32_t sum, int32_t* dot) {
  const bool is_q4 = format == Format::q4_0 || format == Format::q4_1;
  const int64_t num_groups = is_q4 ? 4 : input_block(format) / 4;
  for (int64_t row = 0; row < kPanelRows; ++row) dot[row] = format == Format::q4_0 ? -8 * sum : 0;
  for (int64_t g = 0; g < num_groups; ++g)
    for (int64_t row = 0; row < kPanelRows; ++row)
      for (int64_t i = 0; i < 4; ++i) {
        const uint8_t byte = w[g * kGroupBytes + row * 4 + i];
        const int32_t low = input_at(x, g * 4 + i);
        if (is_q4)
          dot[row] += (byte & 15) * low + (byte >> 4) * input_at(x, 16 + g * 4 + i);
        else
          dot[row] += static_cast<int8_t>(byte) * low;
      }
}

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + index * sizeof half, sizeof half);
  return half_to_float(half);
}

// Of a part of the uncommon formats.
void dot_part(Format format, const uint8_t* part, const uint8_t* x, int32_t sum, int32_t* dot) {
  for (int64_t row = 0; row < kPanelRows; ++row) {
    dot[row] = -raised_by(format) * sum;
    for (int64_t i = 0; i < part_size(format); ++i) dot[row] += part_weight(format, part, row, i) * input_at(x, i);
  }
}

void add_parts(Format wide_or_not, const uint8_t* panel, const uint8_t* x, int64_t k, float* acc) {
  const Format format = narrowed(wide_or_not);
  const size_t values_bytes = part_size(format) * sizeof(int16_t);
  for (int64_t b = 0; b < num_blocks(format, k); ++b, panel += block_bytes(format))
    for (int64_t part = 0; part < num_parts(format); ++part, x += values_bytes + sizeof(BlockEnd)) {
      BlockEnd end;
      int32_t dot[kPanelRows];
      std::memcpy(&end, x + values_bytes, sizeof end);
      dot_part(format, panel + part * part_bytes(format), x, end.sum, dot);
      for (int64_t row = 0; row < kPanelRows; ++row) {
        const PartEnd w = part_end(format, panel, part, row);
        acc[row] = std::fma(w.scale * end.scale, static_cast<float>(dot[row]), acc[row]);
        if (num_ends(format) == 2) acc[row] = std::fma(w.minimum, end.scaled_sum, acc[row]);
      }
    }
}

void add_blocks(Format wide_or_not, const uint8_t* panel, const uint8_t* x, int64_t k, float* acc) {
  const Format format = narrowed(wide_or_not);
  const size_t values_bytes = input_block(format) * sizeof(int16_t);
  const size_t w_bytes = block_bytes(format);
  const bool is_channel = format == Format::q8_channel;
  const bool has_minimum = format == Format::q4_1 || format == Format::q5_1;
  const size_t halves = is_uncommon(format) ? part_bytes(format) : (format == Format::q8_0 ? 8 : 4) * kGroupBytes;
  for (int64_t b = 0; b < num_blocks(format, k); ++b, panel += w_bytes, x += values_bytes + sizeof(BlockEnd)) {
    BlockEnd end;
    int32_t dot[kPanelRows];
    std::memcpy(&end, x + values_bytes, sizeof end);
    if (is_uncommon(format))
      dot_part(format, panel, x, end.sum, dot);
    else
      dot_block(format, panel, x, end.sum, dot);
    for (int64_t row = 0; row < kPanelRows; ++row) {
      const float scale = is_channel ? end.scale : half_at(panel + halves, row) * end.scale;
      acc[row] = std::fma(scale, static_cast<float>(dot[row]), acc[row]);
      if (has_minimum) acc[row] = std::fma(half_at(panel + halves, kPanelRows + row), end.scaled_sum, acc[row]);
    }
  }
  if (!is_channel) return;
  for (int64_t row = 0; row < kPanelRows; ++row) {
    float scale;
    std::memcpy(&scale, panel + row * sizeof scale, sizeof scale);
    acc[row] *= scale;
  }
}

// The weights of one k.
void load_elements(Format stored, const uint8_t* panel, int64_t k, float* weights) {
  for (int64_t row = 0; row < kPanelRows; ++row) {
    const uint8_t* from = panel + element_place(stored, row, k);
    uint16_t bits;
    if (stored == Format::f32) {
      std::memcpy(weights + row, from, sizeof *weights);
    } else {
      std::memcpy(&bits, from, sizeof bits);
      weights[row] = stored == Format::f16 ? half_to_float(bits) : bfloat_to_float(bits);
    }
  }
}

void add_elements(Format format, const uint8_t* panel, const uint8_t* x, int64_t k, float* acc) {
  const int64_t packed_k = num_blocks(format, k) * stored_block(format);
  for (int64_t i = 0; i < packed_k; ++i) {
    float input, weights[kPanelRows];
    std::memcpy(&input, x + i * sizeof input, sizeof input);
    load_elements(narrowed(format), panel, i, weights);
    for (int64_t row = 0; row < kPanelRows; ++row)
      acc[row] = format == Format::bf16_rounded ? flushed(std::fma(flushed(weights[row]), input, acc[row]))
                                                : std::fma(weights[row], input, acc[row]);
  }
}

void multiply(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
              const float* bias, bool accumulate, float* y, int64_t y_stride) {
  const size_t row_bytes = input_row_bytes(w.format, w.k);
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    const uint8_t* weights = w.packed + panel * panel_bytes(w.format, w.k);
    const int64_t first_row = panel * kPanelRows;
    const int64_t num_rows = w.n - first_row < kPanelRows ? w.n - first_row : kPanelRows;
    for (int64_t t = 0; t < m; ++t) {
      float acc[kPanelRows] = {};
      if (is_float(w.format))
        add_elements(w.format, weights, inputs + t * row_bytes, w.k, acc);
      else if (is_super(w.format))
        add_parts(w.format, weights, inputs + t * row_bytes, w.k, acc);
      else
        add_blocks(w.format, weights, inputs + t * row_bytes, w.k, acc);
      float* out = y + t * y_stride + first_row;
      for (int64_t row = 0; row < num_rows; ++row) {
        const float value = bias ? sum(w.format, acc[row], bias[first_row + row]) : acc[row];
        out[row] = accumulate ? sum(w.format, out[row], value) : value;
      }
    }
  }
}

int64_t panel_rows(Format) { return kPanelRows; }
int64_t input_group(Format) { return 1; }
size_t input_bytes(Format format, int64_t m, int64_t k) { return m * input_row_bytes(format, k); }

}  // namespace

extern const LinearKernels kLinearPortable;
const LinearKernels kLinearPortable = {Path::portable, panel_rows,  panel_bytes, pack_panel, unpack_packed_row,
                                       input_group,    input_bytes, prepare,     multiply};

}  // namespace relevo
