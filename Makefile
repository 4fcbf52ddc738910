# Each target sets up what it needs first (tools/setup.sh: nothing to do the second time).
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

JOBS := $(shell nproc)
PREFIX ?= /usr/local
COUNT ?= 1000000
FIRST ?= 1000000
SECONDS ?= 60
OUT ?= build/bench/results
MODEL := build/models/all-minilm-l6-v2
COUNT_LOGS := build/dev/Testing/Temporary/LastTest.log build/python/tests.log
# Where the kernel randomises addresses by 32 bits (Ubuntu 24.04) ThreadSanitizer of g++ 12 and 13 cannot start,
# and AddressSanitizer now and then cannot (github.com/google/sanitizers/issues/1614).
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
CPP_FILES = $(shell find include src tests bench cmake -name '*.hpp' -o -name '*.cpp' | sort)

.PHONY: help demo test test-cpp test-python test-vllm wheel trust-table asan tsan differential fuzz lint format symbols install bench bench-header gpu-prefix clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo:  ## load a small real model into the best device there is and compare every byte
	@tools/setup.sh build model
	@$(call build,release)
	build/release/inrush load $(MODEL) --check

test:  ## all tests that need no GPU
	@$(MAKE) test-cpp
	@$(MAKE) test-python
	@python3 tools/trust_table.py --check SECURITY.md $(COUNT_LOGS)

trust-table:  ## write what the last make test counted into SECURITY.md
	@python3 tools/trust_table.py --write SECURITY.md $(COUNT_LOGS)

test-cpp:  ## those of the C++ library and the command
	@tools/setup.sh build cufile
	@$(call build,dev)
	@$(call ctest,dev)

test-python:  ## those of the Python package, against its wheel; one: tests/python/run.sh -k NAME
	@tools/setup.sh python cufile
	@$(call build,dev,,--target fake_cuda)
	@tests/python/run.sh 2>&1 | tee build/python/tests.log

test-vllm:  ## the plug-ins in the real vLLM and SGLang, on the CPU (6 GB the first time)
	@tools/setup.sh vllm
	@tests/vllm/run.sh

wheel:  ## build the Python wheel into build/wheels
	@tools/setup.sh wheel
	@tools/wheel.sh

asan:  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh build
	@$(call build,asan)
	@$(call ctest,asan,ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 $(FIXED_ADDRESSES))

tsan:  ## the tests under ThreadSanitizer
	@tools/setup.sh build
	@$(call build,tsan,$(FIXED_ADDRESSES))
	@$(call ctest,tsan,TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(FIXED_ADDRESSES))

differential:  ## COUNT more mutants against the reference, from number FIRST on
	@tools/setup.sh python
	@TEST_MUTANTS=$(COUNT) TEST_FIRST_MUTANT=$(FIRST) TEST_SECONDS=$$(($(COUNT) / 250 + 600)) \
	  tests/python/run.sh -k test_mutants_get

fuzz:  ## fuzz each parser for SECONDS, two at a time, under the sanitizers of clang
	@tools/setup.sh build fuzz
	@$(call build,fuzz)
	@tests/fuzz/run.sh $(SECONDS)

lint:  ## layout, names, types and shape of the code
	@tools/setup.sh build lint wheel
	@python3 tools/tidy.py
	@clang-format-16 --dry-run --Werror $(CPP_FILES)
	@cmake --preset dev >/dev/null
	@find src -name '*.cpp' ! -path 'src/python/*' | sort | xargs -P $(JOBS) -n 4 clang-tidy-16 --quiet -p build/dev
	@cmake --preset module >/dev/null
	@find src/python cmake -name '*.cpp' | sort | xargs -P $(JOBS) -n 2 clang-tidy-16 --quiet -p build/python/module
	@build/python/tools/bin/mypy --no-warn-unused-ignores --no-warn-return-any python/inrush

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

bench:  ## inrush beside every other loader; QUICK=1: 8 minutes; OUT=FOLDER; ARGUMENTS='--state warm'
	@tools/setup.sh build
	@$(call build,release)
	@$(MAKE) wheel >/dev/null
	@bench/setup.sh
	@build/bench/venv/bin/python bench/bench.py --out $(OUT) $(if $(QUICK),--quick) $(ARGUMENTS)

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
{ $(2) cmake --preset $(1) && $(2) cmake --build --preset $(1) -j $(JOBS) $(3); } >build/$(1).log 2>&1 || \
{ grep -E -A5 'error|FAILED' build/$(1).log | head -60; echo "build/$(1).log has the rest"; exit 1; }
endef

# What the failed tests said comes last.
define ctest
$(2) ctest --preset $(1) -j $(JOBS) || { tools/failed_tests.py build/$(1); exit 1; }
endef
