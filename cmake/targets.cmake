# How zerone's own targets are made.

# <zerone/core/tensor.h> means the same in the tree and installed: the build tree links the folders
# under include/zerone.
set(ZERONE_BUILD_INCLUDE ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${ZERONE_BUILD_INCLUDE}/zerone)
foreach(part kernels core autograd ops zerone.h)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${part} ${ZERONE_BUILD_INCLUDE}/zerone/${part} SYMBOLIC)
endforeach()
configure_file(version.h.in ${ZERONE_BUILD_INCLUDE}/zerone/version.h @ONLY)

# Flags of all own code, on the target only.
function(zerone_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                        CUDA_STANDARD 20 CUDA_EXTENSIONS OFF)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${ZERONE_BUILD_INCLUDE}>)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>
    $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra>)
  if(ZERONE_CUDA AND NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake before 3.26 does not know that nvcc has C++20 and would pass no flag at all.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  endif()
  if(ZERONE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
  if(ZERONE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ZERONE_SANITIZE} -fno-sanitize-recover=all
                                -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${ZERONE_SANITIZE})
  endif()
  if(ZERONE_CUDA)
    list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
    target_compile_definitions(${target} PRIVATE ZERONE_CUDA=1
                               ZERONE_CUDA_ARCHITECTURES="${architectures}")
  endif()
  if(ZERONE_ONEDNN)
    target_compile_definitions(${target} PRIVATE ZERONE_ONEDNN=1)
  endif()
endfunction()

# Sources of zerone that are compiled once for each x86-64 level.
function(zerone_isa_sources)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(levels baseline x86_64_v3 x86_64_v4)
    target_compile_definitions(zerone PRIVATE ZERONE_CPU_ISA_LEVELS=1)
  else()
    set(levels baseline)
  endif()
  foreach(level ${levels})
    add_library(zerone_isa_${level} OBJECT ${ARGN})
    zerone_compile_options(zerone_isa_${level})
    target_compile_definitions(zerone_isa_${level} PRIVATE ZERONE_ISA_NAMESPACE=${level})
    if(level STREQUAL x86_64_v3)
      target_compile_options(zerone_isa_${level} PRIVATE -march=x86-64-v3)
    elseif(level STREQUAL x86_64_v4)
      # GCC 12 takes the undefined operands in its own AVX-512 header for uninitialized ones.
      target_compile_options(zerone_isa_${level} PRIVATE -march=x86-64-v4
                             -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized)
    endif()
    target_link_libraries(zerone_isa_${level} PRIVATE OpenMP::OpenMP_CXX Eigen3::Eigen)
    target_sources(zerone PRIVATE $<TARGET_OBJECTS:zerone_isa_${level}>)
  endforeach()
endfunction()

# add_op(x): ops/x.cpp, ops/x_cpu.cpp and, in a CUDA build, ops/x_cuda.cpp.
function(add_op name)
  target_sources(zerone PRIVATE ops/${name}.cpp ops/${name}_cpu.cpp)
  if(ZERONE_CUDA)
    target_sources(zerone PRIVATE ops/${name}_cuda.cpp)
  endif()
endfunction()
