/// Ranks on one GPU: with TESSERA_TEST_SHARED_GPU=1 tests over NCCL and copy engines need no GPU for each rank.
///
/// NCCL refuses two ranks on one GPU unless they are on different hosts: each says that it is on one of its own
/// (NCCL_HOSTID), and they communicate through the network's loopback. Copy engines copy within the GPU. Ranks take
/// turns on it, so nothing is learnt about time, but all results must be right.
#pragma once

#include <cstdlib>
#include <string>

namespace tessera::test {

inline bool ranks_share_a_gpu() {
  const char* wish = std::getenv("TESSERA_TEST_SHARED_GPU");
  return wish != nullptr && std::string(wish) == "1";
}

/// Before NCCL joins the ranks.
inline void prepare_to_share_a_gpu(int rank) {
  if (ranks_share_a_gpu()) setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 0);
}

}  // namespace tessera::test
