// What the vector paths share: the tiles of accumulators, and the float formats, written once over a path's vectors.
//
// A path's `Vectors` gives
//   Vector, kVectors: so many of them hold one float32 for each output row of a panel
//   load_floats, load_halves, load_bfloats(from): a Vector of float32, float16, bfloat16
//   store_floats(to, Vector)
//   every_lane_float(from): the float32 at `from` in every lane
//   add_products(sum, a, b): sum + a * b, rounded once
// and its machine, a Tiles<Vectors>, adds to what linear_tiles.h asks for
//   kFloatGroup: input rows of a tile of floats
//   kExpandsFloats: whether many rows share weights of 16 bits that were widened once
// Included by one source per path, which is compiled for it: everything here has internal linkage.
#pragma once

#include <cstring>
#include <type_traits>

#include "products/linear_tiles.h"

namespace relevo {
namespace {

template <class Vectors>
struct Tiles : Vectors {
  using typename Vectors::Vector;
  static constexpr int kVectors = Vectors::kVectors;
  static constexpr size_t kVectorBytes = kPanelRows * sizeof(float) / kVectors;

  // Its own function, so that the compiler gives the accumulators the registers.
  template <class F, class Weights, int R>
  __attribute__((noinline)) static void add_tile(const uint8_t* w, const uint8_t* x, int64_t blocks, float* sums) {
    uint8_t* at = reinterpret_cast<uint8_t*>(sums);
    Vector acc[R][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Vectors::load_floats(at + (r * kVectors + v) * kVectorBytes);
    for (int64_t b = 0; b < blocks; ++b) {
      if (Weights::kPrefetch) prefetch(w, Weights::kBytes);
      F::template add_block<Weights, R>(w, x, acc);
      w += Weights::kBytes;
      x += R * F::kInputBlockBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Vectors::store_floats(at + (r * kVectors + v) * kVectorBytes, acc[r][v]);
  }
};

// ---- f32, f16, bf16: a block is one k. Inputs, R rows: [k][R] float32.

template <Format kStored, class M>
struct Floats {
  using Machine = M;
  using Vector = typename M::Vector;
  static constexpr Format kFormat = kStored;
  static constexpr int64_t kGroup = M::kFloatGroup;
  static constexpr int64_t kInputBlock = 1;
  static constexpr int64_t kInputBlockBytes = 4;
  static constexpr bool kExpands = M::kExpandsFloats && kStored != Format::f32;
  static constexpr bool kScalesAtEnd = false;

  template <Format kHeld>
  struct Held {
    static constexpr size_t kBytes = kPanelRows * (kHeld == Format::f32 ? 4 : 2);
    static constexpr size_t kVectorBytes = kBytes / M::kVectors;
    static constexpr bool kPrefetch = kHeld == kStored;  // not what was expanded: that is in the cache
    static Vector weights(const uint8_t* block, int vector) {
      const uint8_t* from = block + vector * kVectorBytes;
      if constexpr (kHeld == Format::f32) return M::load_floats(from);
      if constexpr (kHeld == Format::f16) return M::load_halves(from);
      return M::load_bfloats(from);
    }
  };
  using Packed = Held<kStored>;
  using Expanded = Held<Format::f32>;

  static void expand(const uint8_t* block, uint8_t* out) {
#pragma GCC unroll 4
    for (int v = 0; v < M::kVectors; ++v) M::store_floats(out + v * M::kVectorBytes, Packed::weights(block, v));
  }

  static void prepare_block(const float* x, int64_t, int64_t, int64_t r, uint8_t* out) {
    std::memcpy(out + r * 4, x, 4);
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, Vector (*acc)[M::kVectors]) {
    Vector weights[M::kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < M::kVectors; ++v) weights[v] = Weights::weights(w, v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vector input = M::every_lane_float(x + r * 4);
#pragma GCC unroll 4
      for (int v = 0; v < M::kVectors; ++v) acc[r][v] = M::add_products(acc[r][v], weights[v], input);
    }
  }
};

}  // namespace
}  // namespace relevo
