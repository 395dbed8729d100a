/// The command line, --help and --explain.
#include "config/command_line.hpp"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "config/keys.hpp"
#include "config/text.hpp"
#include "support.hpp"

namespace tessera::config {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tessera");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string refused(const std::vector<const char*>& arguments) {
  return refusal(Exit::usage, [&] { parse(arguments); });
}

TEST(CommandLine, deck_overrides_and_flags_in_any_order) {
  const CommandLine line =
      parse({"--check", "a b.toml", "train.steps=5", "--print", "trace.profile_steps=[1, 2]", "--plan"});
  EXPECT_EQ(line.deck, "a b.toml");
  EXPECT_THAT(line.overrides, ElementsAre("train.steps=5", "trace.profile_steps=[1, 2]"));
  EXPECT_TRUE(line.check && line.print && line.plan);
  EXPECT_FALSE(line.help || line.version || line.show_config || line.explain || line.resume);
}

TEST(CommandLine, values_reach_the_deck_as_they_were_typed) {
  const CommandLine line =
      parse({"a.toml", "generate.prompt=\"a, b\"", "job.output=", "optimizer.eps=-1", "trace.profile_steps=[3]"});
  EXPECT_THAT(line.overrides,
              ElementsAre("generate.prompt=\"a, b\"", "job.output=", "optimizer.eps=-1", "trace.profile_steps=[3]"));
}

TEST(CommandLine, resume_takes_auto_or_a_path) {
  EXPECT_EQ(parse({"a.toml"}).resume, std::nullopt);
  EXPECT_EQ(parse({"a.toml", "--resume", "auto"}).resume, "auto");
  EXPECT_EQ(parse({"--resume=runs/a/checkpoints/step_00000010", "a.toml"}).resume, "runs/a/checkpoints/step_00000010");
  EXPECT_THAT(refused({"a.toml", "--resume"}), HasSubstr("--resume"));
  EXPECT_THAT(refused({"a.toml", "--resume", "train.steps=5"}), HasSubstr("--resume takes 'auto' or the path"));
}

TEST(CommandLine, compare_stands_beside_plan_and_wants_no_deck) {
  const CommandLine own = parse({"--plan", "--compare", "runs/a/run.h5", "plan.device=h200", "train.steps=5"});
  EXPECT_EQ(own.compare, "runs/a/run.h5");
  EXPECT_EQ(own.deck, "");
  EXPECT_THAT(own.overrides, ElementsAre("plan.device=h200", "train.steps=5"));
  EXPECT_TRUE(own.is_question());
  const CommandLine other = parse({"a.toml", "train.steps=5", "--compare=run.h5", "--plan"});
  EXPECT_EQ(other.deck, "a.toml");
  EXPECT_THAT(other.overrides, ElementsAre("train.steps=5"));
  EXPECT_THAT(refused({"a.toml", "--compare", "run.h5"}), HasSubstr("--compare goes with --plan"));
  EXPECT_THAT(refused({"a.toml", "--plan", "--check", "--compare", "run.h5"}), HasSubstr("goes with --plan"));
  EXPECT_THAT(refused({"--plan", "--compare", "a.toml"}), HasSubstr("takes a run's file, not 'a.toml'"));
  EXPECT_THAT(refused({"--plan", "--compare", "train.steps=5", "a.toml"}), HasSubstr("takes a run's file"));
  EXPECT_THAT(refused({"--plan", "--compare"}), HasSubstr("--compare"));
  EXPECT_THAT(refused({"--plan"}), HasSubstr("no deck is named"));
  EXPECT_TRUE(parse({"a.toml", "--plan", "--figures"}).figures);
  for (const char* other : {"--check", "--print", "--show-config", "--compare=run.h5"}) {
    EXPECT_THAT(refused({"a.toml", "--plan", "--figures", other}), HasSubstr("goes with --plan")) << other;
  }
  EXPECT_THAT(refused({"a.toml", "--figures"}), HasSubstr("type --plan --figures"));
}

TEST(CommandLine, kokkos_arguments_pass_through) {
  const CommandLine line = parse({"--kokkos-num-threads=2", "a.toml", "--kokkos-print-configuration"});
  EXPECT_THAT(line.kokkos_arguments, ElementsAre("--kokkos-num-threads=2", "--kokkos-print-configuration"));
  EXPECT_EQ(line.deck, "a.toml");
}

TEST(CommandLine, what_kokkos_would_ignore_is_refused) {
  for (const char* wrong : {"--kokkos-num-threads=abc", "--kokkos-num-threads=", "--kokkos-num-threads",
                            "--kokkos-foo=1", "--kokkos-threads=8"}) {
    EXPECT_THAT(refused({"a.toml", wrong}), HasSubstr("is no option of Kokkos")) << wrong;
  }
  EXPECT_EQ(parse({"a.toml", "--kokkos-tools-libs=x.so"}).kokkos_arguments.size(), 1u);
}

TEST(CommandLine, kokkos_chooses_no_gpu_past_our_checks) {
  EXPECT_THAT(refused({"a.toml", "--kokkos-device-id=1"}), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(refused({"a.toml", "--kokkos-map-device-id-by=mpi_rank"}), HasSubstr("--kokkos-map-device-id-by:"));
}

TEST(CommandLine, what_ends_at_once_needs_no_deck) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"--version"}).version);
  EXPECT_TRUE(parse({"--show-config"}).show_config);
  EXPECT_TRUE(parse({"--show-config", "--figures"}).figures);
  EXPECT_EQ(parse({"--explain", "train.steps"}).explain, "train.steps");
}

TEST(CommandLine, a_blank_for_the_sign_is_answered_with_what_to_type) {
  const auto meant = [](std::vector<const char*> words) {
    words.insert(words.begin(), "a.toml");
    return refused(words);
  };
  EXPECT_THAT(meant({"train.steps", "30"}), HasSubstr("'train.steps' is not section.key=value"));
  EXPECT_THAT(meant({"train.steps", "30"}), EndsWith("; type train.steps=30"));
  EXPECT_THAT(meant({"train.steps", "=", "30", "job.seed=1"}), EndsWith("; type train.steps=30"));
  EXPECT_THAT(meant({"job.seed=1", "train.steps=", "30"}), EndsWith("; type train.steps=30"));
  EXPECT_THAT(meant({"train.steps", "=30"}), EndsWith("; type train.steps=30"));
  EXPECT_THAT(meant({"train.steps", "job.seed=1"}), EndsWith("; type train.steps=VALUE"));
  EXPECT_THAT(meant({"train.steps"}), EndsWith("; type train.steps=VALUE"));
  EXPECT_THAT(meant({"generate.prompt", "And God"}), EndsWith("; type 'generate.prompt=And God'"));
  EXPECT_THAT(meant({"train.stepz", "30"}), HasSubstr("the nearest key is train.steps"));
}

TEST(CommandLine, faults_say_what_and_how) {
  EXPECT_THAT(refused({}), HasSubstr("no deck is named"));
  EXPECT_THAT(refused({"train.steps=5"}), HasSubstr("'train.steps=5' is an override, and no deck is named before it"));
  EXPECT_THAT(refused({"a.toml", "b.toml"}), HasSubstr("'b.toml' is a second deck"));
  EXPECT_THAT(refused({"a.toml", "stray"}), HasSubstr("'stray' is not section.key=value"));
  EXPECT_THAT(refused({"a.toml", "steps=5"}), HasSubstr("the nearest key is train.steps"));
  EXPECT_THAT(refused({"a.toml", "--chek"}), HasSubstr("unknown option --chek"));
  EXPECT_THAT(refused({"a.toml", "--chek"}), HasSubstr("the nearest is --check"));
  EXPECT_THAT(refused({"a.toml", "-x"}), HasSubstr("-x"));
  EXPECT_THAT(refused({"a.toml", ""}), HasSubstr("an argument is empty"));
  EXPECT_THAT(refused({"--explain"}), HasSubstr("--explain"));
  EXPECT_THAT(refused({"a.toml", "-x"}), HasSubstr("usage: tessera DECK.toml [section.key=value ...]"));
}

TEST(CommandLine, a_file_whose_name_begins_with_a_dash_is_told_from_an_option) {
  for (const char* deck : {"-x.toml", "-hello.toml", "--check.toml"})
    EXPECT_THAT(refused({deck, "--check"}), EndsWith(std::string("; type './") + deck + "' for the file"));
  const std::filesystem::path folder = std::filesystem::path("-folder" + std::to_string(getpid()));
  EXPECT_THAT(refused({"a.toml", folder.c_str()}), testing::Not(HasSubstr("for the file")));
  std::filesystem::create_directory(folder);
  EXPECT_THAT(refused({"a.toml", folder.c_str()}), EndsWith("; type './" + folder.string() + "' for the file"));
  std::filesystem::remove(folder);
  EXPECT_EQ(parse({"./-x.toml", "--check"}).deck, "./-x.toml");
  EXPECT_EQ(parse({"-1.toml", "--check"}).deck, "-1.toml");
  EXPECT_EQ(parse({"a.toml", "--resume=-x.toml"}).resume, "-x.toml");
  EXPECT_EQ(parse({"a.toml", "--resume", "-x.toml"}).resume, "-x.toml");
  EXPECT_THAT(refused({"a.toml", "--resum=x.toml"}), HasSubstr("the nearest is --resume"));
}

TEST(CommandLine, help_lists_the_options_and_every_exit_code) {
  const std::string help = help_text();
  for (const char* part : {"--check", "--plan", "--compare", "--print", "--resume", "--version", "--show-config",
                           "--explain", "--kokkos-", "DECK.toml", "section.key=value", "\n   0 ", "\n   2 ", "\n   3 ",
                           "\n   4 ", "\n   5 ", "\n   6 ", "\n   7 ", "\n  75 "})
    EXPECT_THAT(help, HasSubstr(part));
}

TEST(Explain, tells_all_about_a_key) {
  EXPECT_EQ(explain("train.micro_batch_size"),
            "train.micro_batch_size\n"
            "  type     integer\n"
            "  default  0\n"
            "  legal    0 to 16777216\n"
            "  unit     sequences\n"
            "  Sequences per forward and backward pass on one rank. 0: a rank's whole share. Smaller values need\n"
            "  less memory and give the same gradients.\n");
}

TEST(Explain, covers_every_key_alone_in_its_section_and_in_the_whole_list) {
  const std::string all = explain("all");
  for (const Key& key : all_keys()) {
    const std::string text = explain(key.name), name(key.name);
    EXPECT_THAT(text, testing::StartsWith(name + "\n"));
    EXPECT_THAT(text, HasSubstr("\n  default  " + value_text(key, Settings{}) + "\n"));
    EXPECT_EQ(count(all, "\n" + name + " ") + all.starts_with(name + " "), 1) << name;
    EXPECT_THAT(explain(key.section()), HasSubstr(name + " "));
    for (std::size_t start = 0; start < text.size(); start = text.find('\n', start) + 1)
      EXPECT_LE(text.find('\n', start) - start, 120u) << text;
  }
}

TEST(Explain, an_unknown_name_gets_the_nearest) {
  EXPECT_THAT(refusal(Exit::usage, [] { explain("train.stpes"); }), HasSubstr("the nearest is train.steps"));
  EXPECT_THAT(refusal(Exit::usage, [] { explain("trian"); }), HasSubstr("the nearest is train"));
  EXPECT_THAT(refusal(Exit::usage, [] { explain("xyzzy"); }), HasSubstr("there is no key or section 'xyzzy'; "));
}

}  // namespace
}  // namespace tessera::config
