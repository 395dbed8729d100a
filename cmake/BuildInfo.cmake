# Target tessera_build_info: src/build_info.hpp answered from git and this configuration.
#
# The file is used twice: include()d at configure time it makes the target, and run as a script at every build it
# writes build_info.cpp afresh, touching it only when something changed (so a build without changes relinks nothing).

if(CMAKE_SCRIPT_MODE_FILE)  # cmake -DSOURCE=... -DTEMPLATE=... -DOUTPUT=... -P BuildInfo.cmake
  set(GIT_HASH unknown)
  if(NOT "$ENV{TESSERA_COMMIT}" STREQUAL "")  # of sources without git
    set(GIT_HASH "$ENV{TESSERA_COMMIT}")
  endif()
  set(IS_DIRTY false)
  find_program(GIT git)
  if(GIT)
    # The checkout may belong to another user (containers); only its state is read.
    set(git "${GIT}" -c "safe.directory=${SOURCE}" -C "${SOURCE}")
    execute_process(COMMAND ${git} rev-parse --show-prefix HEAD
      OUTPUT_VARIABLE answer RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    # A prefix means that SOURCE lies inside another repository, whose hash says nothing about us.
    if(failed EQUAL 0 AND answer MATCHES "^\n?([0-9a-f]+)$")
      set(GIT_HASH "${CMAKE_MATCH_1}")
      execute_process(COMMAND ${git} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        set(IS_DIRTY true)
      endif()
    endif()
  endif()
  configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
  return()
endif()

# Version and backends as Kokkos' own configuration header states them, whichever way Kokkos was found.
function(tessera_describe_kokkos result)
  set(${result} unknown PARENT_SCOPE)
  set(folders "${TESSERA_TRILINOS_INCLUDE}")
  foreach(target Kokkos::kokkoscore Kokkos::kokkos)
    if(TARGET ${target})
      get_target_property(more ${target} INTERFACE_INCLUDE_DIRECTORIES)
      string(REGEX REPLACE "\\$<[A-Z_]+:([^>]*)>" "\\1" more "${more}")
      list(APPEND folders ${more})
    endif()
  endforeach()
  find_file(config KokkosCore_config.h PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  if(NOT config)
    return()
  endif()
  file(STRINGS "${config}" lines REGEX "^#define KOKKOS_(VERSION|ENABLE_(SERIAL|OPENMP|THREADS|HPX|CUDA|HIP|SYCL)) *[0-9]*$")
  set(backends "")
  foreach(line IN LISTS lines)
    if(line MATCHES "KOKKOS_VERSION +([0-9]+)([0-9][0-9])([0-9][0-9])$")
      set(version "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
      string(REPLACE ".0" "." version "${version}")
    elseif(line MATCHES "KOKKOS_ENABLE_([A-Z]+)")
      list(APPEND backends "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  string(REPLACE ";" ", " backends "${backends}")
  set(${result} "${version} (${backends})" PARENT_SCOPE)
endfunction()

tessera_describe_kokkos(TESSERA_KOKKOS)
set(TESSERA_COMPILERS "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(TESSERA_CUDA)
  find_package(CUDAToolkit REQUIRED)
  string(APPEND TESSERA_COMPILERS ", CUDA ${CUDAToolkit_VERSION}")
endif()
string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
get_target_property(_options tessera_flags INTERFACE_COMPILE_OPTIONS)
string(REPLACE ";" " " TESSERA_FLAGS "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_type}} ${_options}")
string(STRIP "${TESSERA_FLAGS}" TESSERA_FLAGS)

# Two stages: what configuring knows is filled in now, what git says at every build.
set(GIT_HASH "@GIT_HASH@")
set(IS_DIRTY "@IS_DIRTY@")
set(_stage "${PROJECT_BINARY_DIR}/generated/build_info.cpp.in")
set(_source "${PROJECT_BINARY_DIR}/generated/build_info.cpp")
configure_file("${PROJECT_SOURCE_DIR}/cmake/build_info.cpp.in" "${_stage}" @ONLY)
unset(GIT_HASH)
unset(IS_DIRTY)

add_custom_target(tessera_build_info_refresh
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DTEMPLATE=${_stage}" "-DOUTPUT=${_source}" -P "${CMAKE_CURRENT_LIST_FILE}"
  BYPRODUCTS "${_source}"
  COMMENT "Reading the git state"
  VERBATIM)
add_library(tessera_build_info STATIC "${_source}")
add_dependencies(tessera_build_info tessera_build_info_refresh)
target_link_libraries(tessera_build_info PRIVATE tessera_flags)
