/// The order in which pieces of transfers cross an MPI communicator. Only for mpi.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/collectives/mpi_check.hpp"

namespace tessera::parallel {

/// What crosses the network piece by piece, each in one call of MPI.
class InPieces {
 public:
  virtual ~InPieces() = default;
  virtual std::int64_t pieces() const = 0;
  virtual void post(std::int64_t piece, char* staging, MPI_Request* request) = 0;
  virtual void take(std::int64_t piece, char* staging) = 0;  // which has arrived
};

/// The transfers in progress on a communicator, first come first served: at most kInFlight pieces at a time. Every
/// rank starts the same transfers in the same order, so all make the same calls of MPI in the same order, whenever each
/// of them polls.
template <int kInFlight>
class Queue {
 public:
  /// Pieces may stage `bytes` each from here on.
  void reserve(std::int64_t bytes) {
    staged_ = std::max(staged_, static_cast<std::size_t>(bytes));
    for (Slot& slot : slots_) {
      if (slot.is_free) slot.staging.resize(staged_);
    }
  }

  void push(InPieces& transfer) {
    waiting_.push_back(&transfer);
    post();
  }

  /// Takes what has arrived and posts what has room, without waiting.
  void poll() {
    int has_arrived = 1;
    while (in_flight_ > 0) {
      MPI_CHECK(MPI_Test(&slots_[oldest_].request, &has_arrived, MPI_STATUS_IGNORE));
      if (has_arrived == 0) break;
      take();
    }
    post();
  }

  /// The same after waiting for the oldest piece.
  void wait() {
    MPI_CHECK(MPI_Wait(&slots_[oldest_].request, MPI_STATUS_IGNORE));
    take();
    poll();
  }

  /// A rank that leaves may destroy a transfer in progress.
  void forget(const InPieces& transfer) {
    if (!waiting_.empty() && waiting_.front() == &transfer) next_piece_ = 0;
    std::erase(waiting_, &transfer);
    for (Slot& slot : slots_) {
      if (slot.transfer == &transfer) slot.transfer = nullptr;
    }
  }

 private:
  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_free = true;
    InPieces* transfer = nullptr;  // null: forgotten
    std::int64_t piece = 0;
    std::vector<char> staging;
  };

  void take() {
    Slot& slot = slots_[oldest_];
    oldest_ = (oldest_ + 1) % kInFlight;
    --in_flight_;
    slot.is_free = true;
    InPieces* const transfer = std::exchange(slot.transfer, nullptr);
    if (transfer != nullptr) transfer->take(slot.piece, slot.staging.data());
  }

  void post() {
    while (in_flight_ < kInFlight && !waiting_.empty()) {
      Slot& slot = slots_[(oldest_ + in_flight_++) % kInFlight];
      slot.is_free = false;
      slot.staging.resize(staged_);  // if a larger piece was announced while it was in use
      slot.transfer = waiting_.front();
      slot.piece = next_piece_++;
      if (next_piece_ == slot.transfer->pieces()) {
        waiting_.erase(waiting_.begin());
        next_piece_ = 0;
      }
      slot.transfer->post(slot.piece, slot.staging.data(), &slot.request);
    }
  }

  std::array<Slot, kInFlight> slots_;
  int oldest_ = 0, in_flight_ = 0;
  std::size_t staged_ = 0;          // bytes of a piece
  std::vector<InPieces*> waiting_;  // with pieces that are not posted
  std::int64_t next_piece_ = 0;     // of the first of them
};

}  // namespace tessera::parallel
