# Makes tessera::kokkos and tessera::kokkos_kernels out of whichever Kokkos there is, in this order:
#   1. TESSERA_FETCH_KOKKOS=ON: the pinned upstream releases
#      (FETCHCONTENT_SOURCE_DIR_KOKKOS and FETCHCONTENT_SOURCE_DIR_KOKKOSKERNELS point at local source trees);
#   2. an installed Kokkos 4 or later with its own CMake targets (module, Spack, Kokkos_ROOT);
#   3. Debian's Trilinos packages (3.4.01), whose exported targets name folders that do not exist.
#
# Sets TESSERA_THREADS: whether that Kokkos has OpenMP, TESSERA_GPU: whether it computes on GPUs, TESSERA_CUDA: whether
# they are NVIDIA's. Then every target that links tessera::kokkos is compiled by nvcc through Kokkos' own compiler
# launcher (the C++ compiler stays what it is, and files without Kokkos still go to it), for the architecture
# TESSERA_CUDA_ARCH. With HIP the C++ compiler is clang, and Kokkos' flag -xhip, which files without it do not get,
# compiles for the GPU. Sets TESSERA_VENDOR_CUDA, also for the preprocessor: CUDA's instructions, libraries and graphs
# are used, too (TESSERA_VENDOR).

if(TESSERA_FETCH_KOKKOS)
  include(FetchContent)
  set(_kokkos https://github.com/kokkos)
  FetchContent_Declare(kokkos URL ${_kokkos}/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz
    URL_HASH SHA256=188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e)
  FetchContent_Declare(kokkoskernels URL ${_kokkos}/kokkos-kernels/releases/download/5.0.2/kokkos-kernels-5.0.2.tar.gz
    URL_HASH SHA256=7c7af2c3659ecc620cc7b7016876330d9f288e8c6fd7b70b70907687df823b43)
  # Of Kokkos Kernels only dense products are used, which on CPUs need a BLAS. The mangling is that of every Fortran
  # compiler on Linux; without it Kokkos Kernels requires one.
  set(KokkosKernels_ENABLE_ALL_COMPONENTS OFF CACHE BOOL "")
  set(KokkosKernels_ENABLE_COMPONENT_BLAS ON CACHE BOOL "")
  set(KokkosKernels_ENABLE_TPL_BLAS ON CACHE BOOL "")
  set(KokkosKernels_ENABLE_TPL_LAPACK OFF CACHE BOOL "")
  set(F77_BLAS_MANGLE "(name,NAME) name ## _" CACHE STRING "")
  if(Kokkos_ENABLE_CUDA)
    set(KokkosKernels_ENABLE_TPL_CUBLAS ${TESSERA_VENDOR} CACHE BOOL "")
    set(KokkosKernels_ENABLE_TPL_CUSPARSE OFF CACHE BOOL "")
    set(KokkosKernels_ENABLE_TPL_CUSOLVER OFF CACHE BOOL "")
  endif()
  # Its library would hold every dense operation on column-major doubles, compiled ahead; here products are row-major.
  set(KokkosKernels_INST_DOUBLE OFF CACHE BOOL "")
  FetchContent_MakeAvailable(kokkos kokkoskernels)
else()
  find_package(Kokkos 4 QUIET CONFIG)
  if(Kokkos_FOUND)
    find_package(KokkosKernels 4 QUIET CONFIG)
  endif()
endif()

# Kokkos_ARCH_HOPPER90 means sm_90 exactly, but Hopper's own instructions (wgmma, setmaxnreg) need sm_90a: that flag is
# replaced in what Kokkos passes to its users. Kokkos' own library stays sm_90, which is fine without device linking.
function(tessera_cuda_architecture arch)
  get_target_property(core Kokkos::kokkoscore ALIASED_TARGET)
  if(NOT core)
    set(core Kokkos::kokkoscore)
  endif()
  string(REGEX REPLACE "[a-z]$" "" plain "${arch}")
  foreach(property INTERFACE_COMPILE_OPTIONS INTERFACE_LINK_OPTIONS)
    get_target_property(options ${core} ${property})
    if(NOT options MATCHES "-arch=sm_${plain}")
      message(FATAL_ERROR "This Kokkos is built for another GPU than sm_${plain} (${property}: ${options}). Set "
        "TESSERA_CUDA_ARCH to its architecture, or build Kokkos for this one (presets cuda, cuda-ampere80).")
    endif()
    string(REPLACE "-arch=sm_${plain}" "-gencode=arch=compute_${arch},code=sm_${arch}" options "${options}")
    set_target_properties(${core} PROPERTIES ${property} "${options}")
  endforeach()
endfunction()

# Upstream's targets may be aliases themselves, and an alias of an alias is not allowed: hence interface libraries.
set(TESSERA_GPU OFF)
set(TESSERA_THREADS OFF)
set(TESSERA_CUDA OFF)
set(TESSERA_VENDOR_CUDA OFF)
if(TARGET Kokkos::kokkos)
  add_library(tessera_kokkos INTERFACE)
  target_link_libraries(tessera_kokkos INTERFACE Kokkos::kokkos)
  # An installed Kokkos lists its backends in Kokkos_DEVICES; Kokkos_ENABLE_CUDA is the preset's request.
  if(TESSERA_FETCH_KOKKOS AND Kokkos_ENABLE_OPENMP OR NOT TESSERA_FETCH_KOKKOS AND "OPENMP" IN_LIST Kokkos_DEVICES)
    set(TESSERA_THREADS ON)
  endif()
  if(TESSERA_FETCH_KOKKOS AND Kokkos_ENABLE_HIP OR NOT TESSERA_FETCH_KOKKOS AND "HIP" IN_LIST Kokkos_DEVICES)
    set(TESSERA_GPU ON)
  endif()
  if(TESSERA_FETCH_KOKKOS AND Kokkos_ENABLE_CUDA OR NOT TESSERA_FETCH_KOKKOS AND "CUDA" IN_LIST Kokkos_DEVICES)
    set(TESSERA_GPU ON)
    set(TESSERA_CUDA ON)
    tessera_cuda_architecture(${TESSERA_CUDA_ARCH})
    find_package(CUDAToolkit 12.2 REQUIRED)
    target_compile_options(tessera_kokkos INTERFACE --expt-relaxed-constexpr)
    target_compile_definitions(tessera_kokkos INTERFACE
      FMT_USE_CONSTEXPR=1)  # fmt 9 turns its constexpr off under nvcc, but its compile-time checks need it
    if(TESSERA_VENDOR)
      set(TESSERA_VENDOR_CUDA ON)
      target_compile_definitions(tessera_kokkos INTERFACE TESSERA_VENDOR_CUDA TESSERA_CUDA_ARCH="${TESSERA_CUDA_ARCH}")
      target_link_libraries(tessera_kokkos INTERFACE CUDA::cudart CUDA::cuda_driver)
    endif()
    get_property(_launcher GLOBAL PROPERTY RULE_LAUNCH_COMPILE)
    if(_launcher MATCHES "kokkos_launch_compiler")
      set_property(GLOBAL PROPERTY RULE_LAUNCH_COMPILE "${PROJECT_SOURCE_DIR}/cmake/nvcc_one_pass ${_launcher}")
    endif()
  endif()
  foreach(backend CUDA HIP OPENMP)
    if(Kokkos_ENABLE_${backend} AND NOT TESSERA_FETCH_KOKKOS AND NOT backend IN_LIST Kokkos_DEVICES)
      message(FATAL_ERROR "This build asks for Kokkos_ENABLE_${backend}, and the Kokkos in ${Kokkos_DIR} has only: "
        "${Kokkos_DEVICES}. Name one with ${backend} in Kokkos_ROOT, or let it be fetched: -DTESSERA_FETCH_KOKKOS=ON.")
    endif()
  endforeach()
  add_library(tessera::kokkos ALIAS tessera_kokkos)
  if(TARGET Kokkos::kokkoskernels)
    if(TESSERA_VENDOR_CUDA AND NOT TESSERA_FETCH_KOKKOS AND NOT TARGET Kokkos::CUBLAS AND NOT TARGET KokkosKernels::CUBLAS)
      message(FATAL_ERROR "The Kokkos Kernels in ${KokkosKernels_DIR} is built without cuBLAS, and its own products of fp32 "
        "and fp64 are many times slower: build it with KokkosKernels_ENABLE_TPL_CUBLAS=ON, or let it be fetched: "
        "-DTESSERA_FETCH_KOKKOS=ON.")
    endif()
    add_library(tessera_kokkos_kernels INTERFACE)
    target_link_libraries(tessera_kokkos_kernels INTERFACE Kokkos::kokkoskernels)
    add_library(tessera::kokkos_kernels ALIAS tessera_kokkos_kernels)
  endif()
  return()
endif()

if(Kokkos_ENABLE_CUDA OR Kokkos_ENABLE_HIP OR Kokkos_ENABLE_OPENMP)  # Debian's Kokkos has Serial only
  return()
endif()
find_path(TESSERA_TRILINOS_INCLUDE Kokkos_Core.hpp PATH_SUFFIXES trilinos)
find_library(TESSERA_TRILINOS_KOKKOSCORE trilinos_kokkoscore)
find_library(TESSERA_TRILINOS_KOKKOSKERNELS trilinos_kokkoskernels)
mark_as_advanced(TESSERA_TRILINOS_INCLUDE TESSERA_TRILINOS_KOKKOSCORE TESSERA_TRILINOS_KOKKOSKERNELS)

if(TESSERA_TRILINOS_INCLUDE AND TESSERA_TRILINOS_KOKKOSCORE)
  add_library(tessera_kokkos INTERFACE)
  target_include_directories(tessera_kokkos SYSTEM INTERFACE "${TESSERA_TRILINOS_INCLUDE}")
  target_link_libraries(tessera_kokkos INTERFACE "${TESSERA_TRILINOS_KOKKOSCORE}" ${CMAKE_DL_LIBS})
  add_library(tessera::kokkos ALIAS tessera_kokkos)
  if(TESSERA_TRILINOS_KOKKOSKERNELS AND EXISTS "${TESSERA_TRILINOS_INCLUDE}/KokkosBlas3_gemm.hpp")
    add_library(tessera_kokkos_kernels INTERFACE)
    target_link_libraries(tessera_kokkos_kernels INTERFACE "${TESSERA_TRILINOS_KOKKOSKERNELS}" blas tessera_kokkos)
    add_library(tessera::kokkos_kernels ALIAS tessera_kokkos_kernels)
  endif()
endif()
