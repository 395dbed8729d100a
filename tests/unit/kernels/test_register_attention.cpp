// flash2 in registers with small teams.
#include "unit/kernels/register_attention.hpp"

namespace tessera::test {
namespace {

template <class Scalar>
struct RegisterAttention : ::testing::Test {};
TYPED_TEST_SUITE(RegisterAttention, AllScalars, ScalarNames);

constexpr RegisterSet kOneThread{{32, 1, 1, 8, 8}, {32, 1, 1, 8, 8}};
constexpr RegisterSet kOneThreadOverlaid{{64, 1, 1, 8, 4, 1, true}, {64, 1, 1, 4, 16, 1, true, 1}};

/// What the reference errs on sums of n doubles, which it adds one by one.
double of_reference(int n) { return 2 * std::sqrt(n) * kEpsilon<double>; }

/// Ragged lengths, some longer than one run of sums, both masks, queries that see no key, keys that no query sees, rows
/// that no packet fits.
TYPED_TEST(RegisterAttention, of_one_thread_matches_reference) {
  for (const bool causal : {false, true}) {
    for (const Shape& s : {Shape{1, 1, 1, 1, 8, causal}, Shape{2, 3, 9, 9, 16, causal}, Shape{1, 2, 3, 0, 8, causal},
                           Shape{1, 2, 1, 35, 32, causal}, Shape{1, 2, 40, 7, 24, causal}}) {
      for (const bool fits : {false, true}) matches_reference<TypeParam, kOneThread>(s, fits);
    }
    for (const int D : {1, 5, 13}) matches_reference<TypeParam, kOneThread>({1, 1, 17, 21, D, causal}, false);
    matches_reference<TypeParam, kOneThreadOverlaid>({1, 2, 19, 33, 48, causal}, true);
    matches_reference<TypeParam, kOneThreadOverlaid>({1, 2, 33, 19, 61, causal}, false);
    matches_reference<TypeParam, kOneThread>({1, 2, 5, 2100, 16, causal}, true, of_reference(2100));
    matches_reference<TypeParam, kOneThread>({1, 2, 2100, 5, 13, causal}, false, of_reference(2100));
    matches_reference<TypeParam, kOneThreadOverlaid>({1, 1, 1100, 1090, 45, causal}, false, of_reference(1100));
  }
}

constexpr RegisterSet kTwoThreads{{32, 2, 1, 8, 8, 1, false, 1}, {32, 1, 2, 8, 4, 1, false, 1}};
constexpr RegisterSet kFourThreads{{32, 2, 2, 4, 6, 1, false, 2}, {32, 4, 1, 4, 8, 1, true}};

TYPED_TEST(RegisterAttention, of_few_threads_matches_reference) {
  for (const bool causal : {false, true}) {
    matches_reference<TypeParam, kTwoThreads>({1, 2, 37, 37, 32, causal}, true);
    matches_reference<TypeParam, kFourThreads>({1, 2, 37, 37, 32, causal}, true);
    matches_reference<TypeParam, kFourThreads>({1, 1, 30, 41, 21, causal}, false);
    matches_reference<TypeParam, kFourThreads>({1, 1, 9, 2500, 16, causal}, true, of_reference(2500));
    matches_reference<TypeParam, kTwoThreads>({1, 1, 600, 21, 16, causal}, true, of_reference(600));
  }
}

}  // namespace
}  // namespace tessera::test
