#include "lab/bench_result.hpp"

#include <fmt/format.h>

#include <utility>

#include "build_info.hpp"
#include "io/answer.hpp"
#include "jobs/directory.hpp"

namespace tessera::lab {

BenchResult::BenchResult(const Context& context, std::function<void(io::h5::File&)> more)
    : context_(context), more_(std::move(more)), path_(result_path(context, "bench.h5")) {}

void BenchResult::add(std::vector<BenchTable::Cell> row) {
  table_.add(std::move(row));
  if (table_.rows() == 1) {
    io::answer(fmt::format("{}, {}\n{}\n", build_info::summary(), device_text(), table_.header()));
  }
  io::answer(fmt::format("{}\n", table_.line(table_.rows() - 1)));
}

void BenchResult::publish() const {
  write_result(context_, path_, [this](io::h5::File& file) {
    table_.write(file, context_);
    if (more_) more_(file);
  });
}

SharedBenchResult::SharedBenchResult(const Context& context, std::function<void(io::h5::File&)> more)
    : world_(context.world) {
  on_root([&] { result_.emplace(context, std::move(more)); });
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
