#include "jobs/stop.hpp"

#include <csignal>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "errors.hpp"

namespace tessera::jobs {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};
constexpr int kCount = static_cast<int>(std::size(kSignals));
volatile std::sig_atomic_t received = 0;              // the latest
volatile std::sig_atomic_t has_arrived[kCount] = {};  // each
struct sigaction before[kCount];                      // dispositions at start: a shell may have made it ignore SIGINT
bool is_remembering = false;

void remember(int signal) {
  for (int i = 0; i < kCount; ++i) {
    if (signal != kSignals[i]) continue;
    if (signal == SIGINT && has_arrived[i] != 0) _exit(130);
    has_arrived[i] = 1;
  }
  received = signal;
}

}  // namespace

void remember_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, is_remembering ? nullptr : &before[i]);
  is_remembering = true;
}

void end_on_signals() {
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &before[i], nullptr);
  for (int i = 0; i < kCount; ++i) {
    if (has_arrived[i] != 0) std::raise(kSignals[i]);
    has_arrived[i] = 0;  // it was to be ignored
  }
  received = 0;
}

void stop_on_signal() {
  if (received != 0) throw Failure(Exit::stopped, "stopped by " + arrived_signal());
}

std::string arrived_signal() {
  switch (received) {
    case 0: return "";
    case SIGUSR1: return "SIGUSR1";
    case SIGTERM: return "SIGTERM";
    default: return "SIGINT";
  }
}

StopRequest::StopRequest(double time_limit_s, std::string key)
    : start_(std::chrono::steady_clock::now()), time_limit_s_(time_limit_s), key_(std::move(key)) {
  remember_signals();
}

bool StopRequest::is_due() const { return !reason().empty(); }

std::string StopRequest::reason() const {
  if (received != 0) return arrived_signal();
  const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return time_limit_s_ > 0 && elapsed_s >= time_limit_s_ ? key_ : "";
}

}  // namespace tessera::jobs
