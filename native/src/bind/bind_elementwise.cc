// Python bindings of elementwise: each kernel on whole numpy arrays, in place or into `out`, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "rows/elementwise.h"

namespace nb = nanobind;

namespace relevo {
namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Positions = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const ElementwiseKernels& kernels(const std::string& path) { return elementwise_kernels(choose_path(path).path); }

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

template <class Array>
int64_t rows(const Array& x) {
  return static_cast<int64_t>(x.shape(0));
}

template <class Array>
int64_t width(const Array& x) {
  return static_cast<int64_t>(x.shape(1));
}

template <class Array>
void require_rows(int64_t first, int64_t end, const Array& x) {
  require(0 <= first && first <= end && end <= rows(x), "rows [first, end) are not all in x");
}

void rms_norm(const std::string& path, Matrix x, ConstVector weight, float eps, Matrix out, int64_t first,
              int64_t end) {
  const int64_t size = static_cast<int64_t>(weight.shape(0));
  require_rows(first, end, x);
  require(rows(out) >= end, "out has fewer rows than asked for");
  require(size >= 1 && size <= width(x) && size <= width(out), "weight is empty or longer than a row of x or out");
  kernels(path).rms_norm(x.data(), width(x), weight.data(), size, eps, out.data(), width(out), first, end);
}

void add(const std::string& path, Matrix x, ConstMatrix y, int64_t size, int64_t first, int64_t end) {
  require_rows(first, end, x);
  require(rows(y) >= end, "y has fewer rows than asked for");
  require(size >= 0 && size <= width(x) && size <= width(y), "size is more than a row of x or y holds");
  kernels(path).add(x.data(), width(x), y.data(), width(y), size, first, end);
}

void silu_mul(const std::string& path, ConstMatrix x, int64_t size, Matrix out, int64_t first, int64_t end) {
  require_rows(first, end, x);
  require(rows(out) >= end, "out has fewer rows than asked for");
  require(size >= 0 && 2 * size <= width(x) && size <= width(out), "size is more than a row of x or out holds");
  kernels(path).activate({}, x.data(), width(x), size, out.data(), width(out), first, end);
}

void gate(const std::string& path, ConstMatrix x, ConstMatrix scores, bool is_silu, int64_t size, Matrix out,
          int64_t first, int64_t end) {
  require_rows(first, end, x);
  require(rows(scores) >= end && rows(out) >= end, "scores or out has fewer rows than asked for");
  require(size >= 0 && size <= width(x) && size <= width(out), "size is more than a row of x or out holds");
  const bool has_one_score = width(scores) == 1;
  require(has_one_score || size <= width(scores), "a row of scores has neither one nor as many as asked for");
  kernels(path).gate(x.data(), width(x), scores.data(), width(scores), has_one_score, is_silu, size, out.data(),
                     width(out), first, end);
}

void rope(const std::string& path, Matrix x, int64_t num_heads, ConstMatrix cos, ConstMatrix sin, int64_t first,
          int64_t end) {
  const int64_t head_size = 2 * width(cos);
  require_rows(first, end, x);
  require(rows(cos) >= end && rows(sin) >= end && width(sin) == width(cos), "cos and sin must be [T, head_size / 2]");
  require(num_heads >= 0 && num_heads * head_size <= width(x), "the heads are wider than a row of x");
  kernels(path).rope(x.data(), width(x), num_heads, head_size, 2 * width(cos), cos.data(), sin.data(), first, end);
}

void angles(Positions positions, ConstVector inv_freq, float scale, Matrix cos, Matrix sin) {
  const int64_t num_tokens = static_cast<int64_t>(positions.shape(0)), half = static_cast<int64_t>(inv_freq.shape(0));
  require(rows(cos) == num_tokens && rows(sin) == num_tokens && width(cos) == half && width(sin) == half,
          "cos and sin must be [len(positions), len(inv_freq)]");
  rope_angles(positions.data(), num_tokens, inv_freq.data(), half, scale, cos.data(), sin.data());
}

}  // namespace

void bind_elementwise(nb::module_& module) {
  module.def("rms_norm", &rms_norm, nb::arg("path"), nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
             nb::arg("eps"), nb::arg("out").noconvert(), nb::arg("first"), nb::arg("end"),
             "out[t, :size] = x[t, :size] / sqrt(mean of its squares + eps) * weight, size = len(weight).");
  module.def("add", &add, nb::arg("path"), nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("size"),
             nb::arg("first"), nb::arg("end"), "x[t, :size] += y[t, :size]");
  module.def("silu_mul", &silu_mul, nb::arg("path"), nb::arg("x").noconvert(), nb::arg("size"),
             nb::arg("out").noconvert(), nb::arg("first"), nb::arg("end"),
             "out[t, :size] = silu(x[t, :size]) * x[t, size : 2 * size]");
  module.def("gate", &gate, nb::arg("path"), nb::arg("x").noconvert(), nb::arg("scores").noconvert(),
             nb::arg("is_silu"), nb::arg("size"), nb::arg("out").noconvert(), nb::arg("first"), nb::arg("end"),
             "out[t, :size] = x[t, :size] * sigmoid or silu of scores[t, :size], or of scores[t, 0].");
  module.def("rope", &rope, nb::arg("path"), nb::arg("x").noconvert(), nb::arg("num_heads"),
             nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("first"), nb::arg("end"),
             "Rotate the heads of x[t] in place; dimension i pairs with i + head_size / 2.");
  module.def("rope_angles", &angles, nb::arg("positions").noconvert(), nb::arg("inv_freq").noconvert(),
             nb::arg("scale"), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
             "cos and sin of positions x inv_freq, times scale, computed in double and rounded once.");
}

}  // namespace relevo
