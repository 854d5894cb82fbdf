# libturboquant. `make help` lists the targets.
#
# Objects live in build/<hash of compiler and flags>, so that builds with other flags
# (sanitizers, another compiler) never share one.

CC ?= cc
AR ?= ar
PYTHON ?= python3
CUDA ?= auto
WERROR ?= 0
SAN ?=
CFLAGS ?= -O2 -g

VERSION := $(shell sed -n 's/^\#define TQ_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' include/tq/tq.h | paste -sd.)
ABI := $(shell sed -n 's/^\#define TQ_ABI_VERSION *\([0-9]*\).*/\1/p' include/tq/tq.h)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wcast-qual -Wcast-align -Wpointer-arith \
	-Wstrict-prototypes -Wmissing-prototypes -Wredundant-decls -Wundef -Wvla -Wswitch-enum \
	-Wformat=2 -Wwrite-strings -Wno-missing-field-initializers
ifeq ($(WERROR),1)
WARNINGS += -Werror
endif
LIB_WARNINGS := $(WARNINGS) -Wconversion

# Codes are cut from sums of rounded operations: a contracted multiply-add or reassociation
# would change bytes.
EXACT := -ffp-contract=off -fno-fast-math
# The reference is a witness, not another SIMD variant.
REF := $(EXACT) -fno-tree-vectorize
ifneq ($(findstring clang,$(CC)),)
REF := $(EXACT) -fno-vectorize -fno-slp-vectorize
endif

ifneq ($(SAN),)
SAN_FLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
endif

include tools/make/toolchain.mk

ALL_CFLAGS := -std=c11 $(CFLAGS) $(SAN_FLAGS) -fPIC -fvisibility=hidden -Iinclude -Ilib \
	$(if $(HAVE_AMX),-DTQI_HAVE_AMX) $(if $(HAVE_AVXVNNI),-DTQI_HAVE_AVXVNNI) \
	$(if $(HAVE_I8MM),-DTQI_HAVE_I8MM)
BUILD_ID := $(shell echo '$(CC) $(shell $(CC) -dumpfullversion -dumpmachine 2>/dev/null) $(ALL_CFLAGS) $(LDFLAGS) $(USE_CUDA) $(CUDA_ARCHS) $(WERROR)' | cksum | cut -d' ' -f1)
B := build/$(BUILD_ID)

comma := ,

# `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),@:,@printf '  %-5s %s\n' $(1) $(patsubst $(B)/%,%,$@))

include tools/make/cuda.mk
include tools/make/lib.mk
include tools/make/test.mk
include tools/make/kernels.mk
include tools/make/isa.mk
include tools/make/instructions.mk
include tools/make/peers.mk
include tools/make/bench.mk
include tools/make/demo.mk
include tools/make/lint.mk
include tools/make/install.mk
include tools/make/abi.mk
include tools/make/docs.mk
include tools/make/extra.mk

.DEFAULT_GOAL := all
.PHONY: all help clean
all: lib

help:
	@echo 'make            shared and static library, in $(B)'
	@echo 'make demo       a real model'"'"'s keys and values through every variant'
	@echo 'make check      everything that CI runs'
	@echo 'make check-fast unit, api and oracle tests only'
	@echo 'make check-asan address and undefined-behaviour sanitizers'
	@echo 'make docs       documentation site in build/docs/html'
	@echo 'make bench      decode and append on this CPU; bench-cuda on a GPU; peers brings ggml'
	@echo 'make bench-tables: docs/PERFORMANCE.md and docs/plots'
	@echo 'make replay     a serving scheduler over measured times and live; replay-table'
	@echo 'make fuzz check-tsan check-msan check-valgrind tidy cppcheck coverage: the slow tier'
	@echo 'make lint       include rules, sizes, formatting'
	@echo 'make tables     codebook_data.h and hadamard_data.h from their program'
	@echo 'make capture    captures K/V of a real model again (downloads it)'
	@echo 'make install    PREFIX=/usr/local DESTDIR= LIBDIR=; make uninstall'
	@echo 'make clean      removes build/'
	@echo 'Variables: CC CFLAGS LDFLAGS CUDA=auto|0|1 WERROR=1 SAN=address,undefined'

clean:
	rm -rf build
