# Two commands: `make demo` (a real model answers) and `make test` (every test). The rest is CMake presets.
SHELL := /bin/bash
JOBS ?= $(shell nproc)

.PHONY: help demo test build setup setup-tests fast check format clean

help:
	@echo "make demo    install what is missing, fetch the model, build, and stream one answer over HTTP"
	@echo "make test    the same set-up, then every test"
	@echo "make fast    build and run the fast tests only"
	@echo "make build   build build/tenon"
	@echo "make check   include directions and formatting"

setup:
	@tools/setup.sh

setup-tests:
	@tools/setup.sh --tests

build: setup
	@cmake --preset release > build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
	@rm -f build-configure.log
	@cmake --build build --target tenon -j $(JOBS)

demo: build
	@python3 tools/demo.py build/tenon

test: setup-tests
	@cmake --preset release
	@cmake --build build -j $(JOBS)
	@ctest --test-dir build --output-on-failure -j $(JOBS)

fast: setup-tests
	@cmake --preset release
	@cmake --build build -j $(JOBS)
	@ctest --test-dir build --output-on-failure -L fast -j $(JOBS)

check:
	@python3 tools/check_includes.py
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror

format:
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf build build-*
