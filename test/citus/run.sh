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
# shellcheck source=test/hosts/servers.sh
. "$GV_ROOT/test/hosts/servers.sh"

SERVERS=3						# workers; server 0 is the coordinator
PORT=54330						# server N listens at PORT + N

start_server() {
	PGPORT=$((PORT + $1)) gv_start "data$1" "listen_addresses = '127.0.0.1'" \
		"shared_preload_libraries = 'citus'" 'wal_level = logical' \
		'max_prepared_transactions = 100' 'max_worker_processes = 20' \
		'citus.enable_statistics_collection = off' 'autovacuum = off'
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
	local i
	gv_begin
	install "$@"
	for ((i = 0; i <= SERVERS; i++)); do
		start_server "$i" || gv_die "server $i does not start"
	done
	ask_servers "$GV_ROOT/test/citus/citus.pl"
}

if [ "${1:-}" = --control ]; then
	# shellcheck source=/dev/null
	. "$2/control"
	control "$3" "$4"
else
	main "$@"
fi
