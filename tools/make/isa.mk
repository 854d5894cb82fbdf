# Instruction sets: none above its level in the objects, none above the CPU's when programs
# run on old ones, and the levels of other architectures under an emulator.

PACKAGES_EMULATOR := qemu-user
PACKAGES_CROSS := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

# Emulated steps take minutes on one CPU each: those that need nothing of each other are targets of their own.
.PHONY: check-isa check-old-cpu run-old-cpu run-nehalem run-haswell
check-isa: lib
ifneq ($(filter avx2,$(LEVELS)),)
	$(PYTHON) tools/make/check_isa.py tools/make/lib.mk lib/device/cpuid.c $(LIB_OBJ)
else ifneq ($(filter neon,$(LEVELS)),)
	$(PYTHON) tools/make/check_isa_arm.py objdump tools/make/lib.mk lib/device/cpuid.c $(LIB_OBJ)
else
	@echo "neither an x86-64 nor an AArch64 build: nothing to check"
endif

# Programs as they are, on emulated CPUs: without AVX (then the reference must be chosen), and
# with AVX2 but no AVX-512.
OLD_CPU_BIN := $(foreach t,base score quantize,$(B)/test/unit/test_$(t)) \
	$(foreach t,codec pages threadpool,$(B)/test/api/test_$(t))
HASWELL_BIN := $(foreach t,codec pages pairs,$(B)/test/api/test_$(t))
OLD_CPU := $(B)/test/isa/old_cpu
$(OLD_CPU): test/isa/old_cpu.c $(LIB_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(LDFLAGS) -o $@ $< $(LIB_A) $(CUDA_LINK) -lm -lpthread
check-old-cpu:
	+@if sh tools/make/need.sh old-cpu $(PACKAGES_EMULATOR); then $(MAKE) --no-print-directory -Otarget run-old-cpu; \
	else echo "SKIPPED: check-old-cpu needs $(PACKAGES_EMULATOR)"; fi
run-old-cpu: run-nehalem run-haswell
run-nehalem: $(OLD_CPU) $(OLD_CPU_BIN)
	sh tools/make/check_old_cpu.sh Nehalem none $(OLD_CPU) $(OLD_CPU_BIN)
run-haswell: $(OLD_CPU) $(HASWELL_BIN)
	sh tools/make/check_old_cpu.sh Haswell avx2 $(OLD_CPU) $(HASWELL_BIN)

# The NEON and i8mm levels: the library, tq-check, examples and tests by a cross compiler, run under an
# emulator on a CPU with everything, on one without i8mm and on one without dot products, where the
# reference runs; code bytes are compared with those of this machine. Headers without a machine of their own
# are taken from here, libraries of the tests are unpacked beside the build. (The vectorizer of gcc 12 breaks
# down over a test.)
CROSS_CC := aarch64-linux-gnu-gcc
CROSS_INCLUDE := build/cross/include
CROSS_HEADERS := Random123 xxhash.h xxh3.h
ARM64 := build/cross/arm64
ARM64_LIB := $(ARM64)/usr/lib/aarch64-linux-gnu
PACKAGES_ARM64 := libcmocka0 libcmocka-dev libcjson1 libcjson-dev
CROSS_MAKE = $(MAKE) --no-print-directory CC=$(CROSS_CC) AR=aarch64-linux-gnu-ar CUDA=0 SAN= WERROR=$(WERROR) \
	CFLAGS='-O2 -g -isystem $(CROSS_INCLUDE) -isystem $(ARM64)/usr/include' LDFLAGS='-L$(ARM64_LIB)' \
	TEST_EXTRA=-fno-tree-vectorize
EMULATE := qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$(ARM64_LIB) -cpu
ARM_CPUS := max neoverse-n1 cortex-a72
CODES := $(B)/test/isa/codes
CROSS_EXAMPLES := $(foreach e,minimal decode_loop fork_prefix engine_threads,$(B)/examples/$(e))

MASKS := $(B)/test/isa/masks
$(CODES) $(MASKS): $(B)/test/isa/%: test/isa/%.c $(LIB_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(LDFLAGS) -o $@ $< $(LIB_A) $(CUDA_LINK) -lm -lpthread

.PHONY: check-neon build-neon run-neon run-arm-programs run-neon-kernels run-i8mm-kernels \
	run-arm-tests
check-neon: $(CODES)
	+@if sh tools/make/need.sh neon $(PACKAGES_CROSS); then $(MAKE) --no-print-directory build-neon; \
	else echo "SKIPPED: check-neon needs $(PACKAGES_CROSS)"; fi
build-neon: $(CODES)
	@mkdir -p $(CROSS_INCLUDE)
	@for h in $(CROSS_HEADERS); do [ ! -e /usr/include/$$h ] || ln -sfn /usr/include/$$h $(CROSS_INCLUDE)/$$h; done
	$(CODES) > build/cross/codes.here
	+@if sh tools/make/fetch_arm64.sh $(ARM64) $(PACKAGES_ARM64); then \
		$(CROSS_MAKE) -Otarget run-arm-tests run-neon; \
	else echo "SKIPPED: tests on AArch64 need Debian's $(PACKAGES_ARM64) for arm64"; \
		$(CROSS_MAKE) -Otarget run-neon; fi
run-neon: run-neon-kernels run-i8mm-kernels run-arm-programs
run-arm-programs: $(OLD_CPU) $(CODES) $(MASKS) $(CROSS_EXAMPLES)
	$(PYTHON) tools/make/check_isa_arm.py aarch64-linux-gnu-objdump tools/make/lib.mk lib/device/cpuid.c $(LIB_OBJ)
	$(EMULATE) max $(OLD_CPU) i8mm
	$(EMULATE) neoverse-n1 $(OLD_CPU) neon
	$(EMULATE) cortex-a72 $(OLD_CPU) arm
	@for cpu in $(ARM_CPUS); do $(EMULATE) $$cpu $(CODES) | diff -u build/cross/codes.here - && $(EMULATE) $$cpu $(MASKS) || exit 1; \
		for e in $(CROSS_EXAMPLES); do $(EMULATE) $$cpu $$e >$(B)/example.log || { echo "FAILED: $$e on $$cpu" >&2; exit 1; }; \
		done; done
run-neon-kernels: $(TQ_CHECK)
	$(EMULATE) neoverse-n1 $(TQ_CHECK) --level neon
run-i8mm-kernels: $(TQ_CHECK)
	$(EMULATE) max $(TQ_CHECK) --level i8mm

# All that takes seconds there; the long ones take minutes. Kernels of both levels, states and errors of one.
ARM_TESTS := $(B)/test/unit/test_golden $(foreach t,centring codec paged pages pairs rows_nonfinite,$(B)/test/api/test_$(t))
ARM_MORE := $(foreach t,allocation arguments_codec arguments_run batch_cases cases_surgery codec_books codec_gains \
	forks merge protected snapshots snapshots_bad snapshots_golden strides struct_size surgery threadpool \
	threads,$(B)/test/api/test_$(t))
run-arm-tests: $(ARM_TESTS) $(ARM_MORE)
	TQ_TEST_LEVEL=best $(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) --under "$(EMULATE) neoverse-n1" $(ARM_TESTS)
	TQ_TEST_LEVEL=best $(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) --under "$(EMULATE) max" $(ARM_TESTS) $(ARM_MORE)
