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
  FetchContent_MakeAvailable(kokkos kokkoskernels)
else()
  find_package(Kokkos 4 QUIET CONFIG)
  if(Kokkos_FOUND)
    find_package(KokkosKernels 4 QUIET CONFIG)
  endif()
endif()

if(TARGET Kokkos::kokkos)
  add_library(tessera::kokkos ALIAS Kokkos::kokkos)
  if(TARGET Kokkos::kokkoskernels)
    add_library(tessera::kokkos_kernels ALIAS Kokkos::kokkoskernels)
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
