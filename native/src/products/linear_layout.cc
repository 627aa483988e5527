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

uint32_t read_u32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Four bytes of a row, of group `group` after `groups`.
void put_group(uint8_t* groups, int64_t group, int64_t row, uint32_t value) {
  std::memcpy(groups + group * kGroupBytes + row * 4, &value, sizeof value);
}

// Halves of a row that begin at `raw`, each among those of the other rows.
void put_halves(const uint8_t* raw, int64_t num_halves, int64_t row, uint8_t* halves) {
  for (int64_t h = 0; h < num_halves; ++h)
    std::memcpy(halves + (h * kPanelRows + row) * kHalf, raw + h * kHalf, kHalf);
}

// Raw GGUF block: scale, minimum (q4_1 only), then 4-byte groups. Packed block: groups, scales, minima.
struct BlockShape {
  int64_t num_groups;
  int64_t num_halves;  // scale and minimum
  size_t raw_bytes() const { return num_halves * kHalf + num_groups * 4; }
};

constexpr BlockShape block_shape(Format format) {
  if (format == Format::q8_0) return {8, 1};
  return {4, format == Format::q4_1 ? 2 : 1};
}

// Of a block of q8_0, q4_0 or q4_1.
template <Format format>
void pack_plain(const uint8_t* raw, int64_t row, uint8_t* block) {
  const BlockShape shape = block_shape(format);
  const uint8_t* groups = raw + shape.num_halves * kHalf;
  for (int64_t g = 0; g < shape.num_groups; ++g) put_group(block, g, row, read_u32(groups + g * 4));
  put_halves(raw, shape.num_halves, row, block + shape.num_groups * kGroupBytes);
}

void pack_elements(Format format, int64_t k, int64_t row, const uint8_t* raw, uint8_t* panel) {
  const size_t size = element_bytes(format);
  int64_t i = 0;
  for (; format == Format::bf16 && i + 1 < k; i += 2) {
    const uint32_t pair = read_u32(raw + i * kHalf);
    put_group(panel, i / 2, row, pair << 16 | pair >> 16);
  }
  for (; i < k; ++i) std::memcpy(panel + element_place(format, row, i), raw + i * size, size);
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
    const uint8_t* from = panel + element_place(format, row, i);
    if (format == Format::f32) std::memcpy(out + i, from, size);
    if (format == Format::f16) out[i] = half_to_float(read_u16(from));
    if (format == Format::bf16) out[i] = bfloat_to_float(read_u16(from));
  }
}

// ---- Parts: q5_0, q5_1, q4_k, q5_k, q6_k.

// Groups of a word are computed on together, byte by byte.
constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kBits = 0x01010101;

// Exchanges each bit under `mask` with the one `distance` above it.
uint32_t exchanged(uint32_t bits, uint32_t mask, int distance) {
  const uint32_t differing = (bits >> distance ^ bits) & mask;
  return bits ^ differing ^ differing << distance;
}

// Bit 4 s + i goes to bit s of byte i. A bit's number has five bits; each step exchanges two of them.
uint32_t fifths_by_byte(uint32_t bits) {
  bits = exchanged(bits, 0x0000cccc, 14);
  bits = exchanged(bits, 0x00aa00aa, 7);
  bits = exchanged(bits, 0x0c0c0c0c, 2);
  return exchanged(bits, 0x22222222, 1);
}

// Raw q5_0 and q5_1: float16 scale (and minimum), 4 bytes whose bit j is the fifth bit of weight j, 16 bytes whose low nibbles
// are the first 16 weights and whose high ones the others.
template <Format format>
void pack_fives(const uint8_t* raw, int64_t row, uint8_t* block) {
  constexpr int64_t num_halves = format == Format::q5_1 ? 2 : 1;
  const uint8_t *fifths = raw + num_halves * kHalf, *nibbles = fifths + 4;
  for (int64_t g = 0; g < 4; ++g) put_group(block, g, row, read_u32(nibbles + g * 4));
  put_group(block + nibble_bytes(format), 0, row, fifths_by_byte(read_u32(fifths)));
  put_halves(raw, num_halves, row, block + part_bytes(format));
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

template <Format format>
void pack_nibbles(const uint8_t* raw, int64_t row, uint8_t* block) {
  const uint8_t *fifths = raw + 2 * kHalf + 12, *nibbles = fifths + (format == Format::q5_k ? 32 : 0);
  for (int64_t part = 0; part < num_parts(format); ++part) {
    const uint8_t* from = nibbles + part / 2 * 32;
    const int shift = static_cast<int>(part % 2) * 4;
    uint8_t* to = block + part * part_bytes(format);
    for (int64_t g = 0; g < 4; ++g) {
      const uint32_t low = read_u32(from + g * 4) >> shift & kNibbles;
      const uint32_t high = read_u32(from + 16 + g * 4) >> shift & kNibbles;
      put_group(to, g, row, low | high << 4);
    }
    if (format == Format::q5_k) {
      uint32_t above = 0;
      for (int s = 0; s < 8; ++s) above |= (read_u32(fifths + s * 4) >> part & kBits) << s;
      put_group(to + nibble_bytes(format), 0, row, above);
    }
    uint8_t* codes = block + codes_at(format) + part * num_ends(format) * kPanelRows + row;
    codes_of(raw + 2 * kHalf, part, codes, codes + kPanelRows);
  }
  const uint16_t ends[] = {read_u16(raw), static_cast<uint16_t>(read_u16(raw + kHalf) ^ 0x8000)};
  put_halves(reinterpret_cast<const uint8_t*>(ends), 2, row, block + halves_at(format));
}

// Raw q6_k: the low 4 bits of 256 weights in 128 bytes, their high 2 bits in 64, 16 scales of int8, a float16. Of each half of
// the weights, byte l of the first 64 holds weight l in its low nibble and weight l + 64 in its high one; bits 2 s and 2 s + 1
// of byte l of the next 32 belong to weight l + 32 s.
void pack_sixes(const uint8_t* raw, int64_t row, uint8_t* block) {
  for (int64_t part = 0; part < num_parts(Format::q6_k); ++part) {
    const int64_t half = part / 8, at = part % 8 * kSmallBlock;
    const uint8_t *nibbles = raw + half * 64 + at % 64, *pairs = raw + 128 + half * 32 + at % 32;
    const int nibble_shift = static_cast<int>(at / 64) * 4, pair_shift = static_cast<int>(at / 32) * 2;
    uint32_t low[4], above = 0;
    for (int g = 0; g < 4; ++g) {
      low[g] = read_u32(nibbles + g * 4) >> nibble_shift & kNibbles;
      above |= (read_u32(pairs + g * 4) >> pair_shift & kPairs) << 2 * g;
    }
    uint8_t* to = block + part * part_bytes(Format::q6_k);
    put_group(to, 0, row, low[0] | low[2] << 4);
    put_group(to, 1, row, low[1] | low[3] << 4);
    put_group(to + nibble_bytes(Format::q6_k), 0, row, above);
    block[codes_at(Format::q6_k) + part * kPanelRows + row] = raw[192 + part];
  }
  put_halves(raw + 208, 1, row, block + halves_at(Format::q6_k));
}

// What packs one block of a row.
using PackBlock = void (*)(const uint8_t* raw, int64_t row, uint8_t* block);

PackBlock block_packer(Format stored) {
  switch (stored) {
    case Format::q8_0: return pack_plain<Format::q8_0>;
    case Format::q4_0: return pack_plain<Format::q4_0>;
    case Format::q4_1: return pack_plain<Format::q4_1>;
    case Format::q5_0: return pack_fives<Format::q5_0>;
    case Format::q5_1: return pack_fives<Format::q5_1>;
    case Format::q4_k: return pack_nibbles<Format::q4_k>;
    case Format::q5_k: return pack_nibbles<Format::q5_k>;
    case Format::q6_k: return pack_sixes;
    default: return nullptr;
  }
}

// Row by row: reading the file in order outweighs what writing to each line of a panel again for every row costs.
void pack_rows(Format stored, int64_t k, const uint8_t* const* raw, int64_t num_rows, uint8_t* panel) {
  const PackBlock pack = block_packer(stored);
  const size_t raw_bytes = raw_row_bytes(stored, stored_block(stored)), packed_bytes = block_bytes(stored);
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t block = 0; block < num_blocks(stored, k); ++block) pack(raw[row] + block * raw_bytes, row, panel + block * packed_bytes);
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

size_t element_place(Format stored, int64_t row, int64_t k) {
  if (stored == Format::bf16) return k / 2 * kGroupBytes + row * 4 + (1 - k % 2) * kHalf;
  return (k * kPanelRows + row) * element_bytes(stored);
}

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

int64_t stored_block(Format format) {
  if (format == Format::f32 || format == Format::f16) return 1;
  return is_super(format) ? kSuperBlock : input_block(format);
}

size_t block_bytes(Format stored) {
  const Format format = narrowed(stored);
  if (is_float(format)) return stored_block(format) * kPanelRows * element_bytes(format);
  if (format == Format::q8_channel) return kChannelBlock * kPanelRows;
  if (is_super(format)) return halves_at(format) + num_ends(format) * kPanelRows * kHalf;
  if (is_uncommon(format)) return part_bytes(format) + (format == Format::q5_1 ? 2 : 1) * kPanelRows * kHalf;
  const BlockShape shape = block_shape(format);
  return shape.num_groups * kGroupBytes + shape.num_halves * kPanelRows * kHalf;
}

int64_t num_blocks(Format format, int64_t k) {
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
  const bool has_gaps = num_rows < kPanelRows || stored == Format::q8_channel || (stored == Format::bf16 && w.k % kBlock != 0);
  if (has_gaps) std::memset(to, 0, panel_bytes(stored, w.k));
  if (!is_float(stored) && stored != Format::q8_channel) return pack_rows(stored, w.k, raw, num_rows, to);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (is_float(stored))
      pack_elements(stored, w.k, row, raw[row], to);
    else
      pack_channel(w.k, row, raw[row], to);
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
