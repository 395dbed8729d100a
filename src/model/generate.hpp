/// Text from a trained model, token by token, with cached keys and values.
///
/// The prompt runs through the model once; from then on one token at a time attends to the cache. When the cache
/// holds context_length tokens, the newer half is run through the model again from position 0 and generation
/// continues from there. Sampling: logits / temperature, the top_k largest, softmax in double, one uniform number per
/// token from a counter-based generator: the same seed gives the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/hooks.hpp"
#include "model/params.hpp"
#include "model/unit_places.hpp"

namespace tessera::model {

struct GenerateOptions {
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0: the most likely token
  std::int64_t top_k = 40;   // 0: all
  std::uint64_t seed = 1;
  std::int64_t end_of_text = -1;           // stop after this token; -1: never
  std::function<bool()> is_cut = {};       // called before each token; true ends the text; empty: never
  std::function<void()> begins_pass = {};  // called before each pass through the model; may be empty
};

/// How the model computes.
struct GenerateKernels {
  kernels::AttentionChoice attention;
  kernels::GemmMath math;
  kernels::Target target = kernels::kHere;  // another one only for generation_bytes()
};

/// Continues `prompt` and returns the new tokens. `places` says where the weights of `table` lie in the device's
/// memory; `hooks` is called in every pass. Allocates its own arena and cache.
///
/// Throws  Failure(Exit::usage) for a prompt token outside the vocabulary, Failure(Exit::out_of_memory) if the arena
///         does not fit.
/// Limits  `prompt` must not be empty; only its last context_length tokens are used.
template <class Exec, class Scalar>
std::vector<int> generate(const Exec& exec, const Shape& shape, const ParamTable& table,
                          const UnitPlaces<Scalar, Accum<Scalar>>& places, const GenerateKernels& how,
                          const std::vector<int>& prompt, const GenerateOptions& options, Hooks& hooks);

/// Bytes that generate() allocates. Arithmetic only.
std::int64_t generation_bytes(const Shape& shape, Dtype dtype, const GenerateKernels& how);

/// Samples an index into `logits` with the uniform number u in [0,1). Ties go to the lower index.
int sample_token(std::vector<double> logits, double temperature, std::int64_t top_k, double u);

}  // namespace tessera::model
