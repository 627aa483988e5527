// Whether a path's matrix products are what they must be, found out by computing some.
#pragma once

#include <string>

#include "products/linear.h"

namespace relevo {

// What is wrong with the products of `kernels`, as the end of a sentence ("gives ..."); empty if nothing is. Takes some
// milliseconds. `reference` computes by definition: the portable kernels.
std::string linear_defect(const LinearKernels& kernels, const LinearKernels& reference);

}  // namespace relevo
