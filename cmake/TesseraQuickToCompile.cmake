# tessera_quick_to_compile(EXCEPT data/sampler.cpp ...)
#
# Compiles the sources of the folder that calls it at -O1, but for those named: what starts kernels, reads decks or writes files
# takes no time of a step, and compiles sooner. What walks over elements itself stays at -O3. With the fused multiply-adds of
# -fexpensive-optimizations, which -O1 alone leaves out, floating point keeps its bits.
set(_optimised "$<CONFIG:RelWithDebInfo,Release>")
set(TESSERA_QUICK_OPTIONS)
if(NOT TESSERA_GPU AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TESSERA_QUICK_OPTIONS "$<${_optimised}:-O1>" "$<${_optimised}:-fexpensive-optimizations>")
endif()

function(tessera_quick_to_compile)
  cmake_parse_arguments(arg "" "" "EXCEPT" ${ARGN})
  if(TESSERA_QUICK_OPTIONS)
    set_property(DIRECTORY APPEND PROPERTY COMPILE_OPTIONS ${TESSERA_QUICK_OPTIONS})
    set_source_files_properties(${arg_EXCEPT} PROPERTIES
      COMPILE_OPTIONS "$<${_optimised}:-O3>" SKIP_PRECOMPILE_HEADERS ON)  # GCC takes the level of the precompiled file
  endif()
endfunction()
