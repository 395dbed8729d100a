#include "kernels/core/cpu_level.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tessera::test {
namespace {

using kernels::cpu_level_for;
using kernels::CpuLevel;

TEST(CpuLevel, is_the_best_there_is_unless_the_environment_asks) {
  EXPECT_EQ(cpu_level_for("v3"), CpuLevel::build);
  EXPECT_EQ(cpu_level_for(""), cpu_level_for(nullptr));
  if (cpu_level_for(nullptr) == CpuLevel::v4) {
    EXPECT_EQ(cpu_level_for("v4"), CpuLevel::v4);
  } else {
    EXPECT_THROW(cpu_level_for("v4"), std::invalid_argument);
  }
  for (const char* wrong : {"V4", "v2", "avx512", " "}) EXPECT_THROW(cpu_level_for(wrong), std::invalid_argument);
}

TEST(CpuLevel, changes_while_the_program_runs) {
  const CpuLevel before = kernels::cpu_level();
  kernels::set_cpu_level(CpuLevel::build);
  EXPECT_EQ(name_of(kernels::cpu_level()), "");
  kernels::set_cpu_level(before);
  EXPECT_EQ(kernels::cpu_level(), before);
}

}  // namespace
}  // namespace tessera::test
