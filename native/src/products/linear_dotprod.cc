// Matrix products with the dot product extension of Arm (Armv8.2): the arithmetic of linear_portable.cc, to the bit.
#include "products/linear_dots_neon.h"

namespace relevo {
namespace {

struct UnmixedDots {
  static constexpr bool kMixesSigns = false;
};

template <Format kOne>
using DotProducts = Dots<kOne, UnmixedDots>;

}  // namespace

extern const LinearKernels kLinearDotprod;
const LinearKernels kLinearDotprod = kernels_of<NeonPath<Path::dotprod, DotProducts>>();

}  // namespace relevo
