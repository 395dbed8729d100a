/// How long a step takes, by arithmetic: floating-point operations, bytes of memory and bytes of the network, each over
/// a rate. The formulas stand in parallel/README.md, in words and in symbols.
///
/// Limits  what a plan does not know is not in it: launches, the host, a library's efficiency at the shapes of a deck
///         (one rate serves all products), work of other processes, contention between transfers and kernels.
#pragma once

#include <string>
#include <vector>

#include "train/plan.hpp"

namespace tessera::train {

/// What a rank has to do in a step: the one with the most sequences. Head and loss belong to backward, as in /steps of
/// run.h5.
struct StepWork {
  double forward_gemm_flop = 0, backward_gemm_flop = 0;            // recomputation belongs to backward
  double forward_attention_flop = 0, backward_attention_flop = 0;  // 2 C T and 5 C T per token and block
  double forward_bytes = 0, backward_bytes = 0;                    // read and written by the memory-bound kernels
  double optimizer_bytes = 0;                                      // by the gradients' norm and AdamW
};
StepWork step_work(const Plan& plan);

/// A rate, and where it comes from. 0: unknown.
struct Rate {
  double value = 0;       // flop/s or bytes/s
  bool is_given = false;  // by its key of section plan; else it was measured on plan.device
};

/// Rates of one rank; those that nobody gives and that do not ship with plan.device are 0.
struct Rates {
  Rate gemm, attention;  // [flop/s]
  Rate copy;             // [bytes/s], read plus written
  Rate link, node_link;  // [bytes/s] sent, inside a host and to other hosts
};
Rates rates_of(const config::Settings& settings, const Plan& plan, const Machine& machine);

/// Whether the ranks that share a copy, and those that hold the same part of it, are on several hosts.
struct Spread {
  bool shards = false, replicas = false;
};
Spread spread_of(const Plan& plan, const config::PlanSettings& keys);

/// The keys of the rates that a prediction wants and nobody has given.
std::vector<std::string> missing_rates(const Plan& plan, const Rates& rates, const Spread& spread);

struct StepTime {
  double forward_s = 0, backward_s = 0, optimizer_s = 0;
  double communication_s = 0;  // on the network, alone
  double exposed_s = 0;        // of it, what nothing is computed under

  double step_s() const { return forward_s + backward_s + exposed_s + optimizer_s; }
};

/// Every rate that missing_rates() would name must be known. What parallel.offload streams is not in it.
StepTime predict_step(const Plan& plan, const config::Parallel& parallel, const Rates& rates, const Spread& spread);

/// The lines `time` and `rates` of --plan; or one that says why there is no time: which keys are missing.
std::string describe_time(const Plan& plan, const config::Settings& settings, const Machine& machine);

}  // namespace tessera::train
