/// The section [bench] of a deck: what the bench jobs sweep, and how they time. Legal ranges and the text of --explain
/// are in lab_keys.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::lab {

struct Bench {
  std::int64_t warmup = 5;  // a graph's two sets of buffers take four
  double warmup_ms = 0;     // warm-up goes on until it has lasted this long
  double rest_ms = 0;       // idle before a timing: bench.attention, bench.kernels
  std::int64_t repeats = 10;
  double row_limit_s = 0;                                 // bench.attention, kernels, comm: repeats stop; 0: never
  double memory_limit_gib = 0;                            // 0: what the machine has
  std::vector<std::int64_t> lengths = {1024};             // T, bench.attention
  std::vector<std::int64_t> head_widths = {64};           // D, bench.attention
  std::vector<std::string> implementations = {"flash2"};  // bench.attention
  std::vector<std::int64_t> flash1_steps = {0};           // bench.attention
  std::vector<std::int64_t> flash2_steps = {-1};          // bench.attention
  std::vector<std::string> passes = {"forward", "backward", "both"};  // bench.attention
  std::vector<std::string> dtypes = {"fp32"};                         // bench.attention, bench.kernels, bench.comm
  std::vector<bool> causal = {true};                                  // bench.attention
  std::vector<bool> tuned = {false};                                  // bench.attention
  std::vector<std::string> engines = {"auto"};                        // bench.attention, of its tuned rows
  std::vector<bool> deterministic = {true};                           // bench.attention, of its tuned rows
  std::int64_t batch = 1;                                             // B, bench.attention
  std::int64_t heads = 8;                                             // H, bench.attention
  std::int64_t tokens = 0;                                            // B*T, bench.attention; 0: batch counts
  std::int64_t channels = 0;                                          // H*D, bench.attention; 0: heads counts
  std::int64_t rows = 4096;                                           // N, bench.kernels
  std::int64_t width = 1024;                                          // C, bench.kernels
  std::vector<std::string> sizes = {"deck"};                          // bench.step, bench.strategies
  std::vector<std::string> variants = {"deck"};                       // bench.step
  std::string phase = "step";                                         // bench.step: "step", or "forward" alone
  bool profile = false;                                               // bench.step
  std::vector<std::string> operations = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};  // bench.comm
  std::vector<std::int64_t> mbytes = {1, 4, 16, 64, 256, 1024};                                       // bench.comm
  std::vector<std::string> strategies = {"per_parameter", "flat",      "overlap",   "bucket",
                                         "optimizer",     "gradients", "parameters"};  // bench.strategies

  std::vector<std::int64_t> parts = {0};     // S, bench.decode; 0: chosen
  std::vector<std::int64_t> terms = {1000};  // bench.accumulation
  double addend = 0.01;                      // bench.accumulation

  bool operator==(const Bench&) const = default;
};

}  // namespace tessera::lab
