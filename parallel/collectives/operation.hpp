/// The collective operations and what they are called.
#pragma once

#include <string>
#include <string_view>

namespace tessera::parallel {

enum class Operation { all_reduce, reduce_scatter, all_gather, broadcast };

inline constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                            Operation::broadcast};

/// In decks, files and reports: "all_reduce".
constexpr std::string_view word_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_gather: return "all_gather";
    case Operation::broadcast: break;
  }
  return "broadcast";
}

/// In messages: "all-reduce".
constexpr std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all-reduce";
    case Operation::reduce_scatter: return "reduce-scatter";
    case Operation::all_gather: return "all-gather";
    case Operation::broadcast: break;
  }
  return "broadcast";
}

/// With what carries it out: "all_reduce[copy_engine]".
inline std::string label_of(Operation operation, std::string_view means) {
  return std::string(word_of(operation)).append("[").append(means).append("]");
}

/// The operation's word in such a label.
constexpr std::string_view word_in_label(std::string_view label) { return label.substr(0, label.find('[')); }

}  // namespace tessera::parallel
