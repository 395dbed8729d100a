#include "parallel/collectives/stream_barrier.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stop_token>

#include "kernels/cuda/check.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

constexpr std::uint32_t kArrived = 1;

CUstreamBatchMemOpParams write(const std::uint32_t* flag, std::uint32_t value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // what the stream did before is visible before it
  return operation;
}

CUstreamBatchMemOpParams wait_until_set(const std::uint32_t* flag) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.waitValue.value = kArrived;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

}  // namespace

std::string first_fault(const World& world, const std::string& mine) {
  const std::vector<std::string> faults = world.all_gather(mine);
  const auto first = std::find_if(faults.begin(), faults.end(), [](const auto& fault) { return !fault.empty(); });
  return first == faults.end() ? "" : *first;
}

StreamBarrier::StreamBarrier(const World& world, int channels)
    : rank_(world.rank()), ranks_(world.size()), sets_(2 * channels), operations_(static_cast<std::size_t>(sets_)) {
  if (ranks_ == 1) return;
  const std::size_t bytes = static_cast<std::size_t>(sets_) * ranks_ * ranks_ * sizeof(std::uint32_t);
  if (rank_ == 0) memory_ = std::make_unique<SharedMemory>(bytes);
  const auto address_of = [](const SharedMemory& memory) {
    return std::string(memory.address().data(), memory.address().size());
  };
  const std::vector<std::string> addresses = world.all_gather(rank_ == 0 ? address_of(*memory_) : std::string());
  if (rank_ > 0) {
    SharedMemory::Address address{};
    std::memcpy(address.data(), addresses[0].data(), address.size());
    memory_ = std::make_unique<SharedMemory>(bytes, address);
  }
  fault_ = memory_->fault();
  if (fault_.empty()) {
    void* mapped = nullptr;
    cudaError_t status = cudaHostRegister(memory_->data(), bytes, cudaHostRegisterMapped);
    if (status == cudaSuccess) status = cudaHostGetDevicePointer(&mapped, memory_->data(), 0);
    mapped_ = static_cast<std::uint32_t*>(mapped);
    if (status != cudaSuccess) {
      cudaGetLastError();  // clears it
      fault_ = std::string("cudaHostRegister: ") + cudaGetErrorString(status);
    }
  }
  fault_ = first_fault(world, fault_);  // every rank has opened the memory
  memory_->close_to_others();
  for (int set = 0; set < sets_; ++set) prepare(set);
}

StreamBarrier::~StreamBarrier() {
  releaser_ = {};  // joins it
  if (mapped_) cudaHostUnregister(memory_->data());
}

/// Index of the flag of rank `of` that rank `from` sets.
std::size_t StreamBarrier::place(int set, int of, int from) const {
  return (static_cast<std::size_t>(set) * ranks_ + of) * ranks_ + from;
}

void StreamBarrier::prepare(int set) {
  const auto for_each_peer = [&](const auto& operation_with) {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) operations_[set].push_back(operation_with(peer));
    }
  };
  for_each_peer([&](int peer) { return write(mapped_ + place(set, peer, rank_), kArrived); });
  for_each_peer([&](int peer) { return wait_until_set(mapped_ + place(set, rank_, peer)); });
  for_each_peer([&](int peer) { return write(mapped_ + place(set, rank_, peer), 0); });
}

void StreamBarrier::enqueue(int channel, int set, cudaStream_t stream) const {
  const std::vector<CUstreamBatchMemOpParams>& operations = operations_[2 * channel + set];
  if (operations.empty()) return;  // nobody to wait for
  CUDA_CHECK(cuStreamBatchMemOp(stream, static_cast<unsigned>(operations.size()),
                                const_cast<CUstreamBatchMemOpParams*>(operations.data()), 0));
}

void StreamBarrier::abandon() {
  if (!mapped_ || releaser_.joinable()) return;
  releaser_ = std::jthread([this](const std::stop_token& stop) {
    auto* const flags = static_cast<std::uint32_t*>(memory_->data());
    while (!stop.stop_requested()) {  // a wait that has ended clears its flags, and the next one needs them
      for (int set = 0; set < sets_; ++set) {
        for (int peer = 0; peer < ranks_; ++peer) std::atomic_ref(flags[place(set, rank_, peer)]).store(kArrived);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
}

}  // namespace tessera::parallel
