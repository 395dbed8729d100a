/// How one rank's failure becomes every rank's, and what memory a rank may have.
#include "jobs/jobs.hpp"
#include "jobs/memory.hpp"
#include "jobs/together.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "unit/parallel/world.hpp"

namespace tessera::jobs {
namespace {

using test::TestWorld;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Failure, is_encoded_and_decoded) {
  const Failure failure = decoded_failure(encoded(Failure(Exit::hang, "2 lines\n75 more")));
  EXPECT_EQ(failure.code(), Exit::hang);
  EXPECT_STREQ(failure.what(), "2 lines\n75 more");
  EXPECT_STREQ(decoded_failure(encoded(Failure(Exit::files, ""))).what(), "");
  for (const char* text : {"", "7", "no number", "4\x01 an address", "99999999999 too many"}) {
    EXPECT_EQ(decoded_failure(text).code(), Exit::environment) << text;
    EXPECT_EQ(decoded_failure(text).what(), printable(text));
  }
}

TEST(Failure, quotes_no_control_characters) {
  const Failure failure(Exit::files, "a\033[31mb\x7f\r.txt: gone.\n\tGive é \xc2\x9b another\r\n");
  EXPECT_STREQ(failure.what(), "a\\x1b[31mb\\x7f\\x0d.txt: gone.\n\tGive é \\xc2\\x9b another\r\n");
  EXPECT_EQ(printable(failure.what()), failure.what()) << "once is enough";
}

TEST(FailureOf, keeps_the_code_of_ours_and_finds_that_of_others) {
  const TestWorld world;
  EXPECT_EQ(failure_of(world, Failure(Exit::numbers, "NaN")).code(), Exit::numbers);
  EXPECT_EQ(failure_of(world, std::runtime_error("?")).code(), Exit::environment);
  const Failure full = failure_of(world, std::bad_alloc());
  EXPECT_EQ(full.code(), Exit::out_of_memory);
  EXPECT_THAT(full.what(), HasSubstr("need less"));
}

/// What `work` throws on this rank.
template <class Work>
Failure collective_failure(const Work& work) {
  try {
    work();
  } catch (const CollectiveFailure& failure) {
    return failure;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Exit::finished, ""};
}

TEST(Together, a_failure_of_one_rank_has_its_code_on_every_rank) {
  TestWorld world;
  for (const Exit code : {Exit::out_of_memory, Exit::files, Exit::hang}) {
    const Failure failure = collective_failure([&] {
      together(world, [&] {
        if (world.rank() == world.size() - 1) throw Failure(code, "the last rank's trouble");
      });
    });
    EXPECT_EQ(failure.code(), code);
    EXPECT_THAT(failure.what(), HasSubstr("the last rank's trouble"));
    if (world.size() > 1) {
      EXPECT_THAT(failure.what(), StartsWith("rank " + std::to_string(world.size() - 1) + ": "));
    }
  }
  EXPECT_NO_THROW(together(world, [] {}));
}

TEST(OnRoot, a_failure_there_is_everyones) {
  TestWorld world;
  const Failure failure = collective_failure([&] { on_root(world, [] { throw Failure(Exit::files, "gone"); }); });
  EXPECT_EQ(failure.code(), Exit::files);
  EXPECT_STREQ(failure.what(), "gone");
}

TEST(MemoryShare, is_what_nobody_has_taken_and_what_the_rank_holds) {
  TestWorld world;
  EXPECT_EQ(share_of_memory(world).held, 0) << "MPI has no buffers on a device";
  const double all = static_cast<double>(available_bytes());
  EXPECT_NEAR(static_cast<double>(available_bytes({4, 0})), all / 4, 0.1 * all);  // other processes run too
  const std::int64_t held = std::int64_t{1} << 50;
  EXPECT_GE(available_bytes({1, held}), held);
}

}  // namespace
}  // namespace tessera::jobs
