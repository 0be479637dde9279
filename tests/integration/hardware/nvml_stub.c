/* A stand-in for NVIDIA's driver library: the functions that are called, with the real signatures and a handle
   that needs all 64 bits. Compiled by the test that uses it. */

typedef struct { unsigned long long total, free, used; } memory_t;

static char device;
static int is_open;

static void *handle(void) { return (void *)((unsigned long long)&device | 1ull << 47); }

int nvmlInit_v2(void) { is_open = 1; return 0; }
int nvmlShutdown(void) { is_open = 0; return 0; }

static int text(char *buffer, unsigned length, const char *value) {
    if (!is_open)
        return 1;
    for (unsigned at = 0; at < length; at++)
        if (!(buffer[at] = value[at]))
            return 0;
    return 7;
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return text(buffer, length, "575.57.08"); }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index != 0)
        return 2;
    *out = handle();
    return 0;
}

int nvmlDeviceGetName(void *card, char *buffer, unsigned length) {
    return card == handle() ? text(buffer, length, "Stand-in H200") : 2;
}

int nvmlDeviceGetMemoryInfo(void *card, memory_t *memory) {
    if (card != handle())
        return 2;
    memory->total = 150754820096ull;
    memory->free = 150000000000ull;
    memory->used = memory->total - memory->free;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) {
    if (card != handle())
        return 2;
    *major = 9;
    *minor = 0;
    return 0;
}
