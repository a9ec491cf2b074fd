#!/bin/bash
# The benchmark (`make bench`): gpuivfpq beside pgvector's hnsw and ivfflat and
# beside exact search, in one run.
#
# usage: test/bench/run.sh [DATA] [OPTION...]
#        make bench BENCH='DATA OPTION...'
#
# DATA is what test/bench/data.py makes (sentences:100000 when left out), or
# glove:ROWS; options are those of test/bench/compare.py (--help).  Builds
# gpuvec, and pgvector with its authors' flags (-march=native, unless
# PGVECTOR_OPTFLAGS says otherwise), into a private copy of PostgreSQL, starts
# a throw-away cluster, and writes a table, a JSON file and a plot to
# build/bench/.  Data sets are kept in build/data, or where GPUVEC_DATA says.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

compare() {
	python3 "$GV_ROOT/test/bench/compare.py" "$@"
}

# A quarter of the machine's memory, so that everything fits; in MB.
shared_buffers() {
	awk '/^MemTotal:/ { print int($2 / 4096) }' /proc/meminfo
}

main() {
	if [ $# = 0 ]; then
		read -ra options <<<"${BENCH:-}"
		set -- ${options[@]+"${options[@]}"}
	fi
	"$GV_ROOT/test/setup.sh" bench
	compare --prepare "$@"

	gv_begin
	gv_note "building gpuvec and pgvector, starting a cluster in $GV_TMP"
	gv_copy_server "$(gv_find_pg_config)"
	gv_copy_source src
	gv_build src
	export PGVECTOR_OPTFLAGS=${PGVECTOR_OPTFLAGS--march=native}
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" ||
		gv_die "bench: there is nothing to compare with"
	gv_start data "shared_buffers = $(shared_buffers)MB" 'fsync = on' \
		'max_wal_size = 16GB' 'checkpoint_timeout = 1h' \
		'autovacuum = off' 'jit = off' \
		'max_parallel_workers_per_gather = 0'
	export PATH=$GV_BIN:$PATH
	GPUVEC_COMMIT=$(git -C "$GV_ROOT" rev-parse --short HEAD 2>/dev/null ||
		:)
	export GPUVEC_COMMIT
	compare "$@"
}

main "$@"
