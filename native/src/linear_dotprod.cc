// Matrix products with the dot product extension of Arm (Armv8.2): the arithmetic of linear_portable.cc, to the bit.
#include "linear_dots_neon.h"

namespace relevo {
namespace {

struct DotProducts {
  static constexpr bool kMixesSigns = false;
};

struct DotprodPath {
  static constexpr Path kPath = Path::dotprod;
  template <Format kStored>
  using Floats = relevo::Floats<kStored>;
  template <Format kOne>
  using Bytes = Dots<kOne, DotProducts>;
  template <Format kOne>
  using Nibbles = Dots<kOne, DotProducts>;
  template <Format kOne>
  using WideNibbles = Dots<kOne, DotProducts>;
};

}  // namespace

extern const LinearKernels kLinearDotprod;
const LinearKernels kLinearDotprod = kernels_of<DotprodPath>();

}  // namespace relevo
