#include "io/console.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "kernels/core/words.hpp"

namespace tessera::io {
namespace {

using Seconds = std::chrono::duration<double>;
constexpr Seconds kRedrawEvery{0.1};  // a faster bar costs more than it is worth

/// "-" where not measured, else in the given format.
std::string number(double value, fmt::format_string<double&> format) {
  return std::isfinite(value) ? fmt::format(format, value) : std::isnan(value) ? "-" : fmt::format("{}", value);
}

/// 812, 80.0k, 1.25M, 3.10G
std::string short_number(double value) {
  if (!std::isfinite(value)) return number(value, "{}");
  if (value < 1e3) return fmt::format("{:.0f}", value);
  if (value < 1e6) return fmt::format("{:.1f}k", value / 1e3);
  if (value < 1e9) return fmt::format("{:.2f}M", value / 1e6);
  return fmt::format("{:.2f}G", value / 1e9);
}

std::string short_bytes(double value) {
  if (!std::isfinite(value)) return number(value, "{}");
  if (value < 1024.0 * 1024) return fmt::format("{:.0f} KiB", value / 1024);
  if (value < 1024.0 * 1024 * 1024) return fmt::format("{:.0f} MiB", value / 1024 / 1024);
  return fmt::format("{:.1f} GiB", value / 1024 / 1024 / 1024);
}

std::string clock(double seconds) {
  if (!std::isfinite(seconds)) return "--:--";
  const auto s = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  return s < 3600 ? fmt::format("{:02d}:{:02d}", s / 60, s % 60)
                  : fmt::format("{}:{:02d}:{:02d}", s / 3600, s / 60 % 60, s % 60);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int columns_of(int terminal) {
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Current width in columns of the terminal behind `stream`; 0: nobody is watching. mpirun gives rank 0 a terminal
/// without a size, wherever mpirun's own output goes. If that is a real terminal, scripts/run exports COLUMNS, and the
/// controlling terminal has the current width, unless the rank is on another host.
int terminal_width(std::FILE* stream) {
  if (const int columns = columns_of(::fileno(stream)); columns > 0) return columns;
  const int at_start = std::max(std::atoi(variable("COLUMNS").c_str()), 0);
  const int terminal = at_start > 0 ? ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC) : -1;
  if (terminal < 0) return at_start;
  const int columns = columns_of(terminal);
  ::close(terminal);
  return columns > 0 ? columns : at_start;
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = variable(name);
    if (!value.empty()) return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

constexpr std::string_view kLine = "{:>9} {:>8} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n";

}  // namespace

Console::Console(Style style, std::int64_t every_steps, std::FILE* stream)
    : style_(style), every_steps_(std::max<std::int64_t>(every_steps, 1)), stream_(stream) {
  const bool is_terminal = ::isatty(::fileno(stream_)) == 1;
  const bool is_dumb = variable("TERM") == "dumb" || terminal_width(stream_) == 0;
  if (style_ == Style::automatic) style_ = is_terminal && !is_dumb ? Style::bar : Style::line;
  has_colour_ = is_terminal && !is_dumb && variable("NO_COLOR").empty();
  has_unicode_ = is_utf8_locale();
}

Console::~Console() { erase_bar(); }

void Console::begin(std::int64_t first_step, std::int64_t last_step) {
  first_step_ = first_step;
  last_step_ = last_step;
  latest_ = StepRecord{.step = first_step};
  is_running_ = true;
  begin_time_ = std::chrono::steady_clock::now();
  last_draw_ = {};
  if (style_ == Style::bar) draw_bar();
}

void Console::step(const StepRecord& record) {
  latest_ = record;
  const bool is_validated = !std::isnan(record.validation_loss), is_last = record.step >= last_step_;
  if (is_validated) latest_validation_loss_ = record.validation_loss;
  if (style_ == Style::line && (record.step % every_steps_ == 0 || is_validated || is_last)) print_line(record);
  if (style_ == Style::bar) {
    if (is_validated) {
      note(fmt::format("{}  loss {}  val {}", place_of(record), number(record.loss, "{:.4f}"),
                       number(record.validation_loss, "{:.4f}")));
    }
    const bool is_due = std::chrono::steady_clock::now() - last_draw_ >= kRedrawEvery;
    if (is_due || is_last) draw_bar();
  }
}

void Console::note(std::string_view text) {
  if (style_ == Style::silent || text.empty()) return;
  const bool had_bar = is_bar_drawn_;
  erase_bar();
  put(printable(text) + (text.ends_with('\n') ? "" : "\n"));
  if (had_bar && is_running_) draw_bar();
}

void Console::passing(std::string_view line) {
  if (style_ == Style::bar) {
    draw(printable(line).substr(0, width()));
  } else {
    note(line);
  }
}

void Console::end() {
  if (!is_running_) return;
  is_running_ = false;
  erase_bar();
  StepRecord last = latest_;
  if (style_ == Style::bar) last.validation_loss = latest_validation_loss_;  // which the bar showed
  if (style_ != Style::silent && last.step > first_step_ && last.step != last_printed_) print_line(last);
}

void Console::print_line(const StepRecord& r) {
  if (!std::exchange(has_header_, true)) {
    put(fmt::format(kLine, "step", "of", "tokens", "loss", "val loss", "grad norm", "lr", "ms/step", "tokens/s",
                    "peak mem", "left", "clock"));
  }
  put(fmt::format(kLine, r.step, last_step_, number(r.tokens, "{:.0f}"), number(r.loss, "{:.4f}"),
                  number(r.validation_loss, "{:.4f}"), number(r.grad_norm, "{:.3g}"), number(r.learning_rate, "{:.2e}"),
                  number(1e3 * r.step_time_s, "{:.1f}"), short_number(r.tokens_per_second), short_bytes(r.peak_bytes),
                  clock(left_s()), fmt::format("{:%H:%M:%S}", fmt::localtime(std::time(nullptr)))));
  last_printed_ = r.step;
}

/// "step 120/400"
std::string Console::place_of(const StepRecord& r) const {
  const std::string last = fmt::format("{}", last_step_);
  return fmt::format("step {:>{}}/{}", r.step, last.size(), last);
}

/// By the mean time of a step since begin().
double Console::left_s() const {
  const auto all = std::max<std::int64_t>(last_step_ - first_step_, 1),
             done = std::clamp<std::int64_t>(latest_.step - first_step_, 0, all);
  const double elapsed_s = Seconds(std::chrono::steady_clock::now() - begin_time_).count();
  return done > 0 ? elapsed_s / static_cast<double>(done) * static_cast<double>(all - done) : kNotMeasured;
}

double Console::fraction() const {
  return last_step_ > 0 ? std::clamp(static_cast<double>(latest_.step) / static_cast<double>(last_step_), 0.0, 1.0)
                        : 1.0;
}

std::string Console::share_and_time_left() const {
  return fmt::format(" {:3.0f} %  {} left", std::floor(100 * fraction()), clock(left_s()));
}

std::vector<std::string> Console::figures() const {
  return {fmt::format("  loss {:>6}", number(latest_.loss, "{:.4f}")),
          fmt::format("  val {:>6}", number(latest_validation_loss_, "{:.4f}")),
          fmt::format("  {:>6} tokens/s", short_number(latest_.tokens_per_second))};
}

std::string Console::progress() const {
  std::string text = place_of(latest_) + share_and_time_left();
  for (const std::string& part : figures()) text += part;
  return text;
}

/// "step 120/400 [######----------] 30 %  00:41 left  loss 2.3121  val 2.4012  80.0k tokens/s": parts that do not fit
/// the terminal are dropped from the right, and the bar takes the remaining columns.
void Console::draw_bar() {
  last_draw_ = std::chrono::steady_clock::now();
  const std::size_t width = this->width();
  std::string head = place_of(latest_) + " ";
  std::string tail = share_and_time_left();
  if (head.size() + tail.size() > width) {
    head = head.substr(0, width);
    tail = tail.substr(0, width - head.size());
  }
  constexpr std::size_t kSmallestBar = 12;
  for (const std::string& part : figures()) {
    if (head.size() + tail.size() + part.size() + kSmallestBar > width) break;
    tail += part;
  }
  const std::size_t room = width - head.size() - tail.size();
  std::string bar;
  if (room >= 5) {
    const std::size_t cells = std::min<std::size_t>(room, 40) - 2;
    const auto full = static_cast<std::size_t>(fraction() * static_cast<double>(cells));
    for (std::size_t i = 0; i < cells; ++i) bar += i < full ? (has_unicode_ ? "█" : "#") : (has_unicode_ ? "░" : "-");
    bar = has_colour_ ? "[\033[32m" + bar + "\033[0m]" : "[" + bar + "]";
  }
  draw(head + bar + tail);
}

void Console::draw(std::string_view line) {
  put(fmt::format("\r\033[K{}", line));
  is_bar_drawn_ = true;
}

/// Columns that a line may take.
std::size_t Console::width() const {
  const int columns = terminal_width(stream_);
  return static_cast<std::size_t>(std::max((columns > 0 ? columns : 80) - 1, 1));  // some terminals wrap at the last
}

void Console::erase_bar() {
  if (!std::exchange(is_bar_drawn_, false)) return;
  put("\r\033[K");
}

void Console::put(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stream_));
  std::fflush(stream_);
}

Progress::Progress(Console& console, std::string what)
    : console_(console), what_(std::move(what)), begin_(std::chrono::steady_clock::now()) {}

void Progress::at(double fraction) {
  const double elapsed_s = Seconds(std::chrono::steady_clock::now() - begin_).count();
  if (elapsed_s < next_s_ || console_.style() == Console::Style::silent) return;
  next_s_ = elapsed_s + (console_.style() == Console::Style::bar ? kRedrawEvery.count() : kEvery_s);
  console_.passing(
      fmt::format("{}: {:3.0f} %  {} left", what_, std::floor(100 * fraction), clock(elapsed_s * (1 / fraction - 1))));
}

}  // namespace tessera::io
