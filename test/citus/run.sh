#!/bin/bash
# gpuvec below Citus (sql/docs/scaling.md, "Citus"): a coordinator and three workers.
#
# usage: test/citus/run.sh [--installed PG_CONFIG]
#
# Runs on a private copy of the PostgreSQL that PG_CONFIG names.  Citus is built from
# the folder CITUS_SRC where that PostgreSQL has none (build.sh); without either all
# is skipped, with status 2.  --installed: on that PostgreSQL, which has gpuvec,
# pgvector and Citus.  It is not part of make test.  ROWS says how many rows there
# are (20,000).  citus.pl asks.  Ends with 'N passed, N failed'.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

WORKERS=3
PORT=54330						# the coordinator's; those of workers follow

start_server() {
	PGPORT=$((PORT + $1)) gv_start "data$1" "listen_addresses = '127.0.0.1'" \
		"shared_preload_libraries = 'citus'" 'wal_level = logical' \
		'max_prepared_transactions = 100' 'max_worker_processes = 20' \
		'citus.enable_statistics_collection = off' 'autovacuum = off'
}

# Server $1: stop (at once), start.  For citus.pl.
control() {
	local data=data$1
	case $2 in
	stop) gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/$data" -w -s -m immediate stop ;;
	start) gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/$data" -w -s \
		-l "$GV_TMP/$data/server.log" start ;;
	esac
}

install() {
	local config
	if [ "${1:-}" = --installed ]; then
		GV_BIN=$("$2" --bindir)
		return
	fi
	[ $# = 0 ] || gv_die "usage: test/citus/run.sh [--installed PG_CONFIG]"
	"$GV_ROOT/test/setup.sh" test
	config=$(gv_find_pg_config)
	gv_copy_server "$config"
	"$GV_ROOT/test/citus/build.sh" "$GV_PG_CONFIG" || exit
	gv_copy_source src
	gv_build src
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" ||
		gv_die "the statements of sql/docs/scaling.md need pgvector"
}

main() {
	local i out passed failed status=0
	gv_begin
	install "$@"
	out=$GV_TMP/out
	for ((i = 0; i <= WORKERS; i++)); do
		start_server "$i" || gv_die "server $i does not start"
	done
	declare -p GV_TMP GV_USER GV_BIN >"$GV_TMP/control"
	HOSTS=$GV_TMP HOSTS_CONTROL="$GV_ROOT/test/citus/run.sh --control $GV_TMP" \
		HOSTS_PORT=$PORT HOSTS_SERVERS=$WORKERS PATH=$GV_BIN:$PATH \
		perl -I "$GV_ROOT/test/t" "$GV_ROOT/test/citus/citus.pl" \
		>"$out" 2>&1 || status=$?
	grep -v '^ok ' "$out" || :
	for ((i = 0; i <= WORKERS; i++)); do
		! grep -E 'PANIC:|TRAP:|terminated by signal' \
			"$GV_TMP/data$i/server.log" || status=1
	done
	passed=$(grep -c '^ok ' "$out") || :
	failed=$(grep -c '^not ok ' "$out") || :
	if [ $status != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ] && [ "$passed" != 0 ]
}

if [ "${1:-}" = --control ]; then
	# shellcheck source=/dev/null
	. "$2/control"
	control "$3" "$4"
else
	main "$@"
fi
