/// The interface of the optimizer that optimizer.kind names.
///
/// Layout, staging through the host, checkpoints and plan use its traits, Update::launch() its rule. To add one: a rule
/// in kernels/, a line of kernels/optimizers.hpp, an enumerator and a word of optimizer.kind.
#pragma once

#include <span>
#include <stdexcept>
#include <string_view>

#include "config/settings.hpp"
#include "kernels/optimizers.hpp"

namespace tessera::optim {

/// Returns work.template operator()<Rule>(), of kernels/weight_update.hpp.
template <class Work>
auto with_rule(config::OptimizerKind kind, const Work& work) {
  switch (kind) {
#define TESSERA_CASE(kind, Rule) \
  case config::OptimizerKind::kind: return work.template operator()<kernels::Rule>();
    TESSERA_FOR_EACH_OPTIMIZER(TESSERA_CASE)
#undef TESSERA_CASE
  }
  throw std::logic_error("with_rule: no such optimizer");
}

struct Traits {
  std::string_view name;
  std::span<const std::string_view> moments;  // arrays of one number per weight, by name
  bool needs_whole_matrices;                  // its update of a weight reads others of the same tensor
};

inline Traits traits_of(config::OptimizerKind kind) {
  return with_rule(kind, [&]<class Rule>() { return Traits{Rule::kName, Rule::kMoments, Rule::kNeedsWholeMatrices}; });
}

}  // namespace tessera::optim
