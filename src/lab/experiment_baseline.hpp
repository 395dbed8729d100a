/// Which row each row of an experiment is compared with (experiment.baseline), and how their numbers are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment_rows.hpp"

namespace tessera::lab {

struct Baselines {
  std::vector<std::size_t> rows;  // by row, as expand() counts them; empty without experiment.baseline
  std::string wrong;              // with experiment.baseline: no such table, or not one row of it for each row
};

/// The row of [experiment.rows.<baseline>] that has the same values of all keys that rows of this table take from lists
/// and that the row sets, too.
Baselines baselines_of(const Experiment& experiment, const std::vector<RowKeys>& rows);

/// How two numbers of these units are compared, so that more is better.
enum class Comparison {
  none,      // other units
  speed_up,  // times: baseline / row; rates: row / baseline
  saved      // bytes: 1 - row / baseline
};
Comparison comparison_of(std::string_view units);

/// NaN where either is, and where a number would be divided by 0.
double compared(std::string_view units, double row, double baseline);

}  // namespace tessera::lab
