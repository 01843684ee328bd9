# SPDX-License-Identifier: BSD-3-Clause
# CUDA's compiler and libraries, for compute capability MYLOS_CUDA_ARCH.
set(CMAKE_CUDA_ARCHITECTURES ${MYLOS_CUDA_ARCH})
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know nvcc's option
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NCCL_LIBRARY AND NCCL_INCLUDE_DIR)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
else()
  message(STATUS "NCCL not found: no comm_nccl")
endif()

# cuDNN with its C++ frontend, which is installed or was fetched by scripts/setup.
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/.deps/cudnn-frontend/include)
if(CUDNN_LIBRARY AND CUDNN_INCLUDE_DIR AND CUDNN_FRONTEND_INCLUDE_DIR)
  add_library(mylos_cudnn INTERFACE)
  target_include_directories(mylos_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
  target_link_libraries(mylos_cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc)  # nvrtc: for kernels of the frontend
  target_compile_definitions(mylos_cudnn INTERFACE MYLOS_HAVE_CUDNN CUDNN_FRONTEND_SKIP_JSON_LIB)
else()
  message(STATUS "cuDNN or its frontend not found: compute_cuda uses its own attention")
endif()
