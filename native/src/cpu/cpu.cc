// Detection of instructions: cpuid and the operating system's word on x86, the auxiliary vector on Arm. A path that could
// run then computes a little of everything: one that computes it wrongly is not used.
#include "cpu/cpu.h"

#include <stdexcept>

#include "attention/attention_proof.h"
#include "products/linear_proof.h"
#include "rows/rows_proof.h"
#include "states/delta_proof.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#if !defined(HWCAP2_I8MM)  // system headers older than the instructions
#define HWCAP2_I8MM (1 << 13)
#endif
#endif

namespace relevo {
namespace {

// A path, and why it cannot be used here (a verb phrase; empty: it can).
struct Candidate {
  Path path;
  std::string problem;
};

std::string lacks(const std::string& missing) { return missing.empty() ? "" : "lacks " + missing; }

void note_missing(std::string* missing, bool there, const char* feature) {
  if (there) return;
  if (!missing->empty()) *missing += ", ";
  *missing += feature;
}

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return CpuidLeaf{};
  return r;
}

bool bit(uint64_t word, int index) { return (word >> index) & 1; }

// The register states that the operating system saves and restores.
uint64_t saved_states(const CpuidLeaf& leaf1) {
  if (!bit(leaf1.ecx, 27)) return 0;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux hands the tile registers to a process that asks for them. Asking twice is harmless.
bool tile_data_permitted() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

std::vector<Candidate> candidates() {
  const CpuidLeaf leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
  const uint64_t saved = saved_states(leaf1);

  std::string avx2;
  note_missing(&avx2, (saved & 0x6) == 0x6, "YMM state of the operating system");
  note_missing(&avx2, bit(leaf7.ebx, 5), "AVX2");
  note_missing(&avx2, bit(leaf1.ecx, 12), "FMA");
  note_missing(&avx2, bit(leaf1.ecx, 29), "F16C");

  std::string avx512 = avx2;
  note_missing(&avx512, (saved & 0xe0) == 0xe0, "ZMM state of the operating system");
  note_missing(&avx512, bit(leaf7.ebx, 16), "AVX512F");
  note_missing(&avx512, bit(leaf7.ebx, 17), "AVX512DQ");
  note_missing(&avx512, bit(leaf7.ebx, 30), "AVX512BW");
  note_missing(&avx512, bit(leaf7.ebx, 31), "AVX512VL");
  note_missing(&avx512, bit(leaf7.ecx, 11), "AVX512_VNNI");

  std::string amx = avx512;
  note_missing(&amx, bit(leaf7_1.eax, 5), "AVX512_BF16");
  note_missing(&amx, bit(leaf7.edx, 24), "AMX-TILE");
  note_missing(&amx, bit(leaf7.edx, 25), "AMX-INT8");
  note_missing(&amx, bit(leaf7.edx, 22), "AMX-BF16");
  note_missing(&amx, (saved & 0x60000) == 0x60000, "tile state of the operating system");
  if (amx.empty() && !tile_data_permitted()) amx = "the operating system's permission to use tiles";

  return {{Path::portable, ""}, {Path::avx2, lacks(avx2)}, {Path::avx512, lacks(avx512)}, {Path::amx, lacks(amx)}};
}

#elif defined(__aarch64__)

// What the operating system says of this processor; without Linux nothing that is not on every 64-bit Arm is used.
std::vector<Candidate> candidates() {
#if defined(__linux__)
  const bool has_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool has_i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
  const bool has_dotprod = false, has_i8mm = false;
#endif
  std::string dotprod;
  note_missing(&dotprod, has_dotprod, "DotProd");
  std::string i8mm = dotprod;
  note_missing(&i8mm, has_i8mm, "I8MM");
  return {{Path::portable, ""}, {Path::neon, ""}, {Path::dotprod, lacks(dotprod)}, {Path::i8mm, lacks(i8mm)}};
}

#else

std::vector<Candidate> candidates() { return {{Path::portable, ""}}; }

#endif

// Whether this build has kernels for a candidate: not every compiler knows the newer instructions of Arm.
bool compiled(Path path) {
#if !defined(RELEVO_HAS_DOTPROD)
  if (path == Path::dotprod) return false;
#endif
#if !defined(RELEVO_HAS_I8MM)
  if (path == Path::i8mm) return false;
#endif
  (void)path;
  return true;
}

// What a path computes wrongly; empty if nothing.
std::string defect_of(Path path) {
  std::string defect = linear_defect(linear_kernels(path), linear_kernels(Path::portable));
  if (defect.empty()) defect = attention_defect(attention_kernels(path), attention_kernels(Path::portable));
  if (defect.empty()) defect = elementwise_defect(elementwise_kernels(path), elementwise_kernels(Path::portable));
  if (defect.empty()) defect = sampling_defect(sampling_kernels(path), sampling_kernels(Path::portable));
  if (defect.empty()) defect = delta_defect(delta_kernels(path), delta_kernels(Path::portable));
  return defect;
}

// Compiled candidates, those that could run tried. Found out once in a process.
const std::vector<Candidate>& known_paths() {
  static const std::vector<Candidate> known = [] {
    std::vector<Candidate> result;
    for (Candidate candidate : candidates()) {
      if (!compiled(candidate.path)) continue;
      if (candidate.problem.empty() && candidate.path != Path::portable) candidate.problem = defect_of(candidate.path);
      result.push_back(candidate);
    }
    return result;
  }();
  return known;
}

std::string joined_names(const std::vector<Path>& paths) {
  std::string names;
  for (const Path path : paths) names += (names.empty() ? "" : ", ") + std::string(path_name(path));
  return names;
}

}  // namespace

const char* path_name(Path path) {
  switch (path) {
    case Path::portable:
      return "portable";
    case Path::neon:
      return "neon";
    case Path::dotprod:
      return "dotprod";
    case Path::i8mm:
      return "i8mm";
    case Path::avx2:
      return "avx2";
    case Path::avx512:
      return "avx512";
    case Path::amx:
      return "amx";
  }
  return "unknown";
}

std::vector<Path> available_paths() {
  std::vector<Path> paths;
  for (const Candidate& candidate : known_paths())
    if (candidate.problem.empty()) paths.push_back(candidate.path);
  return paths;
}

PathChoice choose_path(const std::string& forced) {
  const std::vector<Path> available = available_paths();
  if (!forced.empty()) {
    for (const Path path : available)
      if (forced == path_name(path)) return {path, forced + " was asked for"};
    for (const Candidate& candidate : known_paths())
      if (forced == path_name(candidate.path))
        throw std::invalid_argument("the CPU path '" + forced + "' cannot be used here, it " + candidate.problem +
                                    "; available: " + joined_names(available));
    throw std::invalid_argument("there is no CPU path '" + forced + "' in this build; available: " +
                                joined_names(available));
  }
  std::string reason = std::string(path_name(available.back())) + " is the best path that this processor can run";
  for (const Candidate& candidate : known_paths())
    if (!candidate.problem.empty())
      reason += "; " + std::string(path_name(candidate.path)) + " " + candidate.problem;
  return {available.back(), reason};
}

}  // namespace relevo
