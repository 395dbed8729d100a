#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define NVTX_NO_IMPL  // its functions are those of kernels/cuda/nvtx.cpp
#include <nvtx3/nvToolsExt.h>

#include <Kokkos_Core.hpp>

#include <string>
#include <vector>

#include "kernels/core/profiler.hpp"

namespace tessera::test {
namespace {

using ::testing::ElementsAre;

// A tool of NVTX, as NVTX_INJECTION64_PATH would load one: it replaces the entries of the functions that it wants.
std::vector<std::string> calls;
int domain_object = 0;

nvtxDomainHandle_t create_domain(const char* name) {
  calls.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&domain_object);
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  EXPECT_EQ(static_cast<void*>(domain), &domain_object);
  EXPECT_EQ(range->size, NVTX_EVENT_ATTRIB_STRUCT_SIZE);
  EXPECT_EQ(range->messageType, NVTX_MESSAGE_TYPE_ASCII);
  calls.push_back(std::string("push ") + range->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  EXPECT_EQ(static_cast<void*>(domain), &domain_object);
  calls.push_back("pop");
  return 0;
}

extern "C" int listen(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count)) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

void launch() { Kokkos::parallel_for("kernel", Kokkos::RangePolicy<Kokkos::Cuda>(0, 10), KOKKOS_LAMBDA(int){}); }

TEST(Nvtx, a_tool_that_listens_hears_ranges_and_kernels) {
  ranges::Sink* const sink = kernels::listening_profiler();
  ASSERT_NE(sink, nullptr);
  EXPECT_THAT(calls, ElementsAre("domain tessera"));
  {
    const kernels::ProfilerRanges ranges(sink);
    const ranges::Range phase("forward");
    launch();
  }
  EXPECT_THAT(calls, ElementsAre("domain tessera", "push forward", "push kernel", "pop", "pop"));
}

}  // namespace
}  // namespace tessera::test

// NVTX's own definition is weak: this one is taken.
extern "C" {
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = tessera::test::listen;
}
