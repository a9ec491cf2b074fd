# gpuvec: a PostgreSQL index access method for vectors (PGXS)

MODULE_big = gpuvec
EXTENSION = gpuvec gpuvec_pgvector
DATA = $(wildcard sql/*--*.sql)

# make TEST_BUILD=1: fault points, tunables, counters and plancheck for tests,
# which the release has none of.  Some files are for that build alone.
kind := $(if $(TEST_BUILD),test,release)
for_tests := src/page/injection.o src/engine/gv_fault.o \
	src/planner/plancheck.o
# The oracle, which searches without a card: in place of src/server/engines.o.
oracle := $(patsubst %.c,%.o,$(sort $(wildcard test/oracle/*.c)))
for_release := src/server/engines.o
# Allocations that fail (test/memory/heap.c): of which functions, and in what is
# linked with these; the second is the module's.
failing := $(if $(TEST_BUILD),test/memory/heap.o test/memory/contexts.o)
wrap = $(patsubst %,-Wl$(,)--wrap=%,$(shell sed -nE \
	's/^(__wrap_|WRAP.[^,]*, )(\w+).*/\2/p' $(1:.o=.c) /dev/null))
, := ,
left_out := $(if $(TEST_BUILD),$(for_release),$(for_tests))

# Objects by room: a folder, with its rooms inside; src/README says what each is
# for.
room = $(filter-out $(left_out),$(patsubst %.c,%.o,$(sort $(foreach dir,$(1),\
	$(wildcard src/$(dir)/*.c src/$(dir)/*/*.c)))))

# gpuvecd's alone: mirrors and builders, which only it has
MIRROR_OBJS := $(call room,engine/mirror)
# in the module and in gpuvecd
ENGINE_OBJS := $(filter-out $(MIRROR_OBJS),$(call room,engine))
CPU_OBJS := $(filter-out $(MIRROR_OBJS),$(call room,cpu))
PROTOCOL_OBJS := $(call room,protocol)

GPUVECD_OBJS := $(ENGINE_OBJS) $(CPU_OBJS) $(MIRROR_OBJS) $(PROTOCOL_OBJS) \
	$(call room,server) $(if $(TEST_BUILD),$(oracle)) $(firstword $(failing))
# What is in the module: its chapters, bottom up, and its entry
PAGE_OBJS := $(addsuffix .o, \
	$(addprefix src/page/,array attempt bufcache delta layout listread listwrite \
		metapage page pagecheck pending refinepage sort))
AM_OBJS := $(addsuffix .o, \
	$(addprefix src/am/common/,enginecall identity model options util) \
	$(addprefix src/am/types/,keys queries sqldistance vector) \
	$(addprefix src/am/search/,candidates heaptids ivfpqsearch nearestlists params \
		refinerecord remote rerank) \
	$(addprefix src/am/scan/,batch depth ivfpqscan querylog roworder scanstats) \
	$(addprefix src/am/bulk/,bulkrerank bulksearch) \
	$(addprefix src/am/build/,build bulkload calibrate cluster parallel recallgrid \
		sample train truth) \
	$(addprefix src/am/maintain/,autocalibrate insert mirrorrows traininplace vacuum verify \
		verifymirror worker) \
	$(addprefix src/am/,validate))
PLANNER_OBJS := $(addsuffix .o, \
	$(addprefix src/planner/,clauses cost custompath customscan unread))
INSPECT_OBJS := $(addsuffix .o, \
	$(addprefix src/inspect/,doctor doctorquery doctorreason inspect keyrewrite \
		recall))
OBJS := src/gpuvec.o src/handler.o $(INSPECT_OBJS) $(PLANNER_OBJS) $(AM_OBJS) \
	$(call room,set) $(PAGE_OBJS) $(call room,client) \
	$(if $(TEST_BUILD),src/page/injection.o src/planner/plancheck.o) \
	$(ENGINE_OBJS) $(CPU_OBJS) $(PROTOCOL_OBJS) $(failing)

# gpuvecd has the CUDA engine where there is nvcc (make NVCC= leaves it out).
# It is installed as a script only because PGXS, with a module, knows no other
# executables.
SCRIPTS_built = gpuvecd
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
	$(wildcard /usr/local/cuda/bin/nvcc))
# what for: the cards of this machine or, without one, all that are current;
# 90a is 90 with what no other card has (gpu/*/hopper*.cu), 90 leaves that out
ifneq ($(strip $(NVCC)),)
GPU_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap \
	--format=csv,noheader 2>/dev/null | tr -d '. ' | sort -un | \
	sed 's/^90$$/90a/'),\
	80 86 89 90a 100 120)
endif
NVCC_FLAGS ?= -std=c++17 -O3 -fmad=false --threads 0
# gpuvecd loads cuBLAS when a card needs it, from where this nvcc's is or from
# where the loader looks: where it is missing, it works without
CUDA_LIBS ?= -ldl -Xlinker -rpath=$(abspath $(dir $(NVCC))../lib64)
CUDA_OBJS := $(if $(strip $(NVCC)),$(filter-out $(left_out),\
	$(patsubst %.cu,%.o,$(sort $(wildcard gpu/*.cu gpu/*/*.cu gpu/*/*/*.cu)))))

# -Wno-unused-parameter: PostgreSQL and the engine fix their callbacks' shapes.
PG_CFLAGS = -std=gnu99 -Wall -Wextra -Wno-unused-parameter
PG_CPPFLAGS = -I$(srcdir)/src $(test_flag)
test_flag := $(if $(TEST_BUILD),-DGV_TEST_BUILD)
SHLIB_LINK = -lm $(call wrap,$(failing))

# No bitcode: JIT could inline nothing of an access method, and a second
# compiler would have to be there.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
.DEFAULT_GOAL := all

ifneq ($(wildcard $(PGXS)),)

# Tests for a running server (make installcheck): every sql/NAME.sql without
# '--', every spec, every TAP file; of SQL files and specs those that name
# gpuvec_pgvector only where pgvector is installed.  Their database has gpuvec
# from the start.  `make test` needs no server.
sql_tests := $(foreach f,$(wildcard sql/*.sql),$(if $(findstring --,$f),,$f))
iso_tests := $(wildcard test/isolation/specs/*.spec)
ifeq ($(wildcard $(shell $(PG_CONFIG) --sharedir)/extension/vector.control),)
needs_pgvector := $(shell grep -l gpuvec_pgvector $(sql_tests) $(iso_tests) \
	/dev/null)
endif
REGRESS := $(notdir $(basename $(filter-out $(needs_pgvector),$(sql_tests))))
ISOLATION := $(notdir $(basename $(filter-out $(needs_pgvector),$(iso_tests))))
REGRESS_OPTS = --load-extension=gpuvec
ISOLATION_OPTS = --load-extension=gpuvec --inputdir=$(srcdir)/test/isolation
PROVE_TESTS := $(wildcard test/t/*.pl)
PROVE_FLAGS = -I test/t
# they make clusters of their own, which root may not
ifneq ($(and $(PROVE_TESTS),$(filter-out 0,$(shell id -u))),)
TAP_TESTS = 1
endif

gpuvecd_only := $(filter-out $(OBJS),$(GPUVECD_OBJS))
EXTRA_CLEAN = $(OBJS:.o=.d) $(gpuvecd_only) $(gpuvecd_only:.o=.d) \
	$(foreach o,$(for_tests) $(oracle) $(for_release),$o $(o:.o=.d)) src/kind \
	test/memory/*.[do] \
	gpu/objects $(wildcard $(foreach suffix,d o ptx,\
	gpu/*.$(suffix) gpu/*/*.$(suffix) gpu/*/*/*.$(suffix)))

include $(PGXS)

# PostgreSQL's headers are system headers: their warnings are not ours.
pg_includes := $(includedir_server) $(includedir_internal)
override CPPFLAGS := $(foreach flag,$(CPPFLAGS),\
	$(if $(filter $(addprefix -I,$(pg_includes)),$(flag)),\
	$(patsubst -I%,-isystem %,$(flag)),$(flag)))

# Header dependencies, where PGXS does not make them (Debian's does not).
ifneq ($(autodepend), yes)
override CPPFLAGS += -MMD -MP
-include $(OBJS:.o=.d) $(gpuvecd_only:.o=.d)
endif
-include $(CUDA_OBJS:.o=.d)

# The kernels: optimized, and with every rounding where the source says.
$(CPU_OBJS) $(MIRROR_OBJS) $(oracle): override CFLAGS += -O3 -ffp-contract=off

release := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" \
	$(srcdir)/gpuvec.control)
# Which kernels gpuvecd has: a make with CUDA after one without links it anew.
# Their objects alone would not tell, since PGXS lets any file be missing that
# another one was made from.  Installing takes what is there.
has_cuda := src/server/engines.o test/oracle/oracle.o
ifneq ($(CUDA_OBJS),)
ifneq ($(MAKECMDGOALS),install)
gpuvecd $(has_cuda): gpu/objects
endif
endif
gpu/objects: FORCE
	@echo "$(CUDA_OBJS)" | cmp -s - $@ || echo "$(CUDA_OBJS)" >$@
# Which kind of build this is: objects of the other kind are made anew, but only
# those that differ, whose sources mention the switch or what a header makes of
# it.  Installing takes the kind that is there.
ifneq ($(MAKECMDGOALS),install)
by_kind := GV_TEST_BUILD|GV_TUNABLE|GV_TEST_ONLY|GV_CALL|gv_fault_is_due
by_kind := $(by_kind)|IvfpqInjectionPoint|_forced_|product/product\.cuh
two_kinds := $(shell grep -lE '$(by_kind)' \
	$(patsubst %.o,%.c,$(sort $(OBJS) $(GPUVECD_OBJS))) $(CUDA_OBJS:.o=.cu))
$(addsuffix .o,$(basename $(two_kinds))): src/kind
endif
src/kind: FORCE
	@echo $(kind) | cmp -s - $@ || echo $(kind) >$@
.PHONY: FORCE
src/gpuvec.o src/inspect/doctor.o src/server/gpuvecd.o: override CPPFLAGS += \
	-DGPUVEC_RELEASE='"$(release)"'
src/gpuvec.o src/inspect/doctor.o src/server/gpuvecd.o: gpuvec.control
$(has_cuda): override CPPFLAGS += $(if $(CUDA_OBJS),-DGV_HAVE_CUDA)

# Code for each architecture, and of the newest what later cards can compile,
# unless that is 90a, which is for itself.
newest := $(filter-out %a,$(lastword $(GPU_ARCHS)))
gencode := $(foreach arch,$(GPU_ARCHS),\
	-gencode arch=compute_$(arch),code=sm_$(arch)) \
	$(foreach arch,$(newest),-gencode arch=compute_$(arch),code=compute_$(arch))

gpu/%.o: gpu/%.cu
	$(NVCC) $(NVCC_FLAGS) $(gencode) $(test_flag) -I$(srcdir) -I$(srcdir)/src \
		-MMD -MP -c $< -o $@

# The kernels alone, for one architecture and without an assembler: what nvcc says of
# them, much sooner.
kernels: $(CUDA_OBJS:.o=.ptx)
gpu/%.ptx: gpu/%.cu
	$(NVCC) $(NVCC_FLAGS) -arch=sm_$(lastword $(GPU_ARCHS)) $(test_flag) \
		-I$(srcdir) -I$(srcdir)/src -ptx $< -o $@

# Prints a sentence, without a comma, unless make is silent (-s).
say = @$(if $(findstring s,$(firstword -$(MAKEFLAGS))),:,echo "$(1)")

gpuvecd: $(GPUVECD_OBJS) $(CUDA_OBJS)
ifneq ($(CUDA_OBJS),)
	$(NVCC) -cudart static $(addprefix -Xcompiler ,$(COPT)) \
		$(filter %.o,$^) -o $@ \
		$(CUDA_LIBS) -lpthread -lm \
		$(patsubst -Wl$(,)%,-Xlinker %,$(call wrap,$(firstword $(failing))))
else
	$(call say,gpuvecd: built without GPU kernels; indexes work without a GPU)
	$(CC) $(CFLAGS) $(filter %.o,$^) $(LDFLAGS) -o $@ -lpthread -lm \
		$(call wrap,$(firstword $(failing)))
endif

# Where nothing else was asked for, what comes next.
ifeq ($(filter-out all,$(MAKECMDGOALS)),)
all:
	$(call say,gpuvec is built; next: make install)
endif

# Prints a variable, for test/run.sh.
print-%:
	@echo $($*)

else
all install installcheck uninstall:
	@echo "no PostgreSQL development files: test/setup.sh installs them;" \
		"PG_CONFIG=/path/to/pg_config names others" >&2; exit 1
endif

# Each of these works on a bare Debian or Ubuntu: see the script's header.
.PHONY: demo check-quick test test-long bench kernels
demo:
	@test/demo/run.sh
check-quick:
	@test/run.sh --quick
test:
	@test/run.sh
test-long:
	@test/run.sh --long
bench:
	@test/bench/run.sh
demo check-quick test test-long bench: export PG_CONFIG := $(if \
	$(filter-out undefined default file,$(origin PG_CONFIG)),$(PG_CONFIG))
