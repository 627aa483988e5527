// Says which paths can be used and which one is chosen; with a name, whether that one can be. Exits with 1 if it cannot.
#include <cstdio>
#include <stdexcept>

#include "cpu/cpu.h"

int main(int argc, char** argv) {
  try {
    for (const relevo::Path path : relevo::available_paths()) std::printf("%s ", relevo::path_name(path));
    const relevo::PathChoice choice = relevo::choose_path(argc > 1 ? argv[1] : "");
    std::printf("-> %s: %s\n", relevo::path_name(choice.path), choice.reason.c_str());
  } catch (const std::invalid_argument& error) {
    std::printf("-> %s\n", error.what());
    return 1;
  }
  return 0;
}
