// Counter-based random numbers: Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <cstdint>

namespace relevo {

// Four numbers of the stream that numpy's Philox(key=[key0, key1], counter=[0, 0, position, 0]) gives: block b holds
// numbers 4 b to 4 b + 3. numpy steps the counter before it makes a block, so the first block has the counter 1.
struct Philox {
  uint64_t key0, key1, position;

  void block(uint64_t index, uint64_t (&out)[4]) const {
    uint64_t c0 = index + 1, c1 = c0 == 0, c2 = position, c3 = 0, k0 = key0, k1 = key1;
    for (int round = 0; round < 10; ++round) {
      const Wide a = Wide{0xD2E7470EE14C6C93u} * c0;
      const Wide b = Wide{0xCA5A826395121157u} * c2;
      c0 = static_cast<uint64_t>(b >> 64) ^ c1 ^ k0;
      c2 = static_cast<uint64_t>(a >> 64) ^ c3 ^ k1;
      c1 = static_cast<uint64_t>(b);
      c3 = static_cast<uint64_t>(a);
      k0 += 0x9E3779B97F4A7C15u;
      k1 += 0xBB67AE8584CAA73Bu;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
  }

  // Uniform in [0, 1), a multiple of 2^-53.
  static double uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

 private:
  __extension__ typedef unsigned __int128 Wide;
};

}  // namespace relevo
