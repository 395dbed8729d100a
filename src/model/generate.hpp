/// Text from a trained model, token by token, with cached keys and values.
///
/// All but the last token of a prompt run through the model at once; then the decoder (decoder.hpp) takes one token of
/// each sequence per step. The host reads a token while the next step runs, so a text that ends itself costs one extra
/// step. When a sequence's cache holds context_length tokens, the newer half runs through the model again from position
/// 0, and generation continues. The same seed gives the same tokens; a sequence's depend on its number and prompt, not
/// on other prompts, except that their number may change kernels and thus the bits of sums (decoder.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/gemm/gemm.hpp"
#include "memory/layout.hpp"
#include "model/activations.hpp"
#include "model/decoder.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"

namespace tessera::model {

struct GenerateOptions {
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0: the most likely token
  std::int64_t top_k = 40;   // 0: all
  std::uint64_t seed = 1;
  std::int64_t end_of_text = -1;           // stop after this token; -1: never
  std::function<bool()> is_cut = {};       // called before each token; true ends the texts; empty: never
  std::function<void()> begins_pass = {};  // called before each pass through the model; may be empty
  /// Runs a step's launches, the same in every call, for example from a graph; empty: directly. `kernels_wait`, from
  /// the decoder: such a graph may be chained, unless hooks launch something.
  std::function<void(const std::function<void()>& enqueue, bool kernels_wait)> run_step = {};
};

/// How the model computes.
struct GenerateKernels {
  kernels::AttentionChoice attention;
  kernels::GemmMath math;
  kernels::Target target = kernels::kHere;  // another one only for plans
  std::int64_t decode_parts = 0;            // S of attention in the decoder; 0: chosen
};

/// Generation's memory: a forward-only arena for the prompt of one sequence, the caches, the decoder's tensors.
/// Arithmetic only.
struct GenerationMemory {
  /// `weight_bytes` are counted besides, for plans.
  GenerationMemory(const Shape& shape, Dtype dtype, const GenerateKernels& how, std::int64_t sequences,
                   std::int64_t weight_bytes = 0);

  memory::Layout layout;
  ActivationOptions options;
  ActivationTensors activations;
  DecoderOptions decoder_options;
  DecoderTensors decoder;
};

/// Continues all prompts together, and returns the new tokens of each. `places` has the device addresses of the weights
/// of `table`; `hooks` is called in every pass. Allocates its own arena and caches.
///
/// Throws  Failure(Exit::usage) for a prompt token outside the vocabulary, Failure(Exit::out_of_memory) if the arena
///         does not fit, std::invalid_argument for an empty prompt.
/// Limits  only the last context_length tokens of a prompt are used.
template <class Scalar>
std::vector<std::vector<int>> generate_together(const Exec& exec, const Shape& shape, const ParamTable& table,
                                                const UnitPlaces<Scalar, Accum<Scalar>>& places,
                                                const GenerateKernels& how,
                                                const std::vector<std::vector<int>>& prompts,
                                                const GenerateOptions& options, Hooks& hooks);

/// The same for one prompt.
template <class Scalar>
std::vector<int> generate(const Exec& exec, const Shape& shape, const ParamTable& table,
                          const UnitPlaces<Scalar, Accum<Scalar>>& places, const GenerateKernels& how,
                          const std::vector<int>& prompt, const GenerateOptions& options, Hooks& hooks) {
  return generate_together<Scalar>(exec, shape, table, places, how, {prompt}, options, hooks).front();
}

/// Bytes that generate() allocates. Arithmetic only.
std::int64_t generation_bytes(const Shape& shape, Dtype dtype, const GenerateKernels& how, std::int64_t sequences = 1);

}  // namespace tessera::model
