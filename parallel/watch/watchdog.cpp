#include "parallel/watch/watchdog.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace tessera::parallel {

void write_last_words(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

Watchdog::Watchdog(int rank, double limit_s, int exit_code, std::function<std::string()> fault,
                   std::function<void()> abandon, FlightRecorder* recorder)
    : rank_(rank),
      limit_s_(limit_s),
      period_s_(std::min(0.2, limit_s / 10)),
      exit_code_(exit_code),
      fault_(std::move(fault)),
      abandon_(std::move(abandon)),
      recorder_(recorder),
      awake_s_(events::now_s()) {
  if (recorder_) recorder_->beat();  // a rank that is stopped before the thread runs is missed, too
  thread_ = std::jthread([this](const std::stop_token& stop) { guard(stop); });
  events::add_listener(*this);
}

Watchdog::~Watchdog() {
  events::remove_listener(*this);
  thread_ = {};  // ends it
  if (recorder_) recorder_->rest();
}

Watchdog::Watch::Watch(Watchdog* watchdog, std::string_view what, double patience)
    : watchdog_(watchdog), exceptions_(std::uncaught_exceptions()) {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  outer_ = std::exchange(watchdog_->what_, what);
  outer_patience_ =
      std::exchange(watchdog_->patience_, outer_.empty() ? patience : std::max(patience, watchdog_->patience_));
  watchdog_->progress_s_ = events::now_s();
}

Watchdog::Watch::~Watch() {
  if (!watchdog_) return;
  const std::lock_guard lock(watchdog_->mutex_);
  if (std::uncaught_exceptions() == exceptions_) {
    watchdog_->progress();
    if (watchdog_->patience_ <= 1) ++watchdog_->watches_;
  }
  watchdog_->what_ = std::move(outer_);
  watchdog_->patience_ = outer_patience_;
  watchdog_->progress_s_ = events::now_s();
}

void Watchdog::made_progress() {
  const std::lock_guard lock(mutex_);
  progress();
}

void Watchdog::expect_silence(double silence_s) {
  const std::lock_guard lock(mutex_);
  longest_s_ = std::max(longest_s_, silence_s);
}

void Watchdog::leave(const std::optional<Departure>& departure) {
  const std::lock_guard lock(mutex_);
  end_s_ = std::min(end_s_, events::now_s() + limit_s_ / 2 + kLeaving_s);
  if (departure) departure_ = departure;
}

void Watchdog::stay() {
  const std::lock_guard lock(mutex_);
  end_s_ = std::numeric_limits<double>::infinity();
  departure_.reset();
}

void Watchdog::progress() {
  const double now_s = wake();
  if (!what_.empty() && patience_ <= 1) longest_s_ = std::max(longest_s_, now_s - progress_s_);
  progress_s_ = now_s;
}

/// Allocates nothing; a long text is cut.
template <class... Values>
void Watchdog::record(fmt::format_string<const Values&...> format, const Values&... values) {
  const std::lock_guard lock(mutex_);
  progress();
  Report& report = reports_[report_count_++ % kKept];
  report.time_s = progress_s_;
  *fmt::format_to_n(report.text, sizeof report.text - 1, format, values...).out = '\0';
}

void Watchdog::on(const events::Region& region) {
  record("{} took {:.3f} ms", region.label, 1e3 * (region.end_s - region.start_s));
}

void Watchdog::on(const events::CommunicationStart& start) {
  record("{} of {} started, {} bytes", start.operation, start.label, start.bytes);
}

void Watchdog::on(const events::Communication& done) {
  record("{} of {} ended after {:.3f} ms, {} bytes", done.operation, done.label, 1e3 * (done.end_s - done.start_s),
         done.bytes);
}

double Watchdog::allowed_s(double patience) const {
  const double first = watches_ < kFirstWatches ? kFirstFactor : 1;
  return std::max(std::max(first, patience) * limit_s_, kSlowFactor * longest_s_);
}

bool Watchdog::is_lost() const {
  const double now_s = events::now_s(), waited_s = what_.empty() ? 0 : now_s - progress_s_;
  if (waited_s > allowed_s(patience_)) return true;
  // Both times: the thread of a rank that works may be late with its sign of life.
  const double stopped_s = std::max(allowed_s(1), kStopped_s);
  if (waited_s <= stopped_s || !recorder_) return false;
  // A rank that was suspended together with this one may wake after it.
  return std::min(recorder_->longest_silence_s(), now_s - pause_end_s_) > stopped_s;
}

void Watchdog::guard(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    ended_.wait_for(lock, stop, std::chrono::duration<double>(period_s_), [] { return false; });
    if (stop.stop_requested()) return;
    wake();
    lock.unlock();
    if (recorder_) recorder_->beat();
    const std::string fault = fault_ ? fault_() : "";  // may take a while; the main thread must not wait for it
    lock.lock();
    wake();
    if (!fault.empty()) give_up(fault);
    if (events::now_s() > end_s_) give_up("it leaves by an exception, but has not finished doing so");
    if (is_lost()) {
      give_up(
          fmt::format("no progress for {:.1f} s: a rank, the network or a GPU is lost", events::now_s() - progress_s_));
    }
  }
}

/// If the process stood still, as a suspended job does, what it waits for had no time to happen.
double Watchdog::wake() {
  const double now_s = events::now_s(), pause_s = now_s - awake_s_ - period_s_;
  awake_s_ = now_s;
  if (pause_s >= kPause_s) {
    pause_end_s_ = now_s;
    progress_s_ = std::min(now_s, progress_s_ + pause_s);
    end_s_ += pause_s;
  }
  return now_s;
}

void Watchdog::give_up(const std::string& fault) {
  const double now_s = events::now_s();
  const std::string me = fmt::format("tessera: rank {}: ", rank_);
  std::string text = departure_ ? me + departure_->why + "\n" : "";
  text += me + fault + (what_.empty() ? "" : ", under way: " + what_) + "\n";
  if (recorder_) {
    for (const std::string& line : recorder_->report(std::max(kSilence_s, limit_s_ / 2))) text += me + line + "\n";
  }
  if (report_count_ > 0) text += me + "its latest reports:\n";
  for (std::size_t i = report_count_ > kKept ? report_count_ - kKept : 0; i < report_count_; ++i) {
    const Report& report = reports_[i % kKept];
    text += fmt::format("  {:9.3f} s ago  {}\n", now_s - report.time_s, report.text);
  }
  const int code = departure_ ? departure_->exit_code : exit_code_;
  text += fmt::format("{}leaves with exit code {}", me, code);
  if (!departure_) text += fmt::format("{}. parallel.timeout_s sets how long it waits", kAfterLoss);
  write_last_words(text + "\n");
  try {
    if (abandon_) {
      abandon_();
      std::this_thread::sleep_for(std::chrono::duration<double>(kLettingGo_s));
    }
  } catch (...) {  // the process ends anyway
  }
  ::_exit(code);
}

}  // namespace tessera::parallel
