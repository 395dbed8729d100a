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
  std::string refusal(const Recorded& recorded) {
    try {
      read_quantity(file_, recorded);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::files);
      return failure.what();
    }
    return "";
  }
  const test::ScratchFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "bench.h5";
};

TEST_F(Quantities, have_the_units_of_their_dataset) {
  const Quantity loss = read_quantity(file_, {"steps/loss", Statistic::last});
  EXPECT_THAT(loss.numbers, ElementsAre(2));
  EXPECT_EQ(loss.units, "nat");
  EXPECT_EQ(loss.description, "training loss");
  EXPECT_EQ(read_quantity(file_, {"steps/loss", Statistic::values}).numbers.size(), 3u);
  EXPECT_THAT(read_quantity(file_, {"calls", Statistic::values}).numbers, ElementsAre(5));
  EXPECT_THAT(read_quantity(file_, {"outcome", Statistic::values}).texts, ElementsAre("ok", "out of memory"));
}

TEST_F(Quantities, that_are_not_there_are_refused_by_name) {
  EXPECT_THAT(refusal({"steps/lost", Statistic::last}), HasSubstr("has no dataset steps/lost"));
  EXPECT_THAT(refusal({"outcome", Statistic::mean}), HasSubstr("is text, which has no statistic"));
}

}  // namespace
}  // namespace tessera::lab
