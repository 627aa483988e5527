// Matrix products with what every 64-bit Arm processor has: the arithmetic of linear_portable.cc, to the bit.
//
// Integers are multiplied in 16 bits, one k at a time: lanes are output rows, the input is one lane of a vector.
#include "products/linear_integers_neon.h"

namespace relevo {
namespace {

// Inputs of a block, R rows: int16 [R][k].
template <Format kOne>
struct Lanes : Integers<kOne> {
  using Shared = Integers<kOne>;
  using Shared::kGroups, Shared::kInputBlock;
  static constexpr int64_t kGroup = 4;
  static constexpr int64_t kInputBlockBytes = kInputBlock * 2 + Shared::kEndBytes;
  static constexpr bool kExpands = true;

  struct FourK {
    int16x8_t rows[4][2];  // of each k the 16 output rows
  };

  struct Packed : Shared::PackedBlock {
    template <bool kHigh>
    static FourK four(const uint8_t* block, int group) {
      const uint8x16x4_t bytes = vld4q_u8(block + group * kGroupBytes);
      FourK out;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int8x16_t values = Packed::template values<kHigh>(bytes.val[i]);
        out.rows[i][0] = vmovl_s8(vget_low_s8(values));
        out.rows[i][1] = vmovl_high_s8(values);
      }
      return out;
    }
  };

  // int16 [k][16 output rows].
  struct Expanded : Shared::template ExpandedBlock<Shared::kInputBlock * kPanelRows * 2> {
    template <bool kHigh>
    static FourK four(const uint8_t* block, int group) {
      const uint8_t* from = block + (group + (kHigh ? kGroups : 0)) * 4 * kPanelRows * 2;
      FourK out;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        out.rows[i][0] = vreinterpretq_s16_u8(vld1q_u8(from + i * 32));
        out.rows[i][1] = vreinterpretq_s16_u8(vld1q_u8(from + i * 32 + 16));
      }
      return out;
    }
  };

  template <bool kHigh>
  static void expand_groups(const uint8_t* block, uint8_t* out) {
    for (int group = 0; group < kGroups; ++group, out += 4 * kPanelRows * 2) {
      const FourK four = Packed::template four<kHigh>(block, group);
      for (int i = 0; i < 4; ++i) {
        vst1q_u8(out + i * 32, vreinterpretq_u8_s16(four.rows[i][0]));
        vst1q_u8(out + i * 32 + 16, vreinterpretq_u8_s16(four.rows[i][1]));
      }
    }
  }

  static void expand(const uint8_t* block, uint8_t* out) {
    expand_groups<false>(block, out);
    if (Shared::kIsNibbles) expand_groups<true>(block, out + kGroups * 4 * kPanelRows * 2);
    Expanded::take_scales(block, out);
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    int16_t q[kInputBlock];
    Shared::round_block(x, k_left, rows, r, q, out + rows * sizeof q);
    std::memcpy(out + r * sizeof q, q, sizeof q);
  }

  // Products of one k: lane kLane of the inputs.
  template <int kLane, int R>
  static void add_k(const int16x8_t* rows, const int16x8_t* inputs, int32x4_t (*sums)[R]) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sums[0][r] = vmlal_laneq_s16(sums[0][r], vget_low_s16(rows[0]), inputs[r], kLane);
      sums[1][r] = vmlal_high_laneq_s16(sums[1][r], rows[0], inputs[r], kLane);
      sums[2][r] = vmlal_laneq_s16(sums[2][r], vget_low_s16(rows[1]), inputs[r], kLane);
      sums[3][r] = vmlal_high_laneq_s16(sums[3][r], rows[1], inputs[r], kLane);
    }
  }

  template <class Weights, int R, bool kHigh>
  static void add_groups(const uint8_t* w, const uint8_t* x, int32x4_t (*sums)[R]) {
    const uint8_t* of_step = x + (kHigh ? kGroups : 0) * 8;
    for (int group = 0; group < kGroups; group += 2, of_step += 16) {
      int16x8_t inputs[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) inputs[r] = vreinterpretq_s16_u8(vld1q_u8(of_step + r * kInputBlock * 2));
      const FourK first = Weights::template four<kHigh>(w, group), second = Weights::template four<kHigh>(w, group + 1);
      add_k<0>(first.rows[0], inputs, sums);
      add_k<1>(first.rows[1], inputs, sums);
      add_k<2>(first.rows[2], inputs, sums);
      add_k<3>(first.rows[3], inputs, sums);
      add_k<4>(second.rows[0], inputs, sums);
      add_k<5>(second.rows[1], inputs, sums);
      add_k<6>(second.rows[2], inputs, sums);
      add_k<7>(second.rows[3], inputs, sums);
    }
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, float32x4_t (*acc)[4]) {
    int32x4_t sums[4][R];
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[quad][r] = vdupq_n_s32(0);
    add_groups<Weights, R, false>(w, x, sums);
    if constexpr (Shared::kIsNibbles) add_groups<Weights, R, true>(w, x, sums);
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad)
      Shared::template add_dots<Weights, R>(w, x + R * kInputBlock * 2, quad, sums[quad], acc);
  }
};

}  // namespace

extern const LinearKernels kLinearNeon;
const LinearKernels kLinearNeon = kernels_of<NeonPath<Path::neon, Lanes>>();

}  // namespace relevo
