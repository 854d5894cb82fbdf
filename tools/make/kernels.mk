# tq-check: every kernel of every level against the reference.

CHECK_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard test/check/*.c))
TQ_CHECK := $(B)/test/check/tq-check

$(B)/test/check/%.o: TEST_CFLAGS := -Itest -Itest/check
$(TQ_CHECK): $(CHECK_OBJ) $(LIB_A)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -o $@ $(CHECK_OBJ) $(LIB_A) $(CUDA_LINK) -lm -lpthread

.PHONY: check-kernels bench-kernels
check-kernels: $(TQ_CHECK)
	$(TQ_CHECK)
bench-kernels: $(TQ_CHECK)
	$(TQ_CHECK) --bench

-include $(CHECK_OBJ:.o=.d)
