/// The register kernels of each row width (register_tiles.hpp), compiled in a translation unit of its own.
#pragma once

#include <cstddef>

#include "kernels/attention/task.hpp"

namespace tessera::kernels {

/// Defined in register_width.cpp.in, once per width. The shapes have been checked.
template <class Exec, class Scalar, int kWidth>
void launch_register_forward(const Exec& exec, const ForwardTask<Exec, Scalar>& task, int steps, bool fits_packets);
template <class Exec, class Scalar, int kWidth>
void launch_register_backward(const Exec& exec, const BackwardTask<Exec, Scalar>& task, std::byte* workspace,
                              bool fits_packets);

}  // namespace tessera::kernels
