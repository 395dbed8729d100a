# tessera_quick_to_compile(EXCEPT data/sampler.cpp ...)
#
# Compiles the sources of the folder that calls it at -O1, but for those named: what starts kernels, reads decks or writes files
# takes no time of a step, and compiles sooner. What walks over elements itself stays at -O3. With the fused multiply-adds of
# -fexpensive-optimizations, which -O1 alone leaves out, floating point keeps its bits.
function(tessera_quick_to_compile)
  cmake_parse_arguments(arg "" "" "EXCEPT" ${ARGN})
  if(TESSERA_GPU OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(optimised "$<CONFIG:RelWithDebInfo,Release>")
  set_property(DIRECTORY APPEND PROPERTY COMPILE_OPTIONS "$<${optimised}:-O1>" "$<${optimised}:-fexpensive-optimizations>")
  set_source_files_properties(${arg_EXCEPT} PROPERTIES COMPILE_OPTIONS "$<${optimised}:-O3>")
endfunction()
