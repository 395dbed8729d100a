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

TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE_LADDER_KERNEL)

}  // namespace tessera::kernels
