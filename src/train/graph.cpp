#include "train/graph.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/cuda/chain.hpp"
  #include "kernels/cuda/check.hpp"
#endif

namespace tessera::train {

#ifdef TESSERA_VENDOR_CUDA

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

namespace {

// CUDA 12.3 added edge data, in calls ending in _v2; CUDA 13 dropped the suffix.
  #if CUDART_VERSION >= 13000
    #define TESSERA_WITH_EDGE_DATA(call) call
  #else
    #define TESSERA_WITH_EDGE_DATA(call) call##_v2
  #endif

  #if CUDART_VERSION >= 12030
/// The edges of a graph, from nodes to nodes.
struct Edges {
  std::vector<cudaGraphNode_t> from, to;
};

Edges edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(TESSERA_WITH_EDGE_DATA(cudaGraphGetEdges)(graph, nullptr, nullptr, nullptr, &count), "CUDA graph: its edges");
  Edges edges{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphNode_t>(count)};
  std::vector<cudaGraphEdgeData> data(count);
  check(TESSERA_WITH_EDGE_DATA(cudaGraphGetEdges)(graph, edges.from.data(), edges.to.data(), data.data(), &count),
        "CUDA graph: its edges");
  const auto is_ordinary = [](const cudaGraphEdgeData& edge) {
    return edge.from_port == 0 && edge.to_port == 0 && edge.type == cudaGraphDependencyTypeDefault;
  };
  if (!std::all_of(data.begin(), data.end(), is_ordinary))
    throw std::runtime_error("some of its edges are not plain dependencies");
  return edges;
}

/// The graph's nodes. Throws std::runtime_error unless they are a chain of kernels.
std::vector<cudaGraphNode_t> line_of_kernels(cudaGraph_t graph, const Edges& edges) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "CUDA graph: its nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "CUDA graph: its nodes");
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    check(cudaGraphNodeGetType(node, &type), "CUDA graph: a node's type");
    if (type != cudaGraphNodeTypeKernel) throw std::runtime_error("some launches are not kernels");
  }
  const auto has_repeats = [](std::vector<cudaGraphNode_t> ends) {
    std::sort(ends.begin(), ends.end());
    return std::adjacent_find(ends.begin(), ends.end()) != ends.end();
  };
  if (edges.from.size() + 1 != count || has_repeats(edges.from) || has_repeats(edges.to)) {
    throw std::runtime_error("the kernels do not form one line");
  }
  return nodes;
}

/// Requests the same split of an SM's memory into cache and scratch for all kernels, since kernels with different
/// splits cannot overlap. Only a hint: failures are ignored.
void share_partition([[maybe_unused]] const std::vector<cudaGraphNode_t>& kernels) {
    #if CUDART_VERSION >= 13000
  cudaLaunchAttributeValue scratch{};
  scratch.sharedMemCarveout = 28;  // [%] 64 KiB of 228: some teams of two kernels
  for (const cudaGraphNode_t kernel : kernels) {
    const auto status =
        cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributePreferredSharedMemoryCarveout, &scratch);
    if (status != cudaSuccess) cudaGetLastError();
  }
    #endif
}

/// Makes the edges of a chain of kernels programmatic.
void chain(cudaGraph_t graph) {
  if (!kernels::kKernelsWait) throw std::runtime_error("the build is not for sm_90, and its kernels do not wait");
  const Edges edges = edges_of(graph);
  share_partition(line_of_kernels(graph, edges));
  if (edges.from.empty()) return;
  cudaGraphEdgeData programmatic{};
  programmatic.from_port = cudaGraphKernelNodePortProgrammatic;
  programmatic.type = cudaGraphDependencyTypeProgrammatic;
  const std::vector<cudaGraphEdgeData> data(edges.from.size(), programmatic);
  check(TESSERA_WITH_EDGE_DATA(cudaGraphRemoveDependencies)(graph, edges.from.data(), edges.to.data(), nullptr,
                                                            edges.from.size()),
        "CUDA graph: removing edges");
  check(TESSERA_WITH_EDGE_DATA(cudaGraphAddDependencies)(graph, edges.from.data(), edges.to.data(), data.data(),
                                                         edges.from.size()),
        "CUDA graph: adding programmatic edges");
}

  #else

void chain(cudaGraph_t) { throw std::runtime_error("the build's CUDA is older than 12.3"); }

  #endif

/// Kernels keep the priority of the stream they were recorded on, as without a graph.
cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority), "CUDA graph: instantiating");
  return executable;
}

/// The graph with programmatic edges, or nullptr with the reason in `why_not`.
cudaGraphExec_t instantiated_chained(cudaGraph_t graph, std::string& why_not) {
  cudaGraph_t copy = nullptr;
  check(cudaGraphClone(&copy, graph), "CUDA graph: copying");
  cudaGraphExec_t executable = nullptr;
  try {
    chain(copy);
    executable = instantiated(copy);
  } catch (const std::runtime_error& error) {
    why_not = error.what();
    cudaGetLastError();  // reported in why_not
  }
  cudaGraphDestroy(copy);
  return executable;
}

}  // namespace

void StepGraph::record(const kernels::Device& exec, const std::function<void()>& enqueue, Links links) {
  const auto recorded = std::make_shared<Recorded>();
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
  not_chained_because_.clear();
  if (links == Links::chained) recorded->executable = instantiated_chained(recorded->graph, not_chained_because_);
  if (!recorded->executable) recorded->executable = instantiated(recorded->graph);
  check(cudaGraphUpload(recorded->executable, exec.cuda_stream()), "CUDA graph: uploading");
  recorded_ = recorded;
}

void StepGraph::launch(const kernels::Device& exec) const {
  if (!recorded_) throw std::logic_error("step graph: launched before it was recorded");
  check(cudaGraphLaunch(recorded_->executable, exec.cuda_stream()), "CUDA graph: launching");
}

#else

struct StepGraph::Recorded {};

void StepGraph::record(const kernels::Device&, const std::function<void()>&, Links) {
  throw std::logic_error("step graph: this execution space has no graphs");
}
void StepGraph::launch(const kernels::Device&) const {
  throw std::logic_error("step graph: launched before it was recorded");
}

#endif

bool StepGraph::run(const kernels::Device& exec, const std::function<void()>& enqueue, Links links) {
  if (!has_run_) {
    enqueue();
    has_run_ = true;
    return false;
  }
  const bool records = !is_recorded();
  if (records) record(exec, enqueue, links);
  launch(exec);
  return records;
}

}  // namespace tessera::train
