# The demonstration and the examples; of the library they see its public headers only.

DATA := test/data/smollm2-135m.safetensors
DEMO := $(B)/examples/demo/demo

.PHONY: demo examples capture check-examples

$(B)/examples/%.o: examples/%.c | need-demo
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) -MMD -MP -c $< -o $@

$(DEMO): $(B)/examples/demo/demo.o $(B)/examples/demo/measure.o $(B)/examples/common/safetensors.o $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lcjson -lm -lpthread

# MODEL=qwen2.5-coder-1.5b shows another committed capture; gemma3-270m, whose licence forbids
# committing, is captured first.
MODEL ?= smollm2-135m
CAPTURE = $(firstword $(wildcard test/data/$(MODEL).safetensors) build/data/$(MODEL).safetensors)
ifneq ($(filter auto,$(CUDA)),)
# It runs on the CPU alone: the CUDA kernels, minutes of compiling where there is nvcc, are left out.
demo:
	+@$(MAKE) --no-print-directory CUDA=0 demo
else
demo: $(DEMO)
	@[ -f $(CAPTURE) ] || $(MAKE) --no-print-directory capture MODEL=$(MODEL)
	$(DEMO) $(CAPTURE)
endif

capture:
	sh tools/capture/capture.sh $(MODEL)

# Tables and figures of docs/ACCURACY.md; those of Gemma with `make capture MODEL=gemma3-270m` before.
ACCURACY := $(B)/examples/accuracy/accuracy
$(ACCURACY): $(ACCURACY).o $(B)/examples/demo/measure.o $(B)/examples/common/safetensors.o $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lcjson -lm -lpthread
.PHONY: accuracy
accuracy: $(ACCURACY)
	$(ACCURACY) test/data/smollm2-135m.safetensors test/data/qwen2.5-coder-1.5b.safetensors \
		$(wildcard build/data/gemma3-270m.safetensors) > $(B)/accuracy.tsv
	$(PYTHON) examples/accuracy/tables.py $(B)/accuracy.tsv docs

EXAMPLE_SRC := $(wildcard examples/*.c)
EXAMPLE_BIN := $(EXAMPLE_SRC:%.c=$(B)/%)
# One runs on a GPU too, by streams and graphs of its own.
$(B)/examples/continuous_batching: $(B)/examples/common/gpu.o
$(B)/examples/common/gpu.o $(B)/examples/continuous_batching.o: ALL_CFLAGS += -Iexamples \
	$(if $(filter 1,$(USE_CUDA)),-DEXAMPLES_WITH_CUDA -isystem $(CUDA_HOME)/include)
$(EXAMPLE_BIN): $(B)/examples/%: $(B)/examples/%.o $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lm -lpthread
examples: $(EXAMPLE_BIN) $(DEMO)

# Every example returns 0 when it did what it says.
check-examples: examples
	@for e in $(EXAMPLE_BIN); do echo "== $$e"; $$e || { echo "FAILED: $$e" >&2; exit 1; }; done

-include $(wildcard $(B)/examples/*.d $(B)/examples/*/*.d)
