// The processor's word on numbers below 2^-126 in magnitude, while an object lives: as operands and as results of float
// instructions they count as zero of their sign. The instruction of AVX512_BF16 takes them so whatever the word is.
// Included by sources compiled for a path: everything here has internal linkage.
#pragma once

#include <immintrin.h>

namespace relevo {
namespace {

class Flushing {
 public:
  Flushing() : before_(_mm_getcsr()) { set(before_ | kFlushesResults | kFlushesOperands); }
  ~Flushing() { set(before_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  static constexpr unsigned kFlushesResults = 0x8000, kFlushesOperands = 0x40;

  // No load or store, and so no arithmetic between them, moves past it.
  static void set(unsigned word) {
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(word);
    __asm__ volatile("" ::: "memory");
  }

  unsigned before_;
};

}  // namespace
}  // namespace relevo
