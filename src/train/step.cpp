#include "train/step.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "errors.hpp"
#include "kernels/adamw.hpp"
#include "kernels/clear_spans.hpp"
#include "kernels/core/cast_copy.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/norm2.hpp"
#include "memory/arena.hpp"
#include "model/initial_values.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "parallel/bucket_queue.hpp"
#include "train/graph.hpp"
#include "train/step_hooks.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;
using PinnedInts = Kokkos::View<int*, kernels::PinnedSpace>;

template <class Scalar>
class TrainerOf final : public Trainer {
 public:
  using Real = Accum<Scalar>;

  TrainerOf(const Plan& plan, const config::Settings& settings, parallel::World& world)
      : plan_(plan),
        settings_(settings),
        world_(world),
        arena_(plan.layout),
        params_(arena_.data<Scalar>(plan.state.params)),
        master_(master_array()),
        grads_(arena_.data<Real>(plan.state.grads)),
        m_(arena_.data<Real>(plan.state.m)),
        v_(arena_.data<Real>(plan.state.v)),
        state_(reinterpret_cast<optim::StepState*>(arena_.data<double>(plan.state.state))),
        grad_scale_(arena_.data<Real>(plan.state.grad_scale)),
        validation_loss_(arena_.data<double>(plan.state.validation_loss)),
        transformer_(plan.shape, plan.table, plan.activations, plan.options, arena_, params_, grads_),
        queue_(world.collectives(), exec_, gradient_spans(), bucket_bytes(), wire()),
        hooks_(plan.layout, model::Timeline{plan.shape.units()}.update(), queue_, plan.table.units()),
        row_(plan.shape.T + 1),
        validation_tokens_(plan, 1) {
    for (int i = 0; i < kMostStarted; ++i) slots_.push_back(std::make_unique<Slot>(plan));
    upload_list(adamw_blocks(plan.table), plan.state.adamw_blocks, blocks_);
    upload_list(model::Transformer<Exec, Scalar>::clear_list(plan.table), plan.state.cleared, cleared_);
    Kokkos::deep_copy(exec_, flat(grads_), Real(0));  // the padding between tensors stays so
    exec_.fence();
    set_scalars({.loss_scale = kDtype<Scalar> == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
  }

  void initialize(std::uint64_t seed) override {
    Kokkos::deep_copy(exec_, flat(master_), Real(0));
    if (world_.rank() == 0) {  // the others get theirs from rank 0
      for (const model::Param& param : plan_.table.params()) {
        model::InitializeParam<Exec, Real>{kernels::Vector<Real, Exec>(master_ + param.first, param.count),
                                           model::InitialValues(seed, param)}
            .launch(exec_);
      }
    }
    Kokkos::deep_copy(exec_, flat(m_), Real(0));
    Kokkos::deep_copy(exec_, flat(v_), Real(0));
    exec_.fence();
    world_.collectives().broadcast({"params", master_, flat_count(), kDtype<Real>});
    refresh_working_copy();
  }

  void start(std::int64_t first_sample, const data::Sampler& sampler, bool launch_by_launch) override {
    if (started_ - collected_ == kMostStarted) throw std::logic_error("trainer: collect a step before starting another");
    Slot& slot = *slots_[started_ % kMostStarted];
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
    slot.has_run = true;
    ++started_;
  }

  StepNumbers collect() override {
    if (started_ == collected_) throw std::logic_error("trainer: no step was started");
    Slot& slot = *slots_[collected_ % kMostStarted];
    wait_for(slot);
    ++collected_;
    if (started_ == collected_ && slot.is_by_launch && world_.size() > 1) queue_.collect();

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
    return n;
  }

  int started() const override { return static_cast<int>(started_ - collected_); }

  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override {
    const std::int64_t share = (windows + world_.size() - 1) / world_.size();
    const std::int64_t first = std::min(windows, share * world_.rank()), last = std::min(windows, first + share);
    model::Hooks silent;
    const kernels::Value<double, Exec> loss(validation_loss_);
    Kokkos::deep_copy(exec_, loss, 0.0);
    for (std::int64_t window = first; window < last;) {
      const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
      exec_.fence();  // the tokens before have been copied
      fill(validation_tokens_, sequences, [&](int i) { sampler.fill_validation(window + i, row_); });
      load(validation_tokens_, 0, sequences);
      transformer_.forward(exec_, silent);
      transformer_.head(exec_, loss, kernels::Value<const Real, Exec>(grad_scale_), false, silent);
      window += sequences;
    }
    double loss_sum = 0;
    Kokkos::deep_copy(exec_, Kokkos::View<double, Kokkos::HostSpace, kernels::Unmanaged>(&loss_sum), loss);
    exec_.fence();
    return {loss_sum, static_cast<double>((last - first) * plan_.shape.T)};
  }

  void save_state(bool mine_only, const std::function<void(const StateTensor&)>& visit) override {
    saved_.clear();
    std::size_t index = 0;
    for_each_state_tensor([&](const char* group, const model::Param& param, Real* data) {
      if (mine_only && static_cast<int>(index++ % world_.size()) != world_.rank()) return;
      if constexpr (std::is_same_v<Real, float> && kernels::kIsHost<Exec>) {
        visit({group, &param, {data + param.first, static_cast<std::size_t>(param.count)}});
      } else {
        const auto host = Kokkos::create_mirror_view_and_copy(
            Kokkos::HostSpace(), kernels::Vector<Real, Exec>(data + param.first, param.count));
        saved_.emplace_back(host.data(), host.data() + param.count);
        visit({group, &param, saved_.back()});
      }
    });
  }

  void load_state(const std::function<void(const StateTensor&)>& visit) override {
    for (Real* array : {master_, m_, v_}) Kokkos::deep_copy(flat(array), Real(0));  // the padding
    std::vector<float> buffer;
    for_each_state_tensor([&](const char* group, const model::Param& param, Real* data) {
      buffer.resize(param.count);
      visit({group, &param, buffer});
      upload(param, std::vector<Real>(buffer.begin(), buffer.end()), data);
    });
    refresh_working_copy();
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

  std::vector<int> generate(const std::vector<int>& prompt, const model::GenerateOptions& options) override {
    return model::generate<Exec, Scalar>(exec_, plan_.shape, plan_.table, params_, plan_.options.attention, prompt,
                                         options);
  }

  std::uint64_t weights_fingerprint() override {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flat(master_));
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the words
    for (std::size_t i = 0; i < host.extent(0); ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, &host(i), sizeof(Real));
      hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
  }

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
    kernels::StreamTimer<Exec> marks;
    StepGraph graph;
    bool has_run = false, is_by_launch = true;
  };

  /// Every launch of a step, in order. Nothing here waits, asks the device or allocates, so it can be recorded.
  void enqueue(Slot& slot) {
    const BatchPlan& batch = plan_.batch;
    const double tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);
    const bool has_peers = world_.size() > 1;
    hooks_.begin_step();
    slot.marks.mark(exec_, slot.begin());
    phase("begin", [&] {
      kernels::ClearSpans<Exec, Real>{cleared_, flat(grads_)}.launch(exec_);
      optim::BeginStep<Exec, Real>{state_view(), kernels::Value<Real, Exec>(grad_scale_), tokens}.launch(exec_);
    });
    for (int micro = 0, first = 0; micro < batch.micro_steps; ++micro) {
      const bool reduces = has_peers && micro + 1 == batch.micro_steps;
      if (reduces) queue_.begin();
      hooks_.begin_micro_step(reduces);
      const int sequences = batch.sequences_of(world_.rank(), micro);
      slot.marks.mark(exec_, slot.forward(micro));
      if (sequences == 0) {
        if (micro == 0) Kokkos::deep_copy(exec_, flat(grads_), Real(0));
        hooks_.nothing_to_do();
        slot.marks.mark(exec_, slot.backward(micro));
        continue;
      }
      transformer_.accumulate(micro > 0);
      phase("forward", [&] {
        load(slot.tokens, first, sequences);
        transformer_.forward(exec_, hooks_);
      });
      slot.marks.mark(exec_, slot.backward(micro));
      hooks_.set_phase("backward");
      phase("backward", [&] {
        transformer_.head(exec_, loss_of(state_), kernels::Value<const Real, Exec>(grad_scale_), true, hooks_);
        transformer_.backward(exec_, hooks_);
      });
      first += sequences;
    }
    slot.marks.mark(exec_, slot.forward(batch.micro_steps));
    phase("reduce", [&] { queue_.finish(); });
    slot.marks.mark(exec_, slot.reduced());
    hooks_.set_phase("optimizer");
    phase("optimizer", [&] { update(); });
    Kokkos::deep_copy(exec_, slot.state, state_view());
    slot.marks.mark(exec_, slot.end());
    hooks_.end_step();
  }

  /// Reports a phase as a region by the host's clock: what it says of a device is when the phase was enqueued, unless
  /// every kernel is fenced, as in profiled steps.
  template <class Work>
  static void phase(const char* label, const Work& work) {
    const double start_s = events::now_s();
    work();
    events::report(events::Region{label, "compute", start_s, events::now_s()});
  }

  /// Until the step in `slot` has ended; says so instead when another rank is lost.
  void wait_for(const Slot& slot) {
    for (int polls = 0; !slot.marks.has_passed(slot.end()); ++polls) {
      if (polls % 1024 != 0 || world_.size() == 1) continue;
      if (const std::string fault = world_.collectives().fault(); !fault.empty()) throw Failure(Exit::hang, fault);
    }
  }

  Real* master_array() const {
    if constexpr (std::is_same_v<Real, Scalar>) {
      return params_;
    } else {
      return arena_.template data<Real>(plan_.state.master);
    }
  }

  /// A tensor's place in the flat array `to`, filled from the host.
  static void upload(const model::Param& param, const std::vector<Real>& from, Real* to) {
    Kokkos::deep_copy(kernels::Vector<Real, Exec>(to + param.first, param.count),
                      Kokkos::View<const Real*, Kokkos::HostSpace, kernels::Unmanaged>(from.data(), from.size()));
  }

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

  /// One span per unit, in the order in which backward finishes them.
  std::vector<parallel::Span> gradient_spans() const {
    std::vector<parallel::Span> spans;
    const auto& units = plan_.table.units();
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      spans.push_back({"grad." + unit->label, grads_ + unit->first, unit->count, kDtype<Real>});
    }
    return spans;
  }

  /// A list of small structs at its place in the arena, which knows it as integers.
  template <class Item>
  void upload_list(const std::vector<Item>& items, memory::TensorId id, kernels::Vector<const Item, Exec>& on_device) {
    const kernels::Vector<Item, Exec> target(reinterpret_cast<Item*>(arena_.template data<std::int32_t>(id)),
                                             items.size());
    Kokkos::deep_copy(target,
                      Kokkos::View<const Item*, Kokkos::HostSpace, kernels::Unmanaged>(items.data(), items.size()));
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
    const auto blocks = static_cast<std::int64_t>(kernels::SquareNorm<Exec, Real>::blocks(flat_count()));
    kernels::SquareNorm<Exec, Real>{
        flat(static_cast<const Real*>(grads_)),
        kernels::Vector<double, Exec>(arena_.template data<double>(plan_.state.norm_partial), blocks),
        kernels::Value<double, Exec>(&state_->norm_squared)}
        .launch(exec_);
    optim::PrepareUpdate<Exec>{
        state_view(), {o.learning_rate, o.min_learning_rate, o.warmup_steps, settings_.train.steps},
        o.beta1,      o.beta2,
        o.clip_norm,  kDtype<Scalar> == Dtype::fp16}
        .launch(exec_);
    kernels::AdamwUpdate<Exec, Scalar>{blocks_,
                                       flat(master_),
                                       std::is_same_v<Real, Scalar> ? kernels::Vector<Scalar, Exec>{} : flat(params_),
                                       flat(static_cast<const Real*>(grads_)),
                                       flat(m_),
                                       flat(v_),
                                       kernels::Value<const kernels::AdamwScalars, Exec>(&state_->adamw),
                                       static_cast<Real>(o.beta1),
                                       static_cast<Real>(o.beta2),
                                       static_cast<Real>(o.eps),
                                       static_cast<Real>(o.weight_decay)}
        .launch(exec_);
  }

  void refresh_working_copy() {
    if constexpr (!std::is_same_v<Real, Scalar>) {
      kernels::CastCopy<Exec, Real, Scalar>{flat(static_cast<const Real*>(master_)), flat(params_)}.launch(exec_);
      exec_.fence();
    }
  }

  optim::StepState read_state() {
    optim::StepState s;
    Kokkos::deep_copy(exec_, Kokkos::View<optim::StepState, Kokkos::HostSpace, kernels::Unmanaged>(&s), state_view());
    exec_.fence();
    return s;
  }

  template <class Visit>
  void for_each_state_tensor(const Visit& visit) {
    const std::pair<const char*, Real*> groups[] = {{"params", master_}, {"moments/m", m_}, {"moments/v", v_}};
    for (const auto& [group, data] : groups) {
      for (const model::Param& param : plan_.table.params()) visit(group, param, data);
    }
  }

  const Plan& plan_;
  const config::Settings& settings_;
  parallel::World& world_;
  Exec exec_;
  memory::Arena<Exec> arena_;
  Scalar* params_;
  Real *master_, *grads_, *m_, *v_;
  optim::StepState* state_;
  Real* grad_scale_;
  double* validation_loss_;
  kernels::Vector<const kernels::AdamwBlock, Exec> blocks_;
  kernels::Vector<const kernels::ClearSpan, Exec> cleared_;
  model::Transformer<Exec, Scalar> transformer_;
  parallel::BucketQueue queue_;
  StepHooks hooks_;
  std::vector<std::int32_t> row_;  // [T+1] one sequence on its way to the device
  Tokens validation_tokens_;
  std::vector<std::unique_ptr<Slot>> slots_;  // taken in turns
  std::int64_t started_ = 0, collected_ = 0;
  std::vector<std::vector<float>> saved_;  // host copies that save_state() has handed out
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const Plan& plan, const config::Settings& settings, parallel::World& world) {
  switch (plan.options.dtype) {
    case Dtype::fp64: return std::make_unique<TrainerOf<double>>(plan, settings, world);
    case Dtype::bf16: return std::make_unique<TrainerOf<bfloat16>>(plan, settings, world);
    case Dtype::fp16: return std::make_unique<TrainerOf<float16>>(plan, settings, world);
    default: return std::make_unique<TrainerOf<float>>(plan, settings, world);
  }
}

}  // namespace tessera::train
