# Packages, by their Debian and PyPI names, are listed with their reasons in CONTRIBUTING.md.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Eigen3 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

find_package(hwy REQUIRED)

if(NOT ZERONE_ONEDNN STREQUAL OFF)
  find_package(dnnl QUIET)
  if(NOT TARGET DNNL::dnnl AND ZERONE_ONEDNN STREQUAL ON)
    message(FATAL_ERROR "ZERONE_ONEDNN=ON, but oneDNN (libdnnl-dev) was not found")
  endif()
  if(TARGET DNNL::dnnl)
    set(ZERONE_ONEDNN ON)
  else()
    set(ZERONE_ONEDNN OFF)
  endif()
endif()
message(STATUS "oneDNN rows: ${ZERONE_ONEDNN}")

if(ZERONE_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # The GPU at hand; without one, every generation from Turing to Hopper.
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE found RESULT_VARIABLE status ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(status EQUAL 0 AND found MATCHES "^([0-9]+)\\.([0-9]+)")
      set(CMAKE_CUDA_ARCHITECTURES "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
      if(CMAKE_CUDA_ARCHITECTURES STREQUAL "90")
        set(CMAKE_CUDA_ARCHITECTURES 90a)
      endif()
    else()
      set(CMAKE_CUDA_ARCHITECTURES 75 80 86 89 90a)
    endif()
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12.0 REQUIRED)
  # cuDNN is loaded at run time; only its header is needed here.
  find_path(ZERONE_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT ZERONE_CUDNN_INCLUDE_DIR)
    message(FATAL_ERROR "cudnn.h was not found; install cuDNN 9's headers, or set "
                        "ZERONE_CUDNN_INCLUDE_DIR (the PyPI wheel nvidia-cudnn-cu${CUDAToolkit_VERSION_MAJOR} "
                        "has them in nvidia/cudnn/include)")
  endif()
  find_path(ZERONE_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
            HINTS ${PROJECT_SOURCE_DIR}/.deps/cudnn-frontend/include)
  if(NOT ZERONE_CUDNN_FRONTEND_INCLUDE_DIR)
    message(FATAL_ERROR "cudnn_frontend.h was not found; run scripts/install_dependencies.sh --cuda")
  endif()
  message(STATUS "CUDA architectures: ${CMAKE_CUDA_ARCHITECTURES}")
endif()
