/// tessera: numbered steps from a command line to an exit code.
///
///   1 command line   2 deck   3 questions that need neither MPI nor Kokkos   4 MPI   5 Kokkos   6 the job
///   7 was standard output written whole?
///
/// The one place where an exception becomes a message and an exit code.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <thread>

#include "build_info.hpp"
#include "config/availability.hpp"
#include "config/command_line.hpp"
#include "config/deck.hpp"
#include "config/job_numbers.hpp"
#include "config/job_traits.hpp"
#include "config/text.hpp"
#include "errors.hpp"
#include "io/answer.hpp"
#include "jobs/checkpoints.hpp"
#include "jobs/failure.hpp"
#include "jobs/gemm_algorithms.hpp"
#include "jobs/jobs.hpp"
#include "jobs/limits.hpp"
#include "jobs/stop.hpp"
#include "kernels/core/profiler.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/cpu_level.hpp"
#include "kernels/device_check.hpp"
#include "kernels/gemm/gemm.hpp"
#include "lab/lab.hpp"
#include "parallel/choice.hpp"
#include "parallel/device.hpp"
#include "parallel/soundness.hpp"
#include "parallel/watch/start_watch.hpp"
#include "train/plan.hpp"

namespace {

using namespace tessera;

/// The value of the first of these environment variables that is set; `otherwise` if none is.
int number_in_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return otherwise;
}

/// This rank and the number of ranks, from the launcher's environment variables, before MPI starts; `without_launcher`
/// and 1 without a launcher.
int launcher_rank(int without_launcher = 0) {
  return number_in_environment({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, without_launcher);
}
int launcher_ranks() {
  const int of_step = number_in_environment({"SLURM_STEP_NUM_TASKS"}, 1);  // SLURM_NTASKS may be the allocation's
  return std::max(1, number_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, of_step));
}

/// Whether this is the first rank of its host; false if the launcher does not tell.
bool is_first_of_host() {
  return number_in_environment({"OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
                               1) == 0;
}

/// Reports a failure before MPI starts. Ranks usually fail alike, so rank 0 prints; but a file may be missing on one
/// host only, or a limit be one rank's, so later the others print too, unless the launch has ended by then.
int report(const Failure& failure) {
  if (launcher_rank() == 0) {
    fmt::print(stderr, "tessera: {}\n", failure.what());
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(is_first_of_host() ? 1 : 3));
    fmt::print(stderr, "tessera: rank {}: {}\n", launcher_rank(), failure.what());
  }
  return static_cast<int>(failure.code());
}

/// Called on every rank; prints on rank 0.
void answer(const std::string& text) {
  if (launcher_rank() == 0) io::answer(text);
}

/// --version, --show-config, --explain, --verify-checkpoint, --help: no deck needed. True when one was asked for.
bool answer_without_deck(const config::CommandLine& line) {
  if (line.help) {
    answer(config::help_text());
  } else if (line.version) {
    answer(build_info::summary() + "\n");
  } else if (line.show_config && line.figures) {
    answer(train::build_figures());
  } else if (line.show_config) {
    answer(fmt::format(
        "{}\nflags      {}\nKokkos     {}\nGPU code   {}\nMPI        {}\nNCCL       {}\nBLAS       {}\nCPU level  {}\n",
        build_info::summary(), build_info::flags(), build_info::kokkos(),
        parallel::has_gpu_backend() ? parallel::compiled_architecture() : "none", build_info::mpi(),
        parallel::kHasNccl ? "yes" : "no", kernels::gemm_library(),
        kernels::cpu_level() == kernels::CpuLevel::v4 ? "v4" : "the build's"));
  } else if (line.explain) {
    answer(config::explain(*line.explain));
  } else if (line.verified) {
    answer(jobs::verification_of(*line.verified));
  } else {
    return false;
  }
  return true;
}

/// The figures of a deck's plan, or of those of its chosen rows.
std::string figures_of(const config::Deck& deck) {
  if (deck.rows.empty()) return train::plan_figures(deck.settings, launcher_ranks());
  std::string text;
  for (const config::DeckRow& row : deck.rows) {
    if (row.is_chosen) text += train::plan_figures(row.settings, launcher_ranks(), row.name);
  }
  return text;
}

/// The plan of a deck, or of every chosen row of an experiment; a row that has none says why. If none has one, throws
/// the first row's failure.
std::string plan_of(const config::Deck& deck) {
  if (deck.rows.empty()) return train::plan_text(deck.settings, launcher_ranks());
  std::string text;
  std::optional<Failure> first;
  bool has_plan = false;
  for (const config::DeckRow& row : deck.rows) {
    if (!row.is_chosen) continue;
    text += fmt::format("{}row        {}\n", text.empty() ? "" : "\n", row.name);
    try {
      text += train::plan_text(row.settings, launcher_ranks());
      has_plan = true;
    } catch (const Failure& failure) {
      if (!first) first = failure;
      text += fmt::format("no plan    exit code {}: {}\n", static_cast<int>(failure.code()), failure.what());
    }
  }
  if (first && !has_plan) throw Failure(*first);
  return text;
}

/// --check, --print, --plan: only the deck is read. True when one was asked for.
bool answer_about_deck(const config::CommandLine& line, const config::Deck& deck) {
  if (!line.check && !line.print && !line.plan) return false;
  if (line.check) {
    const std::string_view mark = line.print ? "# " : "";
    answer(fmt::format("{}{}: no faults\n", mark, deck.path.string()));
    for (const config::DeckRow& row : deck.rows) answer(fmt::format("{}row {}\n", mark, row.name));
  }
  if (line.print) answer(deck.resolved);  // still a deck below a comment
  if (line.plan) answer(line.figures ? figures_of(deck) : plan_of(deck));
  return true;
}

/// Steps 4 to 6. Jobs that resume remember signals, and stop in good order. Views are destroyed before Kokkos is
/// finalised, Kokkos before MPI.
int run(int argc, char** argv, const config::CommandLine& line, const config::Deck& deck) {
  if (!config::traits_of(deck.settings.job.kind).resumes) jobs::end_on_signals();
  const std::string command = config::as_utf8(fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  jobs::require_limits(launcher_rank(-1) >= 0);
  const config::Parallel& keys = deck.settings.parallel;
  parallel::StartWatch start(launcher_rank(), launcher_ranks(), keys.timeout_s, static_cast<int>(Exit::hang));
  std::optional<parallel::World> world(std::in_place, argc, argv, jobs::departure_of);
  const parallel::FaultExit fault_exit(world->rank(), static_cast<int>(Exit::hang));
  std::optional<parallel::DeviceChoice> device;
  try {
    parallel::check_launcher(world->size(), [](const char* name) { return std::getenv(name); });
    jobs::require_same_start(*world, deck, line.resume);
    if (keys.ranks != 0 && keys.ranks != world->size()) {
      world->fail(Failure(Exit::usage,
                          "parallel.ranks = {0}, but the number of ranks is {1}. Start {0} (scripts/run -n {0}), or "
                          "leave parallel.ranks to --plan",
                          keys.ranks, world->size()));
    }
    world->agree([&] { device.emplace(*world, keys.allow_shared_device); });
    std::vector<std::string> arguments = device->kokkos_arguments();
    arguments.insert(arguments.end(), line.kokkos_arguments.begin(), line.kokkos_arguments.end());
    std::vector<char*> kokkos_argv{argv[0]};
    for (std::string& argument : arguments) kokkos_argv.push_back(argument.data());
    int kokkos_argc = static_cast<int>(kokkos_argv.size());
    kokkos_argv.push_back(nullptr);
    const kernels::ProfilerRanges ranges(kernels::listening_profiler());
    jobs::agree_on_cpu_level(*world);
    const Kokkos::ScopeGuard kokkos(kokkos_argc, kokkos_argv.data());
    kernels::DeviceCheck check;
    world->agree([&] {
      jobs::take_blas_buffer();
      check = kernels::check_device();
    });
    parallel::require_sound(*world, {check.wrong, check.gbyte_per_s, check.took_s});
    world->start_watchdog(keys.timeout_s, static_cast<int>(Exit::hang));
    const parallel::CollectivesChoice collectives(*world, train::collectives_of(deck, world->size()), *device);
    start.end();
    return static_cast<int>(jobs::run_job({deck, line.resume, command, *world}));
  } catch (const parallel::AgreedError& failure) {  // common to all ranks: rank 0 reports, all finalise
    if (world->rank() == 0) fmt::print(stderr, "tessera: {}\n", failure.what());
    return failure.exit_code();
  } catch (const std::exception& exception) {
    const Failure failure = jobs::failure_of(*world, exception);
    const int code = static_cast<int>(failure.code());
    fmt::print(stderr, "tessera: rank {}: {}\n", world->rank(), failure.what());
    std::fflush(nullptr);
    if (world->size() > 1) world->abort(code);
    return code;
  }
}

int answer_or_run(int argc, char** argv) {
  lab::join();
  const config::CommandLine line = config::parse_command_line(argc, argv);
  if (line.is_question()) jobs::end_on_signals();
  if (answer_without_deck(line)) return 0;
  if (line.compare) return answer(lab::compare_text(line)), 0;
  const config::Deck deck = config::load_deck(line.deck, line.overrides);
  if (answer_about_deck(line, deck)) return 0;
  config::require_job_numbers(deck.settings.job);
  config::check_build(deck.settings, train::this_build());
  return run(argc, argv, line, deck);
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__
/// Open MPI leaks in plug-ins that it unloads before exit, so no suppression can name them. The tests' main looks for
/// our own leaks while the plug-ins are still loaded; every other check of the sanitizers stays on.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return 1; }
#endif

int main(int argc, char** argv) {
  jobs::remember_signals();
  io::hold_standard_streams();
  try {
    const int code = answer_or_run(argc, argv);
    if (code == static_cast<int>(Exit::finished)) io::require_answered();
    return code;
  } catch (const std::exception& exception) {
    return report(jobs::failure_of(exception));
  }
}
