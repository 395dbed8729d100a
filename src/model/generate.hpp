/// Text from a trained model, token by token, with cached keys and values.
///
/// The prompt runs through the model once; from then on one token at a time attends to the cache. When the cache
/// holds context_length tokens, the newer half is run through the model again from position 0 and generation goes
/// on from there. Sampling: logits / temperature, the top_k largest, softmax in double, one uniform number per token
/// from a counter-based generator: the same seed gives the same tokens.
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
  std::function<bool()> is_cut = {};       // asked before each token: true, and the text ends there; empty: never
  std::function<void()> begins_pass = {};  // called before each pass through the model; empty: nothing is
};

/// How the model computes.
struct GenerateKernels {
  kernels::AttentionChoice attention;
  kernels::GemmMath math;
  kernels::Target target = kernels::kHere;  // other ones for generation_bytes alone
};

/// Continues `prompt` (not empty; only its last context_length tokens are seen). `places` says where the
/// weights of `table` lie in the device's memory, `hooks` hears of every pass. Allocates an arena and a cache of its own. Returns the
/// new tokens. Throws Failure(Exit::usage) for a prompt token that the model does not have,
/// Failure(Exit::out_of_memory) when the arena does not fit.
template <class Exec, class Scalar>
std::vector<int> generate(const Exec& exec, const Shape& shape, const ParamTable& table,
                          const UnitPlaces<Scalar, Accum<Scalar>>& places, const GenerateKernels& how,
                          const std::vector<int>& prompt, const GenerateOptions& options, Hooks& hooks);

/// Bytes that it allocates. Arithmetic only.
std::int64_t generation_bytes(const Shape& shape, Dtype dtype, const GenerateKernels& how);

/// Samples an index into `logits` with the uniform number u in [0,1). Ties go to the lower index.
int sample_token(std::vector<double> logits, double temperature, std::int64_t top_k, double u);

}  // namespace tessera::model
