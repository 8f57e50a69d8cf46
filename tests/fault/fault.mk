# FAULT_SHIMS are shared objects that the fault tests load into a program (LD_PRELOAD).
FAULT_SHIMS := $(patsubst tests/fault/preload/%.c,$(B)/tests/fault/%.so,$(wildcard tests/fault/preload/*.c))

# The shared objects are built without the flavour's flags, because a program of any flavour must be
# able to load them.
$(B)/tests/fault/%.so: tests/fault/preload/%.c
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) -std=c11 -D_GNU_SOURCE -I. $(filter-out -Wmissing-prototypes,$(WARN)) \
		-O2 -g -fPIC -shared -o $@ $< -ldl

# lossy_link connects the network namespaces of the network tests.
$(B)/tests/fault/lossy_link: $(B)/tests/fault/lossy_link.o $(A.common)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.base)
