# What keeps a CUDA toolkit from building the backend. No more than a script of cmake needs, so that
# tests/configure/nvcc_test.cmake can try it with toolkits that are old, partial or broken.

# Sets OUT to nothing where nvcc, which may be NOTFOUND, builds kernels for the architectures; else to why it does not.
# FOLDER is for the trial.
function(tessera_nvcc_obstacle NVCC ARCHITECTURES FOLDER OUT)
  set(${OUT} "" PARENT_SCOPE)
  if(NOT NVCC)
    set(${OUT} "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE version ERROR_VARIABLE errors RESULT_VARIABLE failed)
  if(failed OR NOT version MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${OUT} "${NVCC} --version says nothing of a release: ${failed} ${errors}" PARENT_SCOPE)
    return()
  endif()
  if(CMAKE_MATCH_1 VERSION_LESS 13.0)
    set(${OUT} "${NVCC} is of CUDA ${CMAKE_MATCH_1}, and 13.0 is the oldest that builds the kernels" PARENT_SCOPE)
    return()
  endif()
  # A kernel of these architectures, with this host compiler, linked with the static runtime (cudart_static).
  set(codes)
  foreach(architecture ${ARCHITECTURES})
    list(APPEND codes -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  file(WRITE ${FOLDER}/trial.cu "__global__ void kernel() {}\nint main() { kernel<<<1, 1>>>(); }\n")
  execute_process(COMMAND ${NVCC} -std=c++20 ${codes} -cudart static -o ${FOLDER}/trial ${FOLDER}/trial.cu
                  OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE failed)
  if(failed)
    set(${OUT} "${NVCC} does not build a program with a kernel and the static runtime: ${output}${errors}" PARENT_SCOPE)
  endif()
endfunction()
