#include "jobs/jobs.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <vector>

#include "build_info.hpp"
#include "config/extension.hpp"
#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "jobs/placement.hpp"
#include "kernels/gemm/gemm.hpp"
#include "parallel/collectives/collective.hpp"
#include "train/choices.hpp"

namespace tessera::jobs {

// The product's jobs, one file each.
Exit train(const Context& context);
Exit generate(const Context& context);
Exit verify_attention(const Context& context);
Exit verify_model(const Context& context);

namespace {

/// The product's jobs, and those that are added.
std::vector<JobRow>& table() {
  static std::vector<JobRow> rows = {{config::JobKind::train, train},
                                     {config::JobKind::generate, generate},
                                     {config::JobKind::verify_attention, verify_attention},
                                     {config::JobKind::verify_model, verify_model}};
  return rows;
}

}  // namespace

std::string word_of(std::string_view key, const config::Settings& settings) {
  const std::string quoted = config::value_text(*config::find_key(key), settings);
  return quoted.substr(1, quoted.size() - 2);
}

io::Origin origin_of(const Context& context) {
  return {.version = build_info::version(),
          .git_hash = build_info::git_hash() + (build_info::is_dirty() ? "-dirty" : ""),
          .build = build_info::summary() + ", " + build_info::flags(),
          .launch = launch_of(context.world),
          .transport = context.world.size() > 1 ? context.world.collectives().description() : "",
          .command = context.command,
          .deck = context.deck.resolved};
}

io::Console::Style console_style(const Context& context) {
  if (context.world.rank() != 0) return io::Console::Style::silent;
  switch (context.settings().job.progress) {
    case config::Progress::bar: return io::Console::Style::bar;
    case config::Progress::line: return io::Console::Style::line;
    case config::Progress::none: return io::Console::Style::silent;
    case config::Progress::automatic: break;
  }
  return io::Console::Style::automatic;
}

void add_jobs(std::span<const JobRow> rows) { table().insert(table().end(), rows.begin(), rows.end()); }

void require_same_start(parallel::World& world, const config::Deck& deck, const std::optional<std::string>& resume) {
  const std::string first = world.broadcast(deck.resolved), first_resume = world.broadcast(resume.value_or(""));
  world.agree([&] {
    std::vector<std::string> other;
    if (deck.resolved != first) {  // comments apart
      config::Settings theirs = config::parse_deck(first, "the deck of rank 0").settings;
      theirs.data.path = deck.settings.data.path;  // each host may have the data in a place of its own
      other = config::differences(theirs, deck.settings);
      const auto tables = config::extension().tables_text;
      if (other.empty() && tables != nullptr && tables(theirs) != tables(deck.settings))
        other.push_back("the rows of the experiment");
    }
    if (resume.value_or("") != first_resume) {
      other.push_back(fmt::format("--resume '{}' -> '{}'", first_resume, resume.value_or("")));
    }
    if (other.empty()) return;
    throw Failure(Exit::usage,
                  "was started differently from rank 0 ({}): give all ranks the same deck, overrides and --resume",
                  fmt::join(other, ", "));
  });
}

Exit run_job(const Context& context) {
  const config::JobTraits& traits = config::traits_of(context.settings().job.kind);
  parallel::World& world = context.world;
  if (context.resume && !traits.resumes) {
    world.fail(Failure(Exit::usage,
                       "--resume continues a training run or an experiment; this deck's job.kind is another (generate "
                       "takes a checkpoint as job.input)"));
  }
  if (traits.has_steps && context.settings().train.graph && world.size() > 1 &&
      !world.collectives().is_asynchronous()) {
    world.fail(Failure(Exit::environment,
                       "train.graph on several ranks needs NCCL and a GPU for each rank; these ranks use MPI, which "
                       "cannot be captured in a graph: set train.graph = false"));
  }
  if (world.size() > 1 && world.collectives().is_asynchronous()) {  // NCCL: MPI has one method
    const auto watch = world.watch("the choice of transfers");
    world.agree([&] { train::require_same_method(context.deck, world.size()); });
  }
  kernels::set_gemm_algorithms({});  // of an experiment's rows none inherits what another chose
  kernels::set_gemm_selection(kernels::GemmSelection::heuristic);
  for (const JobRow& row : table()) {
    if (row.kind == traits.kind) return row.run(context);
  }
  throw std::logic_error("run_job: a job.kind without a job");
}

}  // namespace tessera::jobs
