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
set(_scripts_of_sites collect plan_sharding plot_bench plot_run report run scaling smoke)
list(TRANSFORM _scripts_of_sites PREPEND scripts/)
install(PROGRAMS ${_scripts_of_sites} DESTINATION "${_share}/scripts" COMPONENT tessera)
install(FILES scripts/common.sh scripts/lsan.supp DESTINATION "${_share}/scripts" COMPONENT tessera)
install(DIRECTORY scripts/slurm DESTINATION "${_share}/scripts" COMPONENT tessera USE_SOURCE_PERMISSIONS)
install(DIRECTORY scripts/ DESTINATION "${_share}/scripts" COMPONENT tessera
  FILES_MATCHING PATTERN "*.py" PATTERN "compare" EXCLUDE PATTERN "packaging" EXCLUDE PATTERN "__pycache__" EXCLUDE)
