# tessera_nvcc_obstacle names what is wrong with a toolkit. Arguments: MODULES, the folder of TesseraNvcc.cmake; FOLDER,
# where toolkits are made.
cmake_minimum_required(VERSION 3.25)
include(${MODULES}/TesseraNvcc.cmake)
set(failures 0)

# A toolkit whose nvcc is this script.
function(make_toolkit NAME SCRIPT OUT)
  file(WRITE ${FOLDER}/${NAME}/nvcc "#!/bin/sh\n${SCRIPT}\n")
  file(CHMOD ${FOLDER}/${NAME}/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(${OUT} ${FOLDER}/${NAME}/nvcc PARENT_SCOPE)
endfunction()

# EXPECTED is a regular expression; empty, and there must be no obstacle.
function(expect NVCC EXPECTED)
  tessera_nvcc_obstacle("${NVCC}" "90a;100a" ${FOLDER}/trial obstacle)
  if((EXPECTED STREQUAL "" AND obstacle STREQUAL "") OR (NOT EXPECTED STREQUAL "" AND obstacle MATCHES "${EXPECTED}"))
    return()
  endif()
  message("${NVCC}: expected '${EXPECTED}', got '${obstacle}'")
  math(EXPR failures "${failures} + 1")
  set(failures ${failures} PARENT_SCOPE)
endfunction()

set(thirteen "case \"$1\" in --version) echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit 0;; esac")
make_toolkit(good "${thirteen}\necho \"$@\" >${FOLDER}/arguments" good)
make_toolkit(later "case \"$1\" in --version) echo 'release 14.2';; esac" later)
make_toolkit(old "echo 'Cuda compilation tools, release 12.4, V12.4.131'" old)
make_toolkit(no_runtime "${thirteen}\necho 'cannot find -lcudart_static' >&2; exit 1" no_runtime)
make_toolkit(mute "exit 0" mute)
make_toolkit(broken "echo 'Exec format error' >&2; exit 126" broken)

expect("${good}" "")
expect("${later}" "")
expect("${old}" "12\\.4, and 13\\.0 is the oldest")
expect("${no_runtime}" "static runtime: cannot find -lcudart_static")
expect("${mute}" "says nothing of a release")
expect("${broken}" "says nothing of a release: 126 Exec format error")
expect("TESSERA_NVCC-NOTFOUND" "nvcc was not found")
expect("${FOLDER}/nowhere/nvcc" "says nothing of a release")

# The trial is of every architecture, and links the runtime that the build links.
file(READ ${FOLDER}/arguments arguments)
foreach(part "code=sm_90a" "code=sm_100a" "-cudart static" "-std=c\\+\\+20")
  if(NOT arguments MATCHES "${part}")
    message("the trial is without ${part}: ${arguments}")
    math(EXPR failures "${failures} + 1")
  endif()
endforeach()
if(failures GREATER 0)
  message(FATAL_ERROR "${failures} failures")
endif()
