# tessera_sources_without_kokkos(tessera_jobs SOURCES jobs/stop.cpp LIBRARIES tessera::fmt)
#
# More sources of a library that links Kokkos, which include nothing of Kokkos themselves: in a CUDA build the host's
# compiler alone compiles them, in a third of the time. LIBRARIES are what else their includes need.
function(tessera_sources_without_kokkos target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${target}_without_kokkos OBJECT ${arg_SOURCES})
  target_link_libraries(${target}_without_kokkos PRIVATE tessera_flags ${arg_LIBRARIES})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_without_kokkos>)
endfunction()
