// The packed form of a weight, the same on every path.
//
// A panel holds 16 output rows, interleaved so that a vector's lanes are output rows. Along k it is a sequence of:
//   f32, f16         one k: [16 rows] of the element
//   bf16             one block of 32 k (the last is filled with zeros), a matrix tile: 16 groups of [16 rows][2 elements],
//                    k = 2 g + 1 and then k = 2 g, since instructions that add products of two begin with the second
//   q4_0, q4_1       one block of 32 k: 4 groups of [16 rows][4 bytes]; byte i of group g holds k = 4 g + i in its low
//                    nibble and k = 16 + 4 g + i in its high one (the order of a GGUF block). Then float16 [16 rows]
//                    scales and, for q4_1, float16 [16 rows] minima
//   q8_0             one block of 32 k: 8 groups of [16 rows][4 bytes], k = 4 g + i. Then float16 [16 rows] scales
//   q8_channel       one block of 64 k (the last is filled with zeros): 16 groups as q8_0's; after the last block
//                    float32 [16 rows] scales
//   q5_0, q5_1       as q4_0 and q4_1, after the groups [16 rows][4 bytes] of fifth bits: bit s of byte i is that of
//                    k = 4 s + i
//   q4_k, q5_k       one block of 256 k: 8 parts of 32 k, each the groups of q4_1 or q5_1; then for each part [16 rows] uint8
//                    scales and [16 rows] uint8 minima; then float16 [16 rows] what scales and [16 rows] what minima are
//                    multiples of, the latter negated
//   q6_k             one block of 256 k: 16 parts of 16 k, each 2 groups, of k = 4 g + i and k = 8 + 4 g + i, and
//                    [16 rows][4 bytes] of the fifth and sixth bits: bits 2 s and 2 s + 1 of byte i are those of
//                    k = 4 s + i. All are raised by 32. Then int8 [16 rows] scales for each part; then float16 [16 rows]
//                    what they are multiples of
// A wide or rounded format is packed as its twin.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "products/linear.h"

namespace relevo {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;         // k per scale of q8_0, q4_0 and q4_1; of bf16 what is stored together
constexpr int64_t kChannelBlock = 64;  // k per input scale of q8_channel
constexpr size_t kGroupBytes = 64;     // 16 rows of 4 bytes
constexpr size_t kBfloatBlockBytes = kBlock / 2 * kGroupBytes;
constexpr int64_t kSuperBlock = 256;   // k per float16 of q4_k and q6_k
constexpr int64_t kSmallBlock = 16;    // k per scale of q6_k

// Of a part of a block of 256 k; of blocks of 32 their only part.
constexpr int64_t part_size(Format format) { return narrowed(format) == Format::q6_k ? kSmallBlock : kBlock; }
// Bits of a weight above its nibble.
constexpr int bits_above(Format format) {
  const Format stored = narrowed(format);
  if (stored == Format::q6_k) return 2;
  return stored == Format::q5_0 || stored == Format::q5_1 || stored == Format::q5_k ? 1 : 0;
}
constexpr size_t nibble_bytes(Format format) { return part_size(format) / 8 * kGroupBytes; }
constexpr size_t part_bytes(Format format) {
  return nibble_bytes(format) + (bits_above(format) ? kGroupBytes : 0);
}
constexpr int64_t num_parts(Format format) { return kSuperBlock / part_size(format); }
// Scales and minima.
constexpr int64_t num_ends(Format format) { return narrowed(format) == Format::q6_k ? 1 : 2; }
constexpr size_t codes_at(Format format) { return num_parts(format) * part_bytes(format); }
constexpr size_t halves_at(Format format) {
  return codes_at(format) + num_parts(format) * num_ends(format) * kPanelRows;
}

// The integer that a part of q4_k, q5_0, q5_1, q5_k or q6_k holds for a row.
inline int32_t part_weight(Format format, const uint8_t* part, int64_t row, int64_t k) {
  const int64_t half = part_size(format) / 2;
  const uint8_t byte = part[k % half / 4 * kGroupBytes + row * 4 + k % 4];
  const int32_t nibble = k < half ? byte & 15 : byte >> 4;
  const int bits = bits_above(format);
  if (bits == 0) return nibble;
  const int32_t above = part[nibble_bytes(format) + row * 4 + k % 4] >> k / 4 * bits & ((1 << bits) - 1);
  return nibble | above << 4;
}

// By how much it is raised there.
constexpr int32_t raised_by(Format format) {
  return narrowed(format) == Format::q6_k ? 32 : narrowed(format) == Format::q5_0 ? 16 : 0;
}

// Below this largest magnitude a block of inputs counts as zero, so that no scale overflows.
constexpr float kLeastMagnitude = 0x1p-100f;

// What the largest magnitude of a block of inputs is rounded to.
constexpr int32_t input_levels(Format format) { return is_wide(format) ? 32767 : 127; }

// What a block of inputs is multiplied by to be rounded, and what its rounded values are multiples of.
struct BlockScale {
  float scale, inverse;
};

// From the largest magnitude of the block. Internal, since each source is compiled for other instructions.
static inline BlockScale scale_of(float largest, Format format) {
  if (largest < kLeastMagnitude) return {0.0f, 0.0f};
  const float levels = static_cast<float>(input_levels(format));
  return {largest / levels, levels / largest};
}

// What a part of a block of q4_k, q5_k or q6_k is scaled by and raised by, for a row.
struct PartEnd {
  float scale, minimum;
};
PartEnd part_end(Format format, const uint8_t* block, int64_t part, int64_t row);

// Inputs per scale, for the formats that multiply integers.
int64_t input_block(Format format);
// Weights along k that are stored together: one for float32 and float16.
int64_t stored_block(Format format);
// Bytes of one block of a panel.
size_t block_bytes(Format format);
// Blocks of a panel.
int64_t num_blocks(Format format, int64_t k);

size_t panel_bytes(Format format, int64_t k);
// Where an element of a panel of floats is.
size_t element_place(Format stored, int64_t row, int64_t k);
void pack_panel(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows);
void unpack_packed_row(const Linear& w, int64_t row, float* out);

float half_to_float(uint16_t half);
float bfloat_to_float(uint16_t bits);

// Nearest, ties to even; what is not a number stays so.
inline uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// The same, where what is below 2^-126 in magnitude counts as zero of its sign.
inline uint16_t flushed_bfloat(float value) {
  const uint16_t bits = float_to_bfloat(value);
  return std::fabs(value) < 0x1p-126f ? bits & 0x8000 : bits;
}

}  // namespace relevo
