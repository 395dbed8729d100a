/// Collectives that transfer nothing, for tests that need only some functions of them: derive, and override those.
#pragma once

#include <memory>
#include <string>

#include "parallel/collectives/collective.hpp"

namespace tessera::test {

/// Seen by rank `rank` of `size`. Makes no transfers (null), and no groups.
class NoCollectives : public parallel::Collectives {
 public:
  explicit NoCollectives(int rank = 0, int size = 1) : rank_(rank), size_(size) {}
  std::string name() const override { return "none"; }
  std::string description() const override { return name(); }
  bool is_asynchronous() const override { return true; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<parallel::Transfer> make(const parallel::Message&) override { return nullptr; }
  std::unique_ptr<parallel::Collectives> make_group(int) override { return nullptr; }
  void broadcast(const parallel::Span&) override {}
  std::string fault() override { return ""; }
  void abandon() override {}

 private:
  int rank_, size_;
};

}  // namespace tessera::test
