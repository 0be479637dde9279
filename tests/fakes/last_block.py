"""Memory that has room for one large block more, as long as a file exists.

Stands in for a machine that is nearly full: of blocks of 8 MiB and more one is given, and no other. Loaded
before the C library (`LD_PRELOAD`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.fakes.preload import Fault, make_fault

_SOURCE: Final = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

extern void * __libc_malloc(size_t size);

static atomic_int given;

void * malloc(size_t size) {
    if (size >= ((size_t) 8 << 20)) {
        const char * last = getenv("LAST_BLOCK");
        if (last != NULL && access(last, F_OK) == 0 && atomic_fetch_add(&given, 1) > 0) {
            errno = ENOMEM;
            return NULL;
        }
    }
    return __libc_malloc(size);
}
"""


def last_block(folder: Path) -> Fault:
    """Make the library."""
    return make_fault(_SOURCE, "LAST_BLOCK", folder)
