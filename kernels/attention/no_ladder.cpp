/// Stands for ladder_kernels.cpp in programs without the laboratory.
#include <stdexcept>

#include "kernels/attention/ladder_kernels.hpp"
#include "kernels/core/instantiate.hpp"

namespace tessera::kernels {

bool has_ladder_kernels() { return false; }

template <class Exec, class Scalar>
void launch_ladder_kernel(const Exec&, const ForwardTask<Exec, Scalar>&, const AttentionChoice&,
                          const Vector<std::byte, Exec>&) {
  throw std::logic_error("attention: the kernels of the ladder belong to the laboratory; ask has_ladder_kernels");
}

#define TESSERA_INSTANTIATE(Exec, Scalar)                                                                   \
  template void launch_ladder_kernel(const Exec&, const ForwardTask<Exec, Scalar>&, const AttentionChoice&, \
                                     const Vector<std::byte, Exec>&);
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
