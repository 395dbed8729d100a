#include "parallel/choice.hpp"  // the contract is there

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/stream.hpp"
#include "parallel/collectives/copy_engine.hpp"
#include "parallel/collectives/family.hpp"
#include "parallel/collectives/nccl.hpp"
#include "parallel/collectives/stream_transfer.hpp"
#include "parallel/errors.hpp"

namespace tessera::parallel {
namespace {

/// Null, with the reason in `why_not`, if they cannot serve these ranks. Collective.
std::unique_ptr<CopyEngines> connect_copy_engines(const World& world, std::string& why_not) {
  auto engines = std::make_unique<CopyEngines>(world);
  why_not = engines->fault();
  if (why_not.empty()) return engines;
  engines->close();
  world.barrier();
  engines->free();
  return nullptr;
}

}  // namespace

/// With the ring, the transfers' stream has the highest priority, so that its few blocks are scheduled beside the
/// backward pass. With copy engines it has the lowest: their sums then fill SMs that raised streams leave idle,
/// instead of delaying them.
std::unique_ptr<Collectives> make_gpu_collectives(const World& world, TransferMethod method) {
  std::unique_ptr<CopyEngines> engines;
  std::string why_ring;
  if (method != TransferMethod::ring) engines = connect_copy_engines(world, why_ring);
  if (!engines && method == TransferMethod::copy_engine) {
    throw EnvironmentError("parallel.transfers = \"copy_engine\": " + why_ring + "; set parallel.transfers = \"ring\"");
  }
  const auto family = std::make_shared<Family>();
  const auto stream = std::make_shared<TransferStream>(
      world.recorder(), engines ? kernels::cuda::lowest_priority() : kernels::cuda::highest_priority());
  if (!engines) {
    const std::string why = why_ring.empty() ? "" : " (copy engines are not available: " + why_ring + ")";
    return make_nccl_collectives(world, stream, family, kRingMovesAll + why);
  }
  auto ring = make_nccl_collectives(world, stream, family, "transfers by copy engines");
  return make_copy_engine_collectives(world, std::move(engines), stream, family, std::move(ring));
}

}  // namespace tessera::parallel
