#include "jobs/owner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "errors.hpp"
#include "unit/io/scratch.hpp"

namespace tessera::jobs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A directory, in which jobs work one after the other.
class RunOwner : public ::testing::Test {
 protected:
  using Variables = std::map<std::string, std::string>;

  Owner in_job(const Variables& variables) {
    return Owner(
        folder_.path(),
        [variables](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        [this](const std::string& job) {
          asked_ += job + " ";
          return answer_;
        });
  }
  static Variables job(const std::string& number, const std::string& submission = "") {
    Variables variables{{"SLURM_JOB_ID", number}, {"SLURM_CLUSTER_NAME", "here"}};
    if (!submission.empty()) variables["TESSERA_SUBMISSION"] = submission;
    return variables;
  }
  /// Why a job may not start; "" if it may.
  std::string refusal(const Variables& variables) {
    try {
      in_job(variables).require_free([&](const std::string& line) { notes_ += line; });
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::files);
      return failure.what();
    }
    return "";
  }

  test::ScratchFolder folder_;
  Owner::Answer answer_;
  std::string asked_, notes_;
};

TEST_F(RunOwner, refuses_another_job_while_its_own_runs_or_waits) {
  in_job(job("17")).begin(0, true);
  for (const char* state : {"RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT"}) {
    answer_.text = std::string(state) + "\n";
    for (const Variables& other : {job("18"), Variables{}}) {
      const std::string message = refusal(other);
      EXPECT_THAT(message, HasSubstr("job 17 of Slurm works here (" + std::string(state) + ")"));
      EXPECT_THAT(message, HasSubstr("scancel 17"));
    }
    EXPECT_EQ(refusal(job("17")), "") << "itself, after a requeue";
  }
  EXPECT_EQ(notes_, "");
}

TEST_F(RunOwner, lets_others_in_once_its_job_has_ended) {
  in_job(job("17")).begin(0, true);
  for (const char* text : {"COMPLETED\n", "FAILED\n", "CANCELLED\n", "TIMEOUT\n", "",
                           "slurm_load_jobs error: Invalid job id specified\nsqueue ended with 1\n"}) {
    answer_.text = text;
    EXPECT_EQ(refusal(job("18")), "") << text;
  }
  EXPECT_EQ(notes_, "");
  answer_ = {.is_there = false, .text = ""};
  EXPECT_EQ(refusal(job("18")), "") << "no squeue";
}

TEST_F(RunOwner, says_so_if_nobody_knows_whether_its_job_has_ended) {
  in_job(job("17")).begin(0, true);
  answer_.text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n";
  EXPECT_EQ(refusal(job("18")), "");
  EXPECT_THAT(notes_, HasSubstr("whether job 17, which worked here last, has ended is not known (squeue: slurm_load"));
  notes_ = asked_ = "";
  EXPECT_EQ(refusal({{"SLURM_JOB_ID", "17"}, {"SLURM_CLUSTER_NAME", "there"}}), "") << "the same number elsewhere";
}

TEST_F(RunOwner, asks_for_an_arrays_job_by_both_its_numbers) {
  in_job({{"SLURM_JOB_ID", "17"}, {"SLURM_ARRAY_JOB_ID", "17"}, {"SLURM_ARRAY_TASK_ID", "3"}}).begin(0, true);
  answer_.text = "PENDING\n";
  EXPECT_THAT(refusal(job("17")), HasSubstr("job 17_3 of Slurm"));
  EXPECT_EQ(asked_, "17_3 ");
}

TEST_F(RunOwner, passes_from_job_to_job_and_to_none) {
  in_job(job("17")).begin(0, true);
  in_job(job("18")).begin(0, true);
  answer_.text = "RUNNING\n";
  EXPECT_THAT(refusal(job("17")), HasSubstr("job 18"));
  in_job({}).begin(0, true);
  EXPECT_EQ(refusal(job("17")), "");
  std::ofstream(folder_ / Owner::kName) << "job = \"$(touch here)\"\nrubbish\n";
  EXPECT_EQ(refusal(job("17")), "") << "what is no number is no job";
}

TEST_F(RunOwner, writes_nothing_where_there_is_no_job) {
  in_job({}).begin(0, false);
  EXPECT_FALSE(std::filesystem::exists(folder_ / Owner::kName));
}

TEST_F(RunOwner, ends_a_submission_after_two_starts_without_progress) {
  in_job(job("17", "chain")).begin(90, true);
  in_job(job("18", "chain")).begin(90, true);
  const std::string message = test::failure_of([&] { in_job(job("19", "chain")).begin(90, true); }, Exit::environment);
  EXPECT_THAT(message, HasSubstr("the last 2 starts of this submission began at step 90"));
  EXPECT_THAT(message, HasSubstr("as job 18"));
  EXPECT_THROW(in_job(job("20", "chain")).begin(90, true), Failure) << "nor does any later one start";
  EXPECT_NO_THROW(in_job(job("21", "another")).begin(90, true));
  EXPECT_NO_THROW(in_job(job("22", "another")).begin(91, true));
  EXPECT_NO_THROW(in_job(job("23", "another")).begin(91, true));
  EXPECT_NO_THROW(in_job(job("24", "another")).begin(0, false)) << "anew";
  for (int start = 0; start < 4; ++start) EXPECT_NO_THROW(in_job(job("25")).begin(std::nullopt, true));
}

TEST_F(RunOwner, counts_requeues_of_a_job_without_a_name_for_its_submission) {
  Variables requeue = job("17");
  in_job(requeue).begin(0, true);
  requeue["SLURM_RESTART_COUNT"] = "1";
  for (int start = 0; start < Owner::kFruitlessStarts; ++start) EXPECT_NO_THROW(in_job(requeue).begin(0, true));
  EXPECT_THROW(in_job(requeue).begin(0, true), Failure);
}

TEST_F(RunOwner, of_a_finished_run_is_nobody) {
  Owner owner = in_job(job("17"));
  owner.begin(0, true);
  owner.checkpoint_took(63, false);
  owner.release();
  std::ifstream file(folder_ / Owner::kName);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, Not(HasSubstr("job = ")));
  EXPECT_THAT(text, HasSubstr("longest_checkpoint_s = 63"));
}

TEST_F(RunOwner, counts_no_starts_by_hand_within_an_allocation) {
  for (int start = 0; start < 4; ++start) EXPECT_NO_THROW(in_job(job("17")).begin(0, true));
}

TEST_F(RunOwner, warns_where_a_stop_would_wait_for_two_checkpoints) {
  Variables variables = job("17");
  variables["TESSERA_MARGIN_S"] = "61";
  Owner owner = in_job(variables);
  owner.begin(0, true);
  EXPECT_EQ(owner.checkpoint_took(30.5, true), "");
  EXPECT_THAT(owner.checkpoint_took(31, true), HasSubstr("took 31.0 s (a stop may wait for two)"));
}

TEST_F(RunOwner, remembers_the_longest_checkpoint_and_warns_of_one_that_takes_too_long) {
  Variables variables = job("17");
  variables["TESSERA_MARGIN_S"] = "61";
  Owner owner = in_job(variables);
  owner.begin(0, true);
  EXPECT_EQ(owner.checkpoint_took(61, false), "");
  owner.step_took(0.5);
  EXPECT_THAT(owner.checkpoint_took(60.6, false),
              HasSubstr("took 60.6 s, a step with its validation up to 0.5 s, and the job ends 61 s after"));
  EXPECT_EQ(owner.checkpoint_took(63, false), "") << "once";
  in_job(job("18")).begin(5, true);
  std::ifstream file(folder_ / Owner::kName);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("longest_checkpoint_s = 63"));
  EXPECT_THAT(text, HasSubstr("longest_step_s = 0.5"));
  EXPECT_THAT(text, HasSubstr("job = \"18\""));
}

}  // namespace
}  // namespace tessera::jobs
