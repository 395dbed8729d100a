/// The console's output: aligned lines in a file, a bar that fits on a terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "io/console.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using io::Console;
using io::StepRecord;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

StepRecord record(std::int64_t step, double validation_loss = io::kNotMeasured) {
  return {.step = step,
          .loss = 2.5,
          .validation_loss = validation_loss,
          .grad_norm = 1.25,
          .learning_rate = 1e-3,
          .tokens = 4096.0 * static_cast<double>(step),
          .step_time_s = 0.0512,
          .tokens_per_second = 80000,
          .peak_bytes = 212.0 * 1024 * 1024};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Runs `work` with a stream to a file and returns what was written.
template <class Work>
std::string written(Work work) {
  const ScratchFolder folder;
  std::FILE* const file = std::fopen((folder / "log").c_str(), "w");
  work(file);
  std::fclose(file);
  return read_bytes(folder / "log");
}

TEST(Console, lines_are_aligned_below_one_header) {
  const auto lines = lines_of(written([](std::FILE* file) {
    Console console(Console::Style::automatic, 10, file);
    EXPECT_EQ(console.style(), Console::Style::line) << "a file is no terminal";
    console.begin(0, 25);
    for (std::int64_t step = 1; step <= 25; ++step) console.step(record(step));
    console.end();
  }));
  ASSERT_THAT(lines, SizeIs(4));  // header, 10, 20 and the last
  EXPECT_THAT(lines, Each(SizeIs(lines[0].size())));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("step"), HasSubstr("tokens/s"), HasSubstr("peak mem")));
  EXPECT_THAT(lines[1], AllOf(ContainsRegex("^ +10 +25 +40960 +2.5000 +- +1.25 +1.00e-03 +51.2 +80.0k +212 MiB "
                                            "+00:0[0-9] +[0-2][0-9]:[0-5][0-9]:[0-6][0-9]$")));
  EXPECT_THAT(lines[3], ContainsRegex("^ +25 +25 .* 00:00 +[0-9:]+$"));
}

TEST(Console, progress_is_one_line_in_every_style) {
  for (const auto style : {Console::Style::line, Console::Style::silent}) {
    std::string before, after;
    written([&](std::FILE* file) {
      Console console(style, 100, file);
      console.begin(2, 12);
      before = console.progress();
      console.step(record(6, 2.75));
      after = console.progress();
    });
    EXPECT_THAT(before, ContainsRegex("^step  2/12  16 %  --:-- left  loss +- "));
    EXPECT_THAT(after, ContainsRegex("^step  6/12  50 %  00:00 left  loss 2.5000  val 2.7500   80.0k tokens/s$"));
  }
}

TEST(Console, the_last_line_has_no_validation_loss_of_an_earlier_step) {
  const auto lines = lines_of(written([](std::FILE* file) {
    Console console(Console::Style::line, 100, file);
    console.begin(0, 5);
    for (std::int64_t step = 1; step <= 2; ++step) console.step(record(step, step == 1 ? 2.75 : io::kNotMeasured));
    console.end();
  }));
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[2], AllOf(ContainsRegex("^ +2 "), Not(HasSubstr("2.7500"))));
}

TEST(Console, line_with_each_validation_loss_and_nothing_twice) {
  const auto lines = lines_of(written([](std::FILE* file) {
    Console console(Console::Style::line, 100, file);
    console.begin(0, 5);
    for (std::int64_t step = 1; step <= 5; ++step) console.step(record(step, step == 3 ? 2.75 : io::kNotMeasured));
    console.end();
    console.end();
  }));
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[1], AllOf(ContainsRegex("^ +3 "), HasSubstr("2.7500")));
}

TEST(Console, numbers_that_are_none_show_as_such) {
  const auto text = written([](std::FILE* file) {
    Console console(Console::Style::line, 1, file);
    console.begin(0, 1);
    StepRecord empty{.step = 1};
    empty.loss = std::numeric_limits<double>::infinity();
    console.step(empty);
  });
  EXPECT_THAT(lines_of(text)[1], ContainsRegex("^ +1 +1 +- +inf( +-)+ +00:00 +[0-9:]+$"));
}

// The reader has left, or the disk is full: the job continues.
TEST(Console, a_stream_that_takes_nothing_is_no_fault) {
  ASSERT_NE(std::signal(SIGPIPE, SIG_IGN), SIG_ERR);  // as the program does
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  for (std::FILE* const stream : {std::fopen("/dev/full", "w"), ::fdopen(ends[1], "w")}) {
    ASSERT_NE(stream, nullptr);
    {
      Console console(Console::Style::line, 1, stream);
      console.begin(0, 500);
      for (std::int64_t step = 1; step <= 500; ++step) console.step(record(step));
      console.note(std::string(100'000, 'x'));  // more than a buffer holds
      console.end();
    }
    EXPECT_NE(std::ferror(stream), 0) << "it took everything: the test shows nothing";
    std::fclose(stream);
  }
  EXPECT_NE(std::signal(SIGPIPE, SIG_DFL), SIG_ERR);
}

TEST(Console, a_note_cannot_steer_the_terminal) {
  EXPECT_EQ(written([](std::FILE* file) {
              Console console(Console::Style::line, 1, file);
              console.note("data       \033[2Ja.txt\tis é");
            }),
            "data       \\x1b[2Ja.txt\tis é\n");
}

TEST(Console, silent_says_nothing) {
  EXPECT_THAT(written([](std::FILE* file) {
                Console console(Console::Style::silent, 1, file);
                console.begin(0, 1);
                console.step(record(1));
                console.note("hello");
                console.end();
              }),
              IsEmpty());
}

/// Runs `work` with a terminal of `columns` and returns what it prints, as read at the far end.
template <class Work>
std::string on_terminal(unsigned short columns, Work work) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(master, 0);
  EXPECT_EQ(::grantpt(master), 0);
  EXPECT_EQ(::unlockpt(master), 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  const winsize size{24, columns, 0, 0};
  EXPECT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  std::FILE* const stream = ::fdopen(terminal, "w");
  work(stream);
  std::fflush(stream);
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(master, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  std::fclose(stream);
  ::close(master);
  return text;
}

/// Columns that `text` takes: escape sequences take none, a UTF-8 character takes one.
std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) == 0) ++i;
    } else if (text[i] != '\r' && text[i] != '\n' && (text[i] & 0xC0) != 0x80) {
      ++columns;
    }
  }
  return columns;
}

/// What was drawn between two carriage returns, without the lines that stay.
std::vector<std::string> frames_of(const std::string& text) {
  std::vector<std::string> frames;
  std::istringstream stream(text);
  for (std::string frame; std::getline(stream, frame, '\r');) {
    if (frame.starts_with('\n')) frames.pop_back();
    frames.push_back(frame);
  }
  return frames;
}

class ConsoleBar : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    ::setenv("LC_ALL", "C.UTF-8", 1);
  }
};

TEST_F(ConsoleBar, shows_step_share_time_left_and_losses) {
  const auto text = on_terminal(120, [](std::FILE* file) {
    Console console(Console::Style::automatic, 10, file);
    EXPECT_EQ(console.style(), Console::Style::bar);
    console.begin(0, 4);
    console.step(record(4, 2.75));
  });
  EXPECT_THAT(text, AllOf(HasSubstr("step 4/4"), HasSubstr("100 %"), HasSubstr("00:00 left"), HasSubstr("loss 2.5000"),
                          HasSubstr("val 2.7500"), HasSubstr("80.0k tokens/s"), HasSubstr("█"), HasSubstr("\033[32m")));
}

TEST(Progress, of_short_work_is_not_shown) {
  EXPECT_THAT(written([](std::FILE* file) {
                Console console(Console::Style::line, 1, file);
                io::Progress progress(console, "data       10 tokens checked");
                progress.at(0.5);
              }),
              IsEmpty());
}

TEST(Progress, of_long_work_is_a_line_now_and_then) {
  const auto lines = lines_of(written([](std::FILE* file) {
    Console console(Console::Style::line, 1, file);
    io::Progress progress(console, "data       10 tokens checked");
    std::this_thread::sleep_for(std::chrono::duration<double>(io::Progress::kQuiet_s));
    for (int i = 0; i < 100; ++i) progress.at(0.25);
  }));
  ASSERT_THAT(lines, SizeIs(1)) << "the next is due 10 s later";
  EXPECT_THAT(lines[0], ContainsRegex("^data       10 tokens checked:  25 %  00:0[0-9] left$"));
}

TEST_F(ConsoleBar, progress_before_the_steps_is_drawn_in_place_and_goes) {
  const auto text = on_terminal(40, [](std::FILE* file) {
    Console console(Console::Style::bar, 1, file);
    {
      io::Progress progress(console, "data       20000000000 tokens checked");
      std::this_thread::sleep_for(std::chrono::duration<double>(io::Progress::kQuiet_s));
      progress.at(0.25);
      console.note("a line that stays");
    }
    console.note("another");
  });
  EXPECT_EQ(text, "\r\033[Kdata       20000000000 tokens checked: \r\033[Ka line that stays\r\nanother\r\n");
}

TEST_F(ConsoleBar, never_wraps) {
  for (unsigned short columns = 1; columns <= 130; ++columns) {
    const auto text = on_terminal(columns, [](std::FILE* file) {
      Console console(Console::Style::bar, 10, file);
      console.begin(99'990, 100'000);
      console.step(record(100'000, 2.75));
    });
    for (const std::string& frame : frames_of(text))
      EXPECT_LT(columns_of(frame), columns + (columns == 1 ? 1u : 0u)) << frame;
  }
}

TEST_F(ConsoleBar, note_stands_on_its_own_line_above_the_bar) {
  const auto text = on_terminal(80, [](std::FILE* file) {
    Console console(Console::Style::bar, 10, file);
    console.begin(0, 4);
    console.note("checkpoint written");
    console.end();
  });
  EXPECT_THAT(text, HasSubstr("\r\033[Kcheckpoint written\r\n\r\033[K"));
  EXPECT_TRUE(text.ends_with("\r\033[K")) << "the bar is left behind";
}

TEST_F(ConsoleBar, validation_losses_stay_above_the_bar) {
  const auto text = on_terminal(60, [](std::FILE* file) {
    Console console(Console::Style::bar, 1, file);
    console.begin(0, 400);
    for (std::int64_t step = 1; step <= 150; ++step)
      console.step(record(step, step % 50 == 0 ? 2 + static_cast<double>(step) / 1000 : io::kNotMeasured));
  });
  std::vector<std::string> stay;
  for (const std::string& line : lines_of(text)) stay.push_back(line.substr(line.rfind('K') + 1));
  stay.pop_back();  // the bar
  EXPECT_THAT(stay, ElementsAre("step  50/400  loss 2.5000  val 2.0500\r", "step 100/400  loss 2.5000  val 2.1000\r",
                                "step 150/400  loss 2.5000  val 2.1500\r"));
  const auto frames = frames_of(text);
  EXPECT_THAT(frames[frames.size() - 2], AllOf(HasSubstr("step 150/400 ["), HasSubstr("left"))) << "below its erasure";
}

/// Gives a terminal another width.
void resize(int terminal, unsigned short columns) {
  const winsize size{24, columns, 0, 0};
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
}

TEST_F(ConsoleBar, follows_the_width_of_its_terminal) {
  const auto frames = frames_of(on_terminal(100, [](std::FILE* file) {
    Console console(Console::Style::bar, 10, file);
    console.begin(0, 4);
    resize(::fileno(file), 50);
    console.step(record(4));
  }));
  ASSERT_THAT(frames, SizeIs(4));  // nothing, the first bar, the last, its erasure
  EXPECT_GT(columns_of(frames[1]), 50u);
  EXPECT_LT(columns_of(frames[2]), 50u);
}

// Under mpirun the stream has no size; the controlling terminal has, and COLUMNS is its size at the start.
TEST_F(ConsoleBar, follows_the_width_of_the_controlling_terminal_where_its_own_has_none) {
  ::setenv("COLUMNS", "100", 1);
  const auto frames = frames_of(on_terminal(0, [](std::FILE* file) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
      if (::grantpt(master) != 0 || ::unlockpt(master) != 0) ::_exit(1);
      const int controlling = ::open(::ptsname(master), O_RDWR);  // of the new session, which had none
      resize(controlling, 70);
      {
        Console console(Console::Style::automatic, 10, file);
        console.begin(0, 4);
        resize(controlling, 40);
        console.step(record(4));
      }
      ::_exit(0);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }));
  ::unsetenv("COLUMNS");
  ASSERT_THAT(frames, SizeIs(4));
  EXPECT_THAT(columns_of(frames[1]), testing::AllOf(testing::Gt(40u), testing::Lt(70u)));
  EXPECT_LT(columns_of(frames[2]), 40u);
}

TEST_F(ConsoleBar, end_leaves_the_last_numbers) {
  const auto text = on_terminal(120, [](std::FILE* file) {
    Console console(Console::Style::bar, 10, file);
    console.begin(0, 4);
    console.step(record(3, 2.75));
    console.step(record(4));
    console.end();
  });
  EXPECT_THAT(lines_of(text).back(), ContainsRegex(" 4 +16384 +2.5000 +2.7500 "));
}

TEST_F(ConsoleBar, no_color_and_other_locales_are_respected) {
  ::setenv("NO_COLOR", "1", 1);
  ::setenv("LC_ALL", "C", 1);
  const auto text = on_terminal(80, [](std::FILE* file) {
    Console console(Console::Style::bar, 10, file);
    console.begin(0, 4);
    console.step(record(4));
  });
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\033[3")), Not(HasSubstr("█")), HasSubstr("##")));
}

// mpirun's terminals have no size; COLUMNS then says that somebody is watching.
TEST_F(ConsoleBar, terminal_without_size_gets_lines_unless_columns_are_given) {
  const auto style = [](std::FILE* file) { return Console(Console::Style::automatic, 10, file).style(); };
  ::unsetenv("COLUMNS");
  on_terminal(0, [&](std::FILE* file) { EXPECT_EQ(style(file), Console::Style::line); });
  ::setenv("COLUMNS", "100", 1);
  on_terminal(0, [&](std::FILE* file) { EXPECT_EQ(style(file), Console::Style::bar); });
  ::unsetenv("COLUMNS");
}

TEST_F(ConsoleBar, dumb_terminal_gets_lines) {
  ::setenv("TERM", "dumb", 1);
  on_terminal(80, [](std::FILE* file) {
    EXPECT_EQ(Console(Console::Style::automatic, 10, file).style(), Console::Style::line);
  });
}

}  // namespace
}  // namespace tessera::test
