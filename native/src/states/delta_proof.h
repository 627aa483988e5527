// Whether what a path computes over states is what it must be, found out by computing some.
#pragma once

#include <string>

#include "states/gated_delta.h"

namespace relevo {

// What is wrong with `kernels`, as the end of a sentence ("gives ..."); empty if nothing is. Takes less than a
// millisecond. `reference` computes by definition: the portable kernels.
std::string delta_defect(const DeltaKernels& kernels, const DeltaKernels& reference);

}  // namespace relevo
