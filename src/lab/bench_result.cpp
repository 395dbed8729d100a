#include "lab/bench_result.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "build_info.hpp"
#include "io/answer.hpp"
#include "jobs/directory.hpp"
#include "jobs/stop.hpp"

namespace tessera::lab {
namespace {

constexpr const char* kUnfinished = ".part";  // behind the path of a result that may gain further rows

}  // namespace

BenchResult::BenchResult(const Context& context, std::function<void(io::h5::File&)> more)
    : context_(context), more_(std::move(more)), path_(result_path(context, "bench.h5")) {}

void BenchResult::begin_row() const { stop_on_signal(); }

void BenchResult::add(std::vector<BenchTable::Cell> row) {
  table_.add(std::move(row));
  if (table_.rows() == 1) {
    io::answer(fmt::format("{}, {}\n{}\n", build_info::summary(), device_text(), table_.header()));
  }
  io::answer(fmt::format("{}\n", table_.line(table_.rows() - 1)));
  replace_file(path_ + kUnfinished, [this](io::h5::File& file) { fill(file); });
}

void BenchResult::publish() const {
  try {
    write_result(context_, path_, [this](io::h5::File& file) { fill(file); });
  } catch (const Failure& failure) {
    throw Failure(failure.code(),
                  fmt::format("{}. The rows are in {}{}: move it away first", failure.what(), path_, kUnfinished));
  }
  std::error_code ignored;
  std::filesystem::remove(path_ + kUnfinished, ignored);
}

void BenchResult::fill(io::h5::File& file) const {
  table_.write(file, context_);
  if (more_) more_(file);
}

SharedBenchResult::SharedBenchResult(const Context& context, std::function<void(io::h5::File&)> more)
    : world_(context.world) {
  on_root([&] { result_.emplace(context, std::move(more)); });
}

void SharedBenchResult::begin_row() {
  on_root([&] { result_->begin_row(); });
}

void SharedBenchResult::add(std::vector<BenchTable::Cell> row) {
  on_root([&] { result_->add(std::move(row)); });
}

void SharedBenchResult::publish() {
  on_root([&] { result_->publish(); });
}

void SharedBenchResult::on_root(const std::function<void()>& work) {
  const auto watch = world_.watch("the result of the benchmark", parallel::kPatience);
  world_.agree_on_root(work);
}

}  // namespace tessera::lab
