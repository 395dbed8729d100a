#include "jobs/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "config/keys.hpp"
#include "errors.hpp"
#include "kernels/core/device_info.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/words.hpp"
#include "memory/arena.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::jobs {

namespace {
constexpr bool kComputesOnHost = kernels::kIsHost<kernels::Device>;
}

MemoryShare share_of_memory(parallel::World& world) {
  return {kComputesOnHost ? world.local_size() : world.ranks_on_device(), world.collectives().device_bytes()};
}

std::int64_t free_at_start(parallel::World& world) {
  static const std::int64_t bytes = kernels::device_info().free_bytes + world.collectives().device_bytes();
  return bytes;
}

namespace {

/// Bytes taken of this rank's GPU since the first call, by this rank and any others on it.
std::int64_t taken_since_start(parallel::World& world) {
  const std::int64_t at_start = free_at_start(world);
  return at_start - kernels::device_info().free_bytes;
}

}  // namespace

double taken_bytes(parallel::World& world) {
  if (kComputesOnHost || world.ranks_on_device() > 1) return NAN;
  return static_cast<double>(taken_since_start(world));
}

MemoryShare share_of_plan(parallel::World& world, const config::Settings& settings) {
  const std::int64_t taken = taken_since_start(world);
  MemoryShare share = share_of_memory(world);
  if constexpr (!kComputesOnHost) {
    const train::CollectivesBytes counted =
        train::collectives_bytes(settings.parallel, world.size(), train::machine_of(world));
    share.held = std::max(share.held, std::min(counted.receive + counted.nccl, taken));
  }
  return share;
}

std::int64_t available_bytes(const MemoryShare& share) {
  const std::int64_t untaken =
      kComputesOnHost ? memory::available_host_bytes(share.ranks) : kernels::device_info().free_bytes / share.ranks;
  return untaken + share.held;
}

bool fits(const memory::Layout& layout, const MemoryShare& share) {
  const std::int64_t on_host = kComputesOnHost ? layout.arena_bytes(memory::Space::host) : 0;
  return layout.total_bytes() + on_host <= available_bytes(share);
}

void require_memory(const memory::Layout& layout, const MemoryShare& share, const std::string& advice) {
  if (fits(layout, share)) return;
  if (kComputesOnHost) return memory::require_host_memory(layout, share.ranks, advice);
  throw Failure(Exit::out_of_memory, "this deck needs {} of memory on its {}, but {} are available{}\n{}{}",
                memory::readable_bytes(layout.total_bytes()), kernels::device_info().name,
                memory::readable_bytes(available_bytes(share)),
                share.ranks > 1 ? fmt::format(" to each of the {} ranks that share it", share.ranks) : "",
                layout.table(), advice);
}

namespace {

/// `deck` and variants of it that need less memory: first smaller micro-batches, then recomputed activations.
std::vector<config::Train> smaller_batches(const config::Settings& deck, const train::BatchPlan& batch) {
  std::vector<config::Train> found{deck.train};
  const std::int64_t sequences = batch.sequences_of(0);
  const bool wants_one_micro_step = deck.precision.gradients == config::GradientPrecision::bf16;
  const bool is_any_legal = deck.parallel.allow_uneven;  // then halving suffices; else divisors only
  for (std::int64_t micro = batch.micro_sequences - 1; micro >= 1; is_any_legal ? micro /= 2 : --micro) {
    if (wants_one_micro_step || (sequences % micro != 0 && !is_any_legal)) continue;
    found.push_back(deck.train);
    found.back().micro_batch_size = micro;
  }
  const auto add = [&]<class Value>(Value config::Train::*member, Value value) {
    if (found.back().*member == value) return;
    found.push_back(found.back());
    found.back().*member = value;
  };
  add(&config::Train::checkpoint_activations, std::int64_t{1});
  add(&config::Train::recompute, config::Recompute::all);
  return found;
}

/// Ways to share the state, from `now` to the least memory per rank: first further sharding, then, on GPUs, offload.
std::vector<config::Parallel> leaner_ways(const config::Parallel& now, int ranks, bool have_gpus) {
  using config::Offload;
  using config::Shard;
  std::vector<config::Parallel> found{now};
  const auto add = [&](Shard shard, Offload offload) {
    const config::Parallel& before = found.back();
    if (shard < before.shard || offload < before.offload || (shard == before.shard && offload == before.offload))
      return;
    config::Parallel next = before;
    next.shard = shard;
    next.offload = offload;
    next.offload_slots = config::Parallel{}.offload_slots;  // less state may have fewer chunks
    if (shard != Shard::none) {                             // orders and buckets are refused beside it
      next.gradient_sync = config::Parallel{}.gradient_sync;
      next.bucket_mbyte = config::Parallel{}.bucket_mbyte;
    }
    found.push_back(next);
  };
  for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters}) {
    if (ranks > 1) add(shard, now.offload);
  }
  if (ranks > 1 && now.shard_ranks != 0) {
    found.push_back(found.back());
    found.back().shard_ranks = 0;  // over all of them
  }
  if (have_gpus) add(found.back().shard, Offload::optimizer);
  if (have_gpus) add(Shard::parameters, Offload::parameters);
  return found;
}

}  // namespace

std::string what_would_fit(const train::Plan& plan, const config::Settings& settings,
                           const std::function<bool(const config::Settings&, const memory::Layout&)>& fits,
                           const train::Machine& machine) {
  const std::vector<config::Train> batches = smaller_batches(settings, plan.batch);
  config::Settings leaner = settings;
  std::int64_t least = plan.layout.total_bytes();
  for (const config::Parallel& way : leaner_ways(settings.parallel, plan.batch.ranks, !machine.target.is_host)) {
    leaner.parallel = way;
    for (const config::Train& batch : batches) {
      leaner.train = batch;
      const train::Plan tried = train::plan_training(leaner, plan.options.dtype, plan.batch.ranks, machine);
      if (fits(leaner, tried.layout)) return "\nwhat would fit:" + config::overrides_to(leaner, settings);
      least = tried.layout.total_bytes();
    }
  }
  const bool wants_one_micro_step = settings.precision.gradients == config::GradientPrecision::bf16;
  const std::string keys = config::overrides_to(leaner, settings);
  return fmt::format("\nwhat would fit: nothing:{} needs {}{}", keys.empty() ? " this deck" : keys,
                     memory::readable_bytes(least),
                     wants_one_micro_step ? "; precision.gradients=\"fp32\" allows smaller micro-batches" : "");
}

namespace {

/// The deck if checkpoint.background = "auto" finds no room for its copy.
config::Settings without_copy(config::Settings deck) {
  if (deck.checkpoint.background == config::Background::automatic) deck.checkpoint.background = config::Background::off;
  return deck;
}

bool can_pin(const memory::Layout& layout, const parallel::World& world) {
  return kComputesOnHost ||  // counted by require_memory
         layout.total_bytes(memory::Space::host) <= memory::available_host_bytes(world.local_size());
}

}  // namespace

std::string what_would_fit(const train::Plan& plan, const config::Settings& settings, parallel::World& world) {
  return what_would_fit(
      plan, without_copy(settings),
      [&](const config::Settings& leaner, const memory::Layout& layout) {
        return fits(layout, share_of_plan(world, leaner)) && can_pin(layout, world);
      },
      train::machine_of(world));
}

train::Plan plan_run(const config::Settings& settings, const train::Machine& machine, parallel::World& world,
                     const std::function<bool(const memory::Layout&)>& can_pin, const Note& note) {
  std::optional<train::Plan> plan;
  const auto make = [&](const config::Settings& deck) {
    world.agree([&] {
      plan.emplace(train::plan_training(deck, train::dtype_of(settings.precision.compute), world.size(), machine));
    });
  };
  make(settings);
  const bool may_give_way =
      plan->arrays.copy != memory::kAbsent && settings.checkpoint.background == config::Background::automatic;
  if (may_give_way && world.any(!can_pin(plan->layout))) {
    const std::int64_t bytes = plan->layout[plan->arrays.copy].bytes;
    make(without_copy(settings));
    note(
        fmt::format("note       training waits while checkpoints are written: a host lacks the memory for a copy of {} "
                    "per rank (checkpoint.background)\n",
                    memory::readable_bytes(bytes)));
  }
  return std::move(*plan);
}

train::Plan plan_run(const config::Settings& settings, parallel::World& world, const Note& note) {
  return plan_run(
      settings, train::machine_of(world), world, [&](const memory::Layout& layout) { return can_pin(layout, world); },
      note);
}

void require_pinned_memory(const memory::Layout& layout, int ranks_on_host, double available_bytes,
                           const std::string& host) {
  const double pinned = ranks_on_host * static_cast<double>(layout.total_bytes(memory::Space::host));
  if (pinned <= available_bytes) return;
  throw Failure(Exit::out_of_memory,
                "this deck pins {} of the memory of {} for {}, and {} are available there, the limits of its control "
                "groups included: ask the scheduler for more, use more hosts, or keep more on the GPUs "
                "(checkpoint.background = \"off\", parallel.offload = \"optimizer\" instead of \"parameters\", or "
                "\"none\" with parallel.shard = \"optimizer\")\n{}",
                memory::readable_bytes(pinned), host, counted(ranks_on_host, "rank"),
                memory::readable_bytes(available_bytes), layout.table());
}

void require_pinned_memory(const memory::Layout& layout, const parallel::World& world) {
  if (kComputesOnHost) return;
  const int ranks = world.local_size();
  require_pinned_memory(layout, ranks, ranks * static_cast<double>(memory::available_host_bytes(ranks)), world.host());
}

}  // namespace tessera::jobs
