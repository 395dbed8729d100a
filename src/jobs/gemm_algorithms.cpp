#include "jobs/gemm_algorithms.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>

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

std::string environment_for(const std::string& library_before, const std::string& library_now) {
  // "... (OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY SkylakeX SINGLE_THREADED)": the fifth word there
  static const std::regex config(
      R"((.*\(OpenBLAS \S+ .*\bDYNAMIC_ARCH NO_AFFINITY )(\w+)( .*\)[^;]*)(?:; kernels (\w+))?)");
  std::smatch before, now;
  if (!std::regex_match(library_before, before, config) || !std::regex_match(library_now, now, config)) return "";
  if (before[1] != now[1] || before[3] != now[3]) return "";
  std::vector<std::string> settings;
  if (before[2] != now[2]) settings.push_back("OPENBLAS_CORETYPE=" + before[2].str());
  if (before[4] != now[4]) settings.push_back("TESSERA_CPU_LEVEL=" + (before[4].matched ? before[4].str() : "v3"));
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
}

}  // namespace tessera::jobs
