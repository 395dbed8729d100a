#include "config/job_numbers.hpp"

#include <cstdlib>

#include "unit/config/support.hpp"

namespace tessera::config {
namespace {

using ::testing::HasSubstr;

/// Variables of Slurm, for as long as a test runs.
class JobNumbers : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"};
  JobNumbers() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  ~JobNumbers() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static void be_task() {
    ::setenv("SLURM_JOB_ID", "20", 1);
    ::setenv("SLURM_ARRAY_JOB_ID", "17", 1);
    ::setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  }
};

TEST_F(JobNumbers, stand_for_slurms_in_paths_of_the_job) {
  be_task();
  const Deck deck =
      parse_deck("[train]\nsteps = 3\n[data]\nsource = \"synthetic\"", "d.toml",
                 {"job.directory=/runs/%A/%a_%a", "job.output=/runs/%j.h5", "job.kind=verify.model", "job.input=a"});
  EXPECT_EQ(deck.settings.job.directory, "/runs/17/3_3");
  EXPECT_EQ(deck.settings.job.output, "/runs/20.h5");
  EXPECT_THAT(deck.resolved, HasSubstr("\"/runs/17/3_3\""));
  EXPECT_NO_THROW(require_job_numbers(deck.settings.job));
}

TEST_F(JobNumbers, stay_words_without_slurm_and_are_then_refused_to_a_run) {
  const Job job = parse_deck("[train]\nsteps = 3", "d.toml", {"job.directory=/runs/%a/50%x"}).settings.job;
  EXPECT_EQ(job.directory, "/runs/%a/50%x");
  const std::string message = refusal(Exit::usage, [&] { require_job_numbers(job); });
  EXPECT_THAT(message, HasSubstr("job.directory = /runs/%a/50%x: %a is a number of a job of an array"));
  EXPECT_THAT(message, HasSubstr("SLURM_ARRAY_TASK_ID is not set"));
  ::setenv("SLURM_JOB_ID", "20", 1);  // a job, but of no array
  EXPECT_THAT(refusal(Exit::usage, [&] { require_job_numbers(job); }), HasSubstr("and this is none"));
}

TEST_F(JobNumbers, of_a_stored_deck_are_those_of_its_time) {
  const std::string stored = parse_deck("[train]\nsteps = 3", "d.toml", {"job.directory=/runs/%a"}).resolved;
  be_task();
  EXPECT_EQ(parse_stored_deck(stored, "stored").settings.job.directory, "/runs/%a");
}

}  // namespace
}  // namespace tessera::config
