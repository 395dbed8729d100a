#include "lab/experiment_record.hpp"  // the contract is there; here is how

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "io/h5.hpp"
#include "jobs/statistics.hpp"

namespace tessera::lab {
namespace {

bool is_float(io::h5::Type type) { return type == io::h5::Type::float32 || type == io::h5::Type::float64; }

std::vector<double> numbers_of(const io::h5::Dataset& dataset) {
  if (is_float(dataset.type())) return dataset.values<double>();
  const std::vector<std::int64_t> integers = dataset.values<std::int64_t>();
  return {integers.begin(), integers.end()};
}

}  // namespace

double statistic_of(Statistic statistic, const std::vector<double>& all) {
  std::vector<double> numbers;
  std::copy_if(all.begin(), all.end(), std::back_inserter(numbers), [](double x) { return !std::isnan(x); });
  if (statistic == Statistic::count) return static_cast<double>(numbers.size());
  if (numbers.empty()) return NAN;
  switch (statistic) {
    case Statistic::mean: return jobs::mean_of(numbers);
    case Statistic::std: return jobs::deviation_of(numbers);
    case Statistic::median: return jobs::median_of(numbers);
    case Statistic::min: return *std::min_element(numbers.begin(), numbers.end());
    case Statistic::max: return *std::max_element(numbers.begin(), numbers.end());
    case Statistic::sum: return std::accumulate(numbers.begin(), numbers.end(), 0.0);
    case Statistic::first: return numbers.front();
    case Statistic::last: return numbers.back();
    case Statistic::values:
    case Statistic::count: break;
  }
  throw std::logic_error("statistic_of: not a statistic of one number");
}

namespace {

/// Throws Failure(Exit::files) if the dataset is missing, or if numbers are asked of a text.
Quantity read_quantity(const io::h5::File& file, const std::filesystem::path& path, const Recorded& recorded) {
  if (!file.has(recorded.path)) {
    throw Failure(Exit::files, "{} has no dataset {}: correct experiment.record (h5ls -r shows them all)",
                  path.string(), recorded.path);
  }
  const io::h5::Dataset dataset = file.dataset(recorded.path);
  Quantity quantity;
  if (dataset.has_attribute("units")) quantity.units = dataset.text("units");
  if (dataset.has_attribute("description")) quantity.description = dataset.text("description");
  if (dataset.type() == io::h5::Type::text) {
    if (recorded.statistic != Statistic::values) {
      throw Failure(Exit::files, "{}:/{} is text, which has no statistic: write \"{}\" in experiment.record",
                    path.string(), recorded.path, recorded.path);
    }
    quantity.is_text = true;
    quantity.texts = dataset.strings();
  } else if (recorded.statistic == Statistic::values) {
    quantity.numbers = numbers_of(dataset);
  } else {
    quantity.numbers.assign(1, statistic_of(recorded.statistic, numbers_of(dataset)));
    if (recorded.statistic == Statistic::count) {
      quantity.units = "1";
      quantity.description = "how many numbers there are of: " + quantity.description;
    }
  }
  return quantity;
}

constexpr const char* kRowScale = "row";  // of a benchmark's table

/// The columns of a benchmark's table.
std::vector<std::string> columns_of(const io::h5::File& file) {
  std::vector<std::string> columns;
  if (!file.has(kRowScale)) return columns;
  for (const std::string& path : file.dataset_paths()) {
    if (path.find('/') == std::string::npos && path != kRowScale) columns.push_back(path);
  }
  return columns;
}

}  // namespace

RowRecord read_record(const std::filesystem::path& path, const std::vector<std::string>& entries) {
  const io::h5::File file = io::h5::File::open(path);
  RowRecord record;
  for (const std::string& entry : entries.empty() ? columns_of(file) : entries) {
    try {
      record.quantities.emplace(entry, read_quantity(file, path, *parse_recorded(entry)));
    } catch (const Failure& failure) {
      if (failure.code() != Exit::files) throw;
      record.lacking.emplace(entry, failure.what());
    }
  }
  return record;
}

}  // namespace tessera::lab
