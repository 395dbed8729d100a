/// Collectives whose all-gathers start when they are joined, so that what another rank owns arrives no earlier than a
/// test may rely on it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "parallel/collectives/collective.hpp"

namespace tessera::test {

class LateGathers final : public parallel::Collectives {
 public:
  /// `all` make the transfers, and must outlive this.
  explicit LateGathers(parallel::Collectives& all) : all_(all) {}
  explicit LateGathers(std::unique_ptr<parallel::Collectives> all) : owned_(std::move(all)), all_(*owned_) {}

  std::string name() const override { return all_.name(); }
  std::string means_of(parallel::Operation operation) const override { return all_.means_of(operation); }
  std::string description() const override { return all_.description(); }
  bool is_asynchronous() const override { return all_.is_asynchronous(); }
  bool can_yield() const override { return all_.can_yield(); }
  std::int64_t device_bytes() const override { return all_.device_bytes(); }
  int rank() const override { return all_.rank(); }
  int size() const override { return all_.size(); }
  std::unique_ptr<parallel::Transfer> make(const parallel::Message& message) override {
    if (message.operation != parallel::Operation::all_gather) return all_.make(message);
    return std::make_unique<Late>(all_.make(message));
  }
  std::unique_ptr<parallel::Collectives> make_group(int group) override {
    return std::make_unique<LateGathers>(all_.make_group(group));
  }
  kernels::Device instance() const override { return all_.instance(); }
  void broadcast(const parallel::Span& span) override { all_.broadcast(span); }
  std::string fault() override { return all_.fault(); }
  void abandon() override { all_.abandon(); }

 private:
  class Late final : public parallel::Transfer {
   public:
    explicit Late(std::unique_ptr<parallel::Transfer> transfer) : transfer_(std::move(transfer)) {}
    void connect() override { transfer_->connect(); }
    void start(const kernels::Device& exec) override {
      exec_ = exec;
      is_due_ = true;
    }
    bool test() override { return !is_due_ && transfer_->test(); }
    void join(const kernels::Device& exec) override {
      if (std::exchange(is_due_, false)) transfer_->start(exec_);
      transfer_->join(exec);
    }
    Times times() override { return transfer_->times(); }

   private:
    std::unique_ptr<parallel::Transfer> transfer_;
    kernels::Device exec_;  // after whose work it starts
    bool is_due_ = false;   // started, and not joined
  };

  std::unique_ptr<parallel::Collectives> owned_;  // null: borrowed
  parallel::Collectives& all_;
};

}  // namespace tessera::test
