// Matrix products with AMX: bfloat16 weights and the formats that multiply integers on matrix tiles, float16 and float32
// as with AVX-512.
//
// Few rows of the integer formats are multiplied by the AVX-512 kernels; all products of bfloat16 weights are tiles.
// gcc 12 takes the undefined pass-through operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "products/linear_bfloats_amx.h"
#include "products/linear_integers_amx.h"
#include "products/linear_layout.h"

namespace relevo {

extern const LinearKernels kLinearAvx512;

namespace {

// Calls `call` with the tiles of an integer format, if it has some.
template <class Call>
bool with_integer_tiles(Format format, const Call& call) {
  switch (format) {
    case Format::q8_0:
      return call(IntegerTiles<Format::q8_0>{}), true;
    case Format::q4_0:
      return call(IntegerTiles<Format::q4_0>{}), true;
    case Format::q4_1:
      return call(IntegerTiles<Format::q4_1>{}), true;
    case Format::q8_channel:
      return call(IntegerTiles<Format::q8_channel>{}), true;
    case Format::q8_0_wide:
      return call(IntegerTiles<Format::q8_0_wide>{}), true;
    case Format::q4_0_wide:
      return call(IntegerTiles<Format::q4_0_wide>{}), true;
    case Format::q4_1_wide:
      return call(IntegerTiles<Format::q4_1_wide>{}), true;
    case Format::q8_channel_wide:
      return call(IntegerTiles<Format::q8_channel_wide>{}), true;
    default:
      return false;
  }
}

// With inputs rounded to bfloat16, asked for or not.
bool is_bfloat(Format format) { return narrowed(format) == Format::bf16; }

bool has_integer_tiles(Format format) {
  return with_integer_tiles(format, [](auto) {});
}

// Where m rows of inputs are: those for tiles first, then those that are left for the AVX-512 kernels.
struct Split {
  int64_t num_tiled;  // rows
  int64_t num_left;
  size_t tiled_bytes;
};

template <class F>
Split split_of(int64_t m, int64_t k) {
  const int64_t groups = num_tiled_groups(m), tiled = groups * kTileRows < m ? groups * kTileRows : m;
  return {tiled, m - tiled, static_cast<size_t>(groups * num_blocks(F::kFormat, k) * F::kInputGroupBytes)};
}

int64_t input_group_amx(Format format) {
  if (is_bfloat(format) || has_integer_tiles(format)) return kTileRows;
  return kLinearAvx512.input_group(format);
}

size_t input_bytes_amx(Format format, int64_t m, int64_t k) {
  if (is_bfloat(format)) return bfloat_input_bytes(m, k);
  size_t bytes = 0;
  const bool is_tiled = with_integer_tiles(format, [&](auto f) {
    const Split split = split_of<decltype(f)>(m, k);
    bytes = split.tiled_bytes + kLinearAvx512.input_bytes(format, split.num_left, k);
  });
  return is_tiled ? bytes : kLinearAvx512.input_bytes(format, m, k);
}

void prepare_amx(Format format, const float* x, int64_t x_stride, int64_t m, int64_t k, int64_t first, int64_t end,
                 uint8_t* inputs) {
  if (is_bfloat(format)) return prepare_bfloats(x, x_stride, m, k, first, end, inputs);
  const bool is_tiled = with_integer_tiles(format, [&](auto f) {
    const Split split = split_of<decltype(f)>(m, k);
    prepare_integers<decltype(f)>(x, x_stride, m, k, first, end, inputs);
    if (end <= split.num_tiled) return;
    kLinearAvx512.prepare(format, x + (split.num_tiled - first) * x_stride, x_stride, split.num_left, k, 0, split.num_left,
                          inputs + split.tiled_bytes);
  });
  if (!is_tiled) kLinearAvx512.prepare(format, x, x_stride, m, k, first, end, inputs);
}

void multiply_amx(const Linear& w, const uint8_t* inputs, int64_t m, int64_t first_panel, int64_t end_panel,
                  const float* bias, bool accumulate, float* y, int64_t y_stride) {
  const Output output{bias, accumulate, y, y_stride};
  if (is_bfloat(w.format)) return multiply_bfloats(w, inputs, m, first_panel, end_panel, output);
  const bool is_tiled = with_integer_tiles(w.format, [&](auto f) {
    const Split split = split_of<decltype(f)>(m, w.k);
    if (split.num_tiled > 0)
      multiply_integers<decltype(f)>(w, inputs, split.num_tiled, first_panel, end_panel, output);
    if (split.num_left > 0)
      kLinearAvx512.multiply(w, inputs + split.tiled_bytes, split.num_left, first_panel, end_panel, bias, accumulate,
                             y + split.num_tiled * y_stride, y_stride);
  });
  if (!is_tiled)
    kLinearAvx512.multiply(w, inputs, m, first_panel, end_panel, bias, accumulate, y, y_stride);
}

}  // namespace

extern const LinearKernels kLinearAmx;
const LinearKernels kLinearAmx = {Path::amx,       panel_rows,      panel_bytes, pack_panel,    unpack_packed_row,
                                  input_group_amx, input_bytes_amx, prepare_amx,     multiply_amx};

}  // namespace relevo
