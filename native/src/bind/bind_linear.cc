// Python bindings of linear: one packed weight and its products, for tests and measurements.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

#include "products/linear.h"

namespace nb = nanobind;

namespace relevo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Inputs = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Outputs = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

Format format_named(const std::string& name) {
  static const std::map<std::string, Format> formats = {
      {"float32", Format::f32},
      {"float16", Format::f16},
      {"bfloat16", Format::bf16},
      {"bfloat16_rounded", Format::bf16_rounded},
      {"q8_0", Format::q8_0},
      {"q4_0", Format::q4_0},
      {"q4_1", Format::q4_1},
      {"q8_channel", Format::q8_channel},
      {"q8_0_wide", Format::q8_0_wide},
      {"q4_0_wide", Format::q4_0_wide},
      {"q4_1_wide", Format::q4_1_wide},
      {"q8_channel_wide", Format::q8_channel_wide},
      {"q5_0", Format::q5_0},
      {"q5_1", Format::q5_1},
      {"q4_k", Format::q4_k},
      {"q5_k", Format::q5_k},
      {"q6_k", Format::q6_k},
      {"q5_0_wide", Format::q5_0_wide},
      {"q5_1_wide", Format::q5_1_wide},
      {"q4_k_wide", Format::q4_k_wide},
      {"q5_k_wide", Format::q5_k_wide},
      {"q6_k_wide", Format::q6_k_wide},
  };
  const auto found = formats.find(name);
  if (found != formats.end()) return found->second;
  std::string names;
  for (const auto& [known, format] : formats) names += (names.empty() ? "" : ", ") + known;
  throw std::invalid_argument("no format '" + name + "'; there are " + names);
}

bool has_blocks(Format format) {
  const Format stored = narrowed(format);
  return stored != Format::q8_channel && stored >= Format::q8_0;
}

void require_k(Format format, int64_t k) {
  require(k > 0, "k must be positive");
  require(!has_blocks(format) || k % 32 == 0, "k must be a multiple of 32 in a format with blocks");
  require(!is_super(format) || k % 256 == 0, "k must be a multiple of 256 in a format with blocks of blocks");
}

// Exactly as many bytes as asked for, so that a sanitizer sees a read past the end.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : data_(::operator new(size + !size, std::align_val_t{64})) {}
  ~AlignedBytes() { ::operator delete(data_, std::align_val_t{64}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_;
};

class PackedLinear {
 public:
  PackedLinear(const std::string& path, const std::string& format, Bytes raw, int64_t k)
      : kernels_(linear_kernels(choose_path(path).path)) {
    linear_.format = format_named(format);
    require_k(linear_.format, k);
    linear_.n = static_cast<int64_t>(raw.shape(0));
    linear_.k = k;
    require(linear_.n > 0, "a weight needs at least one row");
    require(raw.shape(1) == raw_row_bytes(linear_.format, k), "a raw row must be [raw_row_bytes(format, k)] bytes");
    packed_ = std::make_unique<AlignedBytes>(packed_bytes());
    linear_.packed = packed_->data();
    for (int64_t panel = 0; panel < num_panels(); ++panel) pack(panel, raw);
  }

  int64_t n() const { return linear_.n; }
  int64_t k() const { return linear_.k; }
  int64_t panel_rows() const { return kernels_.panel_rows(linear_.format); }
  int64_t input_group() const { return kernels_.input_group(linear_.format); }
  int64_t num_panels() const { return (linear_.n + panel_rows() - 1) / panel_rows(); }
  int64_t packed_bytes() const {
    return num_panels() * static_cast<int64_t>(kernels_.panel_bytes(linear_.format, linear_.k));
  }

  void unpack_row(int64_t row, nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) const {
    require(0 <= row && row < linear_.n, "no such row");
    require(static_cast<int64_t>(out.shape(0)) == linear_.k, "out must be [k]");
    kernels_.unpack_row(linear_, row, out.data());
  }

  void multiply(Inputs x, Outputs y, int64_t first_panel, int64_t end_panel, std::optional<Vector> bias,
                bool accumulate, int64_t prepare_groups) const {
    const int64_t m = static_cast<int64_t>(x.shape(0));
    if (end_panel < 0) end_panel = num_panels();
    require(m > 0 && static_cast<int64_t>(x.shape(1)) == linear_.k, "x must be [m, k]");
    require(static_cast<int64_t>(y.shape(0)) == m && static_cast<int64_t>(y.shape(1)) == linear_.n, "y must be [m, n]");
    require(x.stride(1) == 1 && y.stride(1) == 1, "the elements of a row of x and y must lie side by side");
    require(0 <= first_panel && first_panel <= end_panel && end_panel <= num_panels(), "no such range of panels");
    require(!bias || static_cast<int64_t>(bias->shape(0)) == linear_.n, "bias must be [n]");
    require(prepare_groups >= 0, "prepare_groups must not be negative");
    const float* bias_data = bias ? bias->data() : nullptr;
    nb::gil_scoped_release released;
    const AlignedBytes inputs(kernels_.input_bytes(linear_.format, m, linear_.k));
    const int64_t step = prepare_groups ? prepare_groups * input_group() : m;
    for (int64_t first = 0; first < m; first += step)
      kernels_.prepare(linear_.format, x.data() + first * x.stride(0), x.stride(0), m, linear_.k, first, std::min(first + step, m),
                       inputs.data());
    kernels_.multiply(linear_, inputs.data(), m, first_panel, end_panel, bias_data, accumulate, y.data(), y.stride(0));
  }

 private:
  void pack(int64_t panel, const Bytes& raw) {
    const int64_t first = panel * panel_rows();
    const int64_t num_rows = std::min(panel_rows(), linear_.n - first);
    std::vector<const uint8_t*> rows;
    for (int64_t row = first; row < first + num_rows; ++row) rows.push_back(raw.data() + row * raw.shape(1));
    kernels_.pack(linear_, panel, rows.data(), num_rows);
  }

  const LinearKernels& kernels_;
  Linear linear_;
  std::unique_ptr<AlignedBytes> packed_;
};

}  // namespace

void bind_linear(nb::module_& module) {
  module.def(
      "raw_row_bytes",
      [](const std::string& format, int64_t k) {
        require_k(format_named(format), k);
        return raw_row_bytes(format_named(format), k);
      },
      nb::arg("format"), nb::arg("k"), "Bytes of one row of k weights as it comes from the file.");
  nb::class_<PackedLinear>(module, "PackedLinear", "A weight [n, k] packed for one path.")
      .def(nb::init<const std::string&, const std::string&, Bytes, int64_t>(), nb::arg("path"), nb::arg("format"),
           nb::arg("raw"), nb::arg("k"), "raw: uint8 [n, raw_row_bytes(format, k)]; float32 rows for q8_channel.")
      .def_prop_ro("n", &PackedLinear::n)
      .def_prop_ro("k", &PackedLinear::k)
      .def_prop_ro("panel_rows", &PackedLinear::panel_rows)
      .def_prop_ro("num_panels", &PackedLinear::num_panels)
      .def_prop_ro("input_group", &PackedLinear::input_group)
      .def_prop_ro("packed_bytes", &PackedLinear::packed_bytes)
      .def("unpack_row", &PackedLinear::unpack_row, nb::arg("row"), nb::arg("out"), "Row `row` into out, float32 [k].")
      .def("multiply", &PackedLinear::multiply, nb::arg("x"), nb::arg("y"), nb::arg("first_panel") = 0,
           nb::arg("end_panel") = -1, nb::arg("bias") = nb::none(), nb::arg("accumulate") = false,
           nb::arg("prepare_groups") = 0,
           "y[m, n] = x[m, k] @ w.T + bias for the rows of a range of panels (-1: to the last), added to y if "
           "`accumulate`. Inputs are prepared `prepare_groups` groups at a time, 0: all at once.");
}

}  // namespace relevo
