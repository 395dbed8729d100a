/// A rank's latest transfers, and the progress of the other ranks of its host: for the report on a hang.
///
/// A rank numbers its transfers in start order, from 1, in lanes: one for transfers that the host waits for (MPI), and
/// one for each stream whose GPU writes its own record (watch/stream_log.hpp). A number denotes the same transfer on
/// every rank, or its group's, so a rank that has started fewer than the others is behind. Records lie in memory shared
/// by the ranks of a host (parallel/shared_memory.hpp): a rank's watchdog reads the others' progress there without MPI,
/// even if they are stopped or dead; ranks on other hosts are not visible. A stream's transfer counts as started once
/// its predecessors have ended, even if it overlaps them.
///
/// Async   one thread calls begin() and end(), any other report(), beat() and rest(). A lane has one writer.
/// Memory  a page for the rank and one for each lane; only name() allocates, if the name is new.
/// Limits  a lane keeps kKept transfers: of earlier ones only the numbers are known. At most kLanes - 1 streams have a
///         lane at a time; the transfers of further ones are not recorded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/shared_memory.hpp"

namespace tessera::parallel {

class FlightRecorder {
 public:
  static constexpr int kLanes = 4;  // the host's, and those of streams: of all ranks and of two groups
  static constexpr int kKept = 120;
  static constexpr std::size_t kPage = 4096;  // bytes; what a GPU maps

  /// Written by a host thread or a kernel, read at any time by other processes; an entry is written before its number.
  struct Entry {
    std::int64_t start_ns, end_ns;  // on the host's steady clock; end: 0 while it is under way
    std::int64_t bytes;
    std::uint64_t name;
  };
  struct alignas(kPage) Lane {
    std::uint64_t started;    // the number of the latest
    std::uint64_t completed;  // how many; for a stream, the number of the latest
    Entry ring[kKept];        // number n at n % kKept
  };

  /// For rank `rank` of `ranks`, the `slot`-th on this host. The memory has bytes_for(slots) bytes.
  FlightRecorder(std::unique_ptr<SharedMemory> memory, int slot, int slots, int rank, int ranks);
  /// For a single rank, with memory of its own.
  FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  static std::size_t bytes_for(int slots) { return static_cast<std::size_t>(slots) * sizeof(Page); }

  /// The number by which records name a transfer, such as "all_reduce[mpi]" of "grad.bucket.2": the same for the same
  /// arguments. To be asked for once.
  std::uint32_t name(std::string_view operation, std::string_view label);

  /// Records the start of a transfer that the host waits for, and returns its number for end(). One that never ends has
  /// hung or failed.
  std::uint64_t begin(std::uint32_t name, std::int64_t bytes);
  void end(std::uint64_t number);

  int ranks() const { return ranks_; }

  /// A free lane, for a stream; null: all are taken. Take lanes and give them back in the same order on every rank, so
  /// that the lanes of all ranks correspond.
  Lane* take_lane();
  void give_back(Lane* lane);
  /// Why a stream's transfers are not recorded, for the report.
  void explain(std::string why);

  /// beat() gives a sign of life; rest() says that none will follow.
  void beat();
  void rest();

  /// The longest silence of any other rank of this host [s]; 0: none is expected to give signs of life.
  double longest_silence_s() const;

  /// Human-readable lines: the rank that is behind and the transfers awaited, ranks without a sign of life for
  /// `silent_s` seconds or more, and this rank's latest transfers, those in flight first.
  std::vector<std::string> report(double silent_s);

  /// Nanoseconds of the steady clock, which the processes of a host share.
  static std::int64_t now_ns();

 private:
  struct alignas(kPage) Head {
    std::int64_t rank_and_1;  // rank + 1; 0: nobody has opened this slot
    std::int64_t beat_ns;     // of the latest sign of life; 0: gives none
  };
  struct Page {
    Head head;
    Lane lanes[kLanes];
  };
  struct Name {
    std::string operation, label;
  };
  struct Kept {
    std::uint64_t number;
    Entry entry;
  };
  struct Progress {
    int rank;
    std::uint64_t started, completed;
  };

  Page& mine() const { return pages_[slot_]; }
  std::vector<Kept> kept_in(int lane) const;
  std::vector<Progress> progress_in(int lane) const;
  std::string awaited_in(int lane, std::uint64_t first);
  bool report_behind(int lane, std::uint64_t Progress::*measure, std::vector<std::string>& lines);
  double silence_s(int slot) const;
  bool report_silent(double silent_s, std::vector<std::string>& lines);
  void report_unseen(std::vector<std::string>& lines) const;
  void report_latest(int lane, std::vector<std::string>& lines);
  std::string words_for(const Entry& entry);

  std::unique_ptr<SharedMemory> memory_;
  Page* pages_;
  int slot_, slots_, rank_, ranks_;
  std::array<bool, kLanes> is_taken_{true};
  std::mutex words_;  // of the following two
  std::deque<Name> names_;
  std::string why_not_recorded_;
};

}  // namespace tessera::parallel
