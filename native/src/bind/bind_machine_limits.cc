// Python bindings of machine_limits: what the cores of this machine can read and multiply at most.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "cpu/machine_limits.h"

namespace nb = nanobind;

namespace relevo {
namespace {

constexpr size_t MOST_BYTES = size_t{1} << 40;
constexpr int64_t MOST_ROUNDS = 1 << 24;  // beyond it a float does not count

void check(const std::vector<int>& cores, int repeats) {
  if (cores.empty()) throw std::invalid_argument("a limit is measured on at least one core, none was given");
  if (repeats < 1) throw std::invalid_argument("repeats must be at least 1");
}

Operand operand_of(const std::string& name) {
  for (const Operand operand : OPERANDS) {
    if (name == operand_name(operand)) return operand;
  }
  throw std::invalid_argument("operand '" + name + "' is not one of f32, bf16, int8, int4");
}

std::vector<double> limit_read(const std::string& path, size_t num_bytes, const std::vector<int>& cores, int repeats) {
  check(cores, repeats);
  if (num_bytes < 1 || num_bytes > MOST_BYTES) throw std::invalid_argument("num_bytes must be from 1 to 2^40");
  const LimitKernels& kernels = limit_kernels(choose_path(path).path);
  nb::gil_scoped_release released;
  return time_reads(kernels, num_bytes, cores, repeats);
}

std::pair<std::vector<double>, double> limit_multiply(const std::string& path, const std::string& operand,
                                                      int64_t rounds, const std::vector<int>& cores, int repeats) {
  check(cores, repeats);
  if (rounds < 1 || rounds > MOST_ROUNDS) throw std::invalid_argument("rounds must be from 1 to 2^24");
  const LimitKernels& kernels = limit_kernels(choose_path(path).path);
  const Operand kind = operand_of(operand);
  nb::gil_scoped_release released;
  const MultiplyTimes times = time_multiplies(kernels, kind, rounds, cores, repeats);
  return {times.seconds, times.operations};
}

}  // namespace

void bind_machine_limits(nb::module_& module) {
  module.def("limit_read", &limit_read, nb::arg("path"), nb::arg("num_bytes"), nb::arg("cores"), nb::arg("repeats"),
             "Seconds of each of `repeats` passes that read num_bytes of huge pages, shared by a thread on each core.");
  module.def("limit_multiply", &limit_multiply, nb::arg("path"), nb::arg("operand"), nb::arg("rounds"),
             nb::arg("cores"), nb::arg("repeats"),
             "(seconds of each pass, operations of a pass): multiply-adds in registers, on all cores at once, of f32, "
             "bf16, int8 (8-bit by 8-bit) or int4 (4-bit by 8-bit) operands.");
}

}  // namespace relevo
