// Flash2Forward with chosen tiles.
#include "kernels/attention/flash2/forward_team.hpp"

namespace tessera::kernels {

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Flash2Forward<Exec, Scalar, ChosenTiles>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
