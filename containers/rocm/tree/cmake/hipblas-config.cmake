# hipBLAS as headers and a stub, as with rocBLAS.
add_library(roc::hipblas SHARED IMPORTED)
set_target_properties(roc::hipblas PROPERTIES
    IMPORTED_LOCATION ${OPENCOTI_STUBS}/libhipblas.so.2
    IMPORTED_SONAME libhipblas.so.2)
