# Makes tessera::kokkos and tessera::kokkos_kernels out of whichever Kokkos there is, in this order:
#   1. TESSERA_FETCH_KOKKOS=ON: the pinned upstream releases
#      (FETCHCONTENT_SOURCE_DIR_KOKKOS and FETCHCONTENT_SOURCE_DIR_KOKKOSKERNELS point at local source trees);
#   2. an installed Kokkos 4 or later with its own CMake targets (module, Spack, Kokkos_ROOT);
#   3. Debian's Trilinos packages (3.4.01), whose exported targets name folders that do not exist.

if(TESSERA_FETCH_KOKKOS)
  include(FetchContent)
  set(_kokkos https://github.com/kokkos)
  FetchContent_Declare(kokkos URL ${_kokkos}/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz
    URL_HASH SHA256=188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e)
  FetchContent_Declare(kokkoskernels URL ${_kokkos}/kokkos-kernels/releases/download/5.0.2/kokkos-kernels-5.0.2.tar.gz
    URL_HASH SHA256=7c7af2c3659ecc620cc7b7016876330d9f288e8c6fd7b70b70907687df823b43)
  # Of Kokkos Kernels only dense products are used, and on CPUs those want a BLAS behind them. The mangling is that of
  # every Fortran compiler on Linux; without it Kokkos Kernels asks for one.
  set(KokkosKernels_ENABLE_ALL_COMPONENTS OFF CACHE BOOL "")
  set(KokkosKernels_ENABLE_COMPONENT_BLAS ON CACHE BOOL "")
  set(KokkosKernels_ENABLE_TPL_BLAS ON CACHE BOOL "")
  set(KokkosKernels_ENABLE_TPL_LAPACK OFF CACHE BOOL "")
  set(F77_BLAS_MANGLE "(name,NAME) name ## _" CACHE STRING "")
  FetchContent_MakeAvailable(kokkos kokkoskernels)
else()
  find_package(Kokkos 4 QUIET CONFIG)
  if(Kokkos_FOUND)
    find_package(KokkosKernels 4 QUIET CONFIG)
  endif()
endif()

# Upstream's targets may be aliases themselves, and an alias of an alias is not allowed: hence interface libraries.
if(TARGET Kokkos::kokkos)
  add_library(tessera_kokkos INTERFACE)
  target_link_libraries(tessera_kokkos INTERFACE Kokkos::kokkos)
  add_library(tessera::kokkos ALIAS tessera_kokkos)
  if(TARGET Kokkos::kokkoskernels)
    add_library(tessera_kokkos_kernels INTERFACE)
    target_link_libraries(tessera_kokkos_kernels INTERFACE Kokkos::kokkoskernels)
    add_library(tessera::kokkos_kernels ALIAS tessera_kokkos_kernels)
  endif()
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
