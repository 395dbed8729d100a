/// Named ranges of the host's time, for a profiler: the phases of a step, its units, its kernels.
///
///   const ranges::Range range("forward");            // until the end of the block
///
/// Ranges nest and go to one sink, a profiler's. Without a sink a range costs one branch. The sink gets a pop for each
/// push, in the order of a stack, also where an exception passes the end of a range: closing a range closes those
/// within it. Not thread-safe: one thread drives a rank.
#pragma once

#include <cstdint>

namespace tessera::ranges {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void push(const char* label) = 0;  // the label may end with the call
  virtual void pop() = 0;
};

/// Replaces the sink; null: none. Closes the open ranges, which the sink before began.
void set_sink(Sink* sink);
bool has_sink();

using Id = std::uint64_t;  // each is given once
constexpr Id kNone = 0;

/// Opens a range within those that are open. kNone without a sink.
Id open(const char* label);

/// Closes a range, after those within it. Does nothing for kNone and for a range that is closed.
void close(Id range);

class Range {
 public:
  explicit Range(const char* label) : id_(open(label)) {}
  ~Range() { close(id_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Id id_;
};

}  // namespace tessera::ranges
