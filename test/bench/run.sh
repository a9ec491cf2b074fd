#!/bin/bash
# The benchmarks (`make bench`).
#
# usage: test/bench/run.sh [PROGRAM] [DATA] [OPTION...]
#        make bench BENCH='PROGRAM DATA OPTION...'
#
# PROGRAM is one of these, in a throw-away cluster:
#   compare   gpuivfpq beside pgvector's hnsw and ivfflat and beside exact
#             search (when left out)
#   ivfadc    how often the nearest row is among the first that codes find
#   inserts   COPY and INSERT into indexed tables, beside the same
#   growth    an index that grew a hundredfold beside a fresh one
#   where     searches under conditions, beside hnsw's iterative scans; --keys:
#             conditions that keys of the index answer
#   vectordbbench  ... by VectorDBBench's program
#   targets   whether recall is what gpuvec.recall asks for; takes several DATA
#   depths    ... at every depth, by LIMIT, in generic plans, by cursors and below
#             joins, under conditions
#   foreign   whether queries unlike the rows get it, too; takes no DATA but SETs
#             of its own
#   commits   two trees of gpuvec, one beside the other: BEFORE AFTER DATA
#   many      gpuvec_search beside a LATERAL join of index scans
#   large     very many rows, disk included: builds and their memory, COPY,
#             VACUUM, verify, queries warm and cold
#   vast      a hundred million rows: ROWS,... DIMS SEED (no DATA; vast.py)
#   paths     smoothest paths through made graphs of KEYS,... (no DATA; paths.py)
#   setsql    functions over sets of rows, by a card and in the session; takes
#             no DATA (test/gpu/run.sh sets)
# or, on a database of yours, with the indexes that a column has:
#   table     DSN TABLE COLUMN [QUERIES]: recall against queries/s; changes
#             nothing, builds nothing
# or, without a server and DATA, over numbers of its own:
#   sets      exact search and k-means of one core, beside faiss-cpu
#   select, exact, kmeans, graph
#             on a card, beside torch and, with --peers FOLDER, RAFT, cuVS and
#             Faiss (test/bench/packpeers.py); PROGRAMcard.py
# each with options of its own (test/bench/PROGRAM.py --help).
#
# DATA is what test/bench/data.py makes (sentences:100000 when left out), or
# glove:ROWS.  Builds gpuvec and, but for programs that measure it alone, pgvector
# with its authors' flags (-march=native, unless PGVECTOR_OPTFLAGS says otherwise)
# into a private copy of PostgreSQL, starts a cluster, and writes tables, JSON
# files and plots to build/bench/.  Data sets are kept in build/data, or where
# GPUVEC_DATA says.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

BENCH_DIR=$GV_ROOT/test/bench
program=compare

measure() {
	local file=$BENCH_DIR/$program.py
	[ -e "$file" ] || file=$BENCH_DIR/$program/$program.py
	python3 "$file" "$@"
}

# A quarter of the machine's memory, so that everything fits; in MB.
shared_buffers() {
	awk '/^MemTotal:/ { print int($2 / 4096) }' /proc/meminfo
}

main() {
	if [ $# = 0 ] && [ -n "${BENCH:-}" ]; then
		# words, some of them perhaps in quotes
		mapfile -td '' options < <(xargs printf '%s\0' <<<"$BENCH")
		set -- "${options[@]}"
	fi
	case ${1:-} in
	select | exact | kmeans | graph)
		command -v nvidia-smi >/dev/null || gv_die "bench: $1 needs a card"
		exec python3 "$BENCH_DIR/$1card.py" "${@:2}"
		;;
	sets | table | commits)
		exec python3 "$BENCH_DIR/$1.py" "${@:2}"
		;;
	setsql)
		exec "$GV_ROOT/test/gpu/run.sh" sets -- "${@:2}"
		;;
	compare | growth | inserts | ivfadc | targets | depths | where | vectordbbench | foreign | many | large | paths | vast)
		program=$1
		shift
		;;
	esac
	"$GV_ROOT/test/setup.sh" bench
	case $program in vast | paths) ;; *) measure --prepare "$@" ;; esac

	gv_begin
	gv_note "building, starting a cluster in $GV_TMP"
	gv_copy_server "$(gv_find_pg_config)"
	gv_copy_source src
	gv_build src
	case $program in
	growth | ivfadc | targets | foreign | many | paths) ;;
	*)
		export PGVECTOR_OPTFLAGS=${PGVECTOR_OPTFLAGS--march=native}
		"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" ||
			gv_die "bench: there is nothing to compare with"
		;;
	esac
	gv_start data "shared_buffers = $(shared_buffers)MB" 'fsync = on' \
		'max_wal_size = 16GB' 'checkpoint_timeout = 1h' \
		'autovacuum = off' 'jit = off' \
		'max_parallel_workers_per_gather = 0'
	export PATH=$GV_BIN:$PATH
	GPUVEC_COMMIT=$(git -C "$GV_ROOT" rev-parse --short HEAD 2>/dev/null ||
		:)
	export GPUVEC_COMMIT
	measure "$@"
}

main "$@"
