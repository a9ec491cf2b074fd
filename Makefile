# gpuvec: a PostgreSQL index access method for vectors (PGXS)

MODULE_big = gpuvec
EXTENSION = gpuvec gpuvec_pgvector
DATA = $(wildcard sql/*--*.sql)

AM_OBJS = \
	src/am/ivfpqassign.o \
	src/am/ivfpqbuild.o \
	src/am/ivfpqcalibrate.o \
	src/am/ivfpqcentroids.o \
	src/am/ivfpqcluster.o \
	src/am/ivfpqclusterteam.o \
	src/am/ivfpqcoarse.o \
	src/am/ivfpqcoded.o \
	src/am/ivfpqcoming.o \
	src/am/ivfpqcopies.o \
	src/am/ivfpqcost.o \
	src/am/ivfpqdims.o \
	src/am/ivfpqdrain.o \
	src/am/ivfpqdrift.o \
	src/am/ivfpqeffort.o \
	src/am/ivfpqexchange.o \
	src/am/ivfpqfinish.o \
	src/am/ivfpqhandler.o \
	src/am/ivfpqidentity.o \
	src/am/ivfpqinplace.o \
	src/am/ivfpqinsert.o \
	src/am/ivfpqinspect.o \
	src/am/ivfpqladder.o \
	src/am/ivfpqmixed.o \
	src/am/ivfpqmodel.o \
	src/am/ivfpqparallel.o \
	src/am/ivfpqplace.o \
	src/am/ivfpqplan.o \
	src/am/ivfpqpolish.o \
	src/am/ivfpqprewarm.o \
	src/am/ivfpqqueue.o \
	src/am/ivfpqreader.o \
	src/am/ivfpqreadtogether.o \
	src/am/ivfpqreal.o \
	src/am/ivfpqrecall.o \
	src/am/ivfpqrefine.o \
	src/am/ivfpqremote.o \
	src/am/ivfpqremotetrain.o \
	src/am/ivfpqreport.o \
	src/am/ivfpqrerank.o \
	src/am/ivfpqsample.o \
	src/am/ivfpqscan.o \
	src/am/ivfpqsearch.o \
	src/am/ivfpqsegment.o \
	src/am/ivfpqshare.o \
	src/am/ivfpqsnapshot.o \
	src/am/ivfpqspill.o \
	src/am/ivfpqtargets.o \
	src/am/ivfpqteam.o \
	src/am/ivfpqtids.o \
	src/am/ivfpqtrain.o \
	src/am/ivfpqtrial.o \
	src/am/ivfpqtruth.o \
	src/am/ivfpqturn.o \
	src/am/ivfpqvacuum.o \
	src/am/ivfpqvalidate.o \
	src/am/ivfpqvalue.o \
	src/am/ivfpqverify.o \
	src/am/ivfpqverifymirror.o \
	src/am/ivfpqworker.o

SET_OBJS = \
	src/set/ivfpqargument.o \
	src/set/ivfpqexact.o \
	src/set/ivfpqgraph.o \
	src/set/ivfpqkmeans.o \
	src/set/ivfpqlists.o \
	src/set/ivfpqneighbours.o \
	src/set/ivfpqpairs.o \
	src/set/ivfpqpath.o \
	src/set/ivfpqpathedges.o \
	src/set/ivfpqprobes.o \
	src/set/ivfpqprogress.o \
	src/set/ivfpqsampled.o \
	src/set/ivfpqscale.o \
	src/set/ivfpqselect.o \
	src/set/ivfpqstarts.o \
	src/set/ivfpqstore.o \
	src/set/ivfpqtable.o \
	src/set/ivfpqwork.o

PAGE_OBJS = \
	src/page/ivfpqahead.o \
	src/page/ivfpqappend.o \
	src/page/ivfpqarray.o \
	src/page/ivfpqcheck.o \
	src/page/ivfpqchecklist.o \
	src/page/ivfpqcheckrefine.o \
	src/page/ivfpqcompact.o \
	src/page/ivfpqfault.o \
	src/page/ivfpqlayout.o \
	src/page/ivfpqlist.o \
	src/page/ivfpqlistahead.o \
	src/page/ivfpqmeta.o \
	src/page/ivfpqpage.o \
	src/page/ivfpqpatch.o \
	src/page/ivfpqpend.o \
	src/page/ivfpqpending.o \
	src/page/ivfpqrecent.o \
	src/page/ivfpqrefine.o \
	src/page/ivfpqrewrite.o \
	src/page/ivfpqslot.o \
	src/page/ivfpqsweep.o \
	src/page/ivfpqunpend.o \
	src/page/ivfpqwriter.o

CLIENT_OBJS = \
	src/client/ivfpqask.o \
	src/client/ivfpqbuilder.o \
	src/client/ivfpqbuilderopen.o \
	src/client/ivfpqchild.o \
	src/client/ivfpqconnect.o \
	src/client/ivfpqlaunch.o \
	src/client/ivfpqlink.o \
	src/client/ivfpqload.o \
	src/client/ivfpqloader.o \
	src/client/ivfpqlock.o \
	src/client/ivfpqpiece.o \
	src/client/ivfpqreadmirror.o \
	src/client/ivfpqrecords.o \
	src/client/ivfpqremoteset.o \
	src/client/ivfpqshared.o \
	src/client/ivfpqsharing.o \
	src/client/ivfpqslots.o \
	src/client/ivfpqstatus.o \
	src/client/ivfpqsupervisor.o \
	src/client/ivfpqviews.o \
	src/client/ivfpqwait.o \
	src/client/ivfpqwanted.o

ENGINE_OBJS = \
	src/engine/gv_engine.o \
	src/engine/gv_select.o \
	src/engine/gv_set.o \
	src/engine/gv_setmend.o \
	src/engine/gv_topk.o

CPU_OBJS = \
	src/cpu/assign.o \
	src/cpu/avx2.o \
	src/cpu/avx512.o \
	src/cpu/coarse.o \
	src/cpu/distance.o \
	src/cpu/encode.o \
	src/cpu/exact.o \
	src/cpu/exactlists.o \
	src/cpu/exactmeet.o \
	src/cpu/exactset.o \
	src/cpu/filter.o \
	src/cpu/gv_cpu.o \
	src/cpu/half.o \
	src/cpu/items.o \
	src/cpu/keep.o \
	src/cpu/kmeans.o \
	src/cpu/kmeansset.o \
	src/cpu/level.o \
	src/cpu/nearest.o \
	src/cpu/nearlists.o \
	src/cpu/place.o \
	src/cpu/pq.o \
	src/cpu/quantiles.o \
	src/cpu/refine.o \
	src/cpu/sampleselect.o \
	src/cpu/scan.o \
	src/cpu/screen.o \
	src/cpu/select.o \
	src/cpu/selectset.o \
	src/cpu/sets.o \
	src/cpu/splitters.o \
	src/cpu/table.o \
	src/cpu/transform.o

MIRROR_OBJS = \
	src/cpu/builder.o \
	src/cpu/hits.o \
	src/cpu/mirror.o \
	src/cpu/records.o \
	src/cpu/search.o \
	src/engine/gv_builder.o \
	src/engine/gv_mirror.o

# in the module and in gpuvecd
PROTOCOL_OBJS = src/server/gv_protocol.o

SERVER_OBJS = \
	src/server/builder.o \
	src/server/builds.o \
	src/server/connection.o \
	src/server/gpuvecd.o \
	src/server/loader.o \
	src/server/log.o \
	src/server/loop.o \
	src/server/mirrors.o \
	src/server/pieces.o \
	src/server/readback.o \
	src/server/room.o \
	src/server/session.o \
	src/server/setwork.o \
	src/server/shared.o \
	src/server/trial.o \
	src/server/turns.o \
	src/server/watch.o

GPUVECD_OBJS = $(ENGINE_OBJS) $(CPU_OBJS) $(MIRROR_OBJS) $(PROTOCOL_OBJS) \
	$(SERVER_OBJS)

OBJS = src/gpuvec.o $(AM_OBJS) $(SET_OBJS) $(PAGE_OBJS) $(CLIENT_OBJS) \
	$(ENGINE_OBJS) $(CPU_OBJS) $(PROTOCOL_OBJS)

# gpuvecd has the CUDA engine where there is nvcc (make NVCC= leaves it out).
# It is installed as a script only because PGXS, with a module, knows no other
# executables.
SCRIPTS_built = gpuvecd
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
	$(wildcard /usr/local/cuda/bin/nvcc))
# what for: the cards of this machine or, without one, all that are current;
# 90a is 90 with what no other card has (gpu/hopper*.cu), 90 leaves that out
ifneq ($(strip $(NVCC)),)
GPU_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap \
	--format=csv,noheader 2>/dev/null | tr -d '. ' | sort -un | \
	sed 's/^90$$/90a/'),\
	80 86 89 90a 100 120)
endif
NVCC_FLAGS ?= -std=c++17 -O3 -fmad=false --threads 0
# what the kernels' library calls need, such as -lcublas
CUDA_LIBS ?=
CUDA_OBJS := $(if $(strip $(NVCC)),$(patsubst %.cu,%.o,$(wildcard gpu/*.cu)))

# -Wno-unused-parameter: PostgreSQL and the engine fix their callbacks' shapes.
PG_CFLAGS = -std=gnu99 -Wall -Wextra -Wno-unused-parameter
PG_CPPFLAGS = -I$(srcdir)/src
SHLIB_LINK = -lm

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
	$(wildcard gpu/*.o gpu/*.d)

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

# The kernels: optimised, and with every rounding where the source says.
$(CPU_OBJS) $(MIRROR_OBJS): override CFLAGS += -O3 -ffp-contract=off

release := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" \
	$(srcdir)/gpuvec.control)
# compiled again when there is CUDA that was not there before
src/server/gpuvecd.o: $(CUDA_OBJS)
src/server/gpuvecd.o: override CPPFLAGS += -DGPUVEC_RELEASE='"$(release)"' \
	$(if $(CUDA_OBJS),-DGV_HAVE_CUDA)

# Code for each architecture, and of the newest what later cards can compile,
# unless that is 90a, which is for itself.
newest := $(filter-out %a,$(lastword $(GPU_ARCHS)))
gencode := $(foreach arch,$(GPU_ARCHS),\
	-gencode arch=compute_$(arch),code=sm_$(arch)) \
	$(foreach arch,$(newest),-gencode arch=compute_$(arch),code=compute_$(arch))

gpu/%.o: gpu/%.cu
	$(NVCC) $(NVCC_FLAGS) $(gencode) -I$(srcdir)/src -MMD -MP -c $< -o $@

gpuvecd: $(GPUVECD_OBJS) $(CUDA_OBJS)
ifneq ($(CUDA_OBJS),)
	$(NVCC) -cudart static $(addprefix -Xcompiler ,$(COPT)) $^ -o $@ \
		$(CUDA_LIBS) -lpthread -lm
else
	@echo "gpuvecd: without CUDA, it has the CPU engine only"
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -o $@ -lpthread -lm
endif

# What a variable holds, for test/run.sh.
print-%:
	@echo $($*)

else
all install installcheck uninstall:
	@echo "no PostgreSQL development files: test/setup.sh installs them;" \
		"PG_CONFIG=/path/to/pg_config names others" >&2; exit 1
endif

# Each of these works on a bare Debian or Ubuntu: see the script's header.
.PHONY: demo test test-long bench
demo:
	@test/demo/run.sh
test:
	@test/run.sh
test-long:
	@test/run.sh --long
bench:
	@test/bench/run.sh
demo test test-long bench: export PG_CONFIG := $(if \
	$(filter-out undefined default file,$(origin PG_CONFIG)),$(PG_CONFIG))
