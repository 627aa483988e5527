// The numbers that paths are tried with.
#pragma once

#include <cmath>
#include <cstdint>

namespace relevo {

// The same numbers at every start.
class Numbers {
 public:
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  // A multiple of 1/8 up to 4 in magnitude: sums of products are exact in float32, and bfloat16 holds it.
  float eighth() { return static_cast<float>(static_cast<int32_t>(bits() % 65) - 32) / 8.0f; }
  // Eight significant bits, which bfloat16 holds, times a power of two.
  float uneven() { return std::ldexp(static_cast<float>(static_cast<int32_t>(bits() % 511) - 255), -8 - bits() % 4); }

 private:
  uint64_t state_ = 1;
};

}  // namespace relevo
