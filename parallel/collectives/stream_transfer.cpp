#include "parallel/collectives/stream_transfer.hpp"

#include <stdexcept>

#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"

namespace tessera::parallel {

using kernels::Device;
using kernels::cuda::Event;

TransferStream::TransferStream(FlightRecorder& recorder, int priority)
    : stream_(priority), clock_stream_(0), instance_(stream_), log_(recorder) {}

double TransferStream::seconds_at(const Event& event) {
  if (events::now_s() - reference_s_ > 10) {  // differences are floats of milliseconds: keep them short
    CUDA_CHECK(cudaEventRecord(reference_, clock_stream_));
    CUDA_CHECK(cudaEventSynchronize(reference_));
    reference_s_ = events::now_s();
  }
  return reference_s_ + 1e-3 * static_cast<double>(event.milliseconds_since(reference_));
}

StreamTransfer::StreamTransfer(std::string_view means, TransferStream& stream, const Message& message, int rank,
                               int size)
    : stream_(stream),
      operation_(message.operation),
      what_(std::string(means).append(" ").append(name_of(operation_)).append(" of ").append(message.span.label)),
      rank_(rank),
      size_(size),
      name_(stream.log().recorder().name(label_of(operation_, means), message.span.label)),
      wire_(what_, message.span, message.wire),
      part_(operation_ == Operation::all_gather       ? message.part
            : operation_ == Operation::reduce_scatter ? sum_place(what_, message.part, message.span, rank, size)
                                                      : Span{}),
      moved_part_(operation_ == Operation::reduce_scatter && wire_.is_narrow()
                      ? sum_place(what_, {}, wire_.message(), rank, size)
                      : part_) {
  if (sums() && wire_.message().dtype == Dtype::int32) {
    throw std::invalid_argument(what_ + ": " + std::string(name_of(Dtype::int32)) + " cannot be summed");
  }
  if (operation_ == Operation::all_gather) {
    const Span& whole = message.span;
    require_part(what_, part_, whole, size);
    if (overlap(part_, whole) && part_.data != sum_place(what_, {}, whole, rank, size).data) {
      throw std::invalid_argument(what_ + ": its part lies inside the whole, but not at its own place");
    }
  }
  for (const Span& span : {message.span, message.wire, part_}) {
    if (span.count == 0 || kernels::is_device_memory(span.data)) continue;
    throw std::invalid_argument(what_ + ": its memory is not the device's");
  }
}

void StreamTransfer::start(const Device& exec) {
  const Device& on = runs_on();
  const cudaStream_t runs = on.cuda_stream(), ends = stream_.get();
  if (exec.cuda_stream() != runs) {
    CUDA_CHECK(cudaEventRecord(ready_, exec.cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(runs, ready_, 0));
  }
  begin_.stamp(runs);
  stream_.log().start(begin_, runs, name_, wire_.message().bytes());
  wire_.narrow(on);
  move(on);
  if (operation_ == Operation::reduce_scatter) {
    wire_.widen(on, rank_ * part_.count, part_);
  } else {
    wire_.widen(on);
  }
  if (runs != ends) {
    CUDA_CHECK(cudaEventRecord(ready_, runs));
    CUDA_CHECK(cudaStreamWaitEvent(ends, ready_, 0));
  }
  is_captured_ = end_.stamp(ends);
  if (is_captured_) CUDA_CHECK(cudaEventRecord(done_, ends));  // last: every fork has to be joined
  stream_.log().end(end_, ends);
  was_started_ = true;
  was_joined_ = false;
}

void StreamTransfer::join(const Device& exec) {
  if (!was_started_ || exec.cuda_stream() == stream_.get()) return;  // what follows there waits for nothing
  joined_.stamp(exec.cuda_stream());
  CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), is_captured_ ? done_ : end_, 0));
  was_joined_ = true;
}

Transfer::Times StreamTransfer::times() {
  if (!was_started_ || !test()) throw std::logic_error(what_ + ": times requested while it runs");
  const double end_s = stream_.seconds_at(end_);
  return {stream_.seconds_at(begin_), end_s, was_joined_ ? stream_.seconds_at(joined_) : end_s};
}

}  // namespace tessera::parallel
