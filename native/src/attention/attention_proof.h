// Whether a path's attention is what it must be, found out by computing some.
#pragma once

#include <string>

#include "attention/attention.h"

namespace relevo {

// What is wrong with `kernels`, as the end of a sentence ("gives ..."); empty if nothing is. Takes some milliseconds.
// `reference` computes by definition: the portable kernels.
std::string attention_defect(const AttentionKernels& kernels, const AttentionKernels& reference);

}  // namespace relevo
