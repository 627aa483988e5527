// What one worker computes with: the kernels of a path, its threads, the memory of its weights.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "cpu/cpu.h"
#include "cpu/threads.h"
#include "products/linear.h"
#include "products/weights.h"
#include "rows/elementwise.h"
#include "rows/sampling.h"
#include "states/gated_delta.h"

namespace relevo {

struct Engine {
  // `forced_path` as for choose_path; `cores` as for ThreadPool. Throws std::invalid_argument.
  Engine(const std::string& forced_path, const std::vector<int>& cores)
      : choice(choose_path(forced_path)),
        linear(linear_kernels(choice.path)),
        elementwise(elementwise_kernels(choice.path)),
        attention(attention_kernels(choice.path)),
        sampling(sampling_kernels(choice.path)),
        states(delta_kernels(choice.path)),
        pool(cores) {}

  const PathChoice choice;
  const LinearKernels& linear;
  const ElementwiseKernels& elementwise;
  const AttentionKernels& attention;
  const SamplingKernels& sampling;
  const DeltaKernels& states;
  ThreadPool pool;
  WeightRegion region;
  std::atomic<bool> busy{false};  // one caller at a time: the pool and the buffers are not shared
};

}  // namespace relevo
