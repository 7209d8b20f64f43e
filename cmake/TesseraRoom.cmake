find_package(GTest REQUIRED)

# tessera_room(NAME ROOMS a b c LIBRARIES x::y TEST_LABELS fast TEST_ROOMS d e TEST_LIBRARIES z)
#
# Declares the room whose CMakeLists.txt calls it: library tessera_NAME from every *.cc of the folder, and, from every
# *_test.cc beside them, the test program NAME_test. A room without .cc files becomes an interface library.
# ROOMS are the rooms it may include; TEST_ROOMS are additional ones that only its tests use.
function(tessera_room name)
  cmake_parse_arguments(ARG "" "" "ROOMS;LIBRARIES;TEST_LABELS;TEST_ROOMS;TEST_LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(test_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER test_sources INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM ARG_ROOMS PREPEND tessera_)
  if(sources)
    add_library(tessera_${name} STATIC ${sources})
    set(scope PUBLIC)
    tessera_compile_product(tessera_${name})
  else()
    add_library(tessera_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tessera_${name} ${scope} ${PROJECT_SOURCE_DIR})
  target_link_libraries(tessera_${name} ${scope} ${ARG_ROOMS} ${ARG_LIBRARIES})
  if(test_sources)
    if(NOT ARG_TEST_LABELS)
      set(ARG_TEST_LABELS fast)
    endif()
    tessera_test(${name}_test SOURCES ${test_sources} ROOMS ${name} ${ARG_TEST_ROOMS}
                 LIBRARIES ${ARG_TEST_LIBRARIES} LABELS ${ARG_TEST_LABELS})
  endif()
endfunction()

# tessera_glue(f.cc ...)
#
# Sources of the calling folder that join Asio and Beast and compute nothing: optimizing those libraries' templates costs
# more than all the rest of a room, so sanitizer builds leave it.
function(tessera_glue)
  if(TESSERA_SANITIZER)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O0 SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# tessera_compile(TARGET OPTION...)
#
# Compiles TARGET with the options, and reads the headers that most files include from one precompiled file for each set
# of options: parsing them is a third and more of compiling a file. That every file names what it uses of them is for
# tests/style to see.
set(tessera_common_headers
    <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <cstring> <deque> <expected> <filesystem> <fstream>
    <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string>
    <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <boost/json.hpp> <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h>)
# GCC takes precompiled headers only where every macro that they look at is the same.
set(tessera_common_definitions
    $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>
    $<TARGET_PROPERTY:spdlog::spdlog,INTERFACE_COMPILE_DEFINITIONS>
    $<TARGET_PROPERTY:Boost::json,INTERFACE_COMPILE_DEFINITIONS>
    $<TARGET_PROPERTY:Boost::container,INTERFACE_COMPILE_DEFINITIONS>
    GTEST_HAS_PTHREAD=1)
function(tessera_compile target)
  target_compile_options(${target} PRIVATE ${ARGN})
  target_compile_definitions(${target} PRIVATE ${tessera_common_definitions})
  string(MAKE_C_IDENTIFIER "tessera_common_headers${ARGN}" headers)
  if(NOT TARGET ${headers})
    # What CMake attaches the precompiled headers to; it has nothing of its own.
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/common_headers.cc CONTENT "\n")
    add_library(${headers} OBJECT ${CMAKE_BINARY_DIR}/common_headers.cc)
    target_compile_options(${headers} PRIVATE ${ARGN})
    target_compile_definitions(${headers} PRIVATE ${tessera_common_definitions})
    target_link_libraries(${headers} PRIVATE fmt::fmt Boost::json GTest::gmock)
    target_precompile_headers(${headers} PRIVATE ${tessera_common_headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

# tessera_compile_product(TARGET)
#
# Compiles what a program of the product consists of: with the preset's options, and under sanitizers with less
# optimization and, where fuzz targets link it, coverage. Not the backends: their loops would pay for every comparison, and
# fuzz targets look at what comes from outside.
function(tessera_compile_product target)
  if(TESSERA_FUZZ AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/backends/")
    tessera_compile(${target} -O1 -fsanitize=fuzzer-no-link)
  elseif(TESSERA_SANITIZER)
    tessera_compile(${target} -O1)
  else()
    tessera_compile(${target})
  endif()
endfunction()

# tessera_test(NAME SOURCES f.cc ROOMS a b LIBRARIES x LABELS fast [WHOLE] [COMPUTES] [TIMEOUT seconds] [FILTER pattern])
#
# Declares a GoogleTest program. Each of its cases is one ctest case, so that a failure names itself; with WHOLE the
# program is one ctest case, for programs whose cases share something that is costly to set up; with FILTER only the
# cases that match it are ctest cases.
#
# Tests are compiled more often than run, so their own sources are optimized less than the rooms are (nearly half of the
# time that compiling them takes); COMPUTES is for those that work formulas out themselves. Sanitizers do not run what is
# labelled slow, and do not build it.
include(GoogleTest)
function(tessera_test name)
  cmake_parse_arguments(ARG "WHOLE;COMPUTES" "TIMEOUT;FILTER" "SOURCES;ROOMS;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  list(TRANSFORM ARG_ROOMS PREPEND tessera_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_ROOMS} ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TESSERA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(TESSERA_SANITIZER AND NOT ARG_COMPUTES)
    tessera_compile(${name} -O0)
  else()
    tessera_compile(${name} -O1)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 calls what its own strings do to one another out of bounds, where it sees them through precompiled headers.
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
  endif()
  # ctest would ask a program for its cases, and so miss it; a whole one is a case by name.
  if(TESSERA_SANITIZER AND ARG_WHOLE AND "slow" IN_LIST ARG_LABELS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  if(ARG_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  else()
    if(ARG_FILTER)
      set(filter TEST_FILTER ${ARG_FILTER})
    endif()
    gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 ${filter}
                         PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()
