// Choosing a token without taking a vocabulary of logits to Python.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/cpu.h"

namespace relevo {

struct RowSummary {
  int64_t best;   // lowest index of the largest value
  bool finite;    // no NaN, no infinity in the row
};

struct SamplingKernels {
  Path path;
  RowSummary (*summary)(const float* logits, int64_t vocab_size);
  // weights[i] = exp((logits[i] - peak) * scale), for finite logits <= peak: correctly rounded but for about one in 10^4,
  // and the same bits on every path.
  void (*weights)(const float* logits, int64_t size, float peak, float scale, float* weights);
  // A number at least as large as weights[i], at most 7 % larger where it is above 1e-37; costs a fraction of it.
  // Returns the largest.
  float (*bounds)(const float* logits, int64_t size, float peak, float scale, float* bounds);
  // Ascending indices i with bounds[i] >= pace * shortest[i]; how many.
  int64_t (*hopeful)(const float* bounds, const int32_t* shortest, int64_t size, float pace, int32_t* indices);
  // masked[i] = logits[i] where bit i % 32 of mask[i / 32] is set, minus infinity elsewhere; `masked` may be `logits`.
  void (*mask)(const float* logits, const uint32_t* mask, int64_t size, float* masked);
};

const SamplingKernels& sampling_kernels(Path path);

struct DrawParams {
  double temperature, min_p, top_p;
  int64_t top_k;  // <= 0: off
  uint64_t seed, sample_index, position;
};

// One draw from a row [vocab_size] of logits; the same token as the reference in relevo.engine.sampling_math
// (candidates, waits, draw): Philox4x64-10, exponential race. No NaN, a finite best; minus infinity is never drawn.
int64_t draw(const float* logits, int64_t vocab_size, const DrawParams& params);

}  // namespace relevo
