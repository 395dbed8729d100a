/// The forward kernels that show how attention gets fast: `tiled`, FlashAttention-1, and the steps of the ladder up to
/// flash2/3. They take a fifth of the time that a program takes to compile, and belong to the laboratory: without it
/// (TESSERA_ENABLE_LAB=OFF) no_ladder.cpp stands for ladder_kernels.cpp.
#pragma once

#include <cstddef>

#include "kernels/attention/choice.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Whether this program has them; a deck that names one is refused before anything runs (config/availability.hpp).
bool has_ladder_kernels();

/// Runs the kernel of a choice that is `tiled`, flash1, or flash2 of at most ladder::kFlash2LaneSteps steps.
/// Throws std::logic_error where this program has none, and what the kernels throw.
template <class Exec, class Scalar>
void launch_ladder_kernel(const Exec& exec, const ForwardTask<Exec, Scalar>& task, const AttentionChoice& choice,
                          const Vector<std::byte, Exec>& workspace);

/// Compiles it for a pair of TESSERA_FOR_EACH_EXEC_SCALAR (core/instantiate.hpp).
#define TESSERA_INSTANTIATE_LADDER_KERNEL(Exec, Scalar)                                                     \
  template void launch_ladder_kernel(const Exec&, const ForwardTask<Exec, Scalar>&, const AttentionChoice&, \
                                     const Vector<std::byte, Exec>&);

}  // namespace tessera::kernels
