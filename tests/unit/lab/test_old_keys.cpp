/// Old keys of [bench], whose lists an experiment sweeps now.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/renamed_keys.hpp"
#include "lab/kinds.hpp"

namespace tessera::lab {
namespace {

/// What a row of the table makes of old keys.
std::string now(const config::OldValues& old) {
  for (const config::RenamedKeys& row : old_keys()) {
    if (std::find(row.old.begin(), row.old.end(), old.begin()->first) != row.old.end()) return text_of(row.now(old));
  }
  return "no row";
}

TEST(OldKeys, of_one_value_are_a_key_and_of_several_a_sweep) {
  EXPECT_EQ(now({{"bench.lengths", {{"512"}}}}), "bench.length = 512");
  EXPECT_EQ(now({{"bench.lengths", {{"512", "1024"}}}}), "experiment.product.bench.length = [512, 1024]");
  EXPECT_EQ(now({{"bench.passes", {{"\"forward\"", "\"backward\"", "\"both\""}}}}), "bench.pass = \"all\"");
  EXPECT_EQ(now({{"bench.passes", {{"\"forward\""}}}}), "bench.pass = \"forward\"");
}

TEST(OldKeys, of_other_sections_name_their_keys) {
  EXPECT_EQ(now({{"bench.parts", {{"4"}}}}), "attention.decode_parts = 4");
  EXPECT_EQ(now({{"bench.deterministic", {{"false"}}}}), "attention.deterministic = false");
  EXPECT_EQ(now({{"bench.sizes", {{"\"deck\""}}}}), "leave it out");
  EXPECT_EQ(now({{"bench.sizes", {{"\"xl\""}}}}), "model.size = \"xl\"");
  EXPECT_EQ(now({{"bench.variants", {{"\"plain\""}}}}), "train.graph = false, train.fused = false");
  EXPECT_EQ(now({{"bench.variants", {{"\"fused\"", "\"graph\""}}}}),
            "experiment.product.train.graph = [false, true], train.fused = true");
  EXPECT_EQ(now({{"bench.strategies", {{"\"flat\""}}}}), "parallel.gradient_sync = \"flat\"");
  EXPECT_EQ(now({{"bench.strategies", {{"\"gradients\""}}}}), "parallel.shard = \"gradients\"");
}

TEST(OldKeys, that_combined_attention_kernels_are_one_list_of_kernels) {
  EXPECT_EQ(now({{"bench.implementations", {{"\"standard\"", "\"flash1\"", "\"flash2\""}}},
                 {"bench.flash1_steps", {{"0", "4"}}},
                 {"bench.tuned", {{"false", "true"}}},
                 {"bench.engines", {{"\"mma\"", "\"wgmma\""}}}}),
            "experiment.product.attention.kernel = [\"standard\", \"flash1\", \"flash1/4\", \"flash2\", \"mma\", "
            "\"wgmma\"]");
  EXPECT_EQ(now({{"bench.tuned", {{"true"}}}}), "attention.kernel = \"auto\"");
}

}  // namespace
}  // namespace tessera::lab
