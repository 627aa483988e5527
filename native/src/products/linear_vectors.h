// What the vector paths share: the tiles of accumulators, and the float formats, written once over a path's vectors.
//
// A path's `Vectors` gives
//   Vector, kVectors: so many of them hold one float32 for each output row of a panel
//   load_floats, load_halves(from): a Vector of float32, float16
//   load_first, load_second(from): of pairs of bfloat16 the one in the upper half of 32 bits, the other
//   store_floats(to, Vector)
//   every_lane_float(from): the float32 at `from` in every lane
//   add_products(sum, a, b): sum + a * b, rounded once; times(a, b), plus(a, b)
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
    Vector acc[R][kVectors];
    each<R>(sums, kPanelRows, [&](int r, int v, uint8_t* at) { acc[r][v] = Vectors::load_floats(at); });
    add_blocks<F, Weights, R>(w, x, blocks, acc);
    each<R>(sums, kPanelRows, [&](int r, int v, uint8_t* at) { Vectors::store_floats(at, acc[r][v]); });
  }

  // The same from zero, to where outputs belong: `to` is of this tile. `scales` of a panel or null.
  template <class F, int R>
  __attribute__((noinline)) static void whole_tile(const uint8_t* w, const uint8_t* x, int64_t blocks, const uint8_t* scales,
                                                   const Output& to) {
    Vector acc[R][kVectors] = {};
    add_blocks<F, typename F::Packed, R>(w, x, blocks, acc);
    const uint8_t* bias = reinterpret_cast<const uint8_t*>(to.bias);
    each<R>(to.y, to.y_stride, [&](int r, int v, uint8_t* at) {
      if (scales) acc[r][v] = Vectors::times(acc[r][v], Vectors::load_floats(scales + v * kVectorBytes));
      if (bias) acc[r][v] = Vectors::plus(acc[r][v], Vectors::load_floats(bias + v * kVectorBytes));
      if (to.accumulate) acc[r][v] = Vectors::plus(Vectors::load_floats(at), acc[r][v]);
      Vectors::store_floats(at, acc[r][v]);
    });
  }

 private:
  // Calls body(r, v, at) for each vector of R rows of floats, `stride` apart.
  template <int R, class Body>
  static void each(float* rows, int64_t stride, const Body& body) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) body(r, v, reinterpret_cast<uint8_t*>(rows + r * stride) + v * kVectorBytes);
  }

  template <class F, class Weights, int R>
  static void add_blocks(const uint8_t* w, const uint8_t* x, int64_t blocks, Vector (*acc)[kVectors]) {
    for (int64_t b = 0; b < blocks; ++b) {
      if (Weights::kPrefetch) prefetch(w, Weights::kBytes);
      F::template add_block<Weights, R>(w, x, acc);
      w += Weights::kBytes;
      x += R * F::kInputBlockBytes;
    }
  }
};

// ---- f32, f16: a block is one k. bf16: 32 of them. Inputs, R rows: [k][R] float32.

template <Format kOne, class M>
struct Floats {
  using Machine = M;
  using Vector = typename M::Vector;
  static constexpr Format kFormat = kOne;
  static constexpr Format kStored = narrowed(kOne);
  static constexpr int64_t kGroup = M::kFloatGroup;
  static constexpr int64_t kInputBlock = kStored == Format::bf16 ? kBlock : 1;
  static constexpr int64_t kInputBlockBytes = kInputBlock * 4;
  static constexpr bool kExpands = M::kExpandsFloats && kStored != Format::f32;
  static constexpr bool kScalesAtEnd = false;

  template <Format kHeld>
  struct Held {
    static constexpr size_t kBytes = kInputBlock * kPanelRows * (kHeld == Format::f32 ? 4 : 2);
    static constexpr bool kFromMemory = kHeld == kStored;  // not what was expanded: that is in the cache
    static constexpr bool kPrefetch = kFromMemory && kInputBlock == 1;
    static Vector weights(const uint8_t* block, int64_t k, int vector) {
      constexpr size_t kVectorBytes = M::kVectorBytes / (kHeld == Format::f16 ? 2 : 1);
      const uint8_t* from = block + vector * kVectorBytes;
      if constexpr (kHeld == Format::f32) return M::load_floats(from + k * kGroupBytes);
      if constexpr (kHeld == Format::f16) return M::load_halves(from);
      from += k / 2 * kGroupBytes;
      return k % 2 == 0 ? M::load_first(from) : M::load_second(from);
    }
  };
  using Packed = Held<kStored>;
  using Expanded = Held<Format::f32>;

  static void expand(const uint8_t* block, uint8_t* out) {
    for (int64_t k = 0; k < kInputBlock; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < M::kVectors; ++v)
        M::store_floats(out + k * kGroupBytes + v * M::kVectorBytes, Packed::weights(block, k, v));
  }

  static void prepare_block(const float* x, int64_t k_left, int64_t rows, int64_t r, uint8_t* out) {
    float filled[kInputBlock];
    x = whole_block(x, k_left, filled);
    if (rows == kGroup)
      put_row(x, std::integral_constant<int64_t, kGroup>(), out + r * 4);
    else
      put_row(x, rows, out + r * 4);
  }

  template <class Weights, int R>
  static void add_block(const uint8_t* w, const uint8_t* x, Vector (*acc)[M::kVectors]) {
#pragma GCC unroll 32
    for (int64_t k = 0; k < kInputBlock; ++k, x += R * 4) {
      if (Weights::kFromMemory && kInputBlock > 1 && k % 2 == 0) prefetch(w + k / 2 * kGroupBytes, kGroupBytes);
      Vector weights[M::kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < M::kVectors; ++v) weights[v] = Weights::weights(w, k, v);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vector input = M::every_lane_float(x + r * 4);
#pragma GCC unroll 4
        for (int v = 0; v < M::kVectors; ++v) acc[r][v] = M::add_products(acc[r][v], weights[v], input);
      }
    }
  }

 private:
  // Of a block with so many rows, which the compiler knows unless they are the last.
  template <class Rows>
  static void put_row(const float* x, Rows rows, uint8_t* out) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < kInputBlock; ++k) {
      const float value = kOne == Format::bf16_rounded ? bfloat_to_float(flushed_bfloat(x[k])) : x[k];
      std::memcpy(out + k * rows * 4, &value, 4);
    }
  }
};

}  // namespace
}  // namespace relevo
