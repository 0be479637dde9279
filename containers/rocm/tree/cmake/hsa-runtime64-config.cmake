# HIP's configuration asks for it; a library that links the HIP runtime needs nothing of it.
if(NOT TARGET hsa-runtime64::hsa-runtime64)
    add_library(hsa-runtime64::hsa-runtime64 INTERFACE IMPORTED)
endif()
