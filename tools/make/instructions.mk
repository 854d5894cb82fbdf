# Instruction counts of append and attend under callgrind against a committed baseline: the same
# on every machine, where times are not. gcc and fixed flags; valgrind shows AVX2.

INSTRUCTIONS := $(B)/test/instructions/cases
INSTRUCTIONS_BASE := test/instructions/baseline.txt
INSTRUCTIONS_MAKE = $(MAKE) --no-print-directory CC=gcc CUDA=0 CFLAGS='-O2 -g' SAN= LDFLAGS=
INSTRUCTIONS_RUN = $(PYTHON) tools/make/count_instructions.py '$(shell $(CC) -dumpfullversion)'

$(INSTRUCTIONS): test/instructions/cases.c $(LIB_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(LDFLAGS) -o $@ $< $(LIB_A) $(CUDA_LINK) -lm -lpthread

.PHONY: check-instructions instructions-baseline run-instructions run-instructions-baseline
check-instructions:
	+@if sh tools/make/need.sh instructions gcc valgrind; then $(INSTRUCTIONS_MAKE) run-instructions; \
	else echo "SKIPPED: check-instructions needs valgrind"; fi
instructions-baseline:
	@sh tools/make/need.sh instructions gcc valgrind
	+$(INSTRUCTIONS_MAKE) run-instructions-baseline
run-instructions: $(INSTRUCTIONS)
	$(INSTRUCTIONS_RUN) check $(INSTRUCTIONS_BASE) $(INSTRUCTIONS)
run-instructions-baseline: $(INSTRUCTIONS)
	$(INSTRUCTIONS_RUN) write $(INSTRUCTIONS_BASE) $(INSTRUCTIONS)
