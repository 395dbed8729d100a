#include "train/update.hpp"  // the contract is there; here is how

#include <algorithm>
#include <utility>

#include "kernels/adamw.hpp"
#include "kernels/norm2.hpp"
#include "optim/step_state.hpp"
#include "train/arrays.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;

template <class Scalar, class Grad>
class UpdateOf final : public Update {
 public:
  using Real = Accum<Scalar>;
  using Weights = kernels::MasterWeights<Exec, Scalar>;

  UpdateOf(const Plan& plan, const config::Settings& settings, const memory::Arena<Exec>& arena)
      : settings_(settings),
        weights_(weights_of<Scalar>(plan, arena)),
        grads_(flat<const Grad>(plan, arena, plan.state.grads)),
        m_(flat<Real>(plan, arena, plan.state.m)),
        v_(flat<Real>(plan, arena, plan.state.v)),
        norm_partial_(arena.template data<double>(plan.state.norm_partial),
                      kernels::SquareNorm<Exec, Grad>::blocks(grads_.size())),
        state_(optim::state_at(arena.template data<double>(plan.state.state))) {
    const std::vector<kernels::AdamwSpan> spans = adamw_spans(plan.table, plan.owned);
    const std::vector<kernels::AdamwBlock> blocks = kernels::make_adamw_blocks(spans);
    blocks_ = upload_list(blocks, arena, plan.state.adamw_blocks);
    for (std::size_t first = 0; first < blocks.size();) {  // blocks of one tensor follow each other
      const auto span = std::find_if(spans.begin(), spans.end(), [&](const kernels::AdamwSpan& s) {
        return blocks[first].param >= s.param && blocks[first].param < s.param + s.count;
      });
      std::size_t last = first;
      while (last < blocks.size() && blocks[last].param < span->param + span->count) ++last;
      blocks_of_tensors_.emplace_back(first, last);
      first = last;
    }
  }

  void enqueue(const Exec& exec) override {
    const config::Optimizer& o = settings_.optimizer;
    kernels::SquareNorm<Exec, Grad>{
        .x = grads_, .partial = norm_partial_, .total = kernels::Value<double, Exec>(&state_.data()->norm_squared)}
        .launch(exec);
    optim::PrepareUpdate<Exec>{.state = state_,
                               .schedule = {.peak = o.learning_rate,
                                            .minimum = o.min_learning_rate,
                                            .warmup_steps = o.warmup_steps,
                                            .steps = settings_.train.steps},
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .clip_norm = o.clip_norm,
                               .scales_dynamically = kDtype<Scalar> == Dtype::fp16}
        .launch(exec);
    if (settings_.train.fused) return adamw(exec, blocks_);
    for (const auto& range : blocks_of_tensors_) adamw(exec, Kokkos::subview(blocks_, range));
  }

 private:
  void adamw(const Exec& exec, kernels::Vector<const kernels::AdamwBlock, Exec> blocks) const {
    const config::Optimizer& o = settings_.optimizer;
    kernels::AdamwUpdate<Exec, Scalar, Grad>{
        .blocks = blocks,
        .master = weights_.master,
        .param = Weights::kIsOneArray ? kernels::Vector<Scalar, Exec>{} : weights_.working,
        .grad = grads_,
        .m = m_,
        .v = v_,
        .scalars = kernels::Value<const kernels::AdamwScalars, Exec>(&state_.data()->adamw),
        .beta1 = static_cast<Real>(o.beta1),
        .beta2 = static_cast<Real>(o.beta2),
        .eps = static_cast<Real>(o.eps),
        .weight_decay = static_cast<Real>(o.weight_decay)}
        .launch(exec);
  }

  const config::Settings& settings_;
  const Weights weights_;
  const kernels::Vector<const Grad, Exec> grads_;
  const kernels::Vector<Real, Exec> m_, v_;
  const kernels::Vector<double, Exec> norm_partial_;
  const optim::StateView<Exec> state_;
  kernels::Vector<const kernels::AdamwBlock, Exec> blocks_;
  std::vector<std::pair<std::size_t, std::size_t>> blocks_of_tensors_;  // in blocks_
};

}  // namespace

std::vector<kernels::AdamwSpan> adamw_spans(const model::ParamTable& table, std::span<const parallel::Range> owned) {
  std::vector<kernels::AdamwSpan> spans;
  for (const model::Param& param : table.params()) {
    std::int64_t state = 0;  // of the range's first element
    for (const parallel::Range& range : owned) {
      const std::int64_t first = std::max(range.first, param.first);
      const std::int64_t last = std::min(range.first + range.count, param.first + param.count);
      if (first < last) {
        spans.push_back({.param = first,
                         .grad = first,
                         .state = state + first - range.first,
                         .count = last - first,
                         .decay = param.has_decay});
      }
      state += range.count;
    }
  }
  return spans;
}

std::unique_ptr<Update> make_update(const Plan& plan, const config::Settings& settings,
                                    const memory::Arena<Exec>& arena) {
  return with_types(plan, [&]<class Scalar, class Grad>() -> std::unique_ptr<Update> {
    return std::make_unique<UpdateOf<Scalar, Grad>>(plan, settings, arena);
  });
}

}  // namespace tessera::train
