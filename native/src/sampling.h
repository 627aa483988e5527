// Choosing a token without taking a vocabulary of logits to Python.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu.h"

namespace relevo {

struct RowSummary {
  int64_t best;   // lowest index of the largest value
  bool finite;    // no NaN, no infinity in the row
};

struct SamplingKernels {
  Path path;
  RowSummary (*summary)(const float* logits, int64_t vocab_size);
};

const SamplingKernels& sampling_kernels(Path path);

struct DrawParams {
  double temperature, min_p, top_p;
  int64_t top_k;  // <= 0: off
  uint64_t seed, sample_index, position;
};

// One draw from a row [vocab_size] of logits; the same token as the reference in relevo.engine.sampling_math
// (candidates, waits, draw): Philox4x64-10, exponential race. Needs a finite row.
int64_t draw(const float* logits, int64_t vocab_size, const DrawParams& params);

}  // namespace relevo
