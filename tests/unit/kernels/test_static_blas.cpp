/// A serial OpenBLAS that is part of the program, where the dynamic linker does not find it.
#include <gtest/gtest.h>

#include "kernels/gemm/openblas.hpp"

extern "C" int openblas_get_parallel() { return 0; }

namespace tessera::kernels {
namespace {

TEST(StaticBlas, of_one_thread_is_not_for_several) { EXPECT_FALSE(openblas::is_safe_for_threads()); }

TEST(StaticBlas, without_a_description_is_another) { EXPECT_EQ(openblas::description(), "not OpenBLAS"); }

}  // namespace
}  // namespace tessera::kernels
