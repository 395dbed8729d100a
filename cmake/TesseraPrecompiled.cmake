# tessera_precompile(tessera_io)                 sources that include nothing of Kokkos
# tessera_precompile(tessera_train WITH_KOKKOS)  sources of which most include it
#
# Reads the headers of others that most sources include from one of two precompiled files, which take the flags of
# tessera_quick_to_compile(): GCC compiles at the level of the precompiled file, whatever a source's own is.
# tessera_precompile_for_itself(tessera_kernels HEADER ...) makes a file for a target with other flags.
#
# Off where a GPU's compiler compiles, and with ccache, which recognises such objects only by settings of its user's. So
# sources still include all that they use.
file(REAL_PATH "${CMAKE_CXX_COMPILER}" _compiler)
set(TESSERA_PRECOMPILED OFF)
if(TESSERA_PRECOMPILE AND NOT TESSERA_GPU AND CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang)$"
   AND NOT "${CMAKE_CXX_COMPILER_LAUNCHER} ${_compiler}" MATCHES "ccache")
  set(TESSERA_PRECOMPILED ON)
endif()

function(tessera_precompiled_headers name)
  cmake_parse_arguments(arg "" "" "LIBRARIES;HEADERS" ${ARGN})
  set(nothing "${PROJECT_BINARY_DIR}/${name}.cpp")  # CMake precompiles headers for targets that have a source
  file(GENERATE OUTPUT "${nothing}" CONTENT "")
  add_library(${name} OBJECT "${nothing}")
  target_link_libraries(${name} PRIVATE tessera_flags tessera::fmt ${arg_LIBRARIES})
  target_compile_options(${name} PRIVATE ${TESSERA_QUICK_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS} <fmt/format.h>
    <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string> <string_view> <vector>)
endfunction()
if(TESSERA_PRECOMPILED)
  tessera_precompiled_headers(tessera_precompiled)
  tessera_precompiled_headers(tessera_precompiled_kokkos LIBRARIES tessera::kokkos HEADERS <Kokkos_Core.hpp>)
endif()

function(tessera_precompile target)
  cmake_parse_arguments(arg "WITH_KOKKOS" "" "" ${ARGN})
  if(TESSERA_PRECOMPILED)
    set(shared tessera_precompiled)
    if(arg_WITH_KOKKOS)
      set(shared tessera_precompiled_kokkos)
    endif()
    target_precompile_headers(${target} REUSE_FROM ${shared})
    # Definitions that the precompiled headers read must agree, too.
    target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:tessera::fmt,INTERFACE_COMPILE_DEFINITIONS>)
  endif()
endfunction()

function(tessera_precompile_for_itself target)
  if(TESSERA_PRECOMPILED)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
