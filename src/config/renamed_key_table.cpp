/// The rows of the table of renamed keys, as key_table.cpp has those of today's.
#include <algorithm>
#include <string>
#include <vector>

#include "config/extension.hpp"
#include "config/renamed_keys.hpp"

namespace tessera::config {
namespace {

std::vector<RenamedKeys> product_rows() {
  return {{{"attention.implementation", "attention.tuned", "attention.engine", "attention.flash1_steps",
            "attention.flash2_steps"},
           [](const OldValues& old) {
             std::vector<std::string> tuned = values_of(old, "attention.tuned", "\"auto\"");
             // Before it was a word, false was the default, with which the implementation "auto" was the fastest.
             if (tuned.front() == "false" && old.at("attention.tuned").is_default) tuned = {"\"auto\""};
             return attention_kernel(values_of(old, "attention.implementation", "\"auto\""), tuned,
                                     values_of(old, "attention.engine", "\"auto\""),
                                     values_of(old, "attention.flash1_steps", "0"),
                                     values_of(old, "attention.flash2_steps", "-1"));
           }},
          renamed("parallel.all_reduce", "parallel.transfers")};
}

}  // namespace

const std::vector<RenamedKeys>& renamed_keys() {
  static const std::vector<RenamedKeys> table = [] {
    std::vector<RenamedKeys> rows = product_rows();
    rows.insert(rows.end(), extension().renamed.begin(), extension().renamed.end());
    return rows;
  }();
  return table;
}

const RenamedKeys* find_renamed(std::string_view key) {
  for (const RenamedKeys& row : renamed_keys()) {
    if (std::find(row.old.begin(), row.old.end(), key) != row.old.end()) return &row;
  }
  return nullptr;
}

}  // namespace tessera::config
