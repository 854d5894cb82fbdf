# Rules that no compiler checks.

C_FILES = $(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' | grep -v '_data\.h$$')

.PHONY: lint format check-tables
lint: need-test
	$(PYTHON) test/lint/includes.py
	$(PYTHON) test/lint/sizes.py
	$(PYTHON) test/lint/text.py
	@clang-format --dry-run --Werror $(C_FILES)
	@echo "clang-format: no difference"

format:
	clang-format -i $(C_FILES)

# The committed tables against a fresh run of their program.
check-tables: $(GEN)
	$(GEN) codebook | diff -u lib/spec/codebook_data.h -
	$(GEN) hadamard | diff -u lib/spec/hadamard_data.h -
