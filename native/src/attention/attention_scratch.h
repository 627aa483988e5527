// Memory of one thread for one task of attention.
#pragma once

#include <cstddef>

namespace relevo {

// `num_floats` floats, 64-byte aligned, of the calling thread; valid until its next call. Allocates only when a task
// needs more than any before it.
float* attention_scratch(size_t num_floats);

}  // namespace relevo
