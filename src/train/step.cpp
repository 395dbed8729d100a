#include "train/step.hpp"  // the contract is there; here is how

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "errors.hpp"
#include "kernels/adamw.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/master_weights.hpp"
#include "kernels/norm2.hpp"
#include "memory/arena.hpp"
#include "model/initial_values.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "parallel/bucket_queue.hpp"
#include "train/graph.hpp"
#include "train/step_hooks.hpp"
#include "train/training_state.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;
using PinnedInts = Kokkos::View<int*, kernels::PinnedSpace>;

kernels::GemmSelection selection_of(const config::Train& train) {
  return train.tune_gemm ? kernels::GemmSelection::timed : kernels::GemmSelection::heuristic;
}

template <class Scalar, class Grad = Accum<Scalar>>
class TrainerOf final : public Trainer {
 public:
  using Real = Accum<Scalar>;
  using Weights = typename TrainingState<Exec, Scalar>::Weights;

  TrainerOf(const Plan& plan, const config::Settings& settings, parallel::World& world)
      : plan_(plan),
        settings_(settings),
        world_(world),
        arena_(plan.layout),
        params_(arena_.data<Scalar>(plan.state.params)),
        grads_(arena_.data<Grad>(plan.state.grads)),
        kept_(plan.table, {.working = flat(params_), .master = flat(master_array())},
              flat(arena_.data<Real>(plan.state.m)), flat(arena_.data<Real>(plan.state.v))),
        state_(reinterpret_cast<optim::StepState*>(arena_.data<double>(plan.state.state))),
        grad_scale_(arena_.data<Real>(plan.state.grad_scale)),
        validation_loss_(arena_.data<double>(plan.state.validation_loss)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena_, params_, grads_),
        row_(plan.shape.T + 1),
        validation_tokens_(plan, 1) {
    for (int i = 0; i < kMostStarted; ++i) slots_.push_back(std::make_unique<Slot>(plan));
    const std::vector<kernels::AdamwBlock> blocks = adamw_blocks(plan.table);
    upload_list(blocks, plan.state.adamw_blocks, blocks_);
    for (const model::Param& param : plan.table.params()) {
      const auto begins = [](const kernels::AdamwBlock& block, std::int64_t first) { return block.first < first; };
      const auto first = std::lower_bound(blocks.begin(), blocks.end(), param.first, begins);
      const auto last = std::lower_bound(first, blocks.end(), param.first + param.count, begins);
      blocks_of_tensors_.emplace_back(first - blocks.begin(), last - blocks.begin());
    }
    upload_list(model::clear_list(plan.table), plan.state.cleared, cleared_);
    clear_gradients();  // the padding between tensors stays so
    exec_.fence();
    set_scalars({.loss_scale = kDtype<Scalar> == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
    queue_.emplace(world.collectives(), exec_, gradient_spans(), bucket_bytes(), wire());
    hooks_.emplace(plan.layout, model::Timeline{plan.shape.units()}.update(), *queue_, plan.table.units());
  }

  /// What is under way ends first: it uses the memory that goes.
  ~TrainerOf() override { exec_.fence(); }

  void connect() override { queue_->connect(); }

  void disconnect() override {
    exec_.fence();
    for (const auto& slot : slots_) slot->graph = StepGraph();  // it holds the sums, too
    hooks_.reset();
    queue_.reset();
  }

  void initialize(std::uint64_t seed) override {
    kept_.clear(exec_);
    const Weights& weights = kept_.weights();
    if (world_.rank() == 0) {  // the others get theirs from rank 0
      for (const model::Param& param : plan_.table.params()) {
        model::InitializeParam<Exec, Scalar>{weights, param.first, param.count, model::InitialValues(seed, param)}
            .launch(exec_);
      }
    }
    exec_.fence();
    world_.collectives().broadcast({"params", params_, flat_count(), kDtype<Scalar>});
    if (!Weights::kAreOne) {
      world_.collectives().broadcast(
          {"optimizer.master", weights.master.data(), flat_count(), kDtype<kernels::MasterWord<Scalar>>});
    }
  }

  void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch) override {
    if (!queue_ || !queue_->is_connected()) throw std::logic_error("trainer: connect it before the first step");
    if (started_ - collected_ == kMostStarted)
      throw std::logic_error("trainer: collect a step before starting another");
    Slot& slot = *slots_[started_ % kMostStarted];
    slot.follows = started_ > collected_;
    if (!slot.follows) times_.mark(exec_, start_of(started_));
    const BatchPlan& batch = plan_.batch;
    std::int64_t sample = first_sample + batch.first_sample(world_.rank());
    const std::int64_t sequences = batch.sequences_of(world_.rank());
    fill(slot.tokens, static_cast<int>(sequences), [&](int i) { sampler.fill(sample + i, row_); });

    slot.is_by_launch = launch_by_launch || !settings_.train.graph || !slot.has_run;
    if (slot.is_by_launch) {
      enqueue(slot);
    } else {
      if (!slot.graph.is_recorded()) slot.graph.record(exec_, [&] { enqueue(slot); });
      slot.graph.launch(exec_);
    }
    times_.mark(exec_, end_of(started_));  // behind the graph: a mark inside may still show the replay before
    slot.has_run = true;
    ++started_;
  }

  StepNumbers collect() override {
    if (started_ == collected_) throw std::logic_error("trainer: no step was started");
    Slot& slot = *slots_[collected_ % kMostStarted];
    wait_for_end_of(collected_);
    const double step_s =
        times_.seconds(slot.follows ? end_of(collected_ - 1) : start_of(collected_), end_of(collected_));
    ++collected_;
    if (started_ == collected_ && slot.is_by_launch && world_.size() > 1) queue_->collect();

    StepNumbers n;
    const optim::StepState& s = slot.state();
    n.loss_sum = s.loss_sum;
    n.grad_norm = s.grad_norm;
    n.learning_rate = s.adamw.learning_rate;
    n.loss_scale = s.loss_scale;
    n.was_skipped = s.adamw.skip != 0;
    const int last = plan_.batch.micro_steps - 1;
    for (int micro = 0; micro <= last; ++micro) {
      n.forward_s += slot.marks.seconds(slot.forward(micro), slot.backward(micro));
      n.backward_s += slot.marks.seconds(slot.backward(micro), slot.forward(micro + 1));
    }
    n.exposed_comm_s = slot.marks.seconds(slot.forward(last + 1), slot.reduced());
    n.optimizer_s = slot.marks.seconds(slot.begin(), slot.forward(0)) + slot.marks.seconds(slot.reduced(), slot.end());
    n.total_s = slot.marks.seconds(slot.begin(), slot.end());
    n.step_s = step_s;
    return n;
  }

  int started() const override { return static_cast<int>(started_ - collected_); }

  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override {
    const std::int64_t share = kernels::ceil_div(windows, world_.size());
    const std::int64_t first = std::min(windows, share * world_.rank()), last = std::min(windows, first + share);
    model::Hooks silent;
    const kernels::Value<double, Exec> loss(validation_loss_);
    Kokkos::deep_copy(exec_, loss, 0.0);
    for (std::int64_t window = first; window < last;) {
      const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
      exec_.fence();             // the tokens before have been copied
      phase("validation", [&] {  // tells the watchdog, too, that there is progress
        fill(validation_tokens_, sequences, [&](int i) { sampler.fill_validation(window + i, row_); });
        load(validation_tokens_, 0, sequences);
        transformer_.forward(exec_, silent);
        transformer_.head(exec_, loss, kernels::Value<const Real, Exec>(grad_scale_), false, silent);
      });
      window += sequences;
    }
    double loss_sum = 0;
    Kokkos::deep_copy(exec_, Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&loss_sum), loss);
    exec_.fence();
    return {loss_sum, static_cast<double>((last - first) * plan_.shape.T)};
  }

  std::vector<SavedTensor> saved_state(bool mine_only) override {
    return kept_.saved(
        [&](std::size_t number) { return !mine_only || static_cast<int>(number % world_.size()) == world_.rank(); });
  }

  void load_state(const std::function<void(const StateTensor&)>& visit) override {
    kept_.clear(exec_);
    kept_.load(visit);
  }

  StateScalars scalars() override {
    const optim::StepState s = read_state();
    return {s.step, s.optimizer_steps, s.good_steps, s.loss_scale};
  }

  void set_scalars(const StateScalars& scalars) override {
    optim::StepState s{};
    s.step = scalars.step;
    s.optimizer_steps = scalars.optimizer_steps;
    s.good_steps = scalars.good_steps;
    s.loss_scale = scalars.loss_scale;
    Kokkos::deep_copy(state_view(), Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s));
  }

  /// Its products are of other shapes than training's, and met too seldom to be timed, for which the plan has no memory
  /// beside the text's.
  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) override {
    struct Untimed {
      explicit Untimed(const config::Train& train) : train(train) {
        kernels::set_gemm_selection(kernels::GemmSelection::heuristic);
      }
      ~Untimed() { kernels::set_gemm_selection(selection_of(train)); }
      const config::Train& train;
    };
    const Untimed products(settings_.train);
    return model::generate<Exec, Scalar>(exec_, plan_.shape, plan_.table, params_,
                                         {plan_.options.attention, plan_.options.math}, prompt, options);
  }

  std::uint64_t weights_fingerprint() override { return kept_.fingerprint(); }

 private:
  /// Token ids on their way to the device.
  struct Tokens {
    Tokens(const Plan& plan, int micro_steps)
        : inputs("tessera::train::inputs", micro_steps * plan.batch.micro_sequences * plan.shape.T),
          targets("tessera::train::targets", micro_steps * plan.batch.micro_sequences * plan.shape.T) {}
    PinnedInts inputs, targets;  // [sequences, T]
  };

  /// What the host touches of a step under way. Time marks: begin, then forward and backward of every micro-step (the
  /// forward mark behind the last one ends its backward pass), reduced, end.
  struct Slot {
    explicit Slot(const Plan& plan)
        : micro_steps(plan.batch.micro_steps),
          tokens(plan, micro_steps),
          state("tessera::train::state"),
          marks(2 * micro_steps + 4) {}
    int begin() const { return 0; }
    int forward(int micro) const { return 1 + 2 * micro; }
    int backward(int micro) const { return 2 + 2 * micro; }
    int reduced() const { return 2 + 2 * micro_steps; }
    int end() const { return 3 + 2 * micro_steps; }

    int micro_steps;
    Tokens tokens;
    Kokkos::View<optim::StepState, kernels::PinnedSpace> state;  // as the step left it
    kernels::StreamTimer<Exec> marks;                            // part of the graph: valid once the step is done
    StepGraph graph;
    bool has_run = false, is_by_launch = true;
    bool follows = false;  // was started before the step before it was collected
  };

  /// Every launch of a step, in order. Nothing here waits, asks the device or allocates, so it can be recorded.
  void enqueue(Slot& slot) {
    const BatchPlan& batch = plan_.batch;
    const double tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);
    const bool has_peers = world_.size() > 1;
    hooks_->begin_step();
    slot.marks.mark(exec_, slot.begin());
    phase("begin", [&] {
      kernels::ClearSpans<Exec, Grad>{cleared_, flat(grads_)}.launch(exec_);
      optim::BeginStep<Exec, Real>{state_view(), kernels::Value<Real, Exec>(grad_scale_), tokens}.launch(exec_);
    });
    for (int micro = 0, first = 0; micro < batch.micro_steps; ++micro) {
      const bool reduces = has_peers && micro + 1 == batch.micro_steps;
      if (reduces) queue_->begin();
      hooks_->begin_micro_step(reduces);
      const int sequences = batch.sequences_of(world_.rank(), micro);
      slot.marks.mark(exec_, slot.forward(micro));
      if (sequences == 0) {
        if (micro == 0) clear_gradients();
        hooks_->nothing_to_do();
        slot.marks.mark(exec_, slot.backward(micro));
        continue;
      }
      transformer_.accumulate(micro > 0);
      phase("forward", [&] {
        load(slot.tokens, first, sequences);
        transformer_.forward(exec_, *hooks_);
      });
      slot.marks.mark(exec_, slot.backward(micro));
      hooks_->set_phase("backward");
      phase("backward", [&] {
        transformer_.head(exec_, loss_of(state_), kernels::Value<const Real, Exec>(grad_scale_), true, *hooks_);
        transformer_.backward(exec_, *hooks_);
      });
      first += sequences;
    }
    slot.marks.mark(exec_, slot.forward(batch.micro_steps));
    phase("reduce", [&] { queue_->finish(); });
    slot.marks.mark(exec_, slot.reduced());
    hooks_->set_phase("optimizer");
    hooks_->tick(model::Timeline{plan_.shape.units()}.update());
    phase("optimizer", [&] { update(); });
    Kokkos::deep_copy(exec_, slot.state, state_view());
    slot.marks.mark(exec_, slot.end());
    hooks_->end_step();
  }

  /// Reports a phase as a region by the host's clock: what it says of a device is when the phase was enqueued, unless
  /// every kernel is fenced, as in profiled steps.
  template <class Work>
  static void phase(const char* label, const Work& work) {
    const double start_s = events::now_s();
    work();
    events::report(events::Region{label, "compute", start_s, events::now_s()});
  }

  /// Marks in times_, for as many steps as may be started and not collected, and the one before them.
  static constexpr int kTimed = kMostStarted + 1;
  static int start_of(std::int64_t step) { return static_cast<int>(step % kTimed); }
  static int end_of(std::int64_t step) { return kTimed + start_of(step); }

  /// Until that step has ended; says so instead when another rank is lost.
  void wait_for_end_of(std::int64_t step) {
    for (int polls = 0; !times_.has_passed(end_of(step)); ++polls) {
      if (polls % 1024 != 0 || world_.size() == 1) continue;
      if (const std::string fault = world_.collectives().fault(); !fault.empty()) throw Failure(Exit::hang, fault);
    }
  }

  kernels::MasterWord<Scalar>* master_array() const {
    if constexpr (Weights::kAreOne) {
      return params_;
    } else {
      return arena_.template data<kernels::MasterWord<Scalar>>(plan_.state.master);
    }
  }

  void clear_gradients() { clear_bytes(exec_, flat(grads_)); }

  std::int64_t flat_count() const { return plan_.table.flat_count(); }
  template <class Number>
  kernels::Vector<Number, Exec> flat(Number* data) const {
    return kernels::Vector<Number, Exec>(data, flat_count());
  }
  optim::StateView<Exec> state_view() const { return optim::StateView<Exec>(state_); }
  static kernels::Value<double, Exec> loss_of(optim::StepState* state) {
    return kernels::Value<double, Exec>(&state->loss_sum);
  }
  parallel::Span wire() const {
    if (plan_.state.wire == memory::kAbsent) return {};
    return {"grads.wire", arena_.template data<bfloat16>(plan_.state.wire), flat_count(), Dtype::bf16};
  }
  std::int64_t bucket_bytes() const { return static_cast<std::int64_t>(settings_.parallel.bucket_mbyte * 1e6); }

  /// What is reduced: one span per unit, in the order in which backward finishes them; nothing without other ranks.
  std::vector<parallel::Span> gradient_spans() const {
    std::vector<parallel::Span> spans;
    if (world_.size() == 1) return spans;
    const auto& units = plan_.table.units();
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      spans.push_back({"grad." + unit->label, grads_ + unit->first, unit->count, kDtype<Grad>});
    }
    return spans;
  }

  /// A list of small structs at its place in the arena, which knows it as integers.
  template <class Item>
  void upload_list(const std::vector<Item>& items, memory::TensorId id, kernels::Vector<const Item, Exec>& on_device) {
    const kernels::Vector<Item, Exec> target(reinterpret_cast<Item*>(arena_.template data<std::int32_t>(id)),
                                             items.size());
    upload(items, target);
    on_device = target;
  }

  /// Fills rows 0..sequences-1: input ids 0..T-1 and target ids 1..T of each row that `next_row` puts into row_.
  template <class NextRow>
  void fill(const Tokens& tokens, int sequences, const NextRow& next_row) {
    const std::int64_t T = plan_.shape.T;
    for (int i = 0; i < sequences; ++i) {
      next_row(i);
      std::copy(row_.begin(), row_.end() - 1, tokens.inputs.data() + i * T);
      std::copy(row_.begin() + 1, row_.end(), tokens.targets.data() + i * T);
    }
  }

  /// Makes rows first..first+sequences-1 the model's micro-batch.
  void load(const Tokens& tokens, int first, int sequences) {
    const std::int64_t T = plan_.shape.T;
    transformer_.set_batch(sequences, static_cast<int>(T));
    const Kokkos::pair<std::int64_t, std::int64_t> used(first * T, (first + sequences) * T);
    Kokkos::deep_copy(exec_, transformer_.inputs(), Kokkos::subview(tokens.inputs, used));
    Kokkos::deep_copy(exec_, transformer_.targets(), Kokkos::subview(tokens.targets, used));
  }

  void update() {
    const config::Optimizer& o = settings_.optimizer;
    const auto blocks = static_cast<std::int64_t>(kernels::SquareNorm<Exec, Grad>::blocks(flat_count()));
    kernels::SquareNorm<Exec, Grad>{
        .x = flat(static_cast<const Grad*>(grads_)),
        .partial = kernels::Vector<double, Exec>(arena_.template data<double>(plan_.state.norm_partial), blocks),
        .total = kernels::Value<double, Exec>(&state_->norm_squared)}
        .launch(exec_);
    optim::PrepareUpdate<Exec>{.state = state_view(),
                               .schedule = {.peak = o.learning_rate,
                                            .minimum = o.min_learning_rate,
                                            .warmup_steps = o.warmup_steps,
                                            .steps = settings_.train.steps},
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .clip_norm = o.clip_norm,
                               .scales_dynamically = kDtype<Scalar> == Dtype::fp16}
        .launch(exec_);
    if (settings_.train.fused) return adamw(blocks_);
    for (const auto& [first, last] : blocks_of_tensors_)
      adamw(Kokkos::subview(blocks_, Kokkos::make_pair(first, last)));
  }

  void adamw(kernels::Vector<const kernels::AdamwBlock, Exec> blocks) {
    const config::Optimizer& o = settings_.optimizer;
    kernels::AdamwUpdate<Exec, Scalar, Grad>{
        .blocks = blocks,
        .master = kept_.weights().master,
        .param = Weights::kAreOne ? kernels::Vector<Scalar, Exec>{} : kept_.weights().working,
        .grad = flat(static_cast<const Grad*>(grads_)),
        .m = kept_.m(),
        .v = kept_.v(),
        .scalars = kernels::Value<const kernels::AdamwScalars, Exec>(&state_->adamw),
        .beta1 = static_cast<Real>(o.beta1),
        .beta2 = static_cast<Real>(o.beta2),
        .eps = static_cast<Real>(o.eps),
        .weight_decay = static_cast<Real>(o.weight_decay)}
        .launch(exec_);
  }

  optim::StepState read_state() {
    optim::StepState s;
    Kokkos::deep_copy(exec_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s), state_view());
    exec_.fence();
    return s;
  }

  const Plan& plan_;
  const config::Settings& settings_;
  parallel::World& world_;
  Exec exec_;
  memory::Arena<Exec> arena_;
  Scalar* params_;
  Grad* grads_;
  TrainingState<Exec, Scalar> kept_;
  optim::StepState* state_;
  Real* grad_scale_;
  double* validation_loss_;
  kernels::Vector<const kernels::AdamwBlock, Exec> blocks_;
  std::vector<std::pair<std::size_t, std::size_t>> blocks_of_tensors_;  // in blocks_
  kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Exec, Scalar, Grad> transformer_;
  std::optional<parallel::BucketQueue> queue_;  // until disconnect(), as the hooks
  std::optional<StepHooks> hooks_;
  std::vector<std::int32_t> row_;  // [T+1] one sequence on its way to the device
  Tokens validation_tokens_;
  std::vector<std::unique_ptr<Slot>> slots_;  // taken in turns
  kernels::StreamTimer<Exec> times_{2 * kTimed};
  std::int64_t started_ = 0, collected_ = 0;
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const Plan& plan, const config::Settings& settings, parallel::World& world) {
  kernels::set_gemm_selection(selection_of(settings.train));
  switch (plan.options.dtype) {
    case Dtype::fp64: return std::make_unique<TrainerOf<double>>(plan, settings, world);
    case Dtype::bf16:
      if (plan.options.has_narrow_gradients) {
        return std::make_unique<TrainerOf<bfloat16, bfloat16>>(plan, settings, world);
      }
      return std::make_unique<TrainerOf<bfloat16>>(plan, settings, world);
    case Dtype::fp16: return std::make_unique<TrainerOf<float16>>(plan, settings, world);
    default: return std::make_unique<TrainerOf<float>>(plan, settings, world);
  }
}

}  // namespace tessera::train
