#include "lab/step_rows.hpp"  // the contract is there; here is how

#include <fmt/format.h>

#include <cstdio>  // stderr

#include "lab/bench.hpp"
#include "jobs/open_corpus.hpp"
#include "jobs/memory.hpp"
#include "jobs/stop.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;

}  // namespace

StepRows::StepRows(const Context& context) : world_(context.world), console_(console_style(context), 1, stderr) {
  const auto watch = world_.watch("the start of the benchmark");
  if constexpr (kernels::kIsHost<Exec>) world_.agree(require_fast_blas);
  free_at_start(world_);  // noted, before a row takes memory; an experiment has, before its first
}

void StepRows::prepare(const config::Settings& settings, const std::function<void(const train::Plan&)>& planned,
                       StepRow& row) {
  const auto watch = world_.watch("the set-up of a row", parallel::kPatience);
  world_.agree([&] {
    row.plan.emplace(train::plan_training(settings, train::dtype_of(settings.precision.compute), world_.size(),
                                          train::machine_of(world_)));
    planned(*row.plan);
    require_memory(row.plan->layout, share_of_plan(world_, settings), "\nsmaller batches or models need less");
    require_pinned_memory(row.plan->layout, world_);
  });
  open_data(settings, row);
  world_.agree([&] { row.trainer = std::make_unique<train::Trainer>(*row.plan, settings, world_); });
  world_.agree([&] { row.trainer->connect(); });
  world_.agree([&] { row.trainer->initialize(settings.job.seed); });
}

void StepRows::prepare_forward(const config::Settings& settings,
                               const std::function<void(const train::ForwardPlan&)>& planned, StepRow& row) {
  const auto watch = world_.watch("the set-up of a row", parallel::kPatience);
  world_.agree([&] {
    row.forward_plan.emplace(train::plan_forward(settings, train::dtype_of(settings.precision.compute), world_.size(),
                                                 train::machine_of(world_)));
    planned(*row.forward_plan);
    // not share_of_plan: forward passes sum nothing, so their plan has none of NCCL's buffers that earlier rows have
    // left
    require_memory(row.forward_plan->layout, share_of_memory(world_), "\nsmaller batches or models need less");
  });
  open_data(settings, row);
  world_.agree([&] {
    if (const std::int64_t windows = row.sampler->validation_windows(); windows < settings.train.batch_size) {
      throw Failure(
          Exit::usage,
          fmt::format("bench.phase = \"forward\" reads train.batch_size = {} validation windows, and there are "
                      "{}: raise data.validation_fraction, or take a longer text",
                      settings.train.batch_size, windows));
    }
    row.forward = train::make_forward(*row.forward_plan, settings, world_, settings.job.seed);
  });
}

void StepRows::open_data(const config::Settings& settings, StepRow& row) {
  row.corpus.emplace(open_corpus(world_, settings, arrived_signal, console_));
  world_.agree([&] {
    row.sampler.emplace(*row.corpus, settings.model.context_length, settings.data.validation_fraction,
                        settings.job.seed);
  });
}

void StepRows::run(const std::function<void(StepRow&)>& measure) {
  std::optional<parallel::AgreedError> failure;
  {
    StepRow row;
    try {
      measure(row);
    } catch (const std::exception& caught) {
      const auto* all = dynamic_cast<const parallel::AgreedError*>(&caught);
      if (all == nullptr || static_cast<Exit>(all->exit_code()) != Exit::out_of_memory) {
        world_.leave(caught);
        if (row.trainer) row.trainer->keep_memory();
        throw;
      }
      failure = *all;
    }
    const auto watch = world_.watch("the end of the steps");
    if (row.trainer) row.trainer->disconnect();
    world_.barrier();
  }
  // whoever reads the free memory next does so after every rank has released its own
  const auto watch = world_.watch("the exchange after the steps");
  world_.barrier();
  if (failure) throw parallel::AgreedError(*failure);
}

double StepRows::taken_bytes() const { return jobs::taken_bytes(world_); }

}  // namespace tessera::lab
