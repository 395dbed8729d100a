// Flash2Forward with its own tiles.
#include "kernels/attention/flash2/forward_team.hpp"

namespace tessera::kernels {

TESSERA_INSTANTIATE_KERNEL(Flash2Forward);

}  // namespace tessera::kernels
