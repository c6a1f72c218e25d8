# Functions that every folder's CMakeLists.txt uses, so that flags, install rules and test registration live in one place.
include(GNUInstallDirs)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
if(BASCULE_GRPC)
  find_package(Protobuf REQUIRED)  # module mode, before gRPC
  find_package(gRPC CONFIG REQUIRED)
endif()
if(BASCULE_TORCH)
  find_package(Torch QUIET GLOBAL)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# A designated initialiser names what differs from the defaults; what it leaves out is no mistake.
add_library(bascule_flags INTERFACE)
target_compile_options(bascule_flags INTERFACE
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wno-missing-field-initializers>>
  $<BUILD_INTERFACE:$<$<AND:$<BOOL:${BASCULE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>>)
# GCC 12 reports uninitialised reads inside std::optional and std::variant, and with -O3 writes past the end inside fmt,
# that do not exist.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(bascule_flags INTERFACE
    $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-stringop-overflow>>)
endif()

# For folders whose code is run once: there the compiler's time counts for more than the program's. The
# libraries that they call are compiled as everywhere.
macro(bascule_compile_fast)
  add_compile_options("$<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
endmacro()

# bascule_library(NAME SOURCES ... LINKS ... [PRIVATE_LINKS ...])
# One library a folder. Headers are found from the top of the tree: #include "base/status.h".
function(bascule_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  add_library(Bascule::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/bascule>)
  target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS} $<BUILD_INTERFACE:bascule_flags>)
  set_property(GLOBAL APPEND PROPERTY BASCULE_LIBRARIES ${name})
  install(TARGETS ${name} EXPORT BasculeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bascule/${folder}
    FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE)
endfunction()

# bascule_program(NAME SOURCES ... LINKS ...): an executable with the project's flags.
function(bascule_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} bascule_flags)
endfunction()

# bascule_test_library(NAME SOURCES ... LINKS ...): code that several tests share; never installed.
function(bascule_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE bascule_flags)
endfunction()

# bascule_test(NAME SOURCES ... LINKS ... [LABELS ...] [ENVIRONMENT A=B ...]): a GoogleTest program; each TEST is one
# ctest entry.
function(bascule_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;LABELS;ENVIRONMENT" ${ARGN})
  bascule_program(${name} SOURCES ${ARG_SOURCES} LINKS ${ARG_LINKS} GTest::gmock GTest::gtest_main)
  set(labels "")
  if(ARG_LABELS)
    set(labels PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  # The ENVIRONMENT of discovered tests holds one variable only.
  if(ARG_ENVIRONMENT)
    set_property(TARGET ${name} PROPERTY CROSSCOMPILING_EMULATOR env ${ARG_ENVIRONMENT})
  endif()
  # A test that waits longer than this is stuck; no test asserts a wall time. Cases go by their names, not by their bytes.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES TIMEOUT 300 ${labels})
endfunction()

# Installs the exported targets as find_package(Bascule).
function(bascule_install_package)
  include(CMakePackageConfigHelpers)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Bascule)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/BasculeConfig.cmake.in
    ${PROJECT_BINARY_DIR}/BasculeConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/BasculeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(EXPORT BasculeTargets NAMESPACE Bascule:: DESTINATION ${package_dir})
  install(FILES ${PROJECT_BINARY_DIR}/BasculeConfig.cmake ${PROJECT_BINARY_DIR}/BasculeConfigVersion.cmake
    DESTINATION ${package_dir})
endfunction()
