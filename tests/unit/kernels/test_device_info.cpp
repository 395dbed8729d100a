#include <gtest/gtest.h>

#include <cmath>

#include "kernels/core/device_info.hpp"
#include "kernels/core/gpus.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::test {
namespace {

TEST(DeviceInfo, names_the_device_and_its_memory) {
  const kernels::DeviceInfo info = kernels::device_info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.free_bytes, 0);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST(DeviceInfo, knows_the_dense_peaks_of_datasheets_and_no_others) {
  EXPECT_EQ(kernels::dense_peak_tflops("NVIDIA H200", "bf16"), 989);
  EXPECT_EQ(kernels::dense_peak_tflops("NVIDIA H100 80GB HBM3", "fp16"), 989);
  EXPECT_EQ(kernels::dense_peak_tflops("NVIDIA H100 PCIe", "bf16"), 756);
  EXPECT_EQ(kernels::dense_peak_tflops("NVIDIA A100-SXM4-80GB", "tf32"), 156);
  EXPECT_TRUE(std::isnan(kernels::dense_peak_tflops("NVIDIA H200", "fp32")));
  for (const char* other : {"AMD EPYC", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB",
                            "NVIDIA GH200 480GB"})
    EXPECT_TRUE(std::isnan(kernels::dense_peak_tflops(other, "bf16"))) << other;
  EXPECT_TRUE(std::isnan(kernels::dense_peak_tflops("", "bf16"))) << "no GPU at all";
}

TEST(Gpus, are_found_by_their_own_name) {
  EXPECT_EQ(kernels::find_gpu("NVIDIA H100 PCIe")->memory_tbyte_per_s, 2.0);
  for (const kernels::Gpu& gpu : kernels::kGpus) {
    EXPECT_EQ(kernels::find_gpu(gpu.name), &gpu) << gpu.name << " is found as one before it";
    for (std::size_t i = 1; i < gpu.rates.attention.size(); ++i) {
      const kernels::AttentionRate &a = gpu.rates.attention[i - 1], &b = gpu.rates.attention[i];
      if (a.is_wgmma != b.is_wgmma) continue;
      EXPECT_TRUE(a.head_width < b.head_width || (a.head_width == b.head_width && a.length < b.length)) << "rows rise";
    }
  }
}

}  // namespace
}  // namespace tessera::test
