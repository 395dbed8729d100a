/// Everything a training job knows before it allocates: shapes, parameter table, layout. Arithmetic only, so that
/// --plan can print, without Kokkos or MPI, exactly what any number of ranks will allocate.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "config/settings.hpp"
#include "memory/layout.hpp"
#include "train/arrays.hpp"
#include "train/choices.hpp"
#include "train/update.hpp"

namespace tessera::train {

struct Plan : Basis {
  memory::Layout layout = {};
  memory::TensorId cleared = memory::kAbsent;  // declare_cleared()
  UpdateTensors update = {};
  std::vector<HostTensors> slots = {};  // of steps in progress (pipeline.hpp)
  HostTensors validation = {};          // without scalars
  bool poisons_closed_units = false;    // for tests: ungathered weights are NaN
};

/// Elements of the largest activation that a GEMM writes for a micro-batch.
std::int64_t largest_product(const model::Shape& shape, const BatchPlan& batch,
                             const model::ActivationTensors& tensors);

/// GPU memory that a plan counts for a rank's collectives, besides the arena [bytes].
struct CollectivesBytes {
  std::int64_t receive = 0;  // the copy engines' receive buffer, from the beginning
  std::int64_t nccl = 0;     // NCCL's buffers, from each communicator's first sum on
};
CollectivesBytes collectives_bytes(const config::Parallel& choice, int ranks, const Machine& machine = {});

/// Whether gradient transfers leave sums of squares, so that the norm reads no gradient (Strategy::squares).
bool leaves_squares(const Plan& plan);

/// A checkpoint's tensors on disk: weights and moments, in fp32.
std::int64_t checkpoint_bytes(const Plan& plan);

/// Bytes that the update streams from the host to the device, and back again; 0 without parallel.offload.
std::int64_t offloaded_bytes(const Plan& plan);

/// Bytes of the device slots that it streams through.
std::int64_t slots_bytes(const Plan& plan);

/// Bytes of offloaded weights that a step copies to the device to read them: in its first forward pass, and later.
struct UploadedBytes {
  double first = 0, later = 0;
};
UploadedBytes uploaded_bytes(const Plan& plan);

/// Plans for `ranks` ranks. `dtype` is that of precision.compute, or fp64 in tests.
Plan plan_training(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine = {});

/// What crosses the network in a step.
struct NetworkBytes {
  double gradients = 0;  // summed over the ranks
  double weights = 0;    // gathered on each rank

  // Sent by each rank, which receives as many: the ranks that share a copy reduce-scatter and all-gather; those that
  // hold the same part all-reduce.
  double all_reduce = 0, reduce_scatter = 0, all_gather = 0;
  double sent() const { return all_reduce + reduce_scatter + all_gather; }
};
NetworkBytes network_bytes(const Plan& plan);

/// The line that describes the model.
std::string model_text(const model::Shape& shape, const model::ParamTable& table);

/// The model, the batch, the layout's table, bytes communicated and floating-point operations per step; for a training
/// run also the operations of all steps, and the size of a checkpoint.
std::string describe(const Plan& plan, const config::Settings& settings);

/// Features of this build that decks may require.
config::BuildFeatures this_build();

/// A build for plan.device, with `ranks` divided among hosts by plan.ranks_per_node.
Machine machine_of(const config::PlanSettings& keys, int ranks);

/// This build, with the collectives that the ranks use.
Machine machine_of(parallel::World& world);

/// Plan keys for comparing with a run; unset ones come from the run: plan.device from the GPUs' models, if --plan knows
/// them (cpu if there are none), and plan.ranks_per_node from `ranks_per_host`, 0 on one host.
config::PlanSettings keys_of_run(config::PlanSettings keys, std::span<const std::string> gpu_models,
                                 std::int64_t ranks_per_host);

/// What --plan prints: ranks (parallel.ranks, or else `started`), device (plan.device), and for each set-up of the job
/// (config/job_traits.hpp) its plan, the memory of a rank and of a host, and the time of a step (plan_time.hpp).
///
/// Throws  Failure: Exit::usage for a job.kind that does not train or keys that contradict each other there;
///         Exit::environment, as a run would, if a build for that device cannot run the deck.
std::string plan_text(const config::Settings& settings, int started);

/// What --plan --figures prints, as TOML, one [[plan]] per plan of steps: bytes of a rank's GPU (on CPUs, of its host)
/// by use, bytes of a checkpoint, and seconds of a step or the keys that a prediction lacks. `row`: of an experiment.
/// Throws as plan_text does.
std::string plan_figures(const config::Settings& settings, int started, std::string_view row = {});

/// What --show-config --figures prints: the architecture of this build's GPU code, "" without, and [[gpus]], the table
/// of kernels/core/gpus.hpp.
std::string build_figures();

/// Floating-point operations of one training step over all ranks: 6 per parameter and token (embedding excepted),
/// and 12*L*C*T per token for attention, halved because it is causal. Recomputation is not counted.
double step_flop(const Plan& plan);

}  // namespace tessera::train
