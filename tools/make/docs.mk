# The documentation site, in build/docs/html. Warnings are errors.

AWESOME ?= /usr/share/doxygen-awesome-css
PACKAGES_DOCS := doxygen graphviz doxygen-awesome-css

.PHONY: docs
docs:
	@sh tools/make/need.sh docs $(PACKAGES_DOCS)
	@mkdir -p build/docs
	TQ_VERSION=$(VERSION) TQ_OUT=build/docs TQ_AWESOME=$(AWESOME) doxygen docs/Doxyfile
	@echo "build/docs/html/index.html"
