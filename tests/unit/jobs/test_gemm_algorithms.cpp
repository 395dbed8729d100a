#include "jobs/gemm_algorithms.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.hpp"

namespace tessera::jobs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lines = std::vector<std::string>;

TEST(GemmRecord, goes_through_a_checkpoint) {
  const GemmRecord chosen{"cuBLASLt 13.1.0; on the host a BLAS",
                          {"cuBLASLt 13.1.0 on a GPU", "bf16 ... : 01", "bf16 ... : 02"}};
  const GemmRecord read = gemm_record_from(text_of(chosen));
  EXPECT_EQ(read.library, chosen.library);
  EXPECT_EQ(read.algorithms, chosen.algorithms);
  EXPECT_THAT(gemm_record_from(text_of({"a BLAS", {}})).algorithms, IsEmpty());
  EXPECT_EQ(gemm_record_from("").library, "");  // checkpoints without a record
}

std::string openblas(const std::string& version, const std::string& core) {
  return "cuBLASLt 13.1.0; on the host /lib/libblas.so.3 (OpenBLAS " + version +
         " NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY " + core + " SINGLE_THREADED)";
}

TEST(GemmEnvironment, names_the_processor_whose_kernels_openblas_used) {
  const std::string before = openblas("0.3.21", "SkylakeX");
  EXPECT_EQ(environment_for(before, openblas("0.3.21", "Cooperlake"), true), "OPENBLAS_CORETYPE=SkylakeX");
  EXPECT_EQ(environment_for(before, openblas("0.3.26", "Cooperlake"), true), "") << "another version has other kernels";
  EXPECT_EQ(environment_for(before, "/lib/libblas.so.3 (not OpenBLAS)", true), "");
  EXPECT_EQ(environment_for("", before, true), "");
  EXPECT_EQ(environment_for(before + "; kernels v4", before, true), "TESSERA_CPU_LEVEL=v4");
  EXPECT_EQ(environment_for(before, openblas("0.3.21", "Haswell") + "; kernels v4", true),
            "OPENBLAS_CORETYPE=SkylakeX TESSERA_CPU_LEVEL=v3");
  EXPECT_EQ(environment_for(before, openblas("0.3.21", "Haswell"), false), "") << "would end by SIGILL";
  EXPECT_EQ(environment_for(openblas("0.3.21", "Zen"), openblas("0.3.21", "Haswell"), false), "OPENBLAS_CORETYPE=Zen");
}

TEST(MergedGemmAlgorithms, take_the_lowest_ranks_choice_and_what_only_others_chose) {
  const Lines first = {"stamp", "kind a : 1", "kind c : 1"}, second = {"stamp", "kind a : 2", "kind b : 2"};
  EXPECT_THAT(merged({first, second}), ElementsAre("stamp", "kind a : 1", "kind b : 2", "kind c : 1"));
  EXPECT_THAT(merged({{}, second, first}), ElementsAre("stamp", "kind a : 2", "kind b : 2", "kind c : 1"));
  EXPECT_THAT(merged({first}), ElementsAre("stamp", "kind a : 1", "kind c : 1"));
  EXPECT_THAT(merged({{}, {}}), IsEmpty());
}

TEST(MergedGemmAlgorithms, of_unlike_gpus_are_refused_with_both_names) {
  try {
    merged({{"cuBLASLt on an H200", "kind a : 1"}, {}, {"cuBLASLt on an A100", "kind a : 1"}});
    FAIL() << "was not refused";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::environment);
    EXPECT_THAT(failure.what(), AllOf(HasSubstr("rank 2 has cuBLASLt on an A100"), HasSubstr("H200"),
                                      HasSubstr("train.tune_gemm = false")));
  }
}

}  // namespace
}  // namespace tessera::jobs
