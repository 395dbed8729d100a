// flash2 in registers with the tiles that GPUs take.
#include "unit/kernels/register_attention.hpp"

namespace tessera::test {
namespace {

template <class Scalar, bool kIsLarge, int kWidth>
void tiles_of_gpus_match_reference() {
  constexpr kernels::Target kGpu = kIsLarge ? kernels::gpu_target("90a") : kernels::Target{.is_host = false};
  constexpr RegisterSet kSet = kernels::register_tiles(kGpu, sizeof(Accum<Scalar>), kWidth);
  matches_reference<Scalar, kSet>({1, 1, 67, 67, kWidth, true}, true);
  matches_reference<Scalar, kSet>({1, 1, 21, 50, kWidth - 16, false}, true);
  if (kWidth != 64) return;
  matches_reference<Scalar, RegisterSet{kSet.forward.on_step(4), kSet.backward}>({1, 1, 67, 67, kWidth, true}, true);
}

TEST(RegisterTiles, of_gpus_match_reference_in_every_width) {
  tiles_of_gpus_match_reference<float, false, 32>();
  tiles_of_gpus_match_reference<float, false, 64>();
  tiles_of_gpus_match_reference<float, false, 96>();
  tiles_of_gpus_match_reference<float, false, 128>();
  tiles_of_gpus_match_reference<float, false, 192>();
  tiles_of_gpus_match_reference<float, false, 256>();
  tiles_of_gpus_match_reference<bfloat16, true, 64>();
  tiles_of_gpus_match_reference<double, true, 96>();
}

}  // namespace
}  // namespace tessera::test
