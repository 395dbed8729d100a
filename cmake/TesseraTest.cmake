# tessera_test(unit.kernels.rmsnorm SOURCES test_rmsnorm.cpp LIBRARIES tessera_kernels [RANKS 1 2 3] [LABELS slow])
# tessera_test(unit.io.h5 WITHOUT_KOKKOS SOURCES test_h5.cpp LIBRARIES tessera_io)
#
# Makes one executable. Without RANKS every case of it is a ctest entry of its own, named <name>.<suite>.<case>;
# with RANKS the whole executable runs once per rank count under scripts/run, as <name>.np<R>; one that needs more GPUs
# than there are says so and counts as skipped.
#
# WITHOUT_KOKKOS: the test includes nothing of Kokkos, so that in a CUDA build the host's compiler alone compiles it, in
# half the time. Its libraries may. Labelled "unit.host" instead of "unit": it runs without the GPU of its build.
include(GoogleTest)

function(tessera_test name)
  cmake_parse_arguments(arg "WITHOUT_KOKKOS" "" "SOURCES;LIBRARIES;RANKS;LABELS;DEFINITIONS" ${ARGN})
  string(REPLACE "." "_" target "test.${name}")
  math(EXPR limit "600 * ${TESSERA_TEST_PATIENCE}")    # seconds, which only what hangs reaches
  math(EXPR limit_of_ranks "1800 * ${TESSERA_TEST_PATIENCE}")
  set(compiled ${target})
  if(arg_WITHOUT_KOKKOS)
    set(compiled ${target}_objects)  # apart from the libraries, whose flags would send the sources to nvcc
    add_library(${compiled} OBJECT ${arg_SOURCES})
    target_link_libraries(${compiled} PRIVATE tessera_flags tessera::gtest)
    target_include_directories(${compiled} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
    add_executable(${target} $<TARGET_OBJECTS:${compiled}>)
  else()
    add_executable(${target} ${arg_SOURCES})
    target_link_libraries(${target} PRIVATE tessera_test_support)
    if(NOT TESSERA_ENABLE_LAB)
      target_link_libraries(${target} PRIVATE tessera_ladder)
    endif()
  endif()
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
  if(TESSERA_CUDA)
    target_compile_options(${compiled} PRIVATE -O1)  # what counts lies in the libraries
  endif()
  target_compile_definitions(${compiled} PRIVATE ${arg_DEFINITIONS} TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  string(REGEX REPLACE "\\..*" "" kind "${name}")
  if(arg_RANKS)
    target_link_libraries(${target} PRIVATE tessera_test_main_mpi)
    foreach(ranks IN LISTS arg_RANKS)
      add_test(NAME ${name}.np${ranks}
        COMMAND "${PROJECT_SOURCE_DIR}/scripts/run" --quiet -n ${ranks} "$<TARGET_FILE:${target}>")
      set_tests_properties(${name}.np${ranks} PROPERTIES LABELS "${kind};mpi;${arg_LABELS}" TIMEOUT ${limit_of_ranks} PROCESSORS ${ranks}
        SKIP_REGULAR_EXPRESSION "needs [0-9]+ GPUs, found")
    endforeach()
  else()
    target_link_libraries(${target} PRIVATE $<IF:$<BOOL:${arg_WITHOUT_KOKKOS}>,tessera_test_main_plain,tessera_test_main>)
    gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 300
      PROPERTIES LABELS "${kind}$<$<BOOL:${arg_WITHOUT_KOKKOS}>:.host>;${arg_LABELS}" TIMEOUT ${limit})
  endif()
endfunction()
