# HIP's configuration asks for it; a library that links the HIP runtime needs nothing of it.
if(NOT TARGET amd_comgr)
    add_library(amd_comgr INTERFACE IMPORTED)
endif()
