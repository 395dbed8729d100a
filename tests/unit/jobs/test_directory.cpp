/// What is deleted before a row of an experiment runs again, and what is not.
#include "jobs/directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "unit/io/scratch.hpp"

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "text";
}

/// A row with what jobs write, and a file of the user's.
void fill(const fs::path& row) {
  for (const char* name : {"run.h5", "run.h5.tmp", "checkpoints/step_00000010/index.h5", "bench.h5", "bench.h5.part",
                           "attention.h5", "model.h5", "notes.txt"}) {
    write(row / name);
  }
}

TEST(ClearRow, that_the_experiment_names_goes_with_its_folder) {
  const test::ScratchFolder folder;
  fill(folder / "row");
  clear_row(folder / "row", true);
  EXPECT_FALSE(fs::exists(folder / "row"));
  clear_row(folder / "row", true);  // nothing there is fine
}

TEST(ClearRow, that_it_does_not_name_keeps_what_no_job_writes) {
  const test::ScratchFolder folder;
  fill(folder / "row");
  clear_row(folder / "row", false);
  ASSERT_TRUE(fs::exists(folder / "row/notes.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "row"), {}), 1);
  clear_row(folder / "missing", false);
  EXPECT_FALSE(fs::exists(folder / "missing"));
}

TEST(ClearRow, tells_what_it_could_not_delete) {
  for (const bool is_named : {false, true}) {
    const test::ScratchFolder folder;
    fs::permissions(folder.path(), fs::perms::all);
    fill(folder / "row");
    fs::permissions(folder / "row/checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
    const std::string message = test::failure_of([&] {
      const test::OrdinaryUser not_root;
      clear_row(folder / "row", is_named);
    });
    EXPECT_THAT(message, HasSubstr((folder / "row").string()));
    EXPECT_THAT(message, HasSubstr("cannot be deleted: "));
    EXPECT_THAT(message, HasSubstr("job.directory="));
    fs::permissions(folder / "row/checkpoints", fs::perms::owner_all);
  }
}

}  // namespace
}  // namespace tessera::jobs
