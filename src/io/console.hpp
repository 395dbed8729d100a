/// Progress of a job for people: on a terminal a bar with the time left, else one aligned line per interval.
///
///     step    of     tokens     loss   val loss  grad norm        lr   ms/step   tokens/s  peak mem     left     clock
///       10   400      40960   4.8213          -       1.42  1.00e-03      51.2      80.0k   212 MiB    00:20  12:31:05
///
/// Only rank 0 prints; the other ranks use Style::silent. Numbers that were not measured (NaN) show as '-'. If the
/// stream refuses output (its reader has left, the disk is full), the job continues without it. NO_COLOR and TERM=dumb
/// turn colours off. The bar is cut to the terminal's current width. Validation losses stay above it as lines.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "io/step_record.hpp"

namespace tessera::io {

class Console {
 public:
  enum class Style { automatic, bar, line, silent };  // automatic: bar on a terminal with a size

  /// `stream` is stdout in programs; `every_steps` is the interval between lines (a bar moves with every step).
  Console(Style, std::int64_t every_steps, std::FILE* stream = stdout);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Steps first_step+1 .. last_step follow; a resumed run starts with first_step > 0.
  void begin(std::int64_t first_step, std::int64_t last_step);
  /// After every step. Lines are printed at multiples of every_steps, at the last step and with each validation loss;
  /// where there is a bar, with each validation loss only.
  void step(const StepRecord&);
  /// Lines that stay, above the bar where there is one; "" is none. Control characters are escaped, here and below.
  void note(std::string_view text);
  /// A line that the next one replaces, where there is a bar; else one that stays.
  void passing(std::string_view line);
  /// Takes the bar or the passing line away, if one is drawn.
  void erase_bar();
  /// Takes the bar away and leaves the last numbers as a line; safe to call twice.
  void end();

  /// "step 120/400   30 %  00:41 left  loss 2.3121  val 2.4012  80.0k tokens/s", whatever the style.
  std::string progress() const;

  Style style() const { return style_; }

 private:
  void draw_bar();
  void draw(std::string_view line);
  std::size_t width() const;
  void print_line(const StepRecord&);
  void put(std::string_view text);
  std::string place_of(const StepRecord&) const;
  double left_s() const, fraction() const;
  std::string share_and_time_left() const;
  std::vector<std::string> figures() const;

  Style style_;
  std::int64_t every_steps_;
  std::FILE* stream_;
  bool has_colour_ = false, has_unicode_ = false;
  bool has_header_ = false, is_bar_drawn_ = false, is_running_ = false;
  std::int64_t first_step_ = 0, last_step_ = 0;
  std::int64_t last_printed_ = -1;
  StepRecord latest_;
  double latest_validation_loss_ = kNotMeasured;
  std::chrono::steady_clock::time_point begin_time_{}, last_draw_{};
};

/// Progress of long work before the steps:
///
///     data       20000000000 tokens checked:  41 %  00:09 left
///
/// Silent for kQuiet_s. Then, if the console has a bar, the line updates in place; else it is printed every kEvery_s.
class Progress {
 public:
  /// `what` begins the line. Keeps a reference to `console`.
  Progress(Console& console, std::string what);
  ~Progress() { console_.erase_bar(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(double fraction);  // 0 to 1, of the work

  static constexpr double kQuiet_s = 1, kEvery_s = 10;

 private:
  Console& console_;
  std::string what_;
  std::chrono::steady_clock::time_point begin_;
  double next_s_ = kQuiet_s;  // after the beginning
};

}  // namespace tessera::io
