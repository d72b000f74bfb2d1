# sluice: `make demo` runs the bundled model, `make test` runs the tests, `make help` lists the rest.
#
# One build tree per configuration: build/release, build/debug, build/asan, build/tsan, build/fuzz.
# Choose with CFG=..., the compiler with CC=...; V=1 shows the commands.

CFG     ?= release
BUILD   := build/$(CFG)
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
JOBS    ?= $(shell nproc)
Q       := $(if $(V),,@)

WARN    := -Wall -Wextra -Wpointer-arith -Wshadow -Wconversion -Wvla -Wmissing-prototypes -Werror
COMMON  := -std=c11 -D_GNU_SOURCE -Iinclude -Isrc -g -fno-omit-frame-pointer -fPIE -MMD -MP \
           -ffp-contract=off -ffunction-sections -fdata-sections -pthread
CFLAGS_release := -O2 -D_FORTIFY_SOURCE=3 -fstack-protector-strong
CFLAGS_debug   := -O1 -DSL_DEBUG
CFLAGS_asan    := -O1 -DSL_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all
CFLAGS_tsan    := -O1 -DSL_DEBUG -fsanitize=thread
CFLAGS_fuzz    := -O1 -DSL_DEBUG -fsanitize=fuzzer-no-link,address,undefined \
                  -fno-sanitize-recover=all
ifeq ($(CFG),fuzz)
CC      := clang
endif
CFLAGS  := $(WARN) $(COMMON) $(CFLAGS_$(CFG))
LDFLAGS := -pthread -pie -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now \
           $(filter -fsanitize%,$(subst fuzzer-no-link$(,),,$(CFLAGS_$(CFG))))
, := ,
LDLIBS  := -Wl,-Bstatic -levent_extra -levent_core -levent_pthreads -lpcre2-8 -ljansson -lxxhash \
           -Wl,-Bdynamic -lm -ldl

# A kernel file says by its name which instruction set it may use; the rest runs anywhere.
ISA_avx2   := -O3 -mavx2 -mfma -mf16c
ISA_avx512 := -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_avx512bf16 := $(ISA_avx512vnni) -mavx512bf16
ISA_amx    := $(ISA_avx512bf16) -mamx-tile -mamx-int8 -mamx-bf16
isa_flags   = $(ISA_$(lastword $(subst _, ,$(basename $1))))

SRC     := $(filter-out %_tmpl.c,$(wildcard src/*/*.c))
LIB_SRC := $(filter-out src/cmd/%,$(SRC))
CMD_SRC := $(filter src/cmd/%,$(SRC))
OBJ      = $(patsubst %.c,$(BUILD)/%.o,$1)
LIB     := $(BUILD)/libsluice.a
BIN     := $(BUILD)/sluice
BUNDLE  := $(wildcard assets/storyteller/*)

TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*/test_*.c))
TOOLS   := $(patsubst tools/%.c,$(BUILD)/tools/%,$(wildcard tools/*.c))
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,build/fuzz/fuzz_%,$(wildcard tests/fuzz/fuzz_*.c))

.PHONY: all demo test check test-c test-server sim asan ubsan tsan fuzz fuzz-replay lint format \
        deps tools clean help bench
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

all: build/sluice tools

help:
	@sed -n 's/^## //p' Makefile

## make demo          install what is missing, build, tell a story with the bundled model
demo:
	$(Q)SLUICE_DEPS=build tools/deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/sluice
	./build/sluice run -p "Once upon a time" -n 200 --raw --seed 1

## make test          install what is missing, build, run every test
test: deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) check

## make check         the tests, without installing anything
check: all $(TESTS)
	$(Q)$(MAKE) --no-print-directory lint
	$(Q)$(MAKE) --no-print-directory fuzz-replay
	$(Q)tools/run_tests --build $(BUILD) --sim 10000 --server

## make test-c        the C tests of one configuration (CFG=asan, ...)
test-c: $(TESTS) tools $(BIN)
	$(Q)tools/run_tests --build $(BUILD) --sim $(or $(SEEDS),500) $(if $(SERVER),--server)

## make sim SEEDS=n   the scheduler simulator over n seeds (SEED=s replays one)
sim: $(BUILD)/tests/engine/test_sim
	$< $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000))

## make asan|ubsan|tsan   the whole suite under a sanitizer
asan ubsan:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) CFG=asan SERVER=1 test-c
tsan:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) CFG=tsan SERVER=1 test-c

## make fuzz T=gguf SEC=60   one fuzz target; fuzz-replay runs every committed corpus
fuzz: build/fuzz/fuzz_$(T)
	$(Q)mkdir -p build/fuzz/corpus/$(T) tests/fuzz/corpus/$(T)
	$< -max_total_time=$(or $(SEC),60) -timeout=10 -rss_limit_mb=4096 \
	    $(addprefix -dict=,$(wildcard tests/fuzz/$(T).dict)) \
	    build/fuzz/corpus/$(T) tests/fuzz/corpus/$(T)
fuzz-replay:
	$(Q)$(MAKE) --no-print-directory CFG=fuzz fuzzers
	$(Q)for f in $(FUZZERS); do t=$${f##*fuzz_}; \
	    $$f -runs=0 -timeout=10 tests/fuzz/corpus/$$t >build/fuzz/$$t.log 2>&1 \
	    && echo "ok   fuzz corpus $$t" || { echo "FAIL fuzz corpus $$t"; exit 1; }; done
fuzzers: $(FUZZERS)
.PHONY: fuzzers

## make lint          layers, sizes, banned calls, dead files, formatting
lint:
	$(Q)tools/lint
## make format        clang-format the tree
format:
	$(Q)git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

## make support       regenerate docs/SUPPORT.md
support: $(BUILD)/tests/ops/test_ops
	$(Q)tools/support > docs/SUPPORT.md
.PHONY: support

## make deps          install missing Debian packages
deps:
	$(Q)tools/deps

tools: $(TOOLS)

build/sluice: build/release/sluice
	$(Q)ln -sf release/sluice $@
ifneq ($(CFG),release)
build/release/sluice:
	$(Q)$(MAKE) --no-print-directory CFG=release $@
endif

$(BIN): $(call OBJ,$(CMD_SRC)) $(LIB)
	@echo "  LD    $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIB): $(call OBJ,$(LIB_SRC)) $(BUILD)/gen/bundle.o
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$<) -c -o $@ $<

# The bundled model goes into the binary byte for byte.
$(BUILD)/gen/bundle.o: tools/embed $(BUNDLE)
	@mkdir -p $(@D)
	@echo "  EMBED assets/storyteller"
	$(Q)tools/embed assets/storyteller > $(BUILD)/gen/bundle.S
	$(Q)$(CC) -c -o $@ $(BUILD)/gen/bundle.S

$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	@echo "  TEST  $@"
	$(Q)$(CC) $(CFLAGS) -Itests $(LDFLAGS) -o $@ $< $(LIB) -lcmocka $(LDLIBS)

$(BUILD)/tools/%: tools/%.c $(LIB)
	@mkdir -p $(@D)
	@echo "  TOOL  $@"
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(LIB) $(LDLIBS)

build/fuzz/fuzz_%: tests/fuzz/fuzz_%.c build/fuzz/libsluice.a
	@echo "  FUZZ  $@"
	$(Q)clang $(WARN) $(COMMON) $(CFLAGS_fuzz) -fsanitize=fuzzer,address,undefined -o $@ $< \
	    build/fuzz/libsluice.a $(LDLIBS)
ifneq ($(CFG),fuzz)
build/fuzz/libsluice.a: FORCE
	$(Q)$(MAKE) --no-print-directory CFG=fuzz $@
endif
FORCE:
.PHONY: FORCE

clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(call OBJ,$(SRC))) $(addsuffix .d,$(TESTS) $(TOOLS))
