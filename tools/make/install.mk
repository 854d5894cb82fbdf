# make install PREFIX=/usr/local DESTDIR= LIBDIR= INCLUDEDIR=; uninstall removes what install
# put there and the directories that it leaves empty.

PREFIX ?= /usr/local
EXEC_PREFIX ?= $(PREFIX)
LIBDIR ?= $(EXEC_PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
CMAKEDIR ?= $(LIBDIR)/cmake/turboquant
INSTALL ?= install

HEADERS := $(wildcard include/tq/*.h)
LIBS_PRIVATE := $(filter-out -lpthread,$(CUDA_LIBS_PRIVATE)) -lm -lpthread

# The files a package has, without DESTDIR.
INSTALLED = $(HEADERS:include/%=$(INCLUDEDIR)/%) $(LIBDIR)/libturboquant.a \
	$(LIBDIR)/libturboquant.so.$(VERSION) $(LIBDIR)/libturboquant.so.$(ABI) $(LIBDIR)/libturboquant.so \
	$(PKGCONFIGDIR)/turboquant.pc $(CMAKEDIR)/turboquantConfig.cmake $(CMAKEDIR)/turboquantConfigVersion.cmake

.PHONY: install uninstall check-paths check-install check-bindings

check-paths:
	@case '$(PREFIX)$(LIBDIR)$(INCLUDEDIR)$(DESTDIR)' in *[[:space:]]*) \
		echo "PREFIX, LIBDIR, INCLUDEDIR and DESTDIR must not contain blanks: neither make nor pkg-config can quote them" >&2; exit 1;; esac
	@case '$(PREFIX)' in /*) ;; *) echo "PREFIX must be an absolute path, not '$(PREFIX)'" >&2; exit 1;; esac

# Relative way from the CMake folder to the headers, so that the tree can be moved.
relative = $(shell $(PYTHON) -c 'import os,sys; print(os.path.relpath(sys.argv[1], sys.argv[2]))' '$(1)' '$(2)')

# Paths below the prefix are written relative to it.
below = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
FILL = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(call below,$(LIBDIR))|' \
	-e 's|@INCLUDEDIR@|$(call below,$(INCLUDEDIR))|' -e 's|@VERSION@|$(VERSION)|' -e 's|@ABI@|$(ABI)|' \
	-e 's|@CUDA@|$(CUDA_INSIDE)|' -e 's|@ARCHS@|$(CUDA_ARCHS_INSIDE)|' \
	-e 's|@LIBS_PRIVATE@|$(strip $(LIBS_PRIVATE))|' \
	-e 's|@CMAKE_INCLUDE@|$(call relative,$(INCLUDEDIR),$(CMAKEDIR))|' \
	-e 's|@CMAKE_LIBS_PRIVATE@|$(subst $(space),;,$(patsubst -l%,%,$(strip $(LIBS_PRIVATE))))|'
empty :=
space := $(empty) $(empty)
# What a build with CUDA says of itself; the CUDA folder sets these.
CUDA_INSIDE ?= no

install: check-paths lib
	$(INSTALL) -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDEDIR)/tq $(DESTDIR)$(PKGCONFIGDIR) $(DESTDIR)$(CMAKEDIR)
	$(INSTALL) -m 644 $(HEADERS) $(DESTDIR)$(INCLUDEDIR)/tq
	$(INSTALL) -m 644 $(LIB_A) $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 $(LIB_SO) $(DESTDIR)$(LIBDIR)
	ln -sf libturboquant.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libturboquant.so.$(ABI)
	ln -sf libturboquant.so.$(ABI) $(DESTDIR)$(LIBDIR)/libturboquant.so
	$(FILL) pkgconfig/turboquant.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/turboquant.pc
	$(FILL) pkgconfig/turboquantConfig.cmake.in > $(DESTDIR)$(CMAKEDIR)/turboquantConfig.cmake
	$(FILL) pkgconfig/turboquantConfigVersion.cmake.in > $(DESTDIR)$(CMAKEDIR)/turboquantConfigVersion.cmake
	chmod 644 $(DESTDIR)$(PKGCONFIGDIR)/turboquant.pc $(DESTDIR)$(CMAKEDIR)/*.cmake

uninstall: check-paths
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	-@rmdir $(DESTDIR)$(CMAKEDIR) $(DESTDIR)$(LIBDIR)/cmake $(DESTDIR)$(PKGCONFIGDIR) $(DESTDIR)$(LIBDIR) \
		$(DESTDIR)$(INCLUDEDIR)/tq $(DESTDIR)$(INCLUDEDIR) 2>/dev/null || true

check-install: lib
	CC='$(CC)' MAKE='$(MAKE)' sh test/install/run.sh $(B)/install-test
	PYTHON=$(PYTHON) sh test/install/fetch_at_once.sh $(B)/fetch-test

check-bindings: lib
	CC='$(CC)' MAKE='$(MAKE)' sh test/install/bindings.sh $(B)/bindings-test
