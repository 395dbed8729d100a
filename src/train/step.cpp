#include "train/step.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cstring>

#include "kernels/adamw.hpp"
#include "kernels/core/cast_copy.hpp"
#include "kernels/core/events.hpp"
#include "kernels/norm2.hpp"
#include "memory/arena.hpp"
#include "model/transformer.hpp"
#include "optim/step_state.hpp"
#include "parallel/bucket_queue.hpp"
#include "train/step_hooks.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;
using HostInts = Kokkos::View<int*, Kokkos::HostSpace>;

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
        queue_(world.collectives(), exec_, gradient_spans(), bucket_bytes()),
        hooks_(plan.layout, model::Timeline{plan.shape.units()}.update(), queue_, plan.table.units()),
        row_(plan.shape.T + 1),
        inputs_h_("tessera::train::inputs", std::int64_t{plan.batch.micro_sequences} * plan.shape.T),
        targets_h_("tessera::train::targets", std::int64_t{plan.batch.micro_sequences} * plan.shape.T) {
    upload_blocks();
    set_scalars({.loss_scale = kDtype<Scalar> == Dtype::fp16 ? settings.precision.initial_loss_scale : 1.0});
  }

  void initialize(std::uint64_t seed) override {
    Kokkos::deep_copy(exec_, flat(master_), Real(0));
    exec_.fence();
    std::vector<Real> weights;
    for (const model::Param& param : plan_.table.params()) {
      if (world_.rank() != 0) break;  // the others get theirs from rank 0
      const model::InitialValues initial(seed, param);
      weights.resize(param.count);
      for (std::int64_t i = 0; i < param.count; ++i) weights[i] = static_cast<Real>(initial(i));
      upload(param, weights, master_);
    }
    Kokkos::deep_copy(exec_, flat(m_), Real(0));
    Kokkos::deep_copy(exec_, flat(v_), Real(0));
    exec_.fence();
    world_.collectives().broadcast({"params", master_, flat_count(), kDtype<Real>});
    refresh_working_copy();
  }

  StepNumbers run(std::int64_t first_sample, const data::Sampler& sampler) override {
    StepNumbers n;
    const BatchPlan& batch = plan_.batch;
    const double tokens = static_cast<double>(batch.global_sequences * plan_.shape.T);
    std::int64_t sample = first_sample + batch.first_sample(world_.rank());

    hooks_.begin_step();
    {
      const PhaseTimer timer("begin", n.optimizer_s);
      Kokkos::deep_copy(exec_, flat(grads_), Real(0));
      optim::BeginStep<Exec, Real>{state_view(), kernels::Value<Real, Exec>(grad_scale_), tokens}.launch(exec_);
    }
    for (int micro = 0; micro < batch.micro_steps; ++micro) {
      const bool is_last = micro + 1 == batch.micro_steps;
      if (is_last && world_.size() > 1) queue_.begin();
      hooks_.begin_micro_step(is_last && world_.size() > 1);
      const int sequences = batch.sequences_of(world_.rank(), micro);
      if (sequences == 0) {
        hooks_.nothing_to_do();
        continue;
      }
      {
        const PhaseTimer timer("forward", n.forward_s);
        load(sequences, [&](int i) { sampler.fill(sample + i, row_); });
        transformer_.forward(exec_, hooks_);
      }
      const PhaseTimer timer("backward", n.backward_s);
      hooks_.set_phase("backward");
      transformer_.head(exec_, loss_of(state_), kernels::Value<const Real, Exec>(grad_scale_), true, hooks_);
      transformer_.backward(exec_, hooks_);
      sample += sequences;
      if (is_last) exec_.fence();
    }
    {
      double waited_s = 0;
      const PhaseTimer timer("reduce", waited_s);
      n.exposed_comm_s = queue_.finish();
    }
    {
      const PhaseTimer timer("optimizer", n.optimizer_s);
      hooks_.set_phase("optimizer");
      update();
    }
    hooks_.end_step();
    read(n);
    return n;
  }

  ValidationSum validate(const data::Sampler& sampler, std::int64_t windows) override {
    const std::int64_t share = (windows + world_.size() - 1) / world_.size();
    const std::int64_t first = std::min(windows, share * world_.rank()), last = std::min(windows, first + share);
    model::Hooks silent;
    const kernels::Value<double, Exec> loss(validation_loss_);
    Kokkos::deep_copy(exec_, loss, 0.0);
    for (std::int64_t window = first; window < last;) {
      const int sequences = static_cast<int>(std::min<std::int64_t>(plan_.batch.micro_sequences, last - window));
      load(sequences, [&](int i) { sampler.fill_validation(window + i, row_); });
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

  void upload_blocks() {
    const std::vector<kernels::AdamwBlock> blocks = adamw_blocks(plan_.table);
    auto* on_device =
        reinterpret_cast<kernels::AdamwBlock*>(arena_.template data<std::int32_t>(plan_.state.adamw_blocks));
    const kernels::Vector<kernels::AdamwBlock, Exec> target(on_device, blocks.size());
    Kokkos::deep_copy(target, Kokkos::View<const kernels::AdamwBlock*, Kokkos::HostSpace, kernels::Unmanaged>(
                                  blocks.data(), blocks.size()));
    blocks_ = target;
  }

  /// Fills the micro-batch: input ids 0..T-1 and target ids 1..T of each row that `fill` puts into row_.
  template <class Fill>
  void load(int sequences, const Fill& fill) {
    const std::int64_t T = plan_.shape.T;
    for (int i = 0; i < sequences; ++i) {
      fill(i);
      std::copy(row_.begin(), row_.end() - 1, inputs_h_.data() + i * T);
      std::copy(row_.begin() + 1, row_.end(), targets_h_.data() + i * T);
    }
    transformer_.set_batch(sequences, static_cast<int>(T));
    const Kokkos::pair<std::int64_t, std::int64_t> used(0, sequences * T);
    Kokkos::deep_copy(exec_, transformer_.inputs(), Kokkos::subview(inputs_h_, used));
    Kokkos::deep_copy(exec_, transformer_.targets(), Kokkos::subview(targets_h_, used));
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
    exec_.fence();
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

  void read(StepNumbers& n) {
    const optim::StepState s = read_state();
    n.loss_sum = s.loss_sum;
    n.grad_norm = s.grad_norm;
    n.learning_rate = s.adamw.learning_rate;
    n.loss_scale = s.loss_scale;
    n.was_skipped = s.adamw.skip != 0;
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
  model::Transformer<Exec, Scalar> transformer_;
  parallel::BucketQueue queue_;
  StepHooks hooks_;
  std::vector<std::int32_t> row_;          // [T+1] one sequence on its way to the device
  HostInts inputs_h_, targets_h_;          // [B*T]
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
