// Writes into the cache.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/attention.h"
#include "attention/attention_row.h"

namespace relevo {
namespace {

template <class V>
struct Store {
  using F = typename V::F;
  static constexpr int64_t W = V::W;

  static F load_part(const float* x, int64_t size, int64_t i) {
    return i + W <= size ? V::load(x + i) : V::load_part(x + i, size - i);
  }

  static void row(const KVCache& cache, uint8_t* run, int64_t offset, const float* x) {
    const int64_t size = cache.head_size;
    uint8_t* to = run + static_cast<size_t>(offset) * cache.row_bytes();
    if (cache.type == KVType::f32) {
      std::memcpy(to, x, sizeof(float) * static_cast<size_t>(size));
      return;
    }
    if (cache.type == KVType::i8) {
      quantised_row(cache, run, offset, x);
      return;
    }
    for (int64_t i = 0; i < size; i += W) {
      const F part = load_part(x, size, i);
      if (cache.type == KVType::f16) {
        V::to_f16(part, to + 2 * i, smaller(W, size - i));
      } else {
        V::to_bf16(part, to + 2 * i, smaller(W, size - i));
      }
    }
  }

  static void quantised_row(const KVCache& cache, uint8_t* run, int64_t offset, const float* x) {
    const int64_t size = cache.head_size;
    F most = V::zero();
    for (int64_t i = 0; i < size; i += W) most = V::max(most, V::abs(load_part(x, size, i)));
    const float largest = V::max_lane(most);
    const float scale = largest / 127.0f;
    const F inverse = V::set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    uint8_t* to = run + offset * size;
    for (int64_t i = 0; i < size; i += W) {
      const F limit = V::set1(127.0f);  // a subnormal row overflows the inverse
      const F value = V::max(V::sub(V::zero(), limit), V::min(limit, V::mul(load_part(x, size, i), inverse)));
      V::to_i8(value, to + i, smaller(W, size - i));
    }
    uint8_t* scales = run + cache.block_size * size;
    std::memcpy(scales + offset * static_cast<int64_t>(sizeof scale), &scale, sizeof scale);
  }

  static void store(const KVCache& cache, int64_t layer, const AttentionStep& step, const float* k, const float* v,
                    int64_t stride, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      if (cache.is_latent) {
        row(cache, cache.run(step.block_of_token[t], layer, 0, 0), step.offset_of_token[t], k + t * stride);
        continue;
      }
      for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
        const int64_t from = t * stride + head * cache.head_size;
        const int64_t block = step.block_of_token[t], offset = step.offset_of_token[t];
        row(cache, cache.run(block, layer, 0, head), offset, k + from);
        row(cache, cache.run(block, layer, 1, head), offset, v + from);
      }
    }
  }
};

}  // namespace
}  // namespace relevo
