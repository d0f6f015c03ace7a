# Headers, libraries and a relocatable package: find_package(zerone) gives zerone::zerone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

foreach(part kernels core autograd ops)
  install(DIRECTORY ${part} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerone
          FILES_MATCHING PATTERN "*.h"
          PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "vendor" EXCLUDE
          PATTERN "cuda_context.h" EXCLUDE)
endforeach()
install(FILES zerone.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerone)

install(TARGETS ${ZERONE_LIBRARIES} zerone EXPORT zerone
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT zerone NAMESPACE zerone:: FILE zerone-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone)
configure_package_config_file(cmake/zerone-config.cmake.in zerone-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone)
write_basic_package_version_file(zerone-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zerone-config.cmake
              ${PROJECT_BINARY_DIR}/zerone-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone)
