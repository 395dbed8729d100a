/// Predicts the time of a step: floating-point operations, bytes of memory and bytes on the network, each divided by a
/// rate. step_work() and network_bytes() (train/plan.hpp) have the formulas. Communication is exposed where it exceeds
/// the work that can overlap it: see predict_step(), for each order and stage of sharding.
///
/// Limits  not modelled: launches, the host, GEMM efficiency by shape (one rate serves all), other processes,
///         contention between transfers and kernels.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "kernels/core/gpus.hpp"
#include "train/plan.hpp"

namespace tessera::train {

/// The work of a step on the rank with the most sequences. Head and loss belong to backward, as in /steps of run.h5.
struct StepWork {
  double forward_gemm_flop = 0, backward_gemm_flop = 0;            // recomputation belongs to backward
  double forward_attention_flop = 0, backward_attention_flop = 0;  // 2 C T and 5 C T per token and block
  double forward_bytes = 0, backward_bytes = 0;                    // read and written by the memory-bound kernels
  double optimizer_bytes = 0;  // by the optimizer and, unless transfers leave squares, the gradients' norm
};
StepWork step_work(const Plan& plan);

/// The GPU that plan.device names; null for `here` and `cpu`.
const kernels::Gpu* gpu_of(config::PlanDevice device);

/// A rate, and where it comes from. 0: unknown.
struct Rate {
  enum class Source { measured, given, nominal };  // on plan.device; by its key; of plan.network
  double value = 0;                                // flop/s or bytes/s
  Source source = Source::measured;
};

/// Rates of one rank; 0 if neither given nor shipped for plan.device.
struct Rates {
  Rate gemm, attention;  // [flop/s]
  Rate copy;             // [bytes/s], read plus written
  Rate link, node_link;  // [bytes/s] sent, within a host and to other hosts
  Rate host_link;        // [bytes/s] in each direction at once, between a rank and its host's memory
};

/// Ranks per host among those that share a copy, and among those that hold the same part of it; 0: all on one host.
struct Spread {
  std::int64_t shards = 0, replicas = 0;
};

/// What needs an unknown rate is NaN.
struct StepTime {
  Rates rates;
  Spread spread;
  std::vector<std::string> missing;  // keys of the unknown rates that it needs
  double forward_s = NAN, backward_s = NAN, optimizer_s = NAN;
  double communication_s = NAN;  // on the network, if nothing else ran
  double exposed_s = NAN;        // the part that computation does not hide
  double streams_s = NAN;        // with offloaded state, on the link to the host alone: no step is shorter
  double step_s = NAN;
};

/// Offloaded state streams under the next step's first forward pass and, with updates_early(), half of it under the
/// last backward pass; copies of weights spread evenly over the later passes. What the device slots hold is copied
/// under the first backward pass if the link is free there, except in a graph, whose forward pass waits for all copies,
/// and with offloaded parameters, read from the host.
StepTime predict_step(const Plan& plan, const config::Settings& settings, const Machine& machine);

/// The lines `time` and `rates` of --plan, or one line with the reason for no prediction, such as missing keys.
std::string describe_time(const Plan& plan, const config::Settings& settings, const Machine& machine);

}  // namespace tessera::train
