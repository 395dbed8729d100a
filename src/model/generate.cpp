#include "model/generate.hpp"  // the contract is there; here is how

#include <algorithm>
#include <string>

#include "errors.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/stream_timer.hpp"
#include "model/transformer.hpp"

namespace tessera::model {
namespace {

void require_tokens(const Shape& shape, const std::vector<int>& prompt) {
  TESSERA_REQUIRE(!prompt.empty(), "generate: a prompt must have a token", prompt.size());
  for (const int token : prompt) {
    if (token >= 0 && token < shape.V) continue;
    throw Failure(Exit::usage, "the prompt has token " + std::to_string(token) +
                                   ", but the model's vocabulary ends at " + std::to_string(shape.V - 1) +
                                   ": give a prompt of the model's own tokens in generate.prompt");
  }
}

/// Copies host values, and waits until the source may change.
void load(const Exec& exec, const kernels::Vector<int, Exec>& to, const std::vector<int>& values) {
  Kokkos::deep_copy(exec, to,
                    Kokkos::View<const int*, Kokkos::HostSpace, kernels::Unmanaged>(values.data(), values.size()));
  exec.fence();
}

/// Drawn tokens on their way to the host, which reads a step's while the next step runs.
class TokenReader {
 public:
  explicit TokenReader(int sequences) : sequences_(sequences), tokens_("tessera::generate::tokens", 2 * sequences) {}

  void start(const Exec& exec, std::int64_t step, const kernels::Vector<int, Exec>& tokens) {
    const Kokkos::View<int*, kernels::PinnedSpace, kernels::Unmanaged> slot(tokens_of(step), sequences_);
    Kokkos::deep_copy(exec, slot, tokens);
    arrived_.mark(exec, static_cast<int>(step % 2));
  }
  /// Waits for the copy of that step. [B]
  const int* collect(std::int64_t step) const {
    while (!arrived_.has_passed(static_cast<int>(step % 2))) {
    }
    return tokens_of(step);
  }

 private:
  int* tokens_of(std::int64_t step) const { return tokens_.data() + step % 2 * sequences_; }

  int sequences_;
  Kokkos::View<int*, kernels::PinnedSpace> tokens_;
  kernels::StreamTimer arrived_{2};
};

}  // namespace

GenerationMemory::GenerationMemory(const Shape& shape, Dtype dtype, const GenerateKernels& how, std::int64_t sequences,
                                   std::int64_t weight_bytes)
    : options{.sequences = 1,
              .dtype = dtype,
              .for_training = false,
              .checkpoint_blocks = 0,
              .attention = how.attention,
              .math = how.math,
              .target = how.target,
              .has_logits = false},
      activations(declare_activations(shape, options, layout)),
      decoder_options{
          .sequences = sequences, .dtype = dtype, .parts = how.decode_parts, .math = how.math, .target = how.target},
      decoder(declare_decoder(shape, decoder_options, layout)) {
  if (weight_bytes > 0) layout.add_outside("the weights", weight_bytes);
  layout.place();
}

std::int64_t generation_bytes(const Shape& shape, Dtype dtype, const GenerateKernels& how, std::int64_t sequences) {
  return GenerationMemory(shape, dtype, how, sequences).layout.total_bytes();
}

template <class Scalar>
std::vector<std::vector<int>> generate_together(const Exec& exec, const Shape& shape, const ParamTable& table,
                                                const UnitPlaces<Scalar, Accum<Scalar>>& places,
                                                const GenerateKernels& how,
                                                const std::vector<std::vector<int>>& prompts,
                                                const GenerateOptions& options, Hooks& hooks) {
  for (const std::vector<int>& prompt : prompts) require_tokens(shape, prompt);
  const int B = static_cast<int>(prompts.size()), T = static_cast<int>(shape.T);
  std::vector<std::vector<int>> generated(B);
  if (B == 0 || options.max_tokens == 0) return generated;

  // 1. memory
  const GenerationMemory memory(shape, kDtype<Scalar>, how, B);
  if (kernels::kIsHost<Exec>) {  // a device refuses by itself
    memory::require_host_memory(memory.layout, 1, "\nfewer prompts need less");
  }
  const memory::Arena arena(memory.layout);
  Transformer<Scalar> transformer(shape, table, memory.activations, memory.options, arena, places);
  Decoder<Scalar> decoder(shape, table, memory.decoder, memory.decoder_options, arena, places,
                          transformer.rope_table());
  TokenReader reader(B);

  // 2. the prompts, but for their last tokens
  std::vector<std::vector<int>> texts(B);             // all tokens but the next step's input
  std::vector<int> positions(B);                      // where that input enters the cache
  const auto fill = [&](int b, std::int64_t count) {  // the cache of a sequence, with the last tokens of its text
    positions[b] = static_cast<int>(count);
    if (count == 0) return;
    if (options.begins_pass) options.begins_pass();
    transformer.set_batch(1, static_cast<int>(count));
    load(exec, transformer.inputs(), {texts[b].end() - count, texts[b].end()});
    transformer.fill_cache(exec, decoder.cache_of(b), hooks);
    transformer.close_head(hooks);
  };
  const auto load_positions = [&] {
    load(exec, decoder.positions(), positions);
    std::vector<int> keys(positions);
    for (int& count : keys) ++count;
    load(exec, decoder.keys(), keys);
  };
  std::vector<int> last_tokens;
  for (int b = 0; b < B; ++b) {
    texts[b].assign(prompts[b].begin(), prompts[b].end() - 1);
    last_tokens.push_back(prompts[b].back());
    fill(b, std::min<std::int64_t>(T - 1, std::ssize(texts[b])));
  }
  load(exec, decoder.tokens(), last_tokens);
  load(exec, decoder.drawn(), std::vector<int>(B, 0));
  load_positions();

  // 3. step by step. Each draws a token for every sequence, also for those that have ended
  const auto enqueue_step = [&] {
    bool was_full = false;
    for (int b = 0; b < B; ++b) {
      if (positions[b] < T) continue;
      fill(b, T / 2);  // the newer half again, from position 0
      was_full = true;
    }
    if (was_full) load_positions();
    if (options.begins_pass) options.begins_pass();
    const auto enqueue = [&] { decoder.step(exec, {options.temperature, options.top_k, options.seed}, hooks); };
    if (options.run_step) {
      options.run_step(enqueue, decoder.kernels_wait());
    } else {
      enqueue();
    }
    for (int& position : positions) ++position;
  };
  std::vector<bool> has_ended(B);
  for (std::int64_t i = 0; i < options.max_tokens && !(options.is_cut && options.is_cut()); ++i) {
    if (i == 0) {
      for (int b = 0; b < B; ++b) texts[b].push_back(last_tokens[b]);
      enqueue_step();
    }
    reader.start(exec, i, decoder.tokens());
    if (i + 1 < options.max_tokens) enqueue_step();
    const int* tokens = reader.collect(i);
    for (int b = 0; b < B; ++b) {
      texts[b].push_back(tokens[b]);
      if (has_ended[b]) continue;
      generated[b].push_back(tokens[b]);
      has_ended[b] = tokens[b] == options.end_of_text;
    }
    if (std::find(has_ended.begin(), has_ended.end(), false) == has_ended.end()) break;
  }
  exec.fence();
  return generated;
}

#define TESSERA_INSTANTIATE(Exec, Scalar)                                                                             \
  template std::vector<std::vector<int>> generate_together<Scalar>(                                                   \
      const Exec&, const Shape&, const ParamTable&, const UnitPlaces<Scalar, Accum<Scalar>>&, const GenerateKernels&, \
      const std::vector<std::vector<int>>&, const GenerateOptions&, Hooks&);
TESSERA_FOR_EACH_SCALAR(TESSERA_INSTANTIATE, kernels::Device)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::model
