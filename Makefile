# Each target sets up what it needs first (tools/setup.sh: nothing to do the second time).
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

JOBS := $(shell nproc)
PREFIX ?= /usr/local
MODEL := build/models/all-minilm-l6-v2
# ThreadSanitizer of g++ 12 and 13 cannot start where the kernel randomises addresses by 32 bits (Ubuntu 24.04).
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
CPP_FILES = $(shell find include src tests bench -name '*.hpp' -o -name '*.cpp' | sort)

.PHONY: help demo test asan tsan lint format symbols install bench-header gpu-prefix clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo:  ## load a small real model into the best device there is and compare every byte
	@tools/setup.sh build model
	@$(call build,release)
	build/release/inrush load $(MODEL) --check

test:  ## all tests that need no GPU
	@tools/setup.sh build
	@$(call build,dev)
	@ctest --preset dev -j $(JOBS)

asan:  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh build
	@$(call build,asan)
	@ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 ctest --preset asan -j $(JOBS)

tsan:  ## the tests under ThreadSanitizer
	@tools/setup.sh build
	@$(call build,tsan,$(FIXED_ADDRESSES))
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(FIXED_ADDRESSES) ctest --preset tsan -j $(JOBS)

lint:  ## layout, names and shape of the code
	@tools/setup.sh build lint
	@python3 tools/tidy.py
	@clang-format-16 --dry-run --Werror $(CPP_FILES)
	@cmake --preset dev >/dev/null
	@find src -name '*.cpp' | sort | xargs -P $(JOBS) -n 4 clang-tidy-16 --quiet -p build/dev

format:  ## lay the code out
	@tools/setup.sh lint
	@clang-format-16 -i $(CPP_FILES)

symbols:  ## write anew the list of exported symbols that a test holds the library to
	@tools/setup.sh build
	@$(call build,dev)
	@python3 tests/install/symbols.py nm build/dev/libinrush.so tests/install/symbols.txt --write

install:  ## install the library and the command below PREFIX (/usr/local)
	@tools/setup.sh build
	@$(call build,release)
	@cmake --install build/release --prefix $(PREFIX)

bench-header:  ## time and memory of a header of a million tensors
	@tools/setup.sh build
	@$(call build,release)
	@build/release/inrush_bench_header

gpu-prefix:  ## gather in .prefix what a GPU machine without a network builds from
	@tools/setup.sh build
	@tools/gather_prefix.sh

clean:  ## remove all that was built
	@rm -rf build .prefix

# Quiet where all is well; the whole output where it is not.
define build
mkdir -p build; echo "building build/$(1)"; \
{ $(2) cmake --preset $(1) && $(2) cmake --build --preset $(1) -j $(JOBS); } >build/$(1).log 2>&1 || \
{ grep -E -A5 'error|FAILED' build/$(1).log | head -60; echo "build/$(1).log has the rest"; exit 1; }
endef
