/* Link-time stand-in for libcuda.so.1, the driver: the functions that ggml-cuda calls. */
void cuDeviceGet(void) {}
void cuDeviceGetAttribute(void) {}
void cuGetErrorString(void) {}
void cuMemAddressFree(void) {}
void cuMemAddressReserve(void) {}
void cuMemCreate(void) {}
void cuMemGetAllocationGranularity(void) {}
void cuMemMap(void) {}
void cuMemRelease(void) {}
void cuMemSetAccess(void) {}
void cuMemUnmap(void) {}
