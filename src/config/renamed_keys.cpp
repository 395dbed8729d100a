#include "config/renamed_keys.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera::config {
namespace {

/// One combination. attention.tuned = true was the fastest kernel, and an error where a device had none.
std::string kernel_of(const std::string& implementation, const std::string& tuned, const std::string& engine,
                      const std::string& flash1_steps, const std::string& flash2_steps) {
  if (implementation == "\"standard\"" || implementation == "\"tiled\"") return implementation;
  const bool names_flash2 = implementation == "\"flash2\"";
  if (implementation == "\"flash1\"" || (!names_flash2 && flash1_steps != "0"))
    return flash1_steps == "0" ? "\"flash1\"" : fmt::format("\"flash1/{}\"", flash1_steps);
  if (tuned != "true" && flash2_steps != "-1") return fmt::format("\"flash2/{}\"", flash2_steps);
  if (tuned != "false" && engine != "\"auto\"") return engine;
  return tuned == "false" || (names_flash2 && tuned != "true") ? "\"flash2\"" : "\"auto\"";
}

}  // namespace

std::string text_of(const NewSpelling& spelling, std::string_view product) {
  if (spelling.keys.empty()) return "leave it out";
  std::vector<std::string> lines;
  for (const auto& [key, values] : spelling.keys)
    lines.push_back(values.size() == 1 ? fmt::format("{} = {}", key, values.front())
                                       : fmt::format("{}{} = [{}]", product, key, fmt::join(values, ", ")));
  return fmt::format("{}", fmt::join(lines, ", "));
}

RenamedKeys renamed(std::string_view old, std::string_view now) {
  return {{old}, [old, now](const OldValues& values) {
            return NewSpelling{{{std::string(now), values_of(values, old, "")}}};
          }};
}

NewSpelling attention_kernel(const std::vector<std::string>& implementations, const std::vector<std::string>& tuned,
                             const std::vector<std::string>& engines, const std::vector<std::string>& flash1_steps,
                             const std::vector<std::string>& flash2_steps) {
  std::vector<std::string> kernels;
  const auto add = [&](std::string kernel) {
    if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) kernels.push_back(std::move(kernel));
  };
  for (const std::string& implementation : implementations)
    for (const std::string& is_tuned : tuned)
      for (const std::string& engine : engines)
        for (const std::string& flash1 : flash1_steps)
          for (const std::string& flash2 : flash2_steps)
            add(kernel_of(implementation, is_tuned, engine, flash1, flash2));
  return {{{"attention.kernel", std::move(kernels)}}};
}

std::vector<std::string> values_of(const OldValues& old, std::string_view key, std::string_view otherwise) {
  const auto found = old.find(key);
  return found == old.end() ? std::vector{std::string(otherwise)} : found->second.values;
}

std::vector<RenamedKeys> product_renamed_keys() {
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

}  // namespace tessera::config
