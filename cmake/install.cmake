# Headers, library and a relocatable package: find_package(zerone) gives zerone::zerone, pkg-config
# knows zerone. Where the library is shared, `cpack` makes two Debian packages: the library, and what
# is needed to compile against it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

foreach(part kernels core autograd ops)
  install(DIRECTORY ${part} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerone COMPONENT dev
          FILES_MATCHING PATTERN "*.h"
          PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "vendor" EXCLUDE
          PATTERN "cuda_context.h" EXCLUDE)
endforeach()
install(FILES zerone.h ${ZERONE_BUILD_INCLUDE}/zerone/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerone COMPONENT dev)

install(TARGETS zerone EXPORT zerone
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT zerone NAMESPACE zerone:: FILE zerone-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone COMPONENT dev)
configure_package_config_file(cmake/zerone-config.cmake.in zerone-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone)
write_basic_package_version_file(zerone-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zerone-config.cmake
              ${PROJECT_BINARY_DIR}/zerone-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerone COMPONENT dev)

# --- pkg-config: `pkg-config --libs zerone`, with --static where the library is -------------------
string(REGEX REPLACE "[^/]+" ".." zerone_PC_PREFIX ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(zerone_PC_PRIVATE "-lfmt -lhwy ${OpenMP_CXX_FLAGS} -lpthread -ldl")
if(ZERONE_ONEDNN)
  string(PREPEND zerone_PC_PRIVATE "-ldnnl ")
endif()
if(ZERONE_CUDA)
  string(PREPEND zerone_PC_PRIVATE
         "-L${CUDAToolkit_LIBRARY_DIR} -lcublas -lcublasLt -lcudart_static -lrt ")
endif()
configure_file(cmake/zerone.pc.in zerone.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/zerone.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# --- Debian packages: libzerone<soversion> and libzerone-dev --------------------------------------
if(NOT BUILD_SHARED_LIBS)
  return()
endif()
get_target_property(soversion zerone SOVERSION)
set(runtime libzerone${soversion})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${runtime} COMPONENT runtime
        RENAME copyright)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libzerone-dev COMPONENT dev
        RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The zerone authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${runtime})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libzerone-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${runtime} (= ${PROJECT_VERSION})")
include(CPack)
