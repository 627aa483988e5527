// Python bindings of states: tokens of one sequence through all heads of a layer, over numpy arrays, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "states/gated_delta.h"

namespace nb = nanobind;

namespace relevo {
namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

KVType stored_type(const std::string& name) {
  if (name == "float32") return KVType::f32;
  if (name == "float16") return KVType::f16;
  if (name == "bfloat16") return KVType::bf16;
  throw std::invalid_argument("'" + name + "' is none of float32, float16, bfloat16");
}

int64_t rows(const ConstMatrix& x) { return static_cast<int64_t>(x.shape(0)); }

int64_t width(const ConstMatrix& x) { return static_cast<int64_t>(x.shape(1)); }

void gated_delta(const std::string& path, const std::string& dtype, int64_t num_key_heads, int64_t key_size,
                 int64_t value_size, ConstMatrix convolution, ConstVector decay, ConstVector decay_bias, ConstMatrix x,
                 ConstMatrix gates, Bytes state, bool is_fresh, Matrix out, bool is_tiled) {
  const int64_t num_value_heads = static_cast<int64_t>(decay.shape(0));
  require(num_key_heads > 0 && num_value_heads > 0 && num_value_heads % num_key_heads == 0 && key_size > 0 &&
              value_size > 0,
          "value heads share key heads evenly, and all have a size");
  require(rows(convolution) >= 2, "a convolution sees two tokens at least");
  const DeltaSizes sizes{num_key_heads, num_value_heads, key_size, value_size, rows(convolution), 0, 0, is_tiled};
  const KVType type = stored_type(dtype);
  require(width(x) == sizes.width() && width(convolution) == sizes.width(), "x and convolution must be [.., C]");
  require(static_cast<int64_t>(decay_bias.shape(0)) == num_value_heads, "decay_bias must be [value heads]");
  require(rows(gates) == rows(x) && width(gates) == 2 * num_value_heads, "gates must be [T, 2 * value heads]");
  require(static_cast<int64_t>(out.shape(0)) == rows(x) && static_cast<int64_t>(out.shape(1)) == sizes.num_values(),
          "out must be [T, value heads * value size]");
  require(state.shape(0) == sizes.state_bytes(type), "the state has the wrong number of bytes");
  std::vector<float> scratch(static_cast<size_t>(sizes.scratch_floats()));
  const DeltaRule rule{sizes, type, convolution.data(), decay.data(), decay_bias.data()};
  const DeltaRow row{x.data(),   width(x), gates.data(), width(gates), out.data(), sizes.num_values(),
                     rows(x),    is_fresh, state.data()};
  const DeltaKernels& kernels = delta_kernels(choose_path(path).path);
  for (int64_t head = 0; head < num_key_heads; ++head) kernels.head(rule, row, head, scratch.data());
}

}  // namespace

void bind_states(nb::module_& module) {
  module.def("gated_delta", &gated_delta, nb::arg("path"), nb::arg("dtype"), nb::arg("num_key_heads"),
             nb::arg("key_size"), nb::arg("value_size"), nb::arg("convolution").noconvert(),
             nb::arg("decay").noconvert(), nb::arg("decay_bias").noconvert(), nb::arg("x").noconvert(),
             nb::arg("gates").noconvert(), nb::arg("state").noconvert(), nb::arg("is_fresh"),
             nb::arg("out").noconvert(), nb::arg("is_tiled") = false,
             "Tokens of one sequence, which goes on from its state and leaves it changed: x [T, C], gates "
             "[T, 2 * value heads], convolution [kernel size, C], out [T, value heads * value size].");
}

}  // namespace relevo
