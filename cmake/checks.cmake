# Tests of the tree itself: who includes whom, and that every installed header stands alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME include_arrows
         COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_includes.py)
add_test(NAME include_arrows_self
         COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_includes_test.py)

# One source a header, with nothing else included; including it twice must change nothing. Once, in
# the plain build, is enough.
if(ZERONE_SANITIZE OR ZERONE_CUDA)
  return()
endif()
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
     zerone.h kernels/*.h core/*.h autograd/*.h ops/*.h ops/nn/*.h)
list(REMOVE_ITEM headers core/cuda_context.h)
set(sources)
foreach(header ${headers})
  string(REPLACE "/" "_" name ${header})
  set(source ${PROJECT_BINARY_DIR}/header_checks/${name}.cpp)
  file(CONFIGURE OUTPUT ${source}
       CONTENT "#include <zerone/${header}>\n#include <zerone/${header}>\n" @ONLY)
  list(APPEND sources ${source})
endforeach()
add_library(zerone_header_checks OBJECT ${sources})
zerone_compile_options(zerone_header_checks)
target_compile_options(zerone_header_checks PRIVATE -O0)
