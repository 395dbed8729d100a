/// The key table: complete, consistent, and reaching a different member with every row.
#include "config/keys.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "config/availability.hpp"
#include "config/text.hpp"
#include "unit/config/support.hpp"

namespace tessera::config {
namespace {

using testing::HasSubstr;

/// A legal value other than the default, as TOML; "" if there is only one.
std::string other_value(const Key& key) {
  const std::string before = value_text(key, Settings{});
  const Legal& legal = key.legal;
  for (const Word& word : legal.words) {
    const std::string written = toml_string(word.text);
    if (written != before) return written;
  }
  if (!legal.words.empty()) return "";
  if (std::holds_alternative<Access<bool>>(key.field)) return before == "true" ? "false" : "true";
  if (std::holds_alternative<Access<std::string>>(key.field))
    return legal.is_path ? "\"/other/place\"" : "\"o \\\"t\\u0001\\n\"";
  if (std::holds_alternative<Access<std::vector<std::string>>>(key.field)) return "[\"o \\\"t\\u0001\\n\", \"\"]";
  if (std::holds_alternative<Access<std::vector<std::int64_t>>>(key.field))
    return legal.max < 10 ? "[1, 2]" : "[8, 9, 10]";
  if (std::holds_alternative<Access<double>>(key.field)) {
    const double high = std::isfinite(legal.max) ? legal.max : legal.min + 10;
    return toml_number(legal.min + (high - legal.min) / 3);
  }
  const std::int64_t number = static_cast<std::int64_t>(legal.min) + (legal.max < legal.min + 16 ? 1 : 15);
  return std::to_string(std::to_string(number) == before ? number + 1 : number);
}

TEST(Keys, names_are_section_dot_key_unique_and_grouped) {
  std::set<std::string_view> names;
  std::set<std::string_view> sections;
  std::string_view section;
  for (const Key& key : all_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name << " stands twice";
    EXPECT_EQ(std::count(key.name.begin(), key.name.end(), '.'), 1) << key.name;
    EXPECT_EQ(key.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."), std::string_view::npos) << key.name;
    if (key.section() == section) continue;
    section = key.section();
    EXPECT_TRUE(sections.insert(section).second) << section << " is split";
  }
}

TEST(Keys, the_names_other_programs_rely_on_are_there) {
  for (const std::string_view name : {"job.kind",
                                      "job.seed",
                                      "job.input",
                                      "job.output",
                                      "job.directory",
                                      "job.overwrite",
                                      "model.size",
                                      "model.vocab_size",
                                      "model.context_length",
                                      "model.d_model",
                                      "model.num_layers",
                                      "model.num_heads",
                                      "model.d_ff",
                                      "model.rope_theta",
                                      "data.source",
                                      "data.path",
                                      "data.validation_fraction",
                                      "train.steps",
                                      "train.batch_size",
                                      "train.micro_batch_size",
                                      "train.validate_every",
                                      "train.time_limit_s",
                                      "train.graph",
                                      "train.tune_gemm",
                                      "train.fused",
                                      "train.checkpoint_activations",
                                      "optimizer.learning_rate",
                                      "optimizer.min_learning_rate",
                                      "optimizer.warmup_steps",
                                      "optimizer.beta1",
                                      "optimizer.beta2",
                                      "optimizer.eps",
                                      "optimizer.weight_decay",
                                      "optimizer.clip_norm",
                                      "precision.compute",
                                      "precision.master",
                                      "precision.moments",
                                      "precision.gradients",
                                      "precision.reduce",
                                      "attention.kernel",
                                      "attention.deterministic",
                                      "attention.query_tile",
                                      "attention.key_tile",
                                      "parallel.collectives",
                                      "parallel.transfers",
                                      "parallel.gradient_sync",
                                      "parallel.bucket_mbyte",
                                      "parallel.shard",
                                      "parallel.shard_ranks",
                                      "parallel.reshard_after_forward",
                                      "parallel.offload",
                                      "parallel.offload_slots",
                                      "parallel.prefetch_blocks",
                                      "parallel.allow_uneven",
                                      "parallel.allow_shared_device",
                                      "parallel.timeout_s",
                                      "parallel.ranks",
                                      "checkpoint.every",
                                      "checkpoint.keep",
                                      "trace.every_steps",
                                      "trace.profile_steps",
                                      "trace.memory"})
    EXPECT_NE(find_key(name), nullptr) << name;
}

TEST(Keys, each_is_explained_and_has_a_unit) {
  for (const Key& key : all_keys()) {
    EXPECT_GE(key.meaning.size(), 15u) << key.name;
    EXPECT_TRUE(key.meaning.ends_with('.')) << key.name;
    EXPECT_FALSE(key.unit.empty()) << key.name;
    EXPECT_FALSE(legal_text(key).empty()) << key.name;
  }
}

TEST(Keys, defaults_are_legal) {
  const Settings defaults;
  for (const Key& key : all_keys()) {
    EXPECT_EQ(violation(key, defaults), std::nullopt) << key.name;
    EXPECT_THAT(value_text(key, defaults), testing::Not(HasSubstr("?"))) << key.name << " has a default without a word";
  }
}

TEST(Keys, every_row_reaches_a_member_of_its_own) {
  for (const Key& key : all_keys()) {
    Settings changed;
    std::visit(
        [&](const auto& access) {
          using AccessType = std::decay_t<decltype(access)>;
          if constexpr (std::is_same_v<AccessType, EnumAccess>) {
            access.edit(changed, key.legal.words.back().value == access.read(changed) ? key.legal.words.front().value
                                                                                      : key.legal.words.back().value);
          } else if constexpr (std::is_same_v<AccessType, Access<bool>>) {
            access.edit(changed) = !access.read(changed);
          } else if constexpr (requires { access.edit(changed).push_back({}); }) {
            access.edit(changed).push_back({});
          } else {
            access.edit(changed) += 1;
          }
        },
        key.field);
    for (const Key& other : all_keys()) {
      const bool differs = value_text(other, changed) != value_text(other, Settings{});
      EXPECT_EQ(differs, other.name == key.name) << key.name << " changed, seen through " << other.name;
    }
  }
}

TEST(Keys, every_key_can_be_set_from_a_deck_and_survives_the_resolved_deck) {
  // A deck that stays consistent when any one key gets another value.
  const char* deck =
      "train.steps = 999999999999\ntrain.batch_size = 15\n"
      "data = {source = 'tokens', path = 'a'}\noptimizer.learning_rate = 100\n";
  for (const Key& key : all_keys()) {
    const bool is_tile = key.name == "attention.query_tile" || key.name == "attention.key_tile";
    const std::string value = key.name == "model.d_model" || is_tile ? "64"
                              : key.name == "experiment.record"      ? "['steps/loss:last']"
                              : key.name == "experiment.only"        ? "['deck']"
                              : key.name == "experiment.baseline"    ? "'a'"
                                                                     : other_value(key);
    if (value.empty()) continue;
    std::vector<std::string> overrides{std::string(key.name) + "=" + value};
    if (key.name == "attention.kernel" || key.name == "precision.gradients" || key.name == "precision.master")
      overrides.push_back("precision.compute=bf16");
    if (key.name == "precision.initial_loss_scale") overrides.push_back("precision.compute=fp16");
    if (key.name == "precision.gradients") overrides.push_back("precision.reduce=bf16");
    if (key.name == "parallel.shard_ranks" || key.name == "parallel.prefetch_blocks" ||
        key.name == "parallel.reshard_after_forward")
      overrides.push_back("parallel.shard=parameters");
    if (key.name == "plan.network_per") overrides.push_back("plan.network=ndr");
    if (key.name == "parallel.offload_slots") overrides.push_back("parallel.offload=optimizer");
    if (key.name == "job.kind" || key.name == "experiment.job") overrides.push_back("job.input=there");
    if (key.name == "generate.prompts") overrides.insert(overrides.end(), {"job.kind=generate", "job.input=there"});
    if (key.name == "job.input") overrides.push_back("job.kind=verify.model");
    if (key.name == "job.output") overrides.insert(overrides.end(), {"job.kind=verify.model", "job.input=there"});
    if (key.name == "train.bad_steps_limit") overrides.push_back("train.on_bad_step=skip");
    if (key.name == "train.spike_window") overrides.push_back("train.spike_deviations=3");
    if (key.name == "train.recompute") overrides.push_back("train.checkpoint_activations=1");
    if (is_tile) overrides.push_back("attention.kernel=flash2");
    if (key.section() == "experiment") overrides.push_back("job.kind=experiment");
    if (key.name == "experiment.baseline") overrides.push_back("experiment.rows={a={}}");
    const Deck first = parse_deck(deck, "deck.toml", overrides);
    const Deck second = parse_deck(first.resolved, "deck.toml");
    EXPECT_TRUE(are_same(first.settings, second.settings)) << key.name << "\n" << first.resolved;
    EXPECT_THAT(differences(first.settings, second.settings), testing::IsEmpty());
    EXPECT_NE(value_text(key, first.settings), value_text(key, Settings{})) << key.name;
  }
}

TEST(Keys, differences_name_the_key_and_both_values_under_a_prefix) {
  Settings a, b;
  b.train.steps = 200;
  b.model.d_ff = 360;
  b.model.size = "small";  // a name, not a number
  EXPECT_THAT(differences(a, b), testing::ElementsAre("model.d_ff: 352 -> 360", "train.steps: 100 -> 200"));
  EXPECT_THAT(differences(a, b, "model."), testing::ElementsAre("model.d_ff: 352 -> 360"));
  EXPECT_THAT(differences(a, a), testing::IsEmpty());
}

TEST(Keys, nearest_finds_slips_and_right_words_in_wrong_sections) {
  EXPECT_EQ(nearest_key("train.stpes"), "train.steps");
  EXPECT_EQ(nearest_key("model.nun_heads"), "model.num_heads");
  EXPECT_EQ(nearest_key("train.learning_rate"), "optimizer.learning_rate");
  EXPECT_EQ(nearest_key("learning_rate"), "optimizer.learning_rate");
  EXPECT_EQ(nearest_key("xyzzy.plugh"), "");
}

}  // namespace
}  // namespace tessera::config
