#include "io/background.hpp"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "kernels/core/events.hpp"

namespace tessera::io {
namespace {

/// Thrown on the thread whose work is no longer wanted.
struct Abandoned : std::runtime_error {
  Abandoned() : std::runtime_error("abandoned") {}
};

}  // namespace

Background::~Background() {
  if (is_under_way()) abandon();
}

void Background::start(Work work) {
  if (is_under_way()) throw std::logic_error("background: other work is under way");
  is_waiting_ = has_ended_ = is_abandoned_ = false;
  all_.reset();
  start_s_ = events::now_s();
  thread_ = std::thread([this, work = std::move(work)] { run(work); });
}

void Background::run(const Work& work) {
  const auto whole = [&] {
    work({peers_.rank, peers_.ranks, [this](const Peers::Work& mine) { return gather(mine); },
          [this] { report_progress(); }});
    return std::string();
  };
  offer(whole, true);
}

std::vector<std::string> Background::gather(const Peers::Work& work) {
  offer(work, false);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return all_ || is_abandoned_; });
  if (is_abandoned_) throw Abandoned();
  return *std::exchange(all_, std::nullopt);
}

void Background::offer(const Peers::Work& work, bool is_last) {
  std::string mine;
  std::exception_ptr problem;
  try {
    mine = work();
  } catch (...) {
    problem = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  mine_ = std::move(mine);
  problem_ = problem;
  is_waiting_ = true;
  has_ended_ = is_last;
  changed_.notify_all();
}

void Background::report_progress() {
  const std::lock_guard lock(mutex_);
  ++progress_;
  if (is_abandoned_) throw Abandoned();
  changed_.notify_all();
}

bool Background::can_go_on() const {
  const std::lock_guard lock(mutex_);
  return is_waiting_;
}

void Background::go_on() {
  std::string mine;
  std::exception_ptr problem;
  bool has_ended = false;
  {
    const std::lock_guard lock(mutex_);
    mine = std::move(mine_);
    problem = std::exchange(problem_, nullptr);
    has_ended = has_ended_;
    is_waiting_ = false;
  }
  std::vector<std::string> all;
  try {
    all = peers_.all_gather([&] {
      if (problem) std::rethrow_exception(problem);
      return mine;
    });
  } catch (...) {
    abandon();
    throw;
  }
  if (has_ended) {
    thread_.join();
    seconds_ = events::now_s() - start_s_;
    return;
  }
  const std::lock_guard lock(mutex_);
  all_ = std::move(all);
  changed_.notify_all();
}

void Background::wait_for_progress() const {
  constexpr std::chrono::milliseconds kBetweenSigns(500);
  std::unique_lock lock(mutex_);
  const std::uint64_t before = progress_;
  while (!changed_.wait_for(lock, kBetweenSigns, [this] { return is_waiting_; }) && progress_ == before) {
  }
}

void Background::finish() {
  while (is_under_way()) {
    wait_for_progress();
    bool can_all = true;
    for (const std::string& rank : peers_.all_gather([this] { return std::string(can_go_on() ? "" : "busy"); })) {
      can_all = can_all && rank.empty();
    }
    if (can_all) go_on();
  }
}

void Background::abandon() {
  {
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace tessera::io
