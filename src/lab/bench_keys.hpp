/// The section [bench] of a deck: what a bench job measures beside what other sections name, and how it times. Legal
/// ranges and the text of --explain are in lab_keys.cpp.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::lab {

struct Bench {
  std::int64_t warmup = 5;  // a graph's two sets of buffers take four
  double warmup_ms = 0;     // warm-up goes on until it has lasted this long
  double rest_ms = 0;       // idle before a timing, but those of steps and transfers
  std::int64_t repeats = 10;
  double row_limit_s = 0;                // of a timing, but those of steps: repeats stop; 0: never
  double memory_limit_gib = 0;           // 0: what the machine has
  std::string dtype = "fp32";            // bench.attention, decode, kernels, comm
  std::int64_t length = 1024;            // T, bench.attention, decode; of the prompt, bench.generate
  std::int64_t head_width = 64;          // D, bench.attention, decode
  std::int64_t batch = 1;                // B, bench.attention, decode, generate
  std::int64_t heads = 8;                // H, bench.attention, decode
  std::int64_t tokens = 0;               // B*T, bench.attention; 0: batch counts
  std::int64_t channels = 0;             // H*D, bench.attention; 0: heads counts
  bool causal = true;                    // bench.attention
  std::string pass = "all";              // bench.attention: "forward", "backward", "both" in sequence; all three
  std::int64_t rows = 4096;              // N, bench.kernels
  std::int64_t width = 1024;             // C, bench.kernels
  std::string phase = "step";            // bench.step: "step", or "forward" alone
  bool profile = false;                  // bench.step
  std::string operation = "all_reduce";  // bench.comm
  std::int64_t mbyte = 64;               // bench.comm
  std::int64_t terms = 1000;             // bench.accumulation
  double addend = 0.01;                  // bench.accumulation

  bool operator==(const Bench&) const = default;
};

}  // namespace tessera::lab
