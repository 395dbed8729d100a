/// A sink of ranges that keeps what it is told, and checks that pushes and pops match.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/core/ranges.hpp"

namespace tessera::test {

class RangeRecorder final : public ranges::Sink {
 public:
  struct Ended {
    std::string path;  // the labels from the outermost on: "step > forward"
    int depth;         // 1: the outermost
  };

  void push(const char* label) override { open_.push_back(open_.empty() ? label : open_.back() + " > " + label); }
  void pop() override {
    ASSERT_FALSE(open_.empty()) << "a pop without a push";
    ended_.push_back({open_.back(), static_cast<int>(open_.size())});
    open_.pop_back();
  }

  const std::vector<std::string>& open() const { return open_; }
  const std::vector<Ended>& ended() const { return ended_; }  // in the order of their ends
  std::vector<std::string> paths(int most_depth = 1000) const {
    std::vector<std::string> list;
    for (const Ended& range : ended_) {
      if (range.depth <= most_depth) list.push_back(range.path);
    }
    return list;
  }
  void clear() { ended_.clear(); }

 private:
  std::vector<std::string> open_;  // paths
  std::vector<Ended> ended_;
};

}  // namespace tessera::test
