/* Link-time stand-in for libhipblas.so.2: what ggml-hip calls of it. Another function fails to link. */
void hipblasCreate(void) {}
void hipblasDestroy(void) {}
void hipblasSetStream(void) {}
void hipblasSetWorkspace(void) {}
void hipblasSgemm(void) {}
void hipblasSgemmBatched(void) {}
void hipblasSgemmStridedBatched(void) {}
void hipblasGemmEx(void) {}
void hipblasGemmBatchedEx(void) {}
void hipblasGemmStridedBatchedEx(void) {}
void hipblasStrsmBatched(void) {}
void hipblasSetMathMode(void) {}
void hipblasStatusToString(void) {}
