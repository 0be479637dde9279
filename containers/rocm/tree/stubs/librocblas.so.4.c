/* Link-time stand-in for librocblas.so.4: what ggml-hip calls of it. */
void rocblas_initialize(void) {}
