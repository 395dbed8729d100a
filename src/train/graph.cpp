#include "train/graph.hpp"

#include <stdexcept>

#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/check.hpp"
#endif

namespace tessera::train {

#ifdef KOKKOS_ENABLE_CUDA

using kernels::cuda::check;

struct StepGraph::Recorded {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  Recorded() = default;
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  ~Recorded() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
};

void StepGraph::record(const kernels::Device& exec, const std::function<void()>& enqueue) {
  auto recorded = std::make_unique<Recorded>();
  // Captures this thread only: threads of the watchdog and the communication library may call CUDA meanwhile.
  check(cudaStreamBeginCapture(exec.cuda_stream(), cudaStreamCaptureModeThreadLocal), "CUDA graph: recording");
  try {
    enqueue();
  } catch (...) {
    cudaGraph_t discarded = nullptr;
    cudaStreamEndCapture(exec.cuda_stream(), &discarded);
    if (discarded) cudaGraphDestroy(discarded);
    throw;
  }
  check(cudaStreamEndCapture(exec.cuda_stream(), &recorded->graph), "CUDA graph: the end of the recording");
  // Kernels keep the priority of the stream they were recorded on: communication goes first, as without a graph.
  check(cudaGraphInstantiate(&recorded->executable, recorded->graph, cudaGraphInstantiateFlagUseNodePriority),
        "CUDA graph: instantiating");
  check(cudaGraphUpload(recorded->executable, exec.cuda_stream()), "CUDA graph: uploading");
  recorded_ = std::move(recorded);
}

void StepGraph::launch(const kernels::Device& exec) const {
  if (!recorded_) throw std::logic_error("step graph: launched before it was recorded");
  check(cudaGraphLaunch(recorded_->executable, exec.cuda_stream()), "CUDA graph: launching");
}

#else

struct StepGraph::Recorded {};

void StepGraph::record(const kernels::Device&, const std::function<void()>&) {
  throw std::logic_error("step graph: this execution space has no graphs");
}
void StepGraph::launch(const kernels::Device&) const {
  throw std::logic_error("step graph: launched before it was recorded");
}

#endif

StepGraph::StepGraph() = default;
StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;

bool StepGraph::is_recorded() const { return recorded_ != nullptr; }

}  // namespace tessera::train
