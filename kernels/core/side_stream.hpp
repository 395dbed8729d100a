/// Execution instances besides the caller's, and the order between them.
///
///   SideStream copies;
///   StreamOrder order(2);
///   order.record(exec, 0);  order.wait(copies.instance(), 0);      // the copies follow what is enqueued on exec
///   ...copies...
///   order.record(copies.instance(), 1);  order.wait(exec, 1);      // and exec follows them
///
/// On host spaces, where a launch returns when its work is done, there is nothing to order.
///
/// Async   never waits on the host (with TESSERA_VENDOR=OFF a wait is the host's); may be captured in a graph if a wait
///         and its record lie in the same capture.
/// Throws  std::runtime_error with the device's message if one of its calls fails.
#pragma once

#include <memory>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// When several launches are ready, those of raised instances get SMs before those of lowest instances and of Kokkos'
/// own; only streams of the highest priority (kernels/cuda/stream.hpp) come before them. Running blocks are not
/// interrupted.
enum class StreamPriority { lowest, raised };

/// An instance by Kokkos alone (kokkos_backend.cpp); on hosts the default one.
Device make_instance();

/// An instance whose work runs concurrently with that of others.
class SideStream {
 public:
  explicit SideStream(StreamPriority priority = StreamPriority::lowest);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  const Device& instance() const;

 private:
  struct Stream;
  std::shared_ptr<Stream> stream_;
};

/// Numbered points in the work of instances.
class StreamOrder {
 public:
  explicit StreamOrder(int points);
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  void record(const Device& exec, int point);
  /// What is enqueued on `exec` after this waits for the work before the latest record of `point`.
  void wait(const Device& exec, int point) const;

 private:
  struct Points;
  std::shared_ptr<Points> points_;
};

}  // namespace tessera::kernels
