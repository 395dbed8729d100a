/// A training run's report on parallel.offload: before the first step the link's rate and a step's predicted time,
/// after the last step the measured time.
#pragma once

#include <string>
#include <vector>

#include "config/settings.hpp"
#include "io/step_record.hpp"
#include "parallel/world.hpp"
#include "train/plan_time.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

class OffloadReport {
 public:
  /// Measures the link; returns lines with its rate and the time that --plan predicts with it for the run's GPUs and
  /// hosts, "" without offloaded state. Call before the first step.
  std::string measure(const train::Plan& plan, const config::Settings& settings, parallel::World& world,
                      train::Trainer& trainer);

  /// Rate of the link in each direction at once [bytes/s]; NaN if there is nothing to measure.
  double link() const { return link_; }

  /// A step of this start took so long [s]; NaN: does not count.
  void add(double step_s) {
    if (link_ > 0) steps_.push_back(step_s);
  }
  /// A line with the median of this start's steps and the prediction; "" without offloaded state.
  std::string summary() const;

 private:
  double link_ = io::kNotMeasured;
  std::vector<double> steps_;
  train::StepTime predicted_;
};

}  // namespace tessera::jobs
