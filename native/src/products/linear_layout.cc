// Packing of weights and its inverse: plain copies, so that loading costs little more than reading the file.
#include "products/linear_layout.h"

#include <cmath>
#include <cstring>

namespace relevo {
namespace {

constexpr size_t kHalf = sizeof(uint16_t);

size_t element_bytes(Format format) { return format == Format::f32 ? sizeof(float) : kHalf; }

uint16_t read_u16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Raw GGUF block: scale, minimum (q4_1 only), then 4-byte groups. Packed block: groups, scales, minima.
struct BlockShape {
  int64_t num_groups;
  int64_t num_halves;  // scale and minimum
  size_t raw_bytes() const { return num_halves * kHalf + num_groups * 4; }
};

BlockShape block_shape(Format format) {
  if (format == Format::q8_0) return {8, 1};
  return {4, format == Format::q4_1 ? 2 : 1};
}

void pack_blocks(Format format, int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  const BlockShape shape = block_shape(format);
  const size_t packed_bytes = block_bytes(format);
  for (int64_t block = 0; block < k / kBlock; ++block) {
    const uint8_t* from = raw + block * shape.raw_bytes();
    uint8_t* to = panel + block * packed_bytes;
    const uint8_t* groups = from + shape.num_halves * kHalf;
    for (int64_t g = 0; g < shape.num_groups; ++g)
      std::memcpy(to + g * kGroupBytes + row * 4, groups + g * 4, 4);
    uint8_t* halves = to + shape.num_groups * kGroupBytes;
    for (int64_t h = 0; h < shape.num_halves; ++h)
      std::memcpy(halves + (h * kPanelRows + row) * kHalf, from + h * kHalf, kHalf);
  }
}

void pack_elements(Format format, int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  const size_t size = element_bytes(format);
  for (int64_t i = 0; i < k; ++i) std::memcpy(panel + (i * kPanelRows + row) * size, raw + i * size, size);
}

uint8_t* channel_scales(uint8_t* panel, int64_t k) {
  return panel + num_blocks(Format::q8_channel, k) * block_bytes(Format::q8_channel);
}

// Nearest, ties to even; the largest magnitude becomes 127.
void pack_channel(int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  float largest = 0.0f;
  float value;
  for (int64_t i = 0; i < k; ++i) {
    std::memcpy(&value, raw + i * sizeof value, sizeof value);
    largest = std::fmax(largest, std::fabs(value));
  }
  const bool is_zero = largest < kLeastMagnitude;
  const float scale = is_zero ? 0.0f : largest / 127.0f;
  for (int64_t i = 0; i < k; ++i) {
    std::memcpy(&value, raw + i * sizeof value, sizeof value);
    const float scaled = is_zero ? 0.0f : value / scale;
    const int8_t q = std::fabs(scaled) < 128.0f ? static_cast<int8_t>(std::nearbyint(scaled)) : -128;
    std::memcpy(panel + (i / 4) * kGroupBytes + row * 4 + i % 4, &q, 1);
  }
  std::memcpy(channel_scales(panel, k) + row * sizeof scale, &scale, sizeof scale);
}

void unpack_blocks(Format format, int64_t k, int64_t row, const uint8_t* panel, float* out) {
  const BlockShape shape = block_shape(format);
  for (int64_t block = 0; block < k / kBlock; ++block) {
    const uint8_t* from = panel + block * block_bytes(format);
    const uint8_t* halves = from + shape.num_groups * kGroupBytes + row * kHalf;
    const float scale = half_to_float(read_u16(halves));
    const float minimum = shape.num_halves == 2 ? half_to_float(read_u16(halves + kPanelRows * kHalf)) : 0.0f;
    float* values = out + block * kBlock;
    for (int64_t i = 0; i < shape.num_groups * 4; ++i) {
      const uint8_t byte = from[(i / 4) * kGroupBytes + row * 4 + i % 4];
      if (format == Format::q8_0) {
        values[i] = static_cast<float>(static_cast<int8_t>(byte)) * scale;
        continue;
      }
      const int offset = format == Format::q4_0 ? 8 : 0;
      values[i] = static_cast<float>((byte & 15) - offset) * scale + minimum;
      values[i + 16] = static_cast<float>((byte >> 4) - offset) * scale + minimum;
    }
  }
}

void unpack_channel(int64_t k, int64_t row, uint8_t* panel, float* out) {
  float scale;
  std::memcpy(&scale, channel_scales(panel, k) + row * sizeof scale, sizeof scale);
  for (int64_t i = 0; i < k; ++i)
    out[i] = static_cast<float>(static_cast<int8_t>(panel[(i / 4) * kGroupBytes + row * 4 + i % 4])) * scale;
}

void unpack_elements(Format format, int64_t k, int64_t row, const uint8_t* panel, float* out) {
  const size_t size = element_bytes(format);
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t* from = panel + (i * kPanelRows + row) * size;
    if (format == Format::f32) std::memcpy(out + i, from, size);
    if (format == Format::f16) out[i] = half_to_float(read_u16(from));
    if (format == Format::bf16) out[i] = bfloat_to_float(read_u16(from));
  }
}

// ---- Parts: q5_0, q5_1, q4_k, q5_k, q6_k.

void put_weight(Format format, int32_t weight, int64_t row, int64_t k, uint8_t* part) {
  const int64_t half = part_size(format) / 2;
  const int bits = bits_above(format);
  uint8_t* byte = part + k % half / 4 * kGroupBytes + row * 4 + k % 4;
  *byte = static_cast<uint8_t>(k < half ? (*byte & 0xf0) | (weight & 15) : (*byte & 15) | (weight & 15) << 4);
  if (bits == 0) return;
  uint8_t* above = part + nibble_bytes(format) + row * 4 + k % 4;
  const int shift = static_cast<int>(k / 4) * bits, mask = (1 << bits) - 1;
  *above = static_cast<uint8_t>((*above & ~(mask << shift)) | (weight >> 4) << shift);
}

// Raw q5_0 and q5_1: float16 scale (and minimum), 4 bytes whose bit j is the fifth bit of weight j, 16 bytes whose low nibbles
// are the first 16 weights and whose high ones the others.
void pack_fives(Format format, int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  const size_t halves_bytes = (format == Format::q5_1 ? 2 : 1) * kHalf;
  for (int64_t block = 0; block < k / kBlock; ++block, raw += halves_bytes + 20, panel += block_bytes(format)) {
    const uint8_t *fifths = raw + halves_bytes, *nibbles = fifths + 4;
    for (int64_t i = 0; i < kBlock; ++i) {
      const int32_t nibble = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
      put_weight(format, nibble | (fifths[i / 8] >> i % 8 & 1) << 4, row, i, panel);
    }
    for (size_t h = 0; h < halves_bytes; h += kHalf)
      std::memcpy(panel + part_bytes(format) + h * kPanelRows + row * kHalf, raw + h, kHalf);
  }
}

void unpack_fives(Format format, int64_t k, int64_t row, const uint8_t* panel, float* out) {
  for (int64_t block = 0; block < k / kBlock; ++block, panel += block_bytes(format)) {
    const uint8_t* halves = panel + part_bytes(format) + row * kHalf;
    const float scale = half_to_float(read_u16(halves));
    const float minimum = format == Format::q5_1 ? half_to_float(read_u16(halves + kPanelRows * kHalf)) : 0.0f;
    for (int64_t i = 0; i < kBlock; ++i)
      out[block * kBlock + i] = static_cast<float>(part_weight(format, panel, row, i) - raised_by(format)) * scale + minimum;
  }
}

constexpr size_t kRawNibbles = 144, kRawFives = 176, kRawSixes = 210;

size_t raw_super_bytes(Format format) {
  return format == Format::q4_k ? kRawNibbles : format == Format::q5_k ? kRawFives : kRawSixes;
}

// Raw q4_k and q5_k begin with float16 scale and minimum and 12 bytes with 8 scales and 8 minima of 6 bits. Then q5_k has 32
// bytes, whose bit p of byte l is the fifth bit of weight l of part p. Then for each pair of parts 32 bytes, whose low nibbles
// are the first part and whose high ones the second.
void codes_of(const uint8_t* packed, int64_t part, uint8_t* scale, uint8_t* minimum) {
  if (part < 4) {
    *scale = packed[part] & 63;
    *minimum = packed[part + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4);
    *minimum = static_cast<uint8_t>(packed[part + 4] >> 4 | (packed[part] >> 6) << 4);
  }
}

int32_t raw_nibble_weight(Format format, const uint8_t* raw, int64_t part, int64_t i) {
  const uint8_t *fifths = raw + 2 * kHalf + 12, *nibbles = fifths + (format == Format::q5_k ? 32 : 0);
  const int32_t nibble = nibbles[part / 2 * 32 + i] >> part % 2 * 4 & 15;
  return format == Format::q5_k ? nibble | (fifths[i] >> part & 1) << 4 : nibble;
}

// Raw q6_k: the low 4 bits of 256 weights in 128 bytes, their high 2 bits in 64, 16 scales of int8, a float16. Of each half of
// the weights, byte l of the first 64 holds weight l in its low nibble and weight l + 64 in its high one; bits 2 s and 2 s + 1
// of byte l of the next 32 belong to weight l + 32 s.
int32_t raw_six_weight(const uint8_t* raw, int64_t index) {
  const int64_t half = index / 128, at = index % 128;
  const int32_t low = raw[half * 64 + at % 64] >> at / 64 * 4 & 15;
  return low | (raw[128 + half * 32 + at % 32] >> at / 32 * 2 & 3) << 4;
}

void pack_super(Format format, int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  for (int64_t block = 0; block < k / kSuperBlock; ++block, raw += raw_super_bytes(format), panel += block_bytes(format)) {
    for (int64_t part = 0; part < num_parts(format); ++part) {
      for (int64_t i = 0; i < part_size(format); ++i) {
        const int32_t weight = format == Format::q6_k ? raw_six_weight(raw, part * kSmallBlock + i)
                                                      : raw_nibble_weight(format, raw, part, i);
        put_weight(format, weight, row, i, panel + part * part_bytes(format));
      }
      uint8_t* codes = panel + codes_at(format) + part * num_ends(format) * kPanelRows + row;
      if (format == Format::q6_k)
        *codes = raw[192 + part];
      else
        codes_of(raw + 2 * kHalf, part, codes, codes + kPanelRows);
    }
    uint8_t* halves = panel + halves_at(format) + row * kHalf;
    std::memcpy(halves, format == Format::q6_k ? raw + 208 : raw, kHalf);
    if (format == Format::q6_k) continue;
    const uint16_t minimum = read_u16(raw + kHalf) ^ 0x8000;
    std::memcpy(halves + kPanelRows * kHalf, &minimum, kHalf);
  }
}

void unpack_super(Format format, int64_t k, int64_t row, const uint8_t* panel, float* out) {
  for (int64_t block = 0; block < k / kSuperBlock; ++block, panel += block_bytes(format))
    for (int64_t part = 0; part < num_parts(format); ++part) {
      const PartEnd end = part_end(format, panel, part, row);
      for (int64_t i = 0; i < part_size(format); ++i) {
        const int32_t weight = part_weight(format, panel + part * part_bytes(format), row, i) - raised_by(format);
        *out++ = static_cast<float>(weight) * end.scale + end.minimum;
      }
    }
}

bool is_float(Format format) { return format == Format::f32 || format == Format::f16 || format == Format::bf16; }

}  // namespace

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude < 0x0400) {  // zero and the denormals: magnitude * 2^-24, exact in float32
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  const bool is_finite = magnitude < 0x7c00;
  const uint32_t bits = sign | (is_finite ? (magnitude << 13) + (112u << 23) : 0x7f800000u | (magnitude & 0x3ff) << 13);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float bfloat_to_float(uint16_t bfloat) {
  const uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

PartEnd part_end(Format format, const uint8_t* block, int64_t part, int64_t row) {
  const uint8_t* codes = block + codes_at(format) + part * num_ends(format) * kPanelRows + row;
  const uint8_t* halves = block + halves_at(format) + row * kHalf;
  const float unit = half_to_float(read_u16(halves));
  if (narrowed(format) == Format::q6_k) return {unit * static_cast<int8_t>(*codes), 0.0f};
  return {unit * *codes, half_to_float(read_u16(halves + kPanelRows * kHalf)) * codes[kPanelRows]};
}

int64_t input_block(Format format) {
  if (narrowed(format) == Format::q6_k) return kSmallBlock;
  return narrowed(format) == Format::q8_channel ? kChannelBlock : kBlock;
}

int64_t stored_block(Format format) { return is_super(format) ? kSuperBlock : input_block(format); }

size_t block_bytes(Format stored) {
  const Format format = narrowed(stored);
  if (is_float(format)) return kPanelRows * element_bytes(format);
  if (format == Format::q8_channel) return kChannelBlock * kPanelRows;
  if (is_super(format)) return halves_at(format) + num_ends(format) * kPanelRows * kHalf;
  if (is_uncommon(format)) return part_bytes(format) + (format == Format::q5_1 ? 2 : 1) * kPanelRows * kHalf;
  const BlockShape shape = block_shape(format);
  return shape.num_groups * kGroupBytes + shape.num_halves * kPanelRows * kHalf;
}

int64_t num_blocks(Format format, int64_t k) {
  if (is_float(format)) return k;
  const int64_t block = stored_block(format);
  return (k + block - 1) / block;
}

size_t panel_bytes(Format format, int64_t k) {
  const size_t scales = narrowed(format) == Format::q8_channel ? kPanelRows * sizeof(float) : 0;
  return num_blocks(format, k) * block_bytes(format) + scales;
}

size_t raw_row_bytes(Format format, int64_t k) {
  const Format stored = narrowed(format);
  if (stored == Format::f32 || stored == Format::q8_channel) return k * sizeof(float);
  if (is_float(stored)) return k * kHalf;
  if (is_super(stored)) return k / kSuperBlock * raw_super_bytes(stored);
  if (is_uncommon(stored)) return k / kBlock * (stored == Format::q5_1 ? 24 : 22);
  return k / kBlock * block_shape(stored).raw_bytes();
}

void pack_panel(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows) {
  uint8_t* to = w.packed + panel * panel_bytes(w.format, w.k);
  const Format stored = narrowed(w.format);
  if (num_rows < kPanelRows || stored == Format::q8_channel) std::memset(to, 0, panel_bytes(stored, w.k));
  for (int64_t row = 0; row < num_rows; ++row) {
    if (is_float(stored))
      pack_elements(stored, w.k, row, raw[row], to);
    else if (stored == Format::q8_channel)
      pack_channel(w.k, row, raw[row], to);
    else if (is_super(stored))
      pack_super(stored, w.k, row, raw[row], to);
    else if (is_uncommon(stored))
      pack_fives(stored, w.k, row, raw[row], to);
    else
      pack_blocks(stored, w.k, row, raw[row], to);
  }
}

void unpack_packed_row(const Linear& w, int64_t row, float* out) {
  uint8_t* panel = w.packed + row / kPanelRows * panel_bytes(w.format, w.k);
  const Format stored = narrowed(w.format);
  if (is_float(stored))
    unpack_elements(stored, w.k, row % kPanelRows, panel, out);
  else if (stored == Format::q8_channel)
    unpack_channel(w.k, row % kPanelRows, panel, out);
  else if (is_super(stored))
    unpack_super(stored, w.k, row % kPanelRows, panel, out);
  else if (is_uncommon(stored))
    unpack_fives(stored, w.k, row % kPanelRows, panel, out);
  else
    unpack_blocks(stored, w.k, row % kPanelRows, panel, out);
}

}  // namespace relevo
