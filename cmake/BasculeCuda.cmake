# CUDA, for those who have it: everything that needs it is one module, libbascule_cuda.so, which the core opens at run
# time (device/backend.h) and never links. Without nvcc, or with BASCULE_CUDA=OFF, all else builds the same.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(BASCULE_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(BASCULE_NVCC)
    set(CMAKE_CUDA_COMPILER ${BASCULE_NVCC})
  endif()
endif()
if(CMAKE_CUDA_COMPILER)
  set(found_nvcc ON)
else()
  set(found_nvcc OFF)
endif()
option(BASCULE_CUDA "Build the module for NVIDIA GPUs, libbascule_cuda.so; needs nvcc" ${found_nvcc})
set(BASCULE_CUDA_ARCHITECTURES "80-real;90-real;100-real;100-virtual" CACHE STRING
  "What the kernels are compiled for: A100, H100/H200, B200, and PTX for what comes after them")
if(NOT BASCULE_CUDA)
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${BASCULE_CUDA_ARCHITECTURES})
enable_language(CUDA)
# CMake 3.25 does not know C++20 for CUDA.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit REQUIRED)

# fmt 9 takes nvcc for a compiler without constexpr functions. Those of our kernels are the same functions on the host and
# on a device, where sums and products are rounded as written.
set(bascule_cuda_flags -DFMT_USE_CONSTEXPR=1 --expt-relaxed-constexpr -fmad=false -Xcompiler=-Wall,-Wextra,-Wshadow)
if(BASCULE_WERROR)
  list(APPEND bascule_cuda_flags -Werror=all-warnings -Xcompiler=-Werror)
endif()

# bascule_cuda_part(SOURCES ... [LINKS ...])
# What a folder gives to the module: .cu files, and .cc files that see CUDA's headers. LINKS are core libraries.
function(bascule_cuda_part)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  foreach(source IN LISTS ARG_SOURCES)
    set_property(GLOBAL APPEND PROPERTY BASCULE_CUDA_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY BASCULE_CUDA_LINKS ${ARG_LINKS})
endfunction()

# The module. It carries its own copy of the core libraries it needs and shows nothing but its parts' entry functions
# (bascule_cuda_*). It finds the shared libcudart by RUNPATH, so that LD_LIBRARY_PATH can put another before it, and never
# names libcuda, which only machines with a driver have.
function(bascule_cuda_module)
  get_property(sources GLOBAL PROPERTY BASCULE_CUDA_SOURCES)
  get_property(links GLOBAL PROPERTY BASCULE_CUDA_LINKS)
  list(REMOVE_DUPLICATES links)
  add_library(bascule_cuda MODULE ${sources})
  target_include_directories(bascule_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(bascule_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${bascule_cuda_flags}>)
  target_link_libraries(bascule_cuda PRIVATE ${links} CUDA::cudart bascule_flags)
  set_target_properties(bascule_cuda PROPERTIES
    CUDA_RUNTIME_LIBRARY Shared LINKER_LANGUAGE CXX CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}
    INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR} BUILD_WITH_INSTALL_RPATH ON)
  target_link_options(bascule_cuda PRIVATE
    -Wl,--enable-new-dtags -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/bascule_cuda.map)
  set_property(TARGET bascule_cuda PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/bascule_cuda.map)
  install(TARGETS bascule_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
