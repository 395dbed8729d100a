#include "model/generate.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "errors.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/random.hpp"
#include "model/transformer.hpp"

namespace tessera::model {
namespace {

/// A forward-only arena for one sequence, and the cache.
struct Memory {
  Memory(const Shape& shape, Dtype dtype, const GenerateKernels& how)
      : options{.sequences = 1,
                .dtype = dtype,
                .for_training = false,
                .checkpoint_blocks = 0,
                .attention = how.attention,
                .math = how.math,
                .target = how.target},
        activations(declare_activations(shape, options, layout)) {
    for (int block = 0; block < shape.L; ++block) {
      const auto add = [&](const char* name) {
        return layout.add("cache." + std::to_string(block) + name, {1, shape.H, shape.T, shape.D()}, dtype,
                          memory::Category::activations, memory::Lifetime::whole_run());
      };
      const memory::TensorId keys = add(".keys");
      cache.emplace_back(keys, add(".values"));
    }
    layout.place();
  }

  memory::Layout layout;
  ActivationOptions options;
  ActivationTensors activations;
  std::vector<std::pair<memory::TensorId, memory::TensorId>> cache;  // keys and values of each block
};

/// Host memory for one row of logits.
template <class Exec, class Scalar>
std::vector<double> last_row(const Exec& exec, Transformer<Exec, Scalar>& transformer, int row) {
  const auto logits = transformer.logits(exec, row, 1);
  const auto logits_h = Kokkos::create_mirror_view(logits);
  Kokkos::deep_copy(exec, logits_h, logits);
  exec.fence();
  std::vector<double> values(logits_h.extent(1));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(logits_h(0, i));
  return values;
}

template <class Exec>
void load_tokens(const Exec& exec, const kernels::Vector<int, Exec>& to, const std::vector<int>& tokens) {
  Kokkos::deep_copy(exec, to,
                    Kokkos::View<const int*, Kokkos::HostSpace, kernels::Unmanaged>(tokens.data(), tokens.size()));
  exec.fence();
}

}  // namespace

std::int64_t generation_bytes(const Shape& shape, Dtype dtype, const GenerateKernels& how) {
  return Memory(shape, dtype, how).layout.total_bytes();
}

int sample_token(std::vector<double> logits, double temperature, std::int64_t top_k, double u) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (temperature <= 0) return order.front();
  if (top_k > 0 && top_k < static_cast<std::int64_t>(order.size())) order.resize(top_k);
  double sum = 0;
  for (const int i : order) sum += std::exp((logits[i] - logits[order.front()]) / temperature);
  double left = u * sum;
  int chosen = order.front();
  for (const int i : order) {
    const double weight = std::exp((logits[i] - logits[order.front()]) / temperature);
    if (weight == 0) break;  // a remainder of u from rounding must not select an impossible token
    chosen = i;
    left -= weight;
    if (left < 0) break;
  }
  return chosen;
}

template <class Exec, class Scalar>
std::vector<int> generate(const Exec& exec, const Shape& shape, const ParamTable& table,
                          const UnitPlaces<Scalar, Accum<Scalar>>& places, const GenerateKernels& how,
                          const std::vector<int>& prompt, const GenerateOptions& options, Hooks& hooks) {
  for (const int token : prompt) {
    if (token < 0 || token >= shape.V) {
      throw Failure(Exit::usage, "the prompt has token " + std::to_string(token) + ", the model's vocabulary ends at " +
                                     std::to_string(shape.V - 1) +
                                     ": give a prompt of the model's own tokens in generate.prompt");
    }
  }
  // 1. memory
  const Memory memory(shape, kDtype<Scalar>, how);
  if (kernels::kIsHost<Exec>) {  // a device refuses by itself
    memory::require_host_memory(memory.layout, 1, "\na model with a shorter context needs less");
  }
  const memory::Arena<Exec> arena(memory.layout);
  Transformer<Exec, Scalar> transformer(shape, table, memory.activations, memory.options, arena, places);
  KeyValueCache<Exec, Scalar> cache;
  const int H = static_cast<int>(shape.H), T = static_cast<int>(shape.T), D = static_cast<int>(shape.D());
  for (const auto& [keys, values] : memory.cache) {
    cache.keys.push_back(kernels::contiguous_heads<Exec>(arena.template data<Scalar>(keys), 1, H, T, D));
    cache.values.push_back(kernels::contiguous_heads<Exec>(arena.template data<Scalar>(values), 1, H, T, D));
  }

  // 2. append tokens to the cache; afterwards `cached` lists its tokens
  std::vector<int> cached;
  const auto advance = [&](const std::vector<int>& tokens) {
    if (options.begins_pass) options.begins_pass();
    transformer.set_batch(1, static_cast<int>(tokens.size()));
    load_tokens(exec, transformer.inputs(), tokens);
    transformer.forward_cached(exec, cache, hooks);
    cached.insert(cached.end(), tokens.begin(), tokens.end());
    std::vector<double> row = last_row(exec, transformer, static_cast<int>(tokens.size()) - 1);
    transformer.close_head(hooks);
    return row;
  };

  // 3. the prompt, then one token at a time
  std::vector<double> logits =
      advance({prompt.end() - std::min<std::ptrdiff_t>(T, static_cast<std::ptrdiff_t>(prompt.size())), prompt.end()});
  std::vector<int> generated;
  while (static_cast<std::int64_t>(generated.size()) < options.max_tokens && !(options.is_cut && options.is_cut())) {
    const double u = uniform(mix(options.seed, generated.size()));
    const int token = sample_token(std::move(logits), options.temperature, options.top_k, u);
    generated.push_back(token);
    if (token == options.end_of_text || static_cast<std::int64_t>(generated.size()) == options.max_tokens) break;
    std::vector<int> next{token};
    if (cache.tokens == T) {  // full: the newer half again, from position 0
      next.assign(cached.end() - T / 2, cached.end());
      next.push_back(token);
      cache.tokens = 0;
      cached.clear();
    }
    logits = advance(next);
  }
  return generated;
}

#define TESSERA_INSTANTIATE(Exec, Scalar)                                                                            \
  template std::vector<int> generate<Exec, Scalar>(const Exec&, const Shape&, const ParamTable&,                     \
                                                   const UnitPlaces<Scalar, Accum<Scalar>>&, const GenerateKernels&, \
                                                   const std::vector<int>&, const GenerateOptions&, Hooks&);
TESSERA_FOR_EACH_SCALAR(TESSERA_INSTANTIATE, kernels::Device)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::model
