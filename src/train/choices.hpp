/// What the deck's words choose among kernels and libraries, on a given machine. Arithmetic only.
#pragma once

#include <cstdint>
#include <string>

#include "config/availability.hpp"
#include "config/deck.hpp"
#include "config/settings.hpp"
#include "model/generate.hpp"
#include "parallel/choice.hpp"

namespace tessera::train {

model::Shape shape_of(const config::Model& model);
Dtype dtype_of(config::Precision precision);
kernels::AttentionKind kind_of(config::AttentionKernel kernel);

/// The ranks' hardware and build: this one by default; a plan may name another.
struct Machine {
  std::string build = "this build";  // as messages name it
  kernels::Target target = kernels::kHere;
  bool has_nccl = parallel::kHasNccl;
  bool reaches_peers = true;  // copy engines can serve the ranks: all are on one host, and not too many
};

/// The portable kernel that attention.kernel names (flash2 if none), with its step and tiles. May not fit the device.
kernels::AttentionChoice portable_choice(const config::Attention& attention);

/// The kernels for a dtype and a head width: those that attention.kernel names, or with "auto" each pass's fastest.
/// Throws  Failure(Exit::usage), naming alternatives, if the build has no such kernel.
kernels::AttentionChoice choose_attention(const config::Attention& attention, Dtype dtype, std::int64_t head_width,
                                          const Machine& machine = {});
model::GenerateKernels generate_kernels(const config::Settings& settings, Dtype dtype, std::int64_t head_width,
                                        const Machine& machine = {});
parallel::CollectivesOptions collectives_of(const config::Parallel& keys, int ranks);

/// The same for a deck; if it has rows, from the first chosen one.
parallel::CollectivesOptions collectives_of(const config::Deck& deck, int ranks);

/// Checks that the rows of a deck, which share communicators, get one transfer method.
/// Throws  Failure(Exit::usage) if parallel.transfers is "auto" and ranks form groups (parallel.shard_ranks) in only
///         some of the chosen rows.
void require_same_method(const config::Deck& deck, int ranks);
kernels::GemmMath math_of(config::Precision precision);
kernels::GemmSelection selection_of(const config::Train& train);
std::string describe(const kernels::AttentionChoice& choice);  // "flash2 (forward wgmma, backward mma)"

/// What describe() does not say of the choice's products, to follow it: ", fp32 by 3 TF32 products" on tensor cores, or
/// that no library has those of standard attention; else "".
std::string products_text(const kernels::AttentionChoice& choice, Dtype dtype, kernels::GemmMath math,
                          const kernels::Target& target);

/// The version of the forward pass of flash1 and flash2 as tables name it: "3 steps", "portable", "wgmma".
std::string forward_text(const kernels::AttentionChoice& choice);

}  // namespace tessera::train
