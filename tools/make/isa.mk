# Instruction sets: none above its level in the objects, none above the CPU's when programs
# run on old ones, and the levels of other architectures under an emulator.

PACKAGES_EMULATOR := qemu-user

.PHONY: check-isa check-old-cpu
check-isa: lib
ifneq ($(filter avx2,$(LEVELS)),)
	$(PYTHON) tools/make/check_isa.py tools/make/lib.mk lib/device/cpuid.c $(LIB_OBJ)
else
	@echo "not an x86-64 build: nothing to check"
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
check-old-cpu: $(OLD_CPU) $(OLD_CPU_BIN) $(HASWELL_BIN)
	@sh tools/make/need.sh old-cpu $(PACKAGES_EMULATOR)
	sh tools/make/check_old_cpu.sh Nehalem none $(OLD_CPU) $(OLD_CPU_BIN)
	sh tools/make/check_old_cpu.sh Haswell avx2 $(OLD_CPU) $(HASWELL_BIN)
