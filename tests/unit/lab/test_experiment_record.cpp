/// Statistics of what a row recorded, and reading it from the row's file.
#include "lab/experiment_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "errors.hpp"
#include "io/h5.hpp"
#include "unit/io/scratch.hpp"

namespace tessera::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Statistics, are_of_the_numbers_that_are_there) {
  const std::vector<double> numbers{4, kNan, 1, 7, 2, kNan};
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::mean, numbers), 3.5);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::median, numbers), 3);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::median, {3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::std, numbers), std::sqrt(21.0 / 3));
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::min, numbers), 1);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::max, numbers), 7);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::sum, numbers), 14);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::count, numbers), 4);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::first, numbers), 4);
  EXPECT_DOUBLE_EQ(statistic_of(Statistic::last, numbers), 2);
}

TEST(Statistics, of_one_number_and_of_none) {
  EXPECT_EQ(statistic_of(Statistic::std, {5}), 0);
  EXPECT_TRUE(std::isnan(statistic_of(Statistic::max, {kNan})));
  EXPECT_EQ(statistic_of(Statistic::count, {}), 0);
}

class Quantities : public testing::Test {
 protected:
  void SetUp() override {
    io::h5::File file = io::h5::File::create(file_);
    file.write("steps/loss", std::vector<double>{3, 2, kNan}, {"nat", "training loss"});
    file.write("calls", std::vector<std::int64_t>{5}, {"1", "calls"});
    file.write("outcome", std::vector<std::string>{"ok", "out of memory"}, {"1", "outcome"});
    file.close();
  }
  Quantity quantity(const std::string& entry) { return read_record(file_, {entry}).quantities.at(entry); }
  std::string lack(const std::string& entry) {
    const RowRecord record = read_record(file_, {entry, "calls"});
    EXPECT_THAT(record.quantities, ElementsAre(Key("calls"))) << "the others are read";
    return record.lacking.at(entry);
  }
  const test::ScratchFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "bench.h5";
};

TEST_F(Quantities, have_the_units_of_their_dataset) {
  const Quantity loss = quantity("steps/loss:last");
  EXPECT_THAT(loss.numbers, ElementsAre(2));
  EXPECT_EQ(loss.units, "nat");
  EXPECT_EQ(loss.description, "training loss");
  EXPECT_EQ(quantity("steps/loss").numbers.size(), 3u);
  EXPECT_THAT(quantity("calls").numbers, ElementsAre(5));
  EXPECT_THAT(quantity("outcome").texts, ElementsAre("ok", "out of memory"));
}

TEST_F(Quantities, that_are_not_there_are_refused_by_name) {
  EXPECT_THAT(lack("steps/lost:last"), HasSubstr("has no dataset steps/lost"));
  EXPECT_THAT(lack("outcome:mean"), HasSubstr("is text, which has no statistic"));
}

TEST_F(Quantities, without_entries_are_the_columns_of_a_benchmark) {
  EXPECT_THAT(read_record(file_, {}).quantities, testing::IsEmpty()) << "this is none";
  io::h5::File file = io::h5::File::create(file_);
  for (const char* column : {"row", "step_ms", "timeline/start"}) file.write(column, std::vector<double>{1}, {"1", ""});
  file.close();
  EXPECT_THAT(read_record(file_, {}).quantities, ElementsAre(Key("step_ms")));
}

TEST_F(Quantities, of_no_file_are_refused) { EXPECT_THROW(read_record(folder_.path() / "absent.h5", {}), Failure); }

}  // namespace
}  // namespace tessera::lab
