// Which instructions this processor has, and which of our paths runs on them.
#pragma once

#include <string>
#include <vector>

namespace relevo {

// In ascending order of preference on its architecture. `portable` is always correct and always there.
enum class Path { portable, neon, avx2, avx512, amx };

const char* path_name(Path path);

// Paths this processor (and operating system) can run, best last.
std::vector<Path> available_paths();

struct PathChoice {
  Path path;
  std::string reason;  // one sentence for a log line
};

// `forced`: a path's name or empty. Throws std::invalid_argument, naming the available paths, if it cannot run here.
PathChoice choose_path(const std::string& forced);

}  // namespace relevo
