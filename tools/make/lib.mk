# The library. Flags follow the folder.

LIB_SRC := $(filter-out lib/spec/gen/%,$(wildcard lib/*/*.c lib/kernel/ref/*.c))
# Kernel levels of the target: a folder is a level and has its own instruction flags, which
# no other object gets.
ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine 2>/dev/null)),)
LEVELS := $(if $(HAVE_AMX),amx )avx512 $(if $(HAVE_AVXVNNI),avxvnni )avx2
endif
ifneq ($(findstring aarch64,$(shell $(CC) -dumpmachine 2>/dev/null)),)
LEVELS := $(if $(HAVE_I8MM),i8mm )neon
endif
LEVEL_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
LEVEL_amx := -mamx-tile -mamx-int8 $(LEVEL_avx512)
LEVEL_neon := -march=armv8.2-a+dotprod
LEVEL_i8mm := $(LEVEL_neon)+i8mm
LEVEL_avx2 := -mavx2 -mfma -mf16c
LEVEL_avxvnni := $(LEVEL_avx2) -mavxvnni -mgfni
LIB_SRC += $(foreach level,$(LEVELS),$(wildcard lib/kernel/$(level)/*.c))
ifeq ($(USE_CUDA),1)
LIB_SRC := $(filter-out lib/device/cuda_none.c,$(LIB_SRC))
endif
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o) $(CUDA_OBJ)

LIB_SO := $(B)/libturboquant.so.$(VERSION)
LIB_A := $(B)/libturboquant.a

.PHONY: lib tables
lib: $(LIB_SO) $(LIB_A)

$(B)/lib/kernel/ref/%.o: lib/kernel/ref/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(LIB_WARNINGS) $(REF) -MMD -MP -c $< -o $@

define level_rule
$(B)/lib/kernel/$(1)/%.o: lib/kernel/$(1)/%.c | need-build
	@mkdir -p $$(@D)
	$$(call say,CC)
	$$(Q)$$(CC) $$(ALL_CFLAGS) $$(LIB_WARNINGS) $$(EXACT) $$(LEVEL_$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach level,$(LEVELS),$(eval $(call level_rule,$(level))))

$(B)/lib/%.o: lib/%.c | need-build
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(LIB_WARNINGS) $(EXACT) -MMD -MP -c $< -o $@

$(LIB_SO): $(LIB_OBJ) pkgconfig/libturboquant.map
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) -shared -Wl,-soname,libturboquant.so.$(ABI) \
		-Wl,--version-script=pkgconfig/libturboquant.map \
		$(if $(SAN),,-Wl$(comma)--no-undefined) -o $@ $(LIB_OBJ) $(CUDA_LINK) -lm -lpthread
	$(Q)ln -sf $(@F) $(B)/libturboquant.so.$(ABI)
	$(Q)ln -sf $(@F) $(B)/libturboquant.so

$(LIB_A): $(LIB_OBJ)
	$(call say,AR)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

# Generated tables are committed; this makes them again.
GEN := $(B)/gen
$(GEN): $(wildcard lib/spec/gen/*.c lib/spec/gen/*.h) | need-build
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) -std=c11 $(CFLAGS) $(WARNINGS) -Wconversion -ffp-contract=off -o $@ $(filter %.c,$^) -lm

tables: $(GEN)
	$(GEN) codebook > $(B)/codebook_data.h && mv $(B)/codebook_data.h lib/spec/codebook_data.h
	$(GEN) hadamard > $(B)/hadamard_data.h && mv $(B)/hadamard_data.h lib/spec/hadamard_data.h

-include $(filter %.d,$(LIB_OBJ:$(B)/lib/%.o=$(B)/lib/%.d))
