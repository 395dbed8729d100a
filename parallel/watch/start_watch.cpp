#include "parallel/watch/start_watch.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "kernels/core/events.hpp"
#include "parallel/watch/watchdog.hpp"

namespace tessera::parallel {
namespace {

constexpr std::ptrdiff_t kListed = 16;  // ranks named in one list

/// What the launcher's environment calls this launch; "" if it has no name for it.
std::string launch_id() {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  const char *job = std::getenv("SLURM_JOB_ID"), *step = std::getenv("SLURM_STEP_ID");
  return job && step ? std::string(job) + "." + step : "";
}

/// Names have at most 107 characters: ids of any length become 16.
std::string name_of(const std::string& launch) {
  return launch.empty() ? "" : fmt::format("tessera-start-{:016x}", std::hash<std::string>{}(launch));
}

/// {rank: process} of the ranks on this host whose sockets have that name.
std::map<int, int> ranks_that_came(const std::string& name) {
  std::map<int, int> came;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find("@" + name + "-");
    int rank = 0, process = 0;
    if (at == std::string::npos) continue;
    if (std::sscanf(line.c_str() + at + 1 + name.size(), "-%d-%d", &rank, &process) == 2) came[rank] = process;
  }
  return came;
}

bool is_stopped(int process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(") ");  // the name itself may contain anything
  return name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] == 'T';
}

std::string list_of(const std::vector<int>& ranks) {
  const auto end = ranks.begin() + std::min(kListed, std::ssize(ranks));
  const std::string more = end == ranks.end() ? "" : fmt::format(" and {} more", ranks.end() - end);
  return fmt::format("{}{}", fmt::join(ranks.begin(), end, ", "), more);
}

}  // namespace

StartWatch::StartWatch(int rank, int ranks, double limit_s, int exit_code)
    : rank_(rank), ranks_(ranks), exit_code_(exit_code), limit_s_(kPatience * limit_s), name_(name_of(launch_id())) {
  if (limit_s_ <= 0 || ranks_ == 1) return;
  announce();
  thread_ = std::jthread([this](const std::stop_token& stop) { guard(stop); });
}

StartWatch::~StartWatch() {
  end();
  if (socket_ >= 0) ::close(socket_);
}

/// If it fails, the others count this rank as one that they have not seen.
void StartWatch::announce() {
  if (name_.empty()) return;
  socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return;
  sockaddr_un address{};  // a name that begins with 0 is abstract
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s-%d-%ld", name_.c_str(), rank_,
                                   static_cast<long>(::getpid()));
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  (void)::bind(socket_, reinterpret_cast<const sockaddr*>(&address), bytes);
}

void StartWatch::guard(const std::stop_token& stop) {
  const double period_s = std::min(0.2, limit_s_ / 10);
  std::mutex nothing;
  std::unique_lock lock(nothing);
  std::condition_variable_any wake;
  for (double waited_s = 0; waited_s < limit_s_;) {
    const double from_s = events::now_s();
    wake.wait_for(lock, stop, std::chrono::duration<double>(period_s), [] { return false; });
    if (stop.stop_requested()) return;
    waited_s += std::min(events::now_s() - from_s, 2 * period_s);  // longer: the process stood still
  }
  give_up();
}

std::vector<std::string> StartWatch::report() const {
  if (name_.empty()) return {"which ranks have come is unknown: the launcher gives the launch no id"};
  const std::map<int, int> came = ranks_that_came(name_);
  std::vector<int> seen, unseen;
  for (int rank = 0; rank < ranks_; ++rank) (came.count(rank) > 0 ? seen : unseen).push_back(rank);
  std::vector<std::string> lines;
  for (const auto& [rank, process] : came) {
    if (!is_stopped(process)) continue;
    lines.push_back(fmt::format("rank {} has reached the start, and is stopped: process {}", rank, process));
  }
  lines.push_back("ranks that have reached the start on this host: " + (seen.empty() ? "none" : list_of(seen)));
  if (!unseen.empty()) {
    lines.push_back("ranks not seen: " + list_of(unseen) +
                    "; they have not come as far, or run on another host: see its own messages");
  }
  return lines;
}

void StartWatch::give_up() const {
  const std::string me = fmt::format("tessera: rank {}: ", rank_);
  std::string words = fmt::format(
      "{}the {} ranks have not started within {:g} s: one is stopped, gone or not reachable\n", me, ranks_, limit_s_);
  for (const std::string& line : report()) words += me + line + "\n";
  words += fmt::format("{}leaves with exit code {}; start again. ", me, exit_code_);
  words += fmt::format("parallel.timeout_s sets how long it waits: {:g} times as long here\n", kPatience);
  write_last_words(words);
  ::_exit(exit_code_);
}

}  // namespace tessera::parallel
