# The binary interface against its committed baseline: gcc, no CUDA, fixed flags, so that
# nothing but a change of the interface can differ.

ABI_CC := gcc
ABI_BASE := test/abi/libturboquant.abi
ABI_MAKE = $(MAKE) --no-print-directory CC=$(ABI_CC) CUDA=0 CFLAGS='-O2 -g' SAN=

.PHONY: check-abi abi-baseline abi-library
check-abi: need-test
	$(ABI_CC) -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only test/abi/layout.c
	$(ABI_MAKE) abi-library
	sh test/abi/check.sh $$($(ABI_MAKE) -s print-so) $(ABI_BASE)

# After an intended change, together with exports.txt, layout.c and a CHANGELOG `abi:` line.
abi-baseline: need-test
	$(ABI_MAKE) abi-library
	sh test/abi/check.sh --write $$($(ABI_MAKE) -s print-so) $(ABI_BASE)

abi-library: lib
print-so:
	@echo $(LIB_SO)
