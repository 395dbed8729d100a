/// What an experiment keeps of each row: datasets of the row's file, and their statistics.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/experiment_rows.hpp"

namespace tessera::lab {

/// One dataset of one row's file after its statistic: numbers, or texts.
struct Quantity {
  std::string units = "1", description;
  bool is_text = false;
  std::vector<double> numbers;  // one, or with Statistic::values those of the dataset in row-major order
  std::vector<std::string> texts;
};

/// Of the numbers that are not NaN; NaN if there are none. `std` is that of a sample: 0 for one number.
double statistic_of(Statistic statistic, const std::vector<double>& numbers);

/// Throws Failure(Exit::files) if the file or the dataset is missing, or if numbers are asked of a text.
Quantity read_quantity(const std::filesystem::path& file, const Recorded& recorded);

}  // namespace tessera::lab
