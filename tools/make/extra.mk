# Checks beyond the test programs: fuzzing, the other sanitizers, valgrind, static analysis,
# coverage.

# ---- fuzzing ----------------------------------------------------------------------------

FUZZ_TARGETS := config sequence codec snapshot paged
FUZZ_COMMON := $(patsubst %.c,$(B)/%.o,$(filter-out test/fuzz/fuzz_%.c test/fuzz/driver.c,$(wildcard test/fuzz/*.c)))
FUZZ_BIN := $(FUZZ_TARGETS:%=$(B)/test/fuzz/fuzz_%)
REPLAY_BIN := $(FUZZ_TARGETS:%=$(B)/test/fuzz/replay_%)
# Seconds for each target.
SECONDS ?= 60

.PHONY: fuzz fuzz-run fuzz-bins replay-bins check-fuzz check-replay

$(FUZZ_BIN): $(B)/test/fuzz/fuzz_%: $(B)/test/fuzz/fuzz_%.o $(FUZZ_COMMON) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lm -lpthread

# The same targets without an engine: they run files.
$(REPLAY_BIN): $(B)/test/fuzz/replay_%: $(B)/test/fuzz/fuzz_%.o $(B)/test/fuzz/driver.o $(FUZZ_COMMON) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lm -lpthread

fuzz-bins: $(FUZZ_BIN)
replay-bins: $(REPLAY_BIN)

FUZZ_MAKE = $(MAKE) --no-print-directory CC=clang CUDA=0 WERROR=$(WERROR) CFLAGS='-O1 -g1' \
	SAN=fuzzer-no-link,address,undefined
fuzz:
	@sh tools/make/need.sh fuzz clang libclang-rt-14-dev
	+$(FUZZ_MAKE) fuzz-run SECONDS=$(SECONDS)

# New inputs go to build/fuzz, finds to build/fuzz/<target>-crash-*; the committed corpus is
# only read.
fuzz-run: $(FUZZ_BIN)
	@for t in $(FUZZ_TARGETS); do \
		mkdir -p build/fuzz/$$t && \
		$(B)/test/fuzz/fuzz_$$t -max_total_time=$(SECONDS) -timeout=20 -rss_limit_mb=2048 \
			-max_len=2048 -print_final_stats=1 -artifact_prefix=build/fuzz/$$t- \
			build/fuzz/$$t test/fuzz/corpus/$$t || exit 1; \
	done

check-fuzz:
	$(SAN_ENV) $(MAKE) --no-print-directory CUDA=0 SAN=address,undefined CFLAGS='-O1 -g1' \
		WERROR=$(WERROR) CC='$(CC)' check-replay

check-replay: $(REPLAY_BIN)
	$(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(REPLAY_BIN)

-include $(wildcard $(B)/test/fuzz/*.d)

# ---- sanitizers that the usual tests don't run under --------------------------------------

CHECK_MAKE = $(MAKE) --no-print-directory CUDA=0 WERROR=$(WERROR)

# Programs with threads or executors.
TSAN_BIN := $(foreach t,threads threadpool threadpool_lend invariance rows_nonfinite batch batch_model \
	batch_allocation batch_cases merge paged,$(B)/test/api/test_$(t))

.PHONY: check-tsan run-tsan check-msan run-msan check-valgrind run-valgrind
check-tsan:
	+TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(CHECK_MAKE) CC='$(CC)' SAN=thread \
		CFLAGS='-O1 -g1' run-tsan
run-tsan: $(TSAN_BIN)
	$(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(TSAN_BIN)

# MemorySanitizer must have compiled whatever writes memory; CMocka writes nothing that we read.
# Reference kernels only (TQI_REFERENCE_ONLY): codes of tokens that do not exist are read and masked in vector
# registers, and the sanitizer takes most vector instructions for a use of all their bits.
# So no examples, which run the best kernels.
MSAN_BIN := $(REPLAY_BIN) $(patsubst %.c,$(B)/%,$(wildcard test/unit/test_*.c)) \
	$(foreach t,codec forks pages shapes,$(B)/test/api/test_$(t))
check-msan:
	@sh tools/make/need.sh msan clang libclang-rt-14-dev
	+$(CHECK_MAKE) CC=clang SAN=memory CFLAGS='-O1 -g1 -fsanitize-memory-track-origins -DTQI_REFERENCE_ONLY' run-msan
run-msan: $(MSAN_BIN)
	$(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(MSAN_BIN)

# Valgrind sees the code that runs in earnest. It knows no AVX-512 and says so to the program,
# so that nothing above AVX2 is chosen.
VALGRIND_BIN := $(REPLAY_BIN) $(patsubst %.c,$(B)/%,$(wildcard test/unit/test_*.c)) \
	$(foreach t,allocation pages rows,$(B)/test/api/test_$(t))
VALGRIND := valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=all \
	--child-silent-after-fork=yes
check-valgrind:
	@sh tools/make/need.sh valgrind valgrind
	+$(CHECK_MAKE) CC='$(CC)' SAN= run-valgrind
run-valgrind: $(VALGRIND_BIN)
	@for t in $(VALGRIND_BIN); do \
		echo "== $$t" && $(VALGRIND) $$t >$(B)/valgrind.log 2>&1 || { \
			tail -n 60 $(B)/valgrind.log; echo "FAILED: $$t" >&2; exit 1; }; \
	done

# ---- static analysis ----------------------------------------------------------------------

# One file a run: this clang-tidy loses va_start() of later files. Indices in kernels are
# below a row's length, so that their products need no wider type; vectors in a struct pad it.
TIDY := clang-tidy --quiet
TIDY_SRC := $(sort $(filter %.c,$(LIB_SRC)) lib/device/cuda_none.c)
# Instruction flags of a file in the folder of a kernel level.
level_flags = $(LEVEL_$(word 3,$(subst /, ,$(1))))
TIDY_KERNEL := --checks=-bugprone-implicit-widening-of-multiplication-result,-clang-analyzer-optin.performance.Padding

.PHONY: tidy need-tidy cppcheck $(TIDY_SRC:%=tidy-%)
tidy: $(TIDY_SRC:%=tidy-%)
	@echo "clang-tidy: $(words $(TIDY_SRC)) files, no warning"
need-tidy:
	@sh tools/make/need.sh tidy clang-tidy
$(TIDY_SRC:%=tidy-%): tidy-%: need-tidy
	@$(TIDY) $(if $(filter lib/kernel/%,$*),$(TIDY_KERNEL)) $* -- -std=c11 -Iinclude -Ilib $(call level_flags,$*) 2>/dev/null || \
		{ echo "FAILED: clang-tidy $*" >&2; exit 1; }

cppcheck:
	@sh tools/make/need.sh cppcheck cppcheck
	cppcheck --enable=warning,portability,performance --inline-suppr --error-exitcode=1 --std=c11 \
		--quiet -Iinclude -Ilib lib

# ---- coverage -------------------------------------------------------------------------------

# Lines that tests through tq.h and unit tests reach. The floor is for the code that has
# nothing but states and errors; numbers have oracles. The long tests reach no other lines;
# stacks of code that is not optimised are too large for that test.
COVERAGE_FLOOR := 90
COVERAGE_NOT := cases cases_attend invariance large model properties small_stack
COVERAGE_SRC := $(filter-out $(COVERAGE_NOT:%=test/api/test_%.c),$(wildcard test/unit/test_*.c test/api/test_*.c))
COVERAGE_BIN := $(COVERAGE_SRC:%.c=$(B)/%) $(REPLAY_BIN)
GCOVR := gcovr --root . --object-directory $(B) --exclude-unreachable-branches

.PHONY: coverage run-coverage
coverage:
	@sh tools/make/need.sh coverage gcovr
	+$(CHECK_MAKE) CC=gcc SAN= CFLAGS='-O0 -g --coverage -fprofile-update=atomic' run-coverage
run-coverage: $(COVERAGE_BIN)
	find $(B) -name '*.gcda' -delete
	$(PYTHON) tools/make/run_tests.py --timeout $(TIMEOUT) $(COVERAGE_BIN)
	@mkdir -p build/coverage
	$(GCOVR) --filter lib/ --html-details build/coverage/index.html --txt build/coverage/lib.txt $(B)
	$(GCOVR) --filter lib/page/ --filter lib/api/ --fail-under-line $(COVERAGE_FLOOR) $(B)
	@echo "build/coverage/index.html"
