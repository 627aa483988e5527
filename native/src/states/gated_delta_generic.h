// The kernel of gated_delta.h over a vector interface V (simd_*.h). Included by one file per path.
//
// A matrix is computed some columns at a time, for all tokens of a run, so that these stay in the nearest cache. Columns
// do not meet; the sums over a key are four, of every fourth element, and then one. So the width of vectors changes no
// bit of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "rows/elementwise_generic.h"
#include "states/gated_delta.h"
#include "states/gated_delta_layout.h"

namespace relevo {
namespace {

constexpr float UNIT_EPS = 1e-6f;     // of the norms of queries and keys, as models are trained with it
constexpr float LINEAR_FROM = 20.0f;  // softplus(x) is x from there on

template <class V>
struct GatedDelta {
  using F = typename V::F;
  using Rows = Elementwise<V>;
  static constexpr int64_t W = V::W;
  static constexpr int64_t COLUMNS = 2 * W;
  static_assert(COLUMNS <= MOST_COLUMNS);

  // Columns of x that a key head computes, and where they lie among those of the head and in the state.
  struct Part {
    int64_t column, size, place, in_state;
  };

  struct Head {
    const DeltaRule& rule;
    const DeltaRow& row;
    DeltaSizes state;
    int64_t number, width, num_before;  // inputs before a run that its convolution sees
    Part parts[3];
    float* inputs;     // [num_before + RUN_TOKENS, width]
    float* convolved;  // [RUN_TOKENS, width]: query, key, values
    float* columns;    // [key size, COLUMNS]
    float written[RUN_TOKENS], kept[RUN_TOKENS];  // of one value head
    float* matrix(int64_t value_head) const {
      const int64_t in_state = value_head + rule.sizes.first_head * state.values_per_key();
      return reinterpret_cast<float*>(row.state) + in_state * state.matrix_floats();
    }
    uint8_t* stored(int64_t token, const Part& part) const {
      const int64_t element_bytes = rule.type == KVType::f32 ? 4 : 2;
      return row.state + state.num_value_heads * state.matrix_floats() * static_cast<int64_t>(sizeof(float)) +
             (token * state.width() + part.in_state) * element_bytes;
    }
  };

  static Head head_of(const DeltaRule& rule, const DeltaRow& row, int64_t number, float* scratch) {
    const DeltaSizes& sizes = rule.sizes;
    const int64_t size = sizes.key_size, values = sizes.values_per_key() * sizes.value_size;
    const int64_t width = head_width(sizes), num_before = sizes.kernel_size - 1;
    const DeltaSizes state = sizes.of_state();
    const int64_t in_state = sizes.first_head + number;
    float* convolved = scratch + (num_before + RUN_TOKENS) * width;
    return {rule,
            row,
            state,
            number,
            width,
            num_before,
            {{number * size, size, 0, in_state * size},
             {sizes.num_keys() + number * size, size, size, state.num_keys() + in_state * size},
             {2 * sizes.num_keys() + number * values, values, 2 * size, 2 * state.num_keys() + in_state * values}},
            scratch,
            convolved,
            convolved + RUN_TOKENS * width,
            {},
            {}};
  }

  static F load_some(const float* x, int64_t n) { return n >= W ? V::load(x) : V::load_part(x, n); }

  // ---- the convolution's inputs -------------------------------------------------------------------------------------

  static void store_numbers(KVType type, const float* from, int64_t size, uint8_t* to) {
    if (type == KVType::f32) {
      std::memcpy(to, from, sizeof(float) * static_cast<size_t>(size));
      return;
    }
    for (int64_t i = 0; i < size; i += W) {
      const int64_t n = std::min(W, size - i);
      type == KVType::f16 ? V::to_f16(load_some(from + i, n), to + 2 * i, n)
                          : V::to_bf16(load_some(from + i, n), to + 2 * i, n);
    }
  }

  static void load_numbers(KVType type, const uint8_t* from, int64_t size, float* to) {
    if (type == KVType::f32) {
      std::memcpy(to, from, sizeof(float) * static_cast<size_t>(size));
      return;
    }
    for (int64_t i = 0; i < size; i += W) {
      const int64_t n = std::min(W, size - i);
      uint8_t numbers[2 * W] = {};
      std::memcpy(numbers, from + 2 * i, 2 * static_cast<size_t>(n));
      const F value = type == KVType::f16 ? V::from_f16(numbers) : V::from_bf16(numbers);
      n == W ? V::store(to + i, value) : V::store_part(to + i, value, n);
    }
  }

  // Those before the row's first token.
  static void recall(const Head& head) {
    if (head.row.is_fresh) {
      std::fill_n(head.inputs, head.num_before * head.width, 0.0f);
      return;
    }
    for (int64_t token = 0; token < head.num_before; ++token) {
      for (const Part& part : head.parts) {
        load_numbers(head.rule.type, head.stored(token, part), part.size,
                     head.inputs + token * head.width + part.place);
      }
    }
  }

  // Those that the token after the row sees. They are rounded already.
  static void keep(const Head& head) {
    for (int64_t token = 0; token < head.num_before; ++token) {
      for (const Part& part : head.parts) {
        store_numbers(head.rule.type, head.inputs + token * head.width + part.place, part.size,
                      head.stored(token, part));
      }
    }
  }

  // Of the run's own tokens, rounded to what the cache stores.
  static void take_in(const Head& head, int64_t first, int64_t count) {
    for (int64_t token = 0; token < count; ++token) {
      const float* from = head.row.x + (first + token) * head.row.x_stride;
      float* to = head.inputs + (head.num_before + token) * head.width;
      uint8_t* rounded = reinterpret_cast<uint8_t*>(head.convolved);  // written later
      for (const Part& part : head.parts) {
        store_numbers(head.rule.type, from + part.column, part.size, rounded);
        load_numbers(head.rule.type, rounded, part.size, to + part.place);
      }
    }
  }

  // ---- queries, keys, values ----------------------------------------------------------------------------------------

  static void convolve(const Head& head, int64_t count) {
    const int64_t kernel_size = head.rule.sizes.kernel_size, all = head.rule.sizes.width();
    for (int64_t token = 0; token < count; ++token) {
      for (const Part& part : head.parts) {
        const float* seen = head.inputs + token * head.width + part.place;
        const float* weights = head.rule.convolution + part.column;
        float* out = head.convolved + token * head.width + part.place;
        Rows::each_vector(part.size, [&](int64_t i, auto load, auto store) {
          F sum = V::mul(load(seen + i), load(weights + i));
          for (int64_t tap = 1; tap < kernel_size; ++tap) {
            sum = V::fma(load(seen + tap * head.width + i), load(weights + tap * all + i), sum);
          }
          store(out + i, Rows::times_sigmoid(sum, sum));
        });
      }
      float* query = head.convolved + token * head.width;
      const int64_t size = head.rule.sizes.key_size;
      scale_to(query, size, 1.0f / std::sqrt(static_cast<float>(size)));
      scale_to(query + size, size, 1.0f);
    }
  }

  static void scale_to(float* x, int64_t size, float length) {
    const F factor = V::set1(length / std::sqrt(Rows::sum_of_squares(x, size) + UNIT_EPS));
    Rows::each_vector(size, [&](int64_t i, auto load, auto store) { store(x + i, V::mul(load(x + i), factor)); });
  }

  static void weigh(Head& head, int64_t value_head, int64_t first, int64_t count) {
    const float bias = head.rule.decay_bias[value_head], decay = head.rule.decay[value_head];
    for (int64_t token = 0; token < count; ++token) {
      const float* gates = head.row.gates + (first + token) * head.row.gates_stride + value_head;
      const float x = gates[head.rule.sizes.num_value_heads] + bias;
      head.written[token] = 1.0f / (1.0f + std::exp(-gates[0]));
      head.kept[token] = std::exp(decay * (x > LINEAR_FROM ? x : std::log1p(std::exp(x))));
    }
  }

  // ---- the rule -----------------------------------------------------------------------------------------------------

  struct Columns {
    F low, high;
  };

  // Four sums over the rows of a matrix, of every fourth one, then one: body(row, sums of the row's quarter).
  template <class Body>
  static Columns summed(int64_t num_rows, Body body) {
    Columns sums[4] = {{V::zero(), V::zero()}, {V::zero(), V::zero()}, {V::zero(), V::zero()}, {V::zero(), V::zero()}};
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) {
      body(row, sums[0]);
      body(row + 1, sums[1]);
      body(row + 2, sums[2]);
      body(row + 3, sums[3]);
    }
    if (row < num_rows) body(row, sums[0]);
    if (row + 1 < num_rows) body(row + 1, sums[1]);
    if (row + 2 < num_rows) body(row + 2, sums[2]);
    return {V::add(V::add(sums[0].low, sums[1].low), V::add(sums[2].low, sums[3].low)),
            V::add(V::add(sums[0].high, sums[1].high), V::add(sums[2].high, sums[3].high))};
  }

  // What a token writes into COLUMNS columns of a matrix, and reads from them after that.
  static Columns pass(float* matrix, int64_t stride, const float* query, int64_t size, Columns value, float written,
                      float kept) {
    const float* key = query + size;
    const Columns found = summed(size, [&](int64_t row, Columns& sum) {
      const F weight = V::set1(key[row]);
      sum.low = V::fma(weight, V::load(matrix + row * stride), sum.low);
      sum.high = V::fma(weight, V::load(matrix + row * stride + W), sum.high);
    });
    const F share = V::set1(written), rest = V::set1(kept);
    const F low = V::mul(share, V::sub(value.low, V::mul(rest, found.low)));
    const F high = V::mul(share, V::sub(value.high, V::mul(rest, found.high)));
    return summed(size, [&](int64_t row, Columns& sum) {
      const F weight = V::set1(key[row]), asked = V::set1(query[row]);
      const F new_low = V::fma(weight, low, V::mul(rest, V::load(matrix + row * stride)));
      const F new_high = V::fma(weight, high, V::mul(rest, V::load(matrix + row * stride + W)));
      V::store(matrix + row * stride, new_low);
      V::store(matrix + row * stride + W, new_high);
      sum.low = V::fma(asked, new_low, sum.low);
      sum.high = V::fma(asked, new_high, sum.high);
    });
  }

  // Of one value head `num_columns` columns from `column` on, for all tokens of a run.
  static void pass_run(const Head& head, float* matrix, int64_t stride, int64_t value_head, int64_t column,
                       int64_t num_columns, int64_t first, int64_t count) {
    const DeltaSizes& sizes = head.rule.sizes;
    const int64_t among = value_head - head.number * sizes.values_per_key();
    const int64_t place = 2 * sizes.key_size + among * sizes.value_size + column;
    const int64_t of_low = std::min(W, num_columns), of_high = num_columns - of_low;
    for (int64_t token = 0; token < count; ++token) {
      const float* query = head.convolved + token * head.width;
      const F low = load_some(query + place, of_low);
      const F high = of_high > 0 ? load_some(query + place + W, of_high) : V::zero();
      const Columns read =
          pass(matrix, stride, query, sizes.key_size, {low, high}, head.written[token], head.kept[token]);
      float* out = head.row.out + (first + token) * head.row.out_stride;
      out += sizes.out_head(value_head) * sizes.value_size + column;
      of_low == W ? V::store(out, read.low) : V::store_part(out, read.low, of_low);
      if (of_high == W) V::store(out + W, read.high);
      if (of_high > 0 && of_high < W) V::store_part(out + W, read.high, of_high);
    }
  }

  // Columns are brought together for more than one token, and where there are fewer of them.
  static void pass_columns(const Head& head, int64_t value_head, int64_t column, int64_t first, int64_t count) {
    const DeltaSizes& sizes = head.rule.sizes;
    const int64_t num_columns = std::min(COLUMNS, sizes.value_size - column);
    uint8_t* matrix = reinterpret_cast<uint8_t*>(head.matrix(value_head) + column);
    const size_t row_bytes = sizeof(float) * static_cast<size_t>(sizes.value_size);
    const size_t bytes = sizeof(float) * static_cast<size_t>(num_columns);
    if (count == 1 && num_columns == COLUMNS) {
      pass_run(head, head.matrix(value_head) + column, sizes.value_size, value_head, column, num_columns, first, count);
      return;
    }
    std::fill_n(head.columns, sizes.key_size * COLUMNS, 0.0f);
    for (int64_t row = 0; row < sizes.key_size; ++row) {
      std::memcpy(head.columns + row * COLUMNS, matrix + static_cast<size_t>(row) * row_bytes, bytes);
    }
    pass_run(head, head.columns, COLUMNS, value_head, column, num_columns, first, count);
    for (int64_t row = 0; row < sizes.key_size; ++row) {
      std::memcpy(matrix + static_cast<size_t>(row) * row_bytes, head.columns + row * COLUMNS, bytes);
    }
  }

  static void head(const DeltaRule& rule, const DeltaRow& row, int64_t key_head, float* scratch) {
    Head own = head_of(rule, row, key_head, scratch);
    const DeltaSizes& sizes = rule.sizes;
    const int64_t first_value = key_head * sizes.values_per_key(), end_value = first_value + sizes.values_per_key();
    if (row.is_fresh) {
      const size_t floats = static_cast<size_t>((end_value - first_value) * sizes.matrix_floats());
      std::memset(static_cast<void*>(own.matrix(first_value)), 0, sizeof(float) * floats);
    }
    recall(own);
    for (int64_t first = 0; first < row.num_tokens; first += RUN_TOKENS) {
      const int64_t count = std::min(RUN_TOKENS, row.num_tokens - first);
      take_in(own, first, count);
      convolve(own, count);
      for (int64_t value_head = first_value; value_head < end_value; ++value_head) {
        weigh(own, value_head, first, count);
        for (int64_t column = 0; column < sizes.value_size; column += COLUMNS) {
          pass_columns(own, value_head, column, first, count);
        }
      }
      std::memmove(own.inputs, own.inputs + count * own.width,
                   sizeof(float) * static_cast<size_t>(own.num_before * own.width));
    }
    keep(own);
  }

  static DeltaKernels kernels(Path path) { return {path, head}; }
};

}  // namespace
}  // namespace relevo
