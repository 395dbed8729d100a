#include "config/faults.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "errors.hpp"

namespace tessera::config {

std::string line(const Fault& fault) {
  std::string text = fault.where.text;
  if (!fault.key.empty()) text += "  " + fault.key;
  text += "  " + fault.wrong;
  if (!fault.legal.empty()) text += "  legal: " + fault.legal;
  if (!fault.nearest.empty()) text += "  nearest: " + fault.nearest;
  return text;
}

void Faults::throw_if_any(std::string_view deck) {
  if (faults_.empty()) return;
  std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) {
    return std::tie(a.where.line, a.where.column) < std::tie(b.where.line, b.where.column);
  });
  std::string text = fmt::format("{} fault{} in deck {}:\n", faults_.size(), faults_.size() == 1 ? "" : "s", deck);
  for (const Fault& fault : faults_) text += line(fault) + "\n";
  throw Failure(Exit::usage, text + "Correct the deck or the override; `tessera --explain KEY` says what a key means.");
}

}  // namespace tessera::config
