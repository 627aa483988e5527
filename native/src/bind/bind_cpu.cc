// Python bindings of cpu: which instruction paths run here, and which one is chosen.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/cpu.h"

namespace nb = nanobind;

namespace relevo {

void bind_cpu(nb::module_& module) {
  module.def(
      "available_paths",
      [] {
        std::vector<std::string> names;
        for (const Path path : available_paths()) names.emplace_back(path_name(path));
        return names;
      },
      "Names of the instruction paths that this processor can run, best last.");
  module.def(
      "choose_path",
      [](const std::string& forced) {
        const PathChoice choice = choose_path(forced);
        return std::pair<std::string, std::string>(path_name(choice.path), choice.reason);
      },
      nb::arg("forced") = "",
      "(name, reason) of the path to use. `forced`: a name, or empty for the best. ValueError if it cannot run here.");
}

}  // namespace relevo
