#include "jobs/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

std::int64_t free_now(parallel::World& world) {
  return kernels::device_info<kernels::Device>().free_bytes + world.collectives().device_bytes();
}

std::int64_t free_at_start(parallel::World& world) {
  static const std::int64_t bytes = free_now(world);
  return bytes;
}

double taken_bytes(parallel::World& world) {
  if (kComputesOnHost || world.ranks_on_device() > 1) return NAN;
  return static_cast<double>(free_at_start(world) - kernels::device_info<kernels::Device>().free_bytes);
}

MemoryShare share_of_plan(parallel::World& world, const config::Settings& settings) {
  const std::int64_t at_start = free_at_start(world);
  MemoryShare share = share_of_memory(world);
  if constexpr (!kComputesOnHost) {
    const train::CollectivesBytes counted = train::collectives_bytes(settings.parallel, world.size());
    const std::int64_t taken = at_start - kernels::device_info<kernels::Device>().free_bytes;
    share.held = std::max(share.held, std::min(counted.receive + counted.nccl, taken));
  }
  return share;
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

std::string what_would_fit(const train::Plan& plan, const config::Settings& settings, int ranks,
                           const MemoryShare& share) {
  const std::string text = "\nwhat would fit:";
  config::Settings smaller = settings;
  const std::int64_t sequences = plan.batch.sequences_of(0);
  const bool wants_one_micro_step = settings.precision.gradients == config::GradientPrecision::bf16;
  const bool is_any_legal = settings.parallel.allow_uneven;  // then halving suffices; else divisors only
  for (std::int64_t micro = plan.batch.micro_sequences - 1; micro >= 1; is_any_legal ? micro /= 2 : --micro) {
    if (wants_one_micro_step || (sequences % micro != 0 && !is_any_legal)) continue;
    smaller.train.micro_batch_size = micro;
    if (fits(train::plan_training(smaller, plan.options.dtype, ranks).layout, share)) {
      return text + fmt::format(" train.micro_batch_size={}", micro);
    }
  }
  smaller.train.micro_batch_size = wants_one_micro_step ? settings.train.micro_batch_size : 1;
  smaller.train.checkpoint_activations = 1;
  const train::Plan least = train::plan_training(smaller, plan.options.dtype, ranks);
  const char* micro = wants_one_micro_step ? "" : " train.micro_batch_size=1";
  if (fits(least.layout, share)) return text + micro + " train.checkpoint_activations=1";
  return text + fmt::format(" nothing:{} train.checkpoint_activations=1 needs {}{}", micro,
                            memory::readable_bytes(least.layout.total_bytes()),
                            wants_one_micro_step ? "; precision.gradients=\"fp32\" allows smaller micro-batches" : "");
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
