/// Time between two points of an execution instance, by the instance's own clock.
///
///   StreamTimer timer(3);
///   timer.mark(exec, 0);  ...forward...  timer.mark(exec, 1);  ...backward...  timer.mark(exec, 2);
///   ...                                              // other work of the host
///   const double backward_s = timer.seconds(1, 2);   // waits until mark 2 has been reached
///
/// A mark is enqueued like a kernel. On a device the host does not wait for it, and a mark that is recorded while the
/// instance is captured becomes a node of the graph: each replay sets it again, so read it before the next. On host
/// spaces, where a launch returns when its work is done, a mark is the host's clock; with TESSERA_VENDOR=OFF the
/// device has finished before, and an interval includes what its launches take.
///
/// Memory     all of it in the constructor: marking and reading allocate nothing.
/// Throws     std::out_of_range for an index outside of 0..marks-1; std::logic_error from `seconds` where a mark was
///            never made; std::runtime_error with the device's message when a call of it fails.
/// Limits     resolution about half a microsecond on a GPU; one instance at a time.
#pragma once

#include <memory>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

class StreamTimer {
 public:
  explicit StreamTimer(int marks);
  StreamTimer(StreamTimer&&) noexcept = default;
  StreamTimer& operator=(StreamTimer&&) noexcept = default;

  void mark(const Device& exec, int index);

  /// Whether the work before a mark is done; never waits. False where the mark was never made.
  bool has_passed(int index) const;

  /// Seconds from one mark to another; waits for both.
  double seconds(int from, int to) const;

 private:
  struct Marks;
  std::shared_ptr<Marks> marks_;
};

}  // namespace tessera::kernels
