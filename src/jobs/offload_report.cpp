#include "jobs/offload_report.hpp"

#include <fmt/format.h>

#include <cmath>

#include "jobs/placement.hpp"
#include "jobs/statistics.hpp"

namespace tessera::jobs {

std::string OffloadReport::measure(const train::Plan& plan, const config::Settings& settings, parallel::World& world,
                                   train::Trainer& trainer) {
  if (train::offloaded_bytes(plan) == 0) return "";
  const train::LinkRate rate = trainer.measure_link();
  link_ = rate.bytes / rate.seconds;
  const bool has_several_hosts = world.local_size() < world.size();
  config::Settings known = settings;
  known.plan.device = config::PlanDevice::here;
  known.plan.ranks_per_node = 0;
  known.plan = train::keys_of_run(known.plan, launch_of(world).gpu_models, has_several_hosts ? world.local_size() : 0);
  known.plan.host_link_gbyte_per_s = 1e-9 * link_;
  const train::Machine machine = train::machine_of(world);
  predicted_ = train::predict_step(plan, known, machine);
  return fmt::format(
             "offload    {} pinned, the link moves {:.1f} GB/s in each direction: a step takes at least {:.4g} ms\n",
             memory::readable_bytes(rate.bytes), 1e-9 * link_, 1e3 * predicted_.streams_s) +
         train::describe_time(plan, known, machine);
}

std::string OffloadReport::summary() const {
  if (std::isnan(link_)) return "";
  const double step_s = median_of_steps(steps_);
  std::string text = fmt::format("no time of a step: the first {} warm up", kWarmupSteps);
  if (std::isfinite(step_s)) {
    text = fmt::format("a step took {:.4g} ms, the median after {} of warm-up", 1e3 * step_s, kWarmupSteps);
    if (const double more = step_s / predicted_.step_s - 1; std::isfinite(more)) {
      text += fmt::format(", {:.1f} % {} than the predicted {:.4g}", 100 * std::fabs(more), more < 0 ? "less" : "more",
                          1e3 * predicted_.step_s);
    }
  }
  return fmt::format("offload    {}, the link alone takes {:.4g} ms\n", text, 1e3 * predicted_.streams_s);
}

}  // namespace tessera::jobs
