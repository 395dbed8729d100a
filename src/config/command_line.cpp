#include "config/command_line.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "config/extension.hpp"
#include "config/keys.hpp"
#include "config/renamed_keys.hpp"
#include "config/text.hpp"
#include "errors.hpp"

namespace tessera::config {
namespace {

constexpr std::string_view kUsage = "tessera DECK.toml [section.key=value ...] [options]";

constexpr std::string_view kFooter = R"(
Overrides  the right side is read as TOML. Where that fails it is a bare string, unless it begins with a quote or,
           for keys that do not take any text, with a bracket. Defaults < deck < overrides.
           Paths in a deck are relative to the deck, in an override to the current directory.
Keys       tessera --explain train.batch_size    one key: type, default, legal values, unit, meaning
           tessera --explain train               the keys of a section; all: every key, by purpose
Kokkos     options that begin with --kokkos- are passed on, except those that choose a GPU: CUDA_VISIBLE_DEVICES does

Exit codes
   0  finished
   2  command line or deck
   3  environment: what the machine or this build cannot do
   4  out of memory, with the table by category
   5  numbers: NaN or divergence
   6  files: missing, damaged or unwritable data, checkpoint or output
   7  a rank hangs or is lost
  75  stopped on a limit or a signal after a checkpoint: run again with --resume auto
)";

[[noreturn]] void refuse(std::string_view wrong, std::string_view next = "`tessera --help` shows the options") {
  throw Failure(Exit::usage, "command line: {}\nusage: {}; {}", wrong, kUsage, next);
}

struct Usage : CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override { return fmt::format("Usage: {}\n", kUsage); }
};

struct Parser {
  explicit Parser(CommandLine& line) {
    app.name("tessera");
    app.formatter(std::make_shared<Usage>());
    app.get_formatter()->column_width(34);
    app.set_help_flag("-h,--help", "this text");
    app.add_option("deck", line.deck, "input deck (TOML)")->option_text("DECK.toml");
    app.add_option("overrides", line.overrides, "keys that win over the deck's")->option_text("section.key=value ...");
    app.add_flag("--check", line.check, "read the deck, report every fault and exit; opens no data");
    app.add_flag("--plan", line.plan, "print what each rank of this run needs (parallel.ranks=N: of N) and exit");
    app.add_option("--compare", line.compare,
                   "with --plan: its predictions beside the run's measurements; without a deck, the run's deck")
        ->option_text("RUN.h5");
    app.add_flag("--print", line.print, "print the resolved deck (readable as a deck) and exit");
    app.add_flag("--figures", line.figures, "with --plan or --show-config: figures as TOML, for programs");
    app.add_option("--resume", line.resume, "continue from the newest checkpoint of job.directory, or from a named one")
        ->option_text("auto|PATH");
    app.add_option("--verify-checkpoint", line.verified,
                   "read a checkpoint whole, or the newest of a run's directory, and compare its checksums")
        ->option_text("PATH");
    app.add_flag("--version", line.version, "version and git hash");
    app.add_flag("--show-config", line.show_config, "compiler, Kokkos, BLAS and MPI of this build");
    app.add_option("--explain", line.explain, "type, default, legal values, unit and meaning of a key")
        ->option_text("KEY|SECTION|all");
    app.footer(std::string(kFooter));
  }
  /// The option of this name, "--plan" or "-h"; null: there is none.
  const CLI::Option* find(const std::string& name) const {
    return name.starts_with('-') ? app.get_option_no_throw(name) : nullptr;
  }
  CLI::App app{"Trains transformer language models: one binary, one input deck, MPI ranks."};
};

/// Whether an argument is a file's name that would be read as an option; "-" followed by a digit is none.
bool is_file_behind_dash(const Parser& parser, const std::string& argument) {
  const std::string option = argument.substr(0, argument.find('='));
  if (option.size() < 2 || option[0] != '-' || std::isdigit(static_cast<unsigned char>(option[1])) ||
      parser.find(option) != nullptr)
    return false;
  std::error_code ignored;
  return (option == argument && option.ends_with(".toml")) || std::filesystem::exists(argument, ignored);
}

/// Whether it looks like an override: word.word=... (write "./a.b=c.toml" to name such a file).
bool is_override(std::string_view text) {
  const std::string_view name = text.substr(0, text.find('='));
  return name.size() < text.size() && name.find('.') != std::string_view::npos &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == ' '; });
}

/// The key=value that the words at `at`, or at the one before, spell with blanks around the sign ("train.steps 30",
/// "train.steps = 30"); empty if they do not begin with a key.
std::string without_blanks(const std::vector<std::string>& words, std::size_t at) {
  if (at > 0 && words[at - 1].ends_with('=')) --at;
  const std::string key = words[at].substr(0, words[at].find('='));
  if (find_key(key) == nullptr) return "";
  std::string value;
  for (std::size_t i = at + 1; value.empty() && i < words.size() && !is_override(words[i]); ++i) {
    value = words[i].substr(words[i].starts_with('=') ? 1 : 0);
  }
  const bool is_plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '+' || c == '/';
  });
  if (value.empty()) return key + "=VALUE";
  return is_plain ? key + "=" + value : "'" + key + "=" + value + "'";  // for the shell
}

void require_overrides(const CommandLine& line) {
  if (is_override(line.deck))
    refuse(fmt::format("the first argument '{}' is an override, and no deck is named before it", line.deck),
           "name the deck first");
  if (line.resume && is_override(*line.resume))
    refuse("--resume takes 'auto' or the path of a checkpoint", "for example --resume auto");
  for (std::size_t i = 0; i < line.overrides.size(); ++i) {
    const std::string& text = line.overrides[i];
    if (is_override(text)) continue;
    if (const std::string meant = without_blanks(line.overrides, i); !meant.empty())
      refuse(fmt::format("'{}' is not section.key=value", text), fmt::format("type {}", meant));
    const std::string near = nearest_key(text.substr(0, text.find('=')));
    if (text.find('=') == std::string::npos && text.ends_with(".toml"))
      refuse(fmt::format("'{}' is a second deck", text), "name one deck, then section.key=value");
    refuse(fmt::format("'{}' is not section.key=value", text),
           near.empty() ? "`tessera --explain all` lists the keys" : fmt::format("the nearest key is {}", near));
  }
}

/// --compare stands beside --plan and names a file. Without a deck the first argument is an override of the run's.
void require_comparison(CommandLine& line) {
  if (!line.plan || line.check || line.print) refuse("--compare goes with --plan only", "type --plan --compare RUN.h5");
  if (is_override(*line.compare) || line.compare->ends_with(".toml"))
    refuse(fmt::format("--compare takes a run's file, not '{}'", *line.compare),
           "for example --compare runs/tiny/run.h5");
  if (!is_override(line.deck)) return;
  line.overrides.insert(line.overrides.begin(), line.deck);
  line.deck.clear();
}

/// `text` broken into lines of at most 100 characters, each behind the indent.
std::string wrapped(std::string_view text, std::string_view indent = "  ") {
  std::string out;
  while (!text.empty()) {
    std::size_t end = text.size() <= 100 ? text.size() : text.rfind(' ', 100);
    if (end == std::string_view::npos) end = text.size();
    out += fmt::format("{}{}\n", indent, text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

std::string explain_key(const Key& key) {
  constexpr std::string_view kLegal = "  legal    ";
  std::string text =
      fmt::format("{}\n  type     {}\n  default  {}\n{}{}", key.name, type_text(key), value_text(key, Settings{}),
                  kLegal, wrapped(legal_text(key), std::string(kLegal.size(), ' ')).substr(kLegal.size()));
  return text + fmt::format("  unit     {}\n{}", key.unit, wrapped(key.meaning));
}

std::string list_section(std::string_view section) {
  std::string text;
  for (const Key& key : all_keys()) {
    if (key.section() != section) continue;
    const std::string_view first_sentence = key.meaning.substr(0, key.meaning.find(". "));
    text += fmt::format("{:<31} {:<13} {}{}\n", key.name, value_text(key, Settings{}), first_sentence,
                        first_sentence.ends_with('.') ? "" : ".");
  }
  return text;
}

/// Sections by purpose, the product's first; those of other rooms measure.
std::string list_all() {
  constexpr std::string_view kTrain = "Train a model, and generate text", kShare = "Share the work among ranks",
                             kMeasure = "Measure";
  constexpr std::pair<std::string_view, std::string_view> kPurposes[] = {
      {"job", kTrain},       {"model", kTrain},     {"data", kTrain},      {"train", kTrain},
      {"optimizer", kTrain}, {"precision", kTrain}, {"attention", kTrain}, {"checkpoint", kTrain},
      {"generate", kTrain},  {"parallel", kShare},  {"plan", kShare}};
  std::string text;
  for (const std::string_view purpose : {kTrain, kShare, kMeasure}) {
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", purpose);
    for (const std::string_view section : section_names()) {
      const auto found = std::find_if(std::begin(kPurposes), std::end(kPurposes),
                                      [&](const auto& row) { return row.first == section; });
      if ((found == std::end(kPurposes) ? kMeasure : found->second) == purpose) text += list_section(section);
    }
  }
  return text;
}

/// Kokkos itself ignores what it does not know.
void require_of_kokkos(const std::string& argument) {
  constexpr std::string_view kThreads = "--kokkos-num-threads=";
  constexpr std::string_view kFlags[] = {"--kokkos-print-configuration", "--kokkos-disable-warnings",
                                         "--kokkos-tune-internals"};
  if (std::ranges::count(kFlags, argument) > 0 || argument.starts_with("--kokkos-tools-")) return;
  const bool is_number = argument.starts_with(kThreads) && argument.size() > kThreads.size() &&
                         argument.find_first_not_of("0123456789", kThreads.size()) == std::string::npos;
  if (is_number) return;
  refuse("'" + argument + "' is no option of Kokkos that this program passes on",
         "--kokkos-num-threads=N, --kokkos-print-configuration, --kokkos-disable-warnings, --kokkos-tune-internals or "
         "--kokkos-tools-...");
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  Parser parser(line);
  std::vector<std::string> arguments;  // ours, without the program's name and without those of Kokkos
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    (argument.starts_with("--kokkos-") ? line.kokkos_arguments : arguments).push_back(argument);
    if (argument.empty()) refuse("an argument is empty", "check the quotes");
    const CLI::Option* const before = parser.find(argv[i - 1]);
    const bool is_value = before != nullptr && before->get_items_expected_max() > 0;  // whatever it looks like
    if (!is_value && is_file_behind_dash(parser, argument))
      refuse(fmt::format("'{}' begins with a dash, as options do", argument),
             fmt::format("type './{}' for the file", argument));
    if (argument.starts_with("--kokkos-device-id") || argument.starts_with("--kokkos-map-device-id-by")) {
      refuse(argument.substr(0, argument.find('=')) +
                 ": each rank chooses its GPU and checks that this program runs there",
             "name the GPUs that it may choose from in CUDA_VISIBLE_DEVICES");
    }
    if (argument.starts_with("--kokkos-")) require_of_kokkos(argument);
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    parser.app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    line.help = true;
  } catch (const CLI::ParseError& error) {
    for (const std::string& argument : arguments) {
      const std::string option = argument.substr(0, argument.find('='));
      if (!option.starts_with("--") || parser.find(option) != nullptr) continue;
      std::vector<std::string> known;
      for (const CLI::Option* each : parser.app.get_options())
        if (!each->get_positional()) known.push_back(each->get_name());
      const std::string near = nearest(option, {known.begin(), known.end()});
      refuse(fmt::format("unknown option {}", option),
             near.empty() ? "`tessera --help` shows the options" : fmt::format("the nearest is {}", near));
    }
    refuse(error.what());
  }
  const bool has_figures = line.plan != line.show_config && !line.check && !line.print && !line.compare;
  if (line.figures && !has_figures) refuse("--figures goes with --plan or --show-config only", "type --plan --figures");
  if (line.needs_no_deck()) return line;
  if (line.compare) require_comparison(line);
  if (line.deck.empty() && !line.compare) refuse("no deck is named", "try input/tiny.toml");
  require_overrides(line);
  return line;
}

std::string help_text() {
  CommandLine unused;
  return Parser(unused).app.help();
}

std::string explain(std::string_view name) {
  if (name == "all") return list_all();
  if (is_section(name)) return list_section(name);
  if (const Key* key = find_key(name)) return explain_key(*key);
  if (is_left_out(name)) throw Failure(Exit::usage, "{} {}; it takes {}", name, kLeftOut, kHowToHaveIt);
  if (const RenamedKeys* old = find_renamed(name)) {
    const NewSpelling now = old->now({});
    if (!now.keys.empty())
      throw Failure(Exit::usage, "{} is an old spelling: `tessera --explain {}`", name, now.keys.front().key);
  }
  std::string near = nearest_key(name);
  if (near.empty()) near = nearest(name, section_names());
  throw Failure(Exit::usage, "there is no key or section '{}'{}; `tessera --explain all` lists them", name,
                near.empty() ? "" : ", the nearest is " + near);
}

}  // namespace tessera::config
