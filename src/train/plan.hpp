/// Everything a training job knows before it allocates: shapes, parameter table, layout. Arithmetic only, so that
/// --plan can print without Kokkos or MPI, and for ranks that are not there exactly what those ranks will allocate.
#pragma once

#include <string>

#include "config/availability.hpp"
#include "config/settings.hpp"
#include "memory/layout.hpp"
#include "model/activations.hpp"
#include "model/params.hpp"
#include "parallel/choice.hpp"
#include "parallel/nccl.hpp"
#include "train/batch_plan.hpp"
#include "train/sharing.hpp"

namespace tessera::train {

model::Shape shape_of(const config::Model& model);
Dtype dtype_of(config::Precision precision);
kernels::AttentionKind kind_of(config::AttentionImplementation implementation);

/// What ranks run on, and in which build; by default this one. A plan may be for another.
struct Machine {
  std::string_view build = "this build";  // as messages name it
  kernels::Target target = kernels::kHere;
  bool has_nccl = parallel::kHasNccl;
  bool is_one_host = true;
};

/// What the deck's [attention] runs for a dtype and a head width. `tuned = true` takes tensor cores, false never does;
/// where it is "auto", `implementation = "auto"` takes the fastest that the build has, and "flash2" the portable one.
/// Throws Failure(Exit::usage), naming what would do, where the build has no such kernel.
kernels::AttentionChoice choose_attention(const config::Attention& attention, Dtype dtype, std::int64_t head_width,
                                          const Machine& machine = {});
parallel::CollectivesOptions collectives_of(const config::Parallel& keys);
kernels::GemmMath math_of(config::Precision precision);
kernels::GemmSelection selection_of(const config::Train& train);
std::string describe(const kernels::AttentionChoice& choice);  // "flash2 (forward wgmma, backward mma)"

/// What the host writes for a step under way, or reads of it, in the layout's host space.
struct HostTensors {
  memory::TensorId inputs, targets;  // [sequences,T] int32
  memory::TensorId scalars;          // optim::StepState, as the step left it, as fp64
};

/// The arrays and scalars of a training step, beside the activations. W elements are those of all units, each padded
/// to equal parts for the ranks that share them, and O elements this rank's parts (parallel/ownership.hpp); where
/// nothing is sharded both are table.flat_count().
struct StateTensors {
  memory::TensorId params;  // [W], or [O] where parameters are sharded: dtype of the activations
  memory::TensorId master;  // [O]  what params lack of the weights that AdamW updates (master_weights.hpp)
  memory::TensorId grads;   // [W], or [O] where gradients are sharded: precision.gradients
  memory::TensorId m, v;    // [O]  fp32
  memory::TensorId wire;    // [W]  bf16: what crosses the network; kAbsent where gradients go as they are
  std::vector<memory::TensorId> gathered;    // [places] of whole units' weights, where parameters are sharded
  std::vector<memory::TensorId> unit_grads;  // [places] of whole units' gradients, where gradients are sharded
  std::vector<memory::TensorId> unit_wires;  // [places] of the same on the network; empty where they go as they are
  // Where the optimizer's state is kept on the host: places on the device for the chunks of m, v and, if it is a tensor
  // of its own, master that are updated. [arrays][kChunkSlots], train/offload.hpp
  std::vector<std::vector<memory::TensorId>> staged;
  memory::TensorId cleared;          // ClearSpan, as int32: gradients that backward adds to
  memory::TensorId adamw_blocks;     // AdamwBlock, as int32
  memory::TensorId norm_partial;     // [blocks] fp64
  memory::TensorId state;            // optim::StepState, as fp64
  memory::TensorId grad_scale;       // one number
  memory::TensorId validation_loss;  // one number
  std::vector<HostTensors> slots;    // of steps under way (pipeline.hpp)
  HostTensors validation;            // without scalars
};

struct Plan {
  model::Shape shape;
  model::ParamTable table;
  BatchPlan batch;
  model::ActivationOptions options;
  memory::Layout layout;
  model::ActivationTensors activations;
  StateTensors state;
  Sharing sharing;
  bool poisons_closed_units = false;  // for tests: weights that are not gathered are NaN
};

/// Bytes of its GPU that a rank's collectives take besides the arena, as a plan counts them.
struct CollectivesBytes {
  std::int64_t receive = 0;  // the copy engines' buffer, from the beginning
  std::int64_t nccl = 0;     // its buffers, from the first sums on, until the program ends
};
CollectivesBytes collectives_bytes(const config::Parallel& choice, int ranks, const Machine& machine = {});

/// Bytes that the update streams from the host to the device, and as many back; 0 without parallel.offload.
std::int64_t offloaded_bytes(const Plan& plan);

/// `dtype` is precision.compute's, or fp64 in tests.
Plan plan_training(const config::Settings& settings, Dtype dtype, int ranks, const Machine& machine = {});

/// What crosses the network in a step.
struct NetworkBytes {
  double gradients = 0;  // summed over the ranks
  double weights = 0;    // gathered on each rank

  // Sent by each rank, which receives as many: among the ranks of a copy, reduce-scatters and all-gathers of what they
  // share; all-reduces among those that hold the same.
  double all_reduce = 0, reduce_scatter = 0, all_gather = 0;
  double sent() const { return all_reduce + reduce_scatter + all_gather; }
};
NetworkBytes network_bytes(const Plan& plan);

/// The model, the batch, the layout's table, bytes communicated and floating-point operations per step; of a training
/// run also those of all steps, and the size of a checkpoint.
std::string describe(const Plan& plan, const config::Settings& settings);

/// What this build has of what decks ask for.
config::BuildFeatures this_build();

/// A build for plan.device, with the hosts that plan.ranks_per_node makes of `ranks`.
Machine machine_of(const config::PlanSettings& keys, int ranks);

/// What --plan prints: for which ranks on which device it plans, and the plan of what trains there (bench.step: one for
/// each of bench.sizes; bench.strategies: one for each of these and each strategy), with the memory of a rank and of a
/// host, and the time of a step (plan_time.hpp). Ranks are those of parallel.ranks, or else the `started` ones; the device
/// is plan.device. A deck that a build for that device cannot run is refused as the run refuses it.
/// Throws Failure: Exit::usage for a job.kind that does not train or keys that contradict each other there,
/// Exit::environment for such a deck.
std::string plan_text(const config::Settings& settings, int started);

/// Floating-point operations of one training step over all ranks: 6 per parameter and token (embedding excepted),
/// and 12*L*C*T per token for attention, halved because it is causal. Recomputation is not counted.
double step_flop(const Plan& plan);

}  // namespace tessera::train
