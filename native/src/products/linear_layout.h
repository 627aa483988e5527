// The packed form of a weight, the same on every path.
//
// A panel holds 16 output rows, interleaved so that a vector's lanes are output rows. Along k it is a sequence of:
//   f32, f16, bf16   one k: [16 rows] of the element
//   q4_0, q4_1       one block of 32 k: 4 groups of [16 rows][4 bytes]; byte i of group g holds k = 4 g + i in its low
//                    nibble and k = 16 + 4 g + i in its high one (the order of a GGUF block). Then float16 [16 rows]
//                    scales and, for q4_1, float16 [16 rows] minima
//   q8_0             one block of 32 k: 8 groups of [16 rows][4 bytes], k = 4 g + i. Then float16 [16 rows] scales
//   q8_channel       one block of 64 k (the last is filled with zeros): 16 groups as q8_0's; after the last block
//                    float32 [16 rows] scales
//   q4_k             one block of 256 k: 8 parts of 32 k, each 4 groups as q4_1's; then for each part [16 rows] uint8 scales
//                    and [16 rows] uint8 minima; then float16 [16 rows] what scales and [16 rows] what minima are multiples
//                    of, the latter negated
//   q6_k             one block of 256 k: 64 groups as q8_0's; then int8 [16 rows] scales for each part of 16 k; then
//                    float16 [16 rows] what they are multiples of
// A wide format is packed as its twin.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/linear.h"

namespace relevo {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;         // k per scale of q8_0, q4_0 and q4_1
constexpr int64_t kChannelBlock = 64;  // k per input scale of q8_channel
constexpr size_t kGroupBytes = 64;     // 16 rows of 4 bytes
constexpr int64_t kSuperBlock = 256;   // k per float16 of q4_k and q6_k
constexpr int64_t kSmallBlock = 16;    // k per scale of q6_k

// In a block of q4_k and q6_k.
constexpr size_t kNibblePartBytes = 4 * kGroupBytes;
constexpr size_t kNibbleCodesAt = kSuperBlock / kBlock * kNibblePartBytes;
constexpr size_t kNibbleHalvesAt = kNibbleCodesAt + kSuperBlock / kBlock * 2 * kPanelRows;
constexpr size_t kBytePartBytes = kSmallBlock / 4 * kGroupBytes;
constexpr size_t kByteCodesAt = kSuperBlock / kSmallBlock * kBytePartBytes;
constexpr size_t kByteHalvesAt = kByteCodesAt + kSuperBlock / kSmallBlock * kPanelRows;

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

// Inputs per scale, for the formats that multiply integers.
int64_t input_block(Format format);
// Weights along k that are stored together, for the same formats.
int64_t stored_block(Format format);
// Bytes of one block of a panel (of one k for the float formats).
size_t block_bytes(Format format);
// Blocks of a panel (k for the float formats).
int64_t num_blocks(Format format, int64_t k);

size_t panel_bytes(Format format, int64_t k);
void pack_panel(const Linear& w, int64_t panel, const uint8_t* const* raw, int64_t num_rows);
void unpack_packed_row(const Linear& w, int64_t row, float* out);

float half_to_float(uint16_t half);
float bfloat_to_float(uint16_t bits);

}  // namespace relevo
