// Whether what a path computes row by row (elementwise.h, sampling.h) is what it must be, found out by computing some.
#pragma once

#include <string>

#include "rows/elementwise.h"
#include "rows/sampling.h"

namespace relevo {

// What is wrong with `kernels`, as the end of a sentence ("gives ..."); empty if nothing is. Takes less than a
// millisecond. `reference` computes by definition: the portable kernels.
std::string elementwise_defect(const ElementwiseKernels& kernels, const ElementwiseKernels& reference);
std::string sampling_defect(const SamplingKernels& kernels, const SamplingKernels& reference);

}  // namespace relevo
