# The CUDA device.

ifeq ($(USE_CUDA),1)
CUDA_SRC := $(wildcard cuda/*.cu cuda/*/*.cu cuda/*/*/*.cu)
CUDA_OBJ := $(CUDA_SRC:%.cu=$(B)/%.cu.o)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(HAVE_NVCC)))
# What the .pc file says.
CUDA_INSIDE := yes
CUDA_ARCHS_INSIDE := $(CUDA_ARCHS)
CUDA_LIBS_PRIVATE := -lcudart_static -ldl -lrt -lpthread
CUDA_LINK := -L$(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/x86_64-linux/lib) $(CUDA_HOME)/lib64) \
	-lcudart_static -ldl -lrt -lpthread -lm

cuda_gencode = -gencode=arch=compute_$(1),code=sm_$(1)
CUDA_GENCODE := $(foreach a,$(CUDA_ARCHS),$(call cuda_gencode,$(a))) \
	$(if $(filter 80,$(CUDA_ARCHS)),-gencode=arch=compute_80$(comma)code=compute_80)

NVCCFLAGS := -std=c++17 -O3 -cudart static $(CUDA_GENCODE) -Icuda -Ilib -Iinclude \
	-Xcompiler -fPIC,-fvisibility=hidden,-fno-threadsafe-statics,-fno-exceptions,-fno-rtti \
	$(if $(filter 1,$(WERROR)),-Werror all-warnings)
# Codes are cut from sums of rounded operations here as well.
$(B)/cuda/encode/%.cu.o $(B)/cuda/encode/inst/%.cu.o: NVCCFLAGS += -fmad=false

$(B)/cuda/%.cu.o: cuda/%.cu | need-build
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

-include $(CUDA_OBJ:.o=.d)

# What the assembler says of every kernel: registers, stack, spills. Compiles everything anew.
.PHONY: cuda-registers
cuda-registers:
	@sh tools/make/cuda_registers.sh '$(NVCC) $(NVCCFLAGS)' $(CUDA_SRC) | c++filt

# What the assembler made of the kernels, read from the objects: that those on e4m3 and
# on wgmma multiply as they should,
# and that hot kernels keep to the stack that test/cuda/stack_limits.txt allows.
.PHONY: check-cuda-code check-cuda-sass check-cuda-stack cuda-stack
cuda_code = dump=$$(PYTHON=$(PYTHON) sh tools/make/cuobjdump.sh build/cuobjdump $(CUDA_HOME)) || \
	{ echo 'SKIPPED: $@, cuobjdump is not here (package nvidia-cuda-cuobjdump of Python)'; exit 0; }; \
	$(PYTHON) tools/make/check_cuda_code.py "$$dump"

check-cuda-code: check-cuda-sass check-cuda-stack
check-cuda-sass: $(filter %/e4m3_d64.cu.o %/e4m3_d128.cu.o %/e4m3_d256.cu.o %/codes_d128.cu.o,$(CUDA_OBJ))
	@$(cuda_code) sass $^
check-cuda-stack: $(CUDA_OBJ)
	@$(cuda_code) stack test/cuda/stack_limits.txt $^
cuda-stack: $(CUDA_OBJ)
	@$(cuda_code) table $^
else
.PHONY: check-cuda-code check-cuda-sass check-cuda-stack
check-cuda-code check-cuda-sass check-cuda-stack:
	@echo '$@: SKIPPED, this build has no CUDA (nvcc was not found, or CUDA=0)'
endif

# CPU against GPU, on a machine that has one. The program says so where there is none.
CHECK_CUDA := $(B)/test/cuda/check_cuda
.PHONY: check-cuda check-cuda-sanitize bench-cuda

ifeq ($(USE_CUDA),1)
CHECK_CUDA_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard test/cuda/*.c)) \
	$(patsubst %.cu,$(B)/%.cu.o,$(wildcard test/cuda/*.cu))

$(B)/test/cuda/%.o: test/cuda/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(B)/test/cuda/%.cu.o: test/cuda/%.cu | need-build
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(CHECK_CUDA): $(CHECK_CUDA_OBJ) $(B)/libturboquant.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(CHECK_CUDA_OBJ) $(B)/libturboquant.a $(CUDA_LINK)

check-cuda: $(CHECK_CUDA)
	$(CHECK_CUDA) $(GROUPS)

# A tool per run over small shapes, a group at a time, so that one that hangs is named. Without a
# number synccheck loses track of the kernels' barriers and stops them.
#
# racecheck has a program of its own: it doesn't see through some habits of kernels with wgmma, which
# TQI_RACECHECK compiles otherwise (cuda/prefill/wgmma.cuh, cuda/attend/warpgroup.cuh). These
# objects come before the library's, so that the linker takes none of the latter. There no sequence
# is short, so that kernels for long ones see all that the groups have.
RACECHECK_OBJ := $(patsubst %.cu,$(B)/racecheck/%.cu.o,\
	$(wildcard cuda/attend/inst/e4m3_*.cu cuda/attend/inst/codes_*.cu \
	cuda/prefill/inst/*.cu))
$(B)/racecheck/%.cu.o: %.cu | need-build
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) -DTQI_RACECHECK -DTQI_LONG_TOKENS=1 -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(CHECK_CUDA)_racecheck: $(CHECK_CUDA_OBJ) $(RACECHECK_OBJ) $(B)/libturboquant.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(CHECK_CUDA_OBJ) $(RACECHECK_OBJ) \
		$(B)/libturboquant.a $(CUDA_LINK)

SANITIZE_TOOLS ?= memcheck racecheck synccheck initcheck
SANITIZE_GROUPS ?= sanitize_bytes sanitize_fp8 sanitize sanitize_batches sanitize_paged sanitize_prefill sanitize_kept
check-cuda-sanitize: $(CHECK_CUDA) $(CHECK_CUDA)_racecheck
	sh test/cuda/sanitize.sh $(CHECK_CUDA) '$(SANITIZE_TOOLS)' '$(SANITIZE_GROUPS)'

-include $(CHECK_CUDA_OBJ:.o=.d) $(RACECHECK_OBJ:.o=.d)

# BENCH_ARGS=--quick is shorter; the peers follow where torch is there. bench/gpu_tables.py makes
# the tables and plots of docs/PERFORMANCE.md of the two JSON files.
BENCH_CUDA := $(B)/bench/bench_cuda
BENCH_CUDA_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard bench/cuda/*.c)) \
	$(patsubst %.cu,$(B)/%.cu.o,$(wildcard bench/cuda/*.cu))

$(B)/bench/cuda/%.o: bench/cuda/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(B)/bench/cuda/%.cu.o: bench/cuda/%.cu | need-build
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(BENCH_CUDA): $(BENCH_CUDA_OBJ) $(B)/libturboquant.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LINK)

bench-cuda: $(BENCH_CUDA)
	$(BENCH_CUDA) --json $(B)/bench_cuda.json \
		--commit "$$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" $(BENCH_ARGS)
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
		$(PYTHON) bench/peers_torch.py --json $(B)/peers_torch.json; \
	else echo 'bench-cuda: peers SKIPPED, $(PYTHON) has no torch'; fi

# What runs on a GPU only is linked where there is none, so that it doesn't fall behind the library.
# Whether blocks of all kernels fit the GPUs that they are for can be asked without one.
BLOCK_SHAPES := $(B)/test/cuda_host/block_shapes
$(BLOCK_SHAPES): test/cuda_host/block_shapes.cu $(B)/libturboquant.a
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@D)/block_shapes.d -c $< -o $@.o
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $@.o $(B)/libturboquant.a $(CUDA_LINK)
-include $(B)/test/cuda_host/block_shapes.d

.PHONY: check-cuda-programs
check-cuda-programs: $(CHECK_CUDA) $(BENCH_CUDA) $(BLOCK_SHAPES)
	$(BLOCK_SHAPES)

-include $(wildcard $(B)/bench/cuda/*.d)
else
.PHONY: check-cuda-programs
check-cuda check-cuda-sanitize bench-cuda check-cuda-programs:
	@echo '$@: SKIPPED, this build has no CUDA (nvcc was not found, or CUDA=0)'
endif
