# The CPU benchmark sees tq.h only. BENCH_ARGS='--variant 4bit_nc --threads 1' narrows it.

BENCH_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard bench/cpu/*.c))
BENCH := $(B)/bench/cpu/bench
BENCH_ARGS ?=

$(B)/bench/cpu/%.o: bench/cpu/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) -Ibench/cpu -MMD -MP -c $< -o $@

$(BENCH): $(BENCH_OBJ) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $(BENCH_OBJ) $(LIB_A) $(CUDA_LINK) -lm -lpthread

.PHONY: bench
bench: $(BENCH)
	$(BENCH) --json $(B)/bench.json $(BENCH_ARGS)

-include $(BENCH_OBJ:.o=.d)
