/* Link-time stand-in for libcublas.so.12: what ggml-cuda calls of it. Another function fails to link. */
void cublasCreate_v2(void) {}
void cublasDestroy_v2(void) {}
void cublasGemmBatchedEx(void) {}
void cublasGemmEx(void) {}
void cublasGemmStridedBatchedEx(void) {}
void cublasGetStatusString(void) {}
void cublasLoggerConfigure(void) {}
void cublasSetMathMode(void) {}
void cublasSetStream_v2(void) {}
void cublasSetWorkspace_v2(void) {}
void cublasSgemmBatched(void) {}
void cublasSgemmStridedBatched(void) {}
void cublasSgemm_v2(void) {}
void cublasStrsmBatched(void) {}
