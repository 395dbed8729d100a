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

const Note kSilent = [](const std::string&) {};

void write(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "text";
}

/// A row with what jobs write, and a file of the user's.
void fill(const fs::path& row) {
  for (const char* name : {"run.h5", "run.h5.tmp", "checkpoints/step_00000010/index.h5", "bench.h5", "bench.h5.tmp77",
                           "bench.h5.part77", "attention.h5", "model.h5", "notes.txt"}) {
    write(row / name);
  }
}

TEST(ClearRow, deletes_what_jobs_write_and_an_empty_folder) {
  const test::ScratchFolder folder;
  fill(folder / "row");
  clear_row(folder / "row", kSilent);
  ASSERT_TRUE(fs::exists(folder / "row/notes.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "row"), {}), 1);
  fs::remove(folder / "row/notes.txt");
  write(folder / "row/run.h5");
  clear_row(folder / "row", kSilent);
  EXPECT_FALSE(fs::exists(folder / "row"));
  clear_row(folder / "row", kSilent);  // nothing there is fine
}

TEST(ClearRow, tells_what_it_could_not_delete) {
  const test::ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  fill(folder / "row");
  fs::permissions(folder / "row/checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
  const std::string message = test::failure_of([&] {
    const test::OrdinaryUser not_root;
    clear_row(folder / "row", kSilent);
  });
  EXPECT_THAT(message, HasSubstr((folder / "row").string()));
  EXPECT_THAT(message, HasSubstr("deleting the checkpoint"));
  EXPECT_THAT(message, HasSubstr("Permission denied"));
  EXPECT_THAT(message, HasSubstr("job.directory"));
  fs::permissions(folder / "row/checkpoints", fs::perms::owner_all);
}

}  // namespace
}  // namespace tessera::jobs
