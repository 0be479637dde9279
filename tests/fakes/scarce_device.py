"""A device whose driver runs out of memory at a limit that a test sets while the engine runs.

Stands in for a GPU that other processes share: Vulkan's driver in software has all memory of the host, and
its own limits are for single buffers. Loaded before the loader of Vulkan (`LD_PRELOAD`), it counts what is
allocated and refuses what would go beyond. The two numbers lie in a file that both sides map.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from tests.fakes.preload import make_library

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, BLOCKS = 4096, OUT_OF_DEVICE_MEMORY = -2 };

typedef void (*any_function)(void);
typedef any_function (*find_function)(void *, const char *);
struct allocate_info { int type; const void * next; uint64_t size; uint32_t kind; };
typedef int  (*allocate_function)(void *, const struct allocate_info *, const void *, uint64_t *);
typedef void (*free_function)(void *, uint64_t, const void *);

struct numbers { uint64_t limit; uint64_t held; };
struct block   { uint64_t handle; uint64_t size; };

static pthread_mutex_t           lock = PTHREAD_MUTEX_INITIALIZER;
static volatile struct numbers * shared;
static struct block              blocks[BLOCKS];
static find_function             find_in_instance, find_in_device;
static allocate_function         allocate;
static free_function             give_back;

__attribute__((constructor)) static void begin(void) {
    const char * path = getenv("SCARCE_DEVICE");
    const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void * page = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        perror("SCARCE_DEVICE");
        abort();
    }
    shared = page;
}

static void note(uint64_t old_handle, struct block put) {
    for (int i = 0; i < BLOCKS; ++i) {
        if (blocks[i].handle == old_handle) {
            shared->held += put.size - blocks[i].size;
            blocks[i] = put;
            return;
        }
    }
    abort();
}

static int limited_allocate(
        void * device, const struct allocate_info * info, const void * callbacks, uint64_t * out) {
    pthread_mutex_lock(&lock);
    int result = OUT_OF_DEVICE_MEMORY;
    if (shared->held + info->size <= shared->limit) {
        result = allocate(device, info, callbacks, out);
    }
    if (result == 0) {
        note(0, (struct block) { *out, info->size });
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void counted_free(void * device, uint64_t handle, const void * callbacks) {
    pthread_mutex_lock(&lock);
    if (handle != 0) {
        note(handle, (struct block) { 0, 0 });
    }
    pthread_mutex_unlock(&lock);
    give_back(device, handle, callbacks);
}

static any_function in_place_of(const char * name, any_function found);

static any_function find_limited_in_device(void * device, const char * name) {
    return in_place_of(name, find_in_device(device, name));
}

static any_function in_place_of(const char * name, any_function found) {
    if (found == NULL) {
        return NULL;
    }
    if (strcmp(name, "vkAllocateMemory") == 0) {
        allocate = (allocate_function) found;
        return (any_function) limited_allocate;
    }
    if (strcmp(name, "vkFreeMemory") == 0) {
        give_back = (free_function) found;
        return (any_function) counted_free;
    }
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        find_in_device = (find_function) found;
        return (any_function) find_limited_in_device;
    }
    return found;
}

any_function vkGetInstanceProcAddr(void * instance, const char * name) {
    if (find_in_instance == NULL) {
        void * loader = dlopen("libvulkan.so.1", RTLD_NOW);
        find_in_instance = (find_function) dlsym(loader, "vkGetInstanceProcAddr");
    }
    return in_place_of(name, find_in_instance(instance, name));
}
"""
_PAGE: Final = 4096
_NONE: Final = (1 << 64) - 1


class ScarceDevice:
    """The library, and the limit."""

    def __init__(self, folder: Path) -> None:
        self.library = make_library(_SOURCE, folder / "scarce-device.so")
        self.file = folder / "scarce-device"
        self.file.write_bytes(struct.pack("=QQ", _NONE, 0).ljust(_PAGE, b"\0"))
        with self.file.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), _PAGE)

    @property
    def variables(self) -> tuple[str, ...]:
        """What the process gets in its environment."""
        return (f"LD_PRELOAD={self.library}", f"SCARCE_DEVICE={self.file}")

    @property
    def held(self) -> int:
        """Bytes that are allocated now."""
        return int(struct.unpack_from("=QQ", self._numbers)[1])

    def leave(self, size: int) -> None:
        """From now on there are so many bytes more than what is held."""
        struct.pack_into("=Q", self._numbers, 0, self.held + size)

    def leave_all(self) -> None:
        """From now on there is no limit."""
        struct.pack_into("=Q", self._numbers, 0, _NONE)
