/// Rules between keys: named model sizes, and contradictions between values that are legal one by one.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "config/faults.hpp"
#include "config/settings.hpp"

namespace tessera::config {

// Who gave a key its value; fallback: settings.hpp, row: the experiment of which the deck is a row.
enum class Origin { fallback, size, deck, row, command_line };

struct Source {
  Origin origin = Origin::fallback;
  Where where;
  bool is_faulty = false;
};
using Sources = std::map<std::string_view, Source>;  // by key name; keys left at their defaults are absent

/// Sets what `model.size` names and the deck left out; a different number in the deck wins and makes the size "custom".
void apply_size(Settings& settings, Sources& sources);

/// The same model with the numbers of another named size (any word of model.size except "custom").
Model with_size(Model model, std::string_view name);

/// The same ranks under one of the strategies that bench.strategies names: a word of parallel.gradient_sync, with nothing
/// sharded, or of parallel.shard.
Parallel with_strategy(Parallel parallel, std::string_view name);

/// The settings of one row of bench.step and bench.strategies: the deck's, but for the model ("deck": its own).
Settings with_bench_size(Settings deck, std::string_view size);

/// The settings of one row of bench.generate: its model, and a context for the prompt and the tokens that continue it, two
/// of them before the warm-up (lab/bench_generate.cpp).
Settings with_bench_prompt(Settings deck, std::string_view size, std::int64_t prompt_tokens);

/// Adds a fault for each contradiction. Rules on a key that is already faulty are skipped; `deck` is reported as the
/// position if none of the keys was given.
void check_rules(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults);

/// The same for [experiment] itself; each of its rows is checked by check_rules.
void check_experiment(const Settings& settings, const Sources& sources, std::string_view deck, Faults& faults);

}  // namespace tessera::config
