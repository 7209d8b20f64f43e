# tessera_fuzz(NAME SOURCES f_fuzz.cc ROOMS a b LIBRARIES x::y [CORPUS folders] [DICTIONARY file] [MUST_FIND text]
#              [LIBFUZZER_ONLY])
#
# With TESSERA_FUZZ (preset cpu-asan), declares a libFuzzer target and the ctest case fuzz.NAME (label fuzz) that runs it
# for TESSERA_FUZZ_SECONDS from a fixed seed. Else a target with a CORPUS becomes the ctest case mutate.NAME: the corpus
# and some thousand changed inputs (tests/fuzz/mutate_main.cc), but for LIBFUZZER_ONLY, which includes libFuzzer's
# headers. Sources are named *_fuzz.cc; CORPUS names folders of first inputs, as seen from theirs, DICTIONARY a file of
# words to put them together from. With MUST_FIND the case passes only when the fuzzer stops at a fault whose report
# holds that text: for canaries, which prove that a fault would be found.
#
# The rooms are instrumented for it in tessera_room().
set(TESSERA_FUZZ_SECONDS 15 CACHE STRING "How long the ctest case of one fuzz target runs")
if(TESSERA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TESSERA_FUZZ needs clang (preset cpu-asan); got ${CMAKE_CXX_COMPILER_ID}")
  endif()
  # All fuzz targets and nothing else: `ninja fuzz_targets`.
  add_custom_target(fuzz_targets)
endif()

function(tessera_fuzz name)
  cmake_parse_arguments(ARG "LIBFUZZER_ONLY" "DICTIONARY;MUST_FIND" "SOURCES;ROOMS;LIBRARIES;CORPUS" ${ARGN})
  list(TRANSFORM ARG_ROOMS PREPEND tessera_)
  list(TRANSFORM ARG_CORPUS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(NOT TESSERA_FUZZ)
    if(ARG_CORPUS AND NOT ARG_LIBFUZZER_ONLY)
      add_executable(${name} ${ARG_SOURCES} mutate_main.cc)
      target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_libraries(${name} PRIVATE ${ARG_ROOMS} ${ARG_LIBRARIES})
      set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      add_test(NAME mutate.${name} COMMAND ${name} 3000 ${ARG_CORPUS})
      set_tests_properties(mutate.${name} PROPERTIES LABELS fast TIMEOUT 300)
    endif()
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_ROOMS} ${ARG_LIBRARIES})
  tessera_compile(${name} -O1 -fsanitize=fuzzer-no-link)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzz_targets ${name})

  # What the fuzzer learns stays in the build tree: the first folder is written, the others only read.
  set(learned ${CMAKE_BINARY_DIR}/fuzz/${name}.corpus)
  file(MAKE_DIRECTORY ${learned})
  set(corpus ${learned} ${ARG_CORPUS})
  set(words)
  if(ARG_DICTIONARY)
    set(words -dict=${CMAKE_CURRENT_SOURCE_DIR}/${ARG_DICTIONARY})
  endif()
  math(EXPR limit "${TESSERA_FUZZ_SECONDS} + 120")
  add_test(NAME fuzz.${name}
           COMMAND ${name} -seed=20261129 -max_total_time=${TESSERA_FUZZ_SECONDS} -timeout=20 -rss_limit_mb=4096
                   -print_final_stats=1 -artifact_prefix=${CMAKE_BINARY_DIR}/fuzz/${name}. ${words} ${corpus})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
  if(ARG_MUST_FIND)
    set_tests_properties(fuzz.${name} PROPERTIES PASS_REGULAR_EXPRESSION "${ARG_MUST_FIND}")
  endif()
endfunction()
