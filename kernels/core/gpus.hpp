/// The GPUs that this program knows by name: what their data sheets say, and what was measured there.
///
/// A figure stands here once: MFU, --plan, the report of offloaded runs, the roofs of scripts and the sizes of leagues
/// all read this table. A team's scratch follows from the compute capability (core/target.hpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::kernels {

/// TFLOP/s of causal attention in bf16, sums in a fixed order.
struct AttentionRate {
  bool is_wgmma;  // else by mma.sync
  std::int64_t head_width, length;
  double forward, backward;
};

/// Measured on a rested H200, a batch of 16,384 tokens of 2,048 channels, 2026-11-21 (input/bench/attention_gpu).
/// By engine, then width, then length, rising.
inline constexpr AttentionRate kAttentionOfH200[] = {
    {true, 64, 1024, 409, 306},   {true, 64, 4096, 559, 447},   {true, 64, 16384, 621, 499},
    {true, 128, 1024, 496, 340},  {true, 128, 4096, 710, 529},  {true, 128, 16384, 793, 615},
    {true, 256, 4096, 636, 384},  {false, 64, 4096, 299, 252},  {false, 80, 4096, 277, 257},
    {false, 128, 4096, 356, 284}, {false, 256, 4096, 279, 222},
};

/// An H100 has one figure, for both passes together: 16 heads, 3.74 ms (2026-11-21).
inline constexpr double kBothOfH100 = 1e-12 * 3.5 * 2 * 16 * 16384.0 * 16384.0 * 64 / 3.74e-3;
inline constexpr AttentionRate kAttentionOfH100[] = {{true, 64, 16384, kBothOfH100, kBothOfH100}};

/// Rates of one GPU, each 0 where nobody measured it.
struct MeasuredRates {
  double gemm_bf16 = 0;     // [flop/s] in steps: one rate for all products
  double copy = 0;          // [bytes/s] read plus written
  double ring = 0;          // [bytes/s] that a rank sends in sums over 2 to 4 GPUs of one host: NCCL's ring,
  double copy_engines = 0;  // and copy engines
  std::span<const AttentionRate> attention = {};
};

struct Gpu {
  std::string_view name;        // part of what its driver calls it: "H200" of "NVIDIA H200"
  std::string_view capability;  // compute capability as nvcc spells it
  int processors;               // multiprocessors
  double fp32;                  // [TFLOP/s] without tensor cores,
  double tf32, bf16, fp16;      // dense on tensor cores, sums in fp32
  double memory_tbyte_per_s;
  std::int64_t free_bytes;  // what a process that has just started finds (cuMemGetInfo); 0: unknown
  MeasuredRates rates = {};
};

/// Sources  peaks, memory and processors: NVIDIA's data sheets (SXM, 80 GB of A100 and H100, unless named) and
///          architecture white papers. free_bytes: measured; the A100's is assumed equal to that of the H100, which has
///          the same nominal size. Rates of the H200: products in steps of sizes large and xl (2026-11-22: what is left
///          of the step's time without the other kernels at their rates; one product of 8192^3 alone, on random data,
///          reaches 770 to 800 TFLOP/s); the others of input/bench.
inline constexpr Gpu kGpus[] = {
    {"A100", "80", 108, 19.5, 156, 312, 312, 2.04, 84'465'090'560},
    {"H100 PCIe", "90a", 114, 51, 378, 756, 756, 2.0, 0},  // before the H100: names are looked up in this order
    {"H100", "90a", 132, 67, 494.5, 989, 989, 3.35, 84'465'090'560, {.attention = kAttentionOfH100}},
    {"H200",
     "90a",
     132,
     67,
     494.5,
     989,
     989,
     4.8,
     149'557'477'376,
     {.gemm_bf16 = 600e12, .copy = 4.16e12, .ring = 351e9, .copy_engines = 250e9, .attention = kAttentionOfH200}},
};

/// The GPU of a driver's name ("NVIDIA H100 80GB HBM3") or of a `name` above; null: none of these, a part of one ("...
/// MIG 1g.10gb"), or another with the same chip ("NVIDIA GH200 480GB", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-40GB").
constexpr const Gpu* find_gpu(std::string_view model) {
  constexpr auto kNone = std::string_view::npos;
  for (const std::string_view other : {" MIG ", " NVL", "-40GB"}) {
    if (model.find(other) != kNone) return nullptr;
  }
  for (const Gpu& gpu : kGpus) {
    const std::size_t at = model.find(gpu.name);
    if (at != kNone && (at == 0 || model[at - 1] == ' ')) return &gpu;
  }
  return nullptr;
}

/// Dense rate of the matrix units of a GPU by its driver's name in TFLOP/s, with sums in fp32; NaN if unknown.
/// `format` is fp32, tf32, bf16 or fp16. It is the denominator of every MFU that we print.
inline double dense_peak_tflops(std::string_view model, std::string_view format) {
  const Gpu* gpu = find_gpu(model);
  if (gpu == nullptr) return std::nan("");
  return format == "bf16" ? gpu->bf16 : format == "fp16" ? gpu->fp16 : format == "tf32" ? gpu->tf32 : std::nan("");
}

}  // namespace tessera::kernels
