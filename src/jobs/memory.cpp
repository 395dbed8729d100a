#include "jobs/memory.hpp"

#include <fmt/format.h>

#include "errors.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/words.hpp"
#include "memory/arena.hpp"
#include "parallel/collective.hpp"

namespace tessera::jobs {

namespace {
constexpr bool kComputesOnHost = kernels::kIsHost<kernels::Device>;
}

MemoryShare share_of_memory(parallel::World& world) {
  return {kComputesOnHost ? world.local_size() : world.ranks_on_device(), world.collectives().device_bytes()};
}

std::int64_t available_bytes(const MemoryShare& share) {
  const std::int64_t untaken =
      kComputesOnHost ? memory::available_host_bytes() : kernels::device_info<kernels::Device>().free_bytes;
  return untaken / share.ranks + share.held;
}

bool fits(const memory::Layout& layout, const MemoryShare& share) {
  const std::int64_t on_host = kComputesOnHost ? layout.arena_bytes(memory::Space::host) : 0;
  return layout.total_bytes() + on_host <= available_bytes(share);
}

void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice) {
  if (fits(layout, share)) return;
  if (kComputesOnHost) return memory::require_host_memory(layout, share.ranks, advice);
  throw Failure(Exit::out_of_memory,
                fmt::format("this deck needs {} of memory on its {}, and {} are available{}\n{}{}",
                            memory::readable_bytes(layout.total_bytes()), kernels::device_info<kernels::Device>().name,
                            memory::readable_bytes(available_bytes(share)),
                            share.ranks > 1 ? fmt::format(" to each of the {} ranks that share it", share.ranks) : "",
                            layout.table(), advice));
}

void require_pinned_memory(const memory::Layout& layout, const parallel::World& world) {
  if (kComputesOnHost) return;  // counted by require_memory
  const std::int64_t pinned = world.local_size() * layout.total_bytes(memory::Space::host);
  const std::int64_t available = memory::available_host_bytes();
  if (pinned <= available) return;
  throw Failure(
      Exit::out_of_memory,
      fmt::format("this deck pins {} of the memory of {} for {}, and {} are available there, the limits of its control "
                  "groups included: ask the scheduler for more, use more hosts, or keep more on the GPUs "
                  "(parallel.offload = \"optimizer\" instead of \"parameters\", or \"none\" with parallel.shard = "
                  "\"optimizer\")\n{}",
                  memory::readable_bytes(pinned), world.host(), counted(world.local_size(), "rank"),
                  memory::readable_bytes(available), layout.table()));
}

}  // namespace tessera::jobs
