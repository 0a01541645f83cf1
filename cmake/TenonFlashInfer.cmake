# FlashInfer's headers (with CUTLASS's and CCCL's) from the pinned wheel that tools/setup.sh unpacks into the user's
# cache folder. Used when CUDA is; without them there is no flashinfer backend, and all else builds.
set(TENON_HAS_FLASHINFER OFF)
if(TENON_HAS_CUDA)
  if(DEFINED ENV{XDG_CACHE_HOME})
    set(cache_folder $ENV{XDG_CACHE_HOME})
  else()
    set(cache_folder $ENV{HOME}/.cache)
  endif()
  set(TENON_FLASHINFER_DIR ${cache_folder}/tenon/cuda/flashinfer-0.6.18.post1 CACHE PATH "FlashInfer's headers")
  if(EXISTS ${TENON_FLASHINFER_DIR}/include/flashinfer/attention/prefill.cuh AND
     EXISTS ${TENON_FLASHINFER_DIR}/cutlass/cute/tensor.hpp)
    set(TENON_HAS_FLASHINFER ON)
  else()
    message(STATUS "No FlashInfer headers in ${TENON_FLASHINFER_DIR} (tools/setup.sh fetches them): no flashinfer backend")
  endif()
endif()

# For the units that include its headers. CCCL comes first: FlashInfer needs a newer one than CUDA 13.0 has.
set(TENON_FLASHINFER_OPTIONS -use_fast_math -DFLASHINFER_ENABLE_F16 -DFLASHINFER_ENABLE_BF16
    -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -diag-suppress=20012)
foreach(folder libcudacxx cccl include cutlass cutlass_util)
  list(APPEND TENON_FLASHINFER_OPTIONS -isystem=${TENON_FLASHINFER_DIR}/${folder})
endforeach()
