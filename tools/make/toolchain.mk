# What the build needs. Each check names the package that brings what is missing, and
# `make deps` installs them where apt and root are at hand.

PACKAGES_BUILD := gcc make librandom123-dev libxxhash-dev
PACKAGES_DEMO := libcjson-dev
PACKAGES_TEST := g++ libcmocka-dev libcjson-dev python3 clang clang-format libclang-rt-14-dev pkg-config cmake \
	abigail-tools cargo

# What is built depends on what the compiler says of itself, so that it must be there before
# the rules are read.
have_cc = $(shell command -v $(firstword $(CC)) 2>/dev/null)
ifeq ($(have_cc),)
$(info $(shell CC='$(CC)' sh tools/make/need.sh build $(PACKAGES_BUILD) 2>&1))
ifeq ($(have_cc),)
$(error no C compiler: $(CC) was not found (Debian: apt-get install gcc libc6-dev))
endif
endif

# Compilers and assemblers from about 2021 on (gcc 11, binutils 2.36) know AMX; without it there
# is no such level.
HAVE_AMX := $(shell printf '__asm__("tilerelease");void f(void){}' | \
	$(CC) -mamx-tile -mamx-int8 -x c -c -o /dev/null - 2>/dev/null && echo 1)
# The same for AVX-VNNI (gcc 11, clang 12).
HAVE_AVXVNNI := $(shell printf '__asm__("{vex} vpdpwssd %%ymm0,%%ymm1,%%ymm2");void f(void){}' | \
	$(CC) -mavxvnni -x c -c -o /dev/null - 2>/dev/null && echo 1)

# The same for the matrix multiplications of bytes of AArch64 (gcc 10, binutils 2.34).
HAVE_I8MM := $(shell printf '__asm__("smmla v0.4s, v1.16b, v2.16b");void f(void){}' | \
	$(CC) -march=armv8.2-a+dotprod+i8mm -x c -c -o /dev/null - 2>/dev/null && echo 1)

HAVE_NVCC := $(shell command -v nvcc 2>/dev/null)
ifeq ($(CUDA),auto)
USE_CUDA := $(if $(HAVE_NVCC),1,0)
else
USE_CUDA := $(CUDA)
endif
# GPUs that a build carries code for. 80 runs on every one from sm_80 on: its PTX is kept for
# those that have no code of their own. 90a is Hopper's own.
CUDA_ARCHS ?= 80 90a
NVCC ?= nvcc
ifeq ($(USE_CUDA)-$(HAVE_NVCC),1-)
$(error CUDA=1, but nvcc is not on PATH: install the CUDA 13 toolkit or use CUDA=0)
endif

.PHONY: deps need-build need-demo need-test
deps:
	sh tools/make/need.sh install $(PACKAGES_BUILD) $(PACKAGES_TEST)

need-build:
	@CC='$(CC)' CFLAGS='$(CFLAGS)' sh tools/make/need.sh build $(PACKAGES_BUILD)
need-demo: need-build
	@CC='$(CC)' CFLAGS='$(CFLAGS)' sh tools/make/need.sh demo $(PACKAGES_DEMO)
need-test: need-build
	@CC='$(CC)' CFLAGS='$(CFLAGS)' sh tools/make/need.sh test $(PACKAGES_TEST)
