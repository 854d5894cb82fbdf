# Tests: every test/<folder>/test_*.c is one program: a name of the one that all are linked to, with
# the static library, the oracle and the helpers of test/common (test/programs says why).
#   unit      may include lib/ headers
#   api       tq.h only
#   accuracy  tq.h and the oracle
#   oracle    the oracle alone

ORACLE_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard test/oracle/orc_*.c))
COMMON_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard test/common/*.c))
COMMON_OBJ += $(B)/examples/common/safetensors.o
TEST_SRC := $(wildcard test/unit/test_*.c test/api/test_*.c test/accuracy/test_*.c) \
	test/oracle/test_oracle.c
ORACLE_TEST_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard test/oracle/test_oracle_*.c))
TEST_BIN := $(TEST_SRC:%.c=$(B)/%)
TEST_CFLAGS := -Itest $(TEST_EXTRA)
TIMEOUT ?= 900

.PHONY: tests check check-fast check-asan check-header check-all-flags check-symbols
.SECONDARY:

$(B)/test/%.o: test/%.c | need-test
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(EXACT) $(TEST_CFLAGS) -MMD -MP -c $< -o $@

# main() of test/unit/test_base.c is main_unit_test_base() there.
$(TEST_BIN:=.o): TEST_CFLAGS += -Dmain=main_$(subst /,_,$(@:$(B)/test/%.o=%)) -Wno-missing-prototypes

TAKES_ARGUMENTS := unit/test_golden api/test_snapshots_golden
PROGRAM_NAMES := $(TEST_BIN:$(B)/test/%=%)
program_entries = $(foreach n,$(filter-out $(TAKES_ARGUMENTS),$(PROGRAM_NAMES)),PLAIN($(subst /,$(comma),$n))) \
	$(foreach n,$(filter $(TAKES_ARGUMENTS),$(PROGRAM_NAMES)),WITH($(subst /,$(comma),$n)))
.PHONY: list-programs
# Written when the list has changed only.
$(B)/test/programs.h: list-programs
	@mkdir -p $(@D)
	@printf '#define PROGRAMS(PLAIN, WITH) %s\n' '$(strip $(program_entries))' >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(B)/test/programs/main.o: $(B)/test/programs.h
$(B)/test/programs/main.o: TEST_CFLAGS += -include $(B)/test/programs.h

PROGRAM_OBJ := $(B)/test/programs/main.o $(TEST_BIN:=.o) $(ORACLE_TEST_OBJ) $(ORACLE_OBJ) $(COMMON_OBJ) \
	$(B)/bench/replay/load.o $(B)/bench/replay/scheduler.o
$(B)/test/all: $(PROGRAM_OBJ) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $(PROGRAM_OBJ) $(LIB_A) $(CUDA_LINK) -lcmocka -lcjson -lm -lpthread
$(TEST_BIN): $(B)/test/all
	$(Q)ln -sfn ../all $@

tests: $(TEST_BIN)

# The runner adds up what the programs say.
check-fast: tests
	$(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(TEST_BIN)

-include $(B)/test/programs/main.d $(TEST_BIN:=.d) $(ORACLE_OBJ:.o=.d) $(ORACLE_TEST_OBJ:.o=.d) $(COMMON_OBJ:.o=.d)

# The black-box tests on the kernels of this CPU, and without AVX-512.
API_BIN = $(filter $(B)/test/api/%,$(TEST_BIN))
LEVEL ?= best
.PHONY: check-level
check-level: tests
	TQ_TEST_LEVEL=$(LEVEL) $(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(API_BIN)

SAN_ENV := ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
check-asan:
	$(SAN_ENV) $(MAKE) --no-print-directory SAN=address,undefined CFLAGS='-O1 -g1' WERROR=$(WERROR) \
		CC='$(CC)' TIMEOUT=$(TIMEOUT) check-fast

# The public header alone, in every dialect it promises, by both compilers.
check-header: need-test
	CC='$(CC)' sh tools/make/check_header.sh

# Every global of both libraries starts with tq_, tqi_ or tqk_; the shared one exports
# just the listed symbols.
check-symbols: lib
	sh tools/make/check_symbols.sh $(LIB_SO) $(LIB_A) test/abi/exports.txt

# What CI runs. The steps report through one runner, which prints the total last.
check: need-test
	CC='$(CC)' MAKE='$(MAKE)' $(PYTHON) tools/make/check.py
