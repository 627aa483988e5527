// Python bindings of sampling: summaries of rows of logits, and draws.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "rows/sampling.h"

namespace nb = nanobind;

namespace relevo {
namespace {

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using PerRow = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using NewArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
NewArray<T> new_array(std::unique_ptr<T[]> values, size_t size) {
  T* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return NewArray<T>(data, {size}, owner);
}

void require_vocabulary(size_t vocab_size) {
  if (vocab_size == 0) throw std::invalid_argument("a row of logits is empty");
}

void require_temperature(double temperature) {
  if (!(temperature > 0.0)) throw std::invalid_argument("temperature must be above 0; the best token needs no draw");
}

std::pair<NewArray<int64_t>, NewArray<bool>> summaries(const std::string& path, RowMatrix logits) {
  const size_t num_rows = logits.shape(0), vocab_size = logits.shape(1);
  require_vocabulary(vocab_size);
  const SamplingKernels& kernels = sampling_kernels(choose_path(path).path);
  std::unique_ptr<int64_t[]> best(new int64_t[num_rows]);
  std::unique_ptr<bool[]> finite(new bool[num_rows]);
  for (size_t row = 0; row < num_rows; ++row) {
    const RowSummary summary = kernels.summary(logits.data() + row * vocab_size, static_cast<int64_t>(vocab_size));
    best[row] = summary.best;
    finite[row] = summary.finite;
  }
  return {new_array(std::move(best), num_rows), new_array(std::move(finite), num_rows)};
}

int64_t draw_token(Row logits, double temperature, double min_p, double top_p, int64_t top_k, uint64_t seed,
                   uint64_t sample_index, uint64_t position) {
  require_vocabulary(logits.shape(0));
  require_temperature(temperature);
  const DrawParams params{temperature, min_p, top_p, top_k, seed, sample_index, position};
  nb::gil_scoped_release unlocked;
  return draw(logits.data(), static_cast<int64_t>(logits.shape(0)), params);
}

NewArray<int64_t> draw_tokens(RowMatrix logits, PerRow<double> temperature, PerRow<double> min_p, PerRow<double> top_p,
                              PerRow<int64_t> top_k, PerRow<uint64_t> seed, PerRow<uint64_t> sample_index,
                              PerRow<uint64_t> position) {
  const size_t num_rows = logits.shape(0), vocab_size = logits.shape(1);
  require_vocabulary(vocab_size);
  for (const size_t length : {temperature.shape(0), min_p.shape(0), top_p.shape(0), top_k.shape(0), seed.shape(0),
                              sample_index.shape(0), position.shape(0)}) {
    if (length != num_rows) throw std::invalid_argument("every parameter needs one value per row of logits");
  }
  for (size_t row = 0; row < num_rows; ++row) require_temperature(temperature(row));
  std::unique_ptr<int64_t[]> tokens(new int64_t[num_rows]);
  {
    nb::gil_scoped_release unlocked;
    for (size_t row = 0; row < num_rows; ++row) {
      tokens[row] = draw(logits.data() + row * vocab_size, static_cast<int64_t>(vocab_size),
                         {temperature.data()[row], min_p.data()[row], top_p.data()[row], top_k.data()[row],
                          seed.data()[row], sample_index.data()[row], position.data()[row]});
    }
  }
  return new_array(std::move(tokens), num_rows);
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.def("row_summaries", &summaries, nb::arg("path"), nb::arg("logits").noconvert(),
             "(best, finite) of each row of logits [R, V]: the lowest index of the largest value, and whether every "
             "value is finite.");
  module.def("draw_token", &draw_token, nb::arg("logits").noconvert(), nb::arg("temperature"), nb::arg("min_p"),
             nb::arg("top_p"), nb::arg("top_k"), nb::arg("seed"), nb::arg("sample_index"), nb::arg("position"),
             "One draw from finite logits [V]. top_k <= 0 and top_p >= 1 and min_p <= 0 are off.");
  module.def("draw_tokens", &draw_tokens, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
             nb::arg("min_p").noconvert(), nb::arg("top_p").noconvert(), nb::arg("top_k").noconvert(),
             nb::arg("seed").noconvert(), nb::arg("sample_index").noconvert(), nb::arg("position").noconvert(),
             "draw_token for each row of logits [R, V]; the parameters are arrays [R].");
}

}  // namespace relevo
