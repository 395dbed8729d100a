# cmake --install build/cpu --prefix PREFIX --component tessera
#
#   PREFIX/bin/tessera
#   PREFIX/share/tessera/input      decks
#   PREFIX/share/tessera/scripts    what starts and shows runs; scripts/smoke checks the installation
#
# The component leaves out what a fetched Kokkos would install of itself.
include(GNUInstallDirs)
set_target_properties(tessera PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # libraries of modules are found without them
install(TARGETS tessera RUNTIME COMPONENT tessera)

set(_share "${CMAKE_INSTALL_DATADIR}/tessera")
install(FILES README.md LICENSE DESTINATION "${_share}" COMPONENT tessera)
install(DIRECTORY input DESTINATION "${_share}" COMPONENT tessera
  FILES_MATCHING PATTERN "*.toml" PATTERN "results.toml" EXCLUDE PATTERN "compare.toml" EXCLUDE)
# Not what builds, tests, publishes, or compares with PyTorch: that takes a checkout.
set(_of_checkouts "")
foreach(name IN ITEMS README.md build compare compare_torch experiment fetch_text format packaging profile_step published.py
                      quickstart sanitize setup test)
  list(APPEND _of_checkouts PATTERN "scripts/${name}" EXCLUDE)
endforeach()
install(DIRECTORY scripts DESTINATION "${_share}" COMPONENT tessera USE_SOURCE_PERMISSIONS
  ${_of_checkouts} PATTERN "__pycache__" EXCLUDE)
