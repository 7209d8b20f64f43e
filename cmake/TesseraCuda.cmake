# Whether the CUDA backend is built. AUTO builds it wherever nvcc is found; instrumented builds (sanitizers, fuzzing) do
# without it, because nvcc knows nothing of their instrumentation. Sets TESSERA_CUDA_ENABLED.
set(TESSERA_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set(TESSERA_CUDA_ARCHITECTURES 90a CACHE STRING "Compute capabilities to build kernels for; a list, as CMake writes them")
set(TESSERA_CUDA_ENABLED OFF)
if(NOT TESSERA_CUDA STREQUAL "OFF" AND TESSERA_SANITIZER STREQUAL "" AND NOT TESSERA_FUZZ)
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(TESSERA_NVCC)
    set(TESSERA_CUDA_ENABLED ON)
  elseif(TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_CUDA is ON and nvcc was not found")
  endif()
endif()

if(TESSERA_CUDA_ENABLED)
  set(CMAKE_CUDA_COMPILER ${TESSERA_NVCC})
  # With real machine code only (90a stands for compute_90a, sm_90a): a device without it is refused at start.
  list(TRANSFORM TESSERA_CUDA_ARCHITECTURES APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
  if(TESSERA_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TESSERA_CCACHE})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # nvcc 13.0 knows no later standard than C++20: what a .cu includes is C++20. CMake before 3.26 does not know that
  # nvcc knows it.
  foreach(kind STANDARD EXTENSION)
    if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
    endif()
  endforeach()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # Constexpr functions of the shared headers are called from kernels.
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  if(TESSERA_WERROR)
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endif()
