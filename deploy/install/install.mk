# Builds and installs the library for other programs, manual pages and completions.
#
#   make install [prefix=/usr/local] [libdir=$(prefix)/lib] [DESTDIR=]
#
# libcnnps.so.0 and libcnnps.a are made of the same objects. The shared and the static library
# export only the names that cnnps.map lists, so a program may use all other names for its own
# functions.

prefix  ?= /usr/local
libdir  ?= $(prefix)/lib
VERSION := $(shell sed -n 's/.*PS_VERSION "\(.*\)"/\1/p' common/version.h)
SONAME  := libcnnps.so.0
SO      := $(B)/libcnnps.so.$(VERSION)
PKGS.library := libzmq libuv libprotobuf-c libxxhash
MAN     := $(addprefix $(B)/man/,cnn-ps.1 cnn-worker.1 cnn-ctl.1 cnnps.3)
COMPLETIONS := $(B)/completions/cnn-ps.bash $(B)/completions/_cnn-ps

# The objects of the library are compiled with -fPIC, which a shared library needs and a program
# does not.
pic = $(patsubst %.c,$(B)/pic/%.o,$(1))
PIC.client := $(call pic,$(SRC.client))
PIC.others := $(call pic,$(SRC.proto) $(SRC.common)) $(B)/pic/cnnps.pb-c.o
$(B)/pic/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(CFLAGS) -fPIC -MMD -MP -c -o $@ $<
$(B)/pic/cnnps.pb-c.o: $(GEN).c
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) -std=c11 -I$(B)/gen $(OPT.$(FLAVOUR)) $(EXTRA_CFLAGS) -fPIC $(PKG_CFLAGS) -c -o $@ $<
$(B)/pic/proto/schema.o: $(GEN).h
$(B)/pic/common/opt.o: $(B)/gen/opt_names.h
$(B)/pic/proto/checksum.o: EXTRA_CFLAGS += $(if $(filter release,$(FLAVOUR)),-O3)
$(B)/pic/libothers.a: $(PIC.others)
	$(archive)
# Link one object that contains the whole client and all functions that the client needs.
$(B)/pic/libcnnps.o: $(PIC.client) $(B)/pic/libothers.a worker/client/cnnps.map
	$(call say,LD,$@)ld -r -o $@.all $(PIC.client) $(B)/pic/libothers.a && \
		sed -n 's/^\t\(cnnps_[a-z_]*\);/\1/p' worker/client/cnnps.map >$@.names && \
		objcopy --keep-global-symbols=$@.names $@.all $@ && rm $@.all
$(B)/libcnnps.a: $(B)/pic/libcnnps.o
	$(archive)
$(SO): $(B)/pic/libcnnps.o worker/client/cnnps.map
	$(call say,LD,$@)$(CC) -shared $(filter-out -pie,$(LDFLAGS)) -Wl,-soname,$(SONAME) -Wl,-z,defs -Wl,--as-needed \
		-Wl,--version-script=worker/client/cnnps.map -o $@ $< $(shell pkg-config --libs $(PKGS.library)) -lm
	@ln -sf $(@F) $(B)/$(SONAME); ln -sf $(SONAME) $(B)/libcnnps.so

# help2man makes the manual pages of the programs from --help. A script makes the page of the
# library from its header.
$(B)/man/%.1: $(B)/% deploy/install/%.h2m
	@mkdir -p $(@D)
	$(call say,MAN,$@)help2man -N -i deploy/install/$*.h2m -o $@ $<
$(B)/man/cnnps.3: worker/client/cnnps.h deploy/install/header_to_man.py
	@mkdir -p $(@D)
	$(call say,MAN,$@)$(PYTHON) deploy/install/header_to_man.py $< $(VERSION) >$@
$(COMPLETIONS) &: $(BINARIES) deploy/install/completions.py
	@mkdir -p $(@D)
	$(call say,GEN,$(@D))$(PYTHON) deploy/install/completions.py $(B) $(B)/completions

.PHONY: library man installable install deb deb-test
library: $(SO) $(B)/libcnnps.a
man: $(MAN)
# Builds everything that `make install` copies.
installable: all library man $(COMPLETIONS)
install: installable
	install -d $(addprefix $(DESTDIR)$(prefix)/,bin include share/man/man1 share/man/man3 \
		share/bash-completion/completions share/zsh/site-functions) $(DESTDIR)$(libdir)/pkgconfig
	install $(B)/cnn-ps $(B)/cnn-worker $(B)/cnn-ctl $(DESTDIR)$(prefix)/bin
	install -m 644 worker/client/cnnps.h $(DESTDIR)$(prefix)/include
	install -m 644 $(SO) $(B)/libcnnps.a $(DESTDIR)$(libdir)
	$(if $(STORE_MODULE),install -D -m 644 $(STORE_MODULE) $(DESTDIR)$(libdir)/cnn-ps/$(STORE_NAME))
	ln -sf $(notdir $(SO)) $(DESTDIR)$(libdir)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(libdir)/libcnnps.so
	sed -e 's|@PREFIX@|$(prefix)|; s|@LIBDIR@|$(libdir)|; s|@VERSION@|$(VERSION)|' deploy/install/cnnps.pc.in \
		>$(DESTDIR)$(libdir)/pkgconfig/cnnps.pc
	install -m 644 $(filter %.1,$(MAN)) $(DESTDIR)$(prefix)/share/man/man1
	install -m 644 $(filter %.3,$(MAN)) $(DESTDIR)$(prefix)/share/man/man3
	for p in cnn-ps cnn-worker cnn-ctl; do \
		install -m 644 $(B)/completions/cnn-ps.bash $(DESTDIR)$(prefix)/share/bash-completion/completions/$$p; done
	install -m 644 $(B)/completions/_cnn-ps $(DESTDIR)$(prefix)/share/zsh/site-functions
deb:
	@deploy/deb.sh
# Build the packages twice, check them with lintian, and train with them in a fresh container.
deb-test:
	@export CNN_SLOW=1 && exec deploy/docker_engine.sh $(call PYTEST) tests/e2e/test_packages.py
# Build the Python package: a wheel that contains the library, cnn-ps and cnn-ctl.
.PHONY: wheel
wheel: all library
	@PYTHON=$(PYTHON) B=$(B) deploy/wheel.sh
