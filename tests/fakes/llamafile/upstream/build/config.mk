# Stand-in: names of the tools, flags, and the targets that need no file.
GGML_COMMIT := $(shell cd llama.cpp && git rev-parse --short HEAD 2>/dev/null || echo unknown)

COSMOCC = .cosmocc/4.0.2
TOOLCHAIN = $(COSMOCC)/bin/cosmo
CC = $(TOOLCHAIN)cc
CXX = $(TOOLCHAIN)c++
AR = $(COSMOCC)/bin/ar.ape
MKDEPS = $(COSMOCC)/bin/mkdeps

ARFLAGS = rcsD
CCFLAGS = -O2 -g
CPPFLAGS_ = -iquote. -mcosmo
TARGET_ARCH = -Xx86_64-mtune=generic

TMPDIR = o//tmp
IGNORE := $(shell mkdir -p $(TMPDIR))
LC_ALL = C.UTF-8
SOURCE_DATE_EPOCH = 0
export MODE
export TMPDIR
export LC_ALL
export SOURCE_DATE_EPOCH

.PHONY: all clean distclean
all: o/$(MODE)/
clean:; rm -rf o
distclean:; rm -rf o .cosmocc

.cosmocc/4.0.2:
	@echo "error: this stand-in downloads nothing" >&2; exit 1
