// Which instructions this processor has, and which of our paths runs on them.
#pragma once

#include <string>
#include <vector>

namespace relevo {

// In ascending order of preference on its architecture. `portable` is always correct and always there.
enum class Path { portable, neon, dotprod, i8mm, avx2, avx512, amx };

const char* path_name(Path path);

// Paths that this processor (and operating system) can run and whose kernels proved right, best last. The first call
// tries them, which takes some milliseconds, and asks the operating system for the tile registers where there are some: it
// comes before the process starts threads that compute.
std::vector<Path> available_paths();

struct PathChoice {
  Path path;
  std::string reason;  // one sentence for a log line
};

// `forced`: a path's name or empty. Throws std::invalid_argument, naming the available paths, if it cannot run here.
PathChoice choose_path(const std::string& forced);

}  // namespace relevo
