#include "jobs/gemm_algorithms.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "jobs/failure.hpp"
#include "kernels/core/cpu_level.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::jobs {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// What the environment chooses of an OpenBLAS and of our kernels, and the text around it.
struct Library {
  std::string_view before, core, after, level;
};

/// "... (OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY SkylakeX SINGLE_THREADED); kernels v4": core SkylakeX,
/// level v4. An older text has no level.
std::optional<Library> parsed(std::string_view text) {
  constexpr std::string_view kLevel = "; kernels ", kCore = " DYNAMIC_ARCH NO_AFFINITY ";
  Library library{};
  if (const std::size_t at = text.rfind(kLevel); at != text.npos) {
    library.level = text.substr(at + kLevel.size());
    text = text.substr(0, at);
  }
  const std::size_t name = text.find("(OpenBLAS "), mark = text.rfind(kCore);
  if (name == text.npos || mark == text.npos || mark < name) return std::nullopt;
  const std::size_t core = mark + kCore.size(), end = text.find_first_of(" )", core);
  if (end == text.npos) return std::nullopt;
  library.before = text.substr(0, core);
  library.core = text.substr(core, end - core);
  library.after = text.substr(end);
  return library;
}

}  // namespace

std::string text_of(const GemmRecord& record) {
  return record.library + "\n" + fmt::format("{}", fmt::join(record.algorithms, "\n"));
}

GemmRecord gemm_record_from(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) return {};
  return {lines.front(), {lines.begin() + 1, lines.end()}};
}

std::string library_in_use() {
  const std::string_view level = name_of(kernels::cpu_level());
  return kernels::gemm_library() + (level.empty() ? "" : fmt::format("; kernels {}", level));
}

void agree_on_cpu_level(parallel::World& world) {
  int mine = 0;
  world.agree([&] {
    try {
      mine = static_cast<int>(kernels::cpu_level_for(std::getenv("TESSERA_CPU_LEVEL")));
    } catch (const std::invalid_argument& refusal) {
      throw Failure(Exit::environment, refusal.what());
    }
  });
  kernels::set_cpu_level(static_cast<kernels::CpuLevel>(-world.max(-mine)));
}

bool processor_has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

std::string environment_for(const std::string& library_before, const std::string& library_now, bool has_avx512) {
  const auto before = parsed(library_before), now = parsed(library_now);
  if (!before || !now || before->before != now->before || before->after != now->after) return "";
  const std::string_view core = before->core;
  const bool wants_avx512 =
      before->level == "v4" || core == "SkylakeX" || core == "Cooperlake" || core == "SapphireRapids";
  if (wants_avx512 && !has_avx512) return "";  // other kernels would end this process by SIGILL
  std::vector<std::string> settings;
  if (before->core != now->core) settings.push_back(fmt::format("OPENBLAS_CORETYPE={}", before->core));
  if (before->level != now->level) {
    settings.push_back(fmt::format("TESSERA_CPU_LEVEL={}", before->level.empty() ? "v3" : before->level));
  }
  return fmt::format("{}", fmt::join(settings, " "));
}

std::string adopt_gemm_algorithms(const std::vector<std::string>& algorithms, parallel::World& world) {
  std::string fault;
  world.agree([&] {
    try {
      kernels::set_gemm_algorithms(algorithms);
    } catch (const std::invalid_argument& damage) {
      throw Failure(Exit::files, "the checkpoint's GEMM algorithms: {}", damage.what());
    } catch (const std::runtime_error& refusal) {
      fault = refusal.what();
    }
  });
  const std::string first = first_word(world, fault);
  if (!first.empty()) kernels::set_gemm_algorithms({});
  return first;
}

std::vector<std::string> merged(const std::vector<std::vector<std::string>>& of_ranks) {
  std::string stamp;                          // library and GPU: the first line
  std::map<std::string, std::string> chosen;  // kind of product -> its line
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::vector<std::string>& lines = of_ranks[rank];
    if (lines.empty()) continue;
    if (stamp.empty()) stamp = lines.front();
    if (lines.front() != stamp) {
      throw Failure(Exit::environment,
                    "train.tune_gemm = true requires the same GPUs and library on all ranks: rank {} has {}, another "
                    "{}; set train.tune_gemm = false",
                    rank, lines.front(), stamp);
    }
    for (std::size_t i = 1; i < lines.size(); ++i) chosen.emplace(lines[i].substr(0, lines[i].find(" :")), lines[i]);
  }
  if (stamp.empty()) return {};
  std::vector<std::string> all = {stamp};
  for (const auto& [kind, line] : chosen) all.push_back(line);
  return all;
}

void agree_on_gemm_algorithms(parallel::World& world) {
  std::vector<std::vector<std::string>> of_ranks;
  for (const std::string& text : world.all_gather(fmt::format("{}", fmt::join(kernels::gemm_algorithms(), "\n")))) {
    of_ranks.push_back(lines_of(text));
  }
  world.agree([&] { kernels::set_gemm_algorithms(merged(of_ranks)); });
  kernels::set_gemm_selection(kernels::GemmSelection::heuristic);
}

}  // namespace tessera::jobs
