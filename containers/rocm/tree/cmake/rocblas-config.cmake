# rocBLAS as headers and a stub: the library itself with its kernels is 1.9 GB and comes with the user's ROCm.
add_library(roc::rocblas SHARED IMPORTED)
set_target_properties(roc::rocblas PROPERTIES
    IMPORTED_LOCATION ${OPENCOTI_STUBS}/librocblas.so.4
    IMPORTED_SONAME librocblas.so.4)
