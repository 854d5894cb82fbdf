# Other libraries that the benchmarks run beside ours. Their sources are never part of this
# tree: `make peers` brings ggml out of a source package and builds it below build/peers.
# GGML_SRC=folder takes a checkout instead.

PEER_PACKAGE := llama-cpp-python==0.3.36
PEER_GGML := build/peers/ggml
PEER_LIBS := $(PEER_GGML)/lib/libggml-cpu.a $(PEER_GGML)/lib/libggml-base.a
GGML_SRC ?=

.PHONY: peers
peers: $(PEER_GGML)/lib/version
$(PEER_GGML)/lib/version:
	@sh tools/make/need.sh peers g++ cmake python3
	PYTHON='$(PYTHON)' sh tools/make/peers.sh $(PEER_GGML) '$(PEER_PACKAGE)' $(GGML_SRC)
