# The CPU benchmark sees tq.h only, and ggml where `make peers` has built it.
# BENCH_ARGS='--variant 4bit_nc --threads 1' narrows it.

BENCH_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard bench/cpu/*.c))
BENCH := $(B)/bench/cpu/bench
BENCH_ARGS ?=
ifneq ($(wildcard $(PEER_GGML)/lib/version),)
BENCH_OBJ += $(B)/bench/peer/peer_ggml.o
BENCH_PEER := $(PEER_LIBS) -lstdc++ -ldl
else
BENCH_OBJ += $(B)/bench/peer/peer_none.o
endif

$(B)/bench/cpu/%.o $(B)/bench/peer/%.o: BENCH_INCLUDE := -Ibench/cpu -isystem $(PEER_GGML)/lib/include
$(B)/bench/cpu/%.o: bench/cpu/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(BENCH_INCLUDE) -MMD -MP -c $< -o $@
$(B)/bench/peer/%.o: bench/peer/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(BENCH_INCLUDE) -MMD -MP -c $< -o $@

$(BENCH): $(BENCH_OBJ) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $(BENCH_OBJ) $(LIB_A) $(CUDA_LINK) $(BENCH_PEER) -lm -lpthread

.PHONY: bench
bench: $(BENCH)
	$(BENCH) --json $(B)/bench.json $(BENCH_ARGS)

# The tables and charts of docs/PERFORMANCE.md, about five minutes on a quiet machine: all variants
# and levels by group; by context; by head dim. THREADS is the list of numbers of threads.
THREADS ?= 1,2
FEW := bf16,int8,4bit_nc,k3v4_nc,3bit_nc
BENCH_RESULTS := $(foreach r,groups contexts dims,$(B)/bench/$(r).json)
.PHONY: bench-tables
bench-tables: $(BENCH)
	$(BENCH) --json $(B)/bench/groups.json --threads $(THREADS) --group 1,2,4,8
	$(BENCH) --json $(B)/bench/contexts.json --threads $(THREADS) --group 4 --level best --variant $(FEW) \
		--context 1K,4K,16K,64K,256K
	$(BENCH) --json $(B)/bench/dims.json --threads $(lastword $(subst $(comma), ,$(THREADS))) --level best \
		--variant $(FEW) --dim 64,256
	$(PYTHON) bench/cpu_tables.py docs/PERFORMANCE.md docs/plots $(BENCH_RESULTS)

-include $(BENCH_OBJ:.o=.d)

# Requests through a scheduler over a pool of fixed memory: with the GPU times of REPLAY_TIMES,
# files of bench-cuda and its peers, and in real steps on this CPU. replay-table writes docs/PERFORMANCE.md.
REPLAY_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard bench/replay/*.c))
REPLAY := $(B)/bench/replay/replay
REPLAY_TIMES ?= bench/replay/h200.json
.PHONY: replay replay-table

$(B)/bench/replay/%.o: bench/replay/%.c | need-test
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) -D_POSIX_C_SOURCE=200809L $(WARNINGS) -MMD -MP -c $< -o $@

$(REPLAY): $(REPLAY_OBJ) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $(REPLAY_OBJ) $(LIB_A) $(CUDA_LINK) -lcjson -lm -lpthread

replay: $(REPLAY)
	$(REPLAY) $(REPLAY_TIMES)
	$(REPLAY) --live

replay-table: $(REPLAY)
	$(REPLAY) $(REPLAY_TIMES) > $(B)/bench/replay/table.md
	$(PYTHON) bench/replay/insert.py docs/PERFORMANCE.md $(B)/bench/replay/table.md

-include $(REPLAY_OBJ:.o=.d)
