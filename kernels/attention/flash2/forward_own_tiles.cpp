// Flash2Forward with its own tiles.
#include "kernels/attention/flash2/forward_team.hpp"

namespace tessera::kernels {

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Flash2Forward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
