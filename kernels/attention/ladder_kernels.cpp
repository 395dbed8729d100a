#include "kernels/attention/ladder_kernels.hpp"

#include "kernels/attention/flash1/forward.hpp"
#include "kernels/attention/flash2/ladder.hpp"
#include "kernels/attention/tiled/tiled.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/cuda/tile_scores.hpp"

namespace tessera::kernels {
namespace {

/// Calls launch.operator()<kSteps>() with the steps, from 0 to kMost, as a constant.
template <int kMost, class Launch>
void with_steps(int steps, const Launch& launch) {
  if constexpr (kMost >= 0) {
    if (steps != kMost) return with_steps<kMost - 1>(steps, launch);
    launch.template operator()<kMost>();
  }
}

}  // namespace

bool has_ladder_kernels() { return true; }

template <class Exec, class Scalar>
void launch_ladder_kernel(const Exec& exec, const ForwardTask<Exec, Scalar>& task, const AttentionChoice& choice,
                          const Vector<std::byte, Exec>& workspace) {
  const int query_tile = choice.query_tile, key_tile = choice.key_tile;
  if (choice.kind == AttentionKind::tiled)
    return TiledForward<Exec, Scalar>{task, query_tile, key_tile, workspace}.launch(exec);
  if (choice.kind == AttentionKind::flash1) {
    constexpr int kMost = kHasTileScores<Exec, Scalar> ? ladder::kFlash1Steps : ladder::kFlash1Steps - 1;
    return with_steps<kMost>(choice.steps, [&]<int kSteps>() {
      Flash1Forward<Exec, Scalar, kSteps>{task, query_tile, key_tile, workspace}.launch(exec);
    });
  }
  with_steps<ladder::kFlash2LaneSteps>(choice.steps, [&]<int kSteps>() {
    Flash2Ladder<Exec, Scalar, kSteps>{task, query_tile, key_tile}.launch(exec);
  });
}

TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE_LADDER_KERNEL)

}  // namespace tessera::kernels
