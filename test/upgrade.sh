#!/bin/bash
# pg_upgrade from each version of PostgreSQL to the next, with indexes of all
# kinds.
#
# usage: test/upgrade.sh [PG_CONFIG...]   (default: all under /usr/lib/postgresql)
#
# A cluster of the oldest version, with gpuvec preloaded, gets tables with
# indexes (test/upgrade/tables.sql, keys.sql).  pg_upgrade takes it to the next
# version, in turn by copies and by hard links.  There every index has to
# answer as before (answers.sql), to be sound and exact (problems.sql), to take
# rows and to stay so (changes.sql).  In the end all are rebuilt, and dumped and
# restored.  Pages have checksums; `pg_checksums --check` ends each step.
#
# Prints 'ok' or 'not ok' and what was tried, a line each, then 'upgrade: N
# passed, M failed'.  Status 2: there are not two versions.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

SQL=$GV_ROOT/test/upgrade

# One pg_config for each version, from old to new.
versions() {
	local config
	[ $# != 0 ] || set -- /usr/lib/postgresql/*/bin/pg_config
	for config in "$@"; do
		if gv_is_server "$config"; then
			echo "$(gv_major "$config") $(command -v "$config")"
		fi
	done | sort -snu -k1,1
}

# The server of $1, with gpuvec and pgvector, into GV_BIN.
install_server() {
	gv_copy_server "$1"
	rm -rf "$GV_TMP/src"
	gv_copy_source src
	gv_build src TEST_BUILD=1
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" || gv_die "needs pgvector"
}

server() { gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/$1" -w -s "${@:2}"; }

# A cluster for GV_BIN, started.  Small buffers, so that pages are read.
make_cluster() {
	GV_INITDB=--data-checksums gv_start "$1" \
		"shared_preload_libraries = 'gpuvec'" 'gpuvec.server = cpu' \
		'autovacuum = off' 'jit = off' 'max_prepared_transactions = 2' \
		"shared_buffers = '4MB'" 'client_min_messages = warning'
}

# The statements of file $2, in database $1.
run() { gv_psql -A -t -d "$1" -f "$SQL/$2.sql"; }

# Prints nothing, and neither a warning.
is_silent() {
	"$@" >"$GV_TMP/said" 2>&1 && [ ! -s "$GV_TMP/said" ] ||
		{ cat "$GV_TMP/said" && return 1; }
}

keep_answers() {
	run today answers >"$GV_TMP/answers"
	[ "$(grep -c '[0-9] [0-9]' "$GV_TMP/answers")" -gt 20 ] ||
		gv_die "no answers" "$(cat "$GV_TMP/answers")"
}

same_answers() { run today answers | diff "$GV_TMP/answers" -; }

# $1 = when, $2 = another database than usual
check_all() {
	gv_check "$1: sound and exact" is_silent run "${2:-today}" problems
}

# The cluster of the first version.
begin() {
	make_cluster "data$1"
	gv_psql -c 'CREATE DATABASE today'
	gv_psql -d today -c 'CREATE EXTENSION gpuvec_pgvector CASCADE'
	run today tables
	run today keys
	check_all "$1"
	keep_answers
}

# From 17.12 on, and its sisters, columns have versions among their options.
# Those of a major version that came out before do not know them, and pg_upgrade
# to one fails, whatever is in the cluster: they are taken out.
forget_attver() {
	local db
	if grep -q pg_attver "$1/postgres" && ! grep -q pg_attver "$GV_BIN/postgres"
	then
		for db in template1 postgres today; do
			gv_psql -d "$db" -c "UPDATE pg_attribute SET attoptions = NULL
				WHERE attoptions::text LIKE '%pg_attver%'"
		done
	fi
}

# pg_upgrade with these arguments; what failed is in its logs.
run_pg_upgrade() {
	gv_as env -C "$GV_TMP/tmp" "$GV_BIN/pg_upgrade" "$@" && return
	find "$GV_TMP" -path '*/pg_upgrade_output.d/*.log' -print0 |
		xargs -0 grep -B2 -A2 -E 'error:|ERROR:|FATAL:'
	return 1
}

# From cluster $1 (a version) to one of GV_BIN's; $3 = its version, $2 = the
# folder of the old programs, $4 = --copy or --link
upgrade() {
	local from=$1 oldbin=$2 to=$3 mode=$4
	forget_attver "$oldbin"
	gv_stop "data$from"
	make_cluster "data$to"
	gv_stop "data$to"
	gv_check "$from to $to: pg_upgrade $mode" run_pg_upgrade -U postgres \
		-b "$oldbin" -B "$GV_BIN" -d "$GV_TMP/data$from" \
		-D "$GV_TMP/data$to" --socketdir="$GV_TMP/sock" "$mode"
	if [ $GV_FAILED != 0 ]; then
		end
	fi
	rm -rf "$GV_TMP/data$from"
	server "data$to" -l "$GV_TMP/data$to/server.log" start
	gv_check "$from to $to: answers are those of before" same_answers
	check_all "$from to $to"
}

# Rows come and go in the new cluster.
change() {
	run today changes
	check_all "$1, changed"
	gv_stop "data$1"
	gv_check "$1: pg_checksums" gv_as "$GV_BIN/pg_checksums" --check \
		-D "$GV_TMP/data$1"
	server "data$1" -l "$GV_TMP/data$1/server.log" start
}

# All of it once more from a dump, and built again.
finish() {
	gv_psql -c 'CREATE DATABASE restored'
	gv_as "$GV_BIN/pg_dump" -d today -f "$GV_TMP/tmp/today.sql"
	gv_check "$1: restored from a dump" is_silent \
		gv_psql -o /dev/null -d restored -f "$GV_TMP/tmp/today.sql"
	gv_check "$1: REINDEX" gv_psql -d today -c 'REINDEX DATABASE today'
	check_all "$1, rebuilt"
	check_all "$1, restored" restored
}

end() {
	echo "upgrade: $GV_PASSED passed, $GV_FAILED failed"
	[ $GV_FAILED = 0 ] || exit 1
	exit 0
}

has_no_crash() {
	! grep -E 'PANIC|TRAP|terminated by signal' "$GV_TMP/data$1/server.log"
}

main() {
	local list major config oldbin='' from='' mode=--copy
	mapfile -t list < <(versions "$@")
	if [ ${#list[@]} -lt 2 ]; then
		echo "upgrade: needs two versions of PostgreSQL, there is ${list[*]:-none}"
		exit 2
	fi
	"$GV_ROOT/test/setup.sh" demo
	gv_begin
	for config in "${list[@]}"; do
		major=${config%% *} config=${config#* }
		install_server "$config"
		if [ -z "$from" ]; then
			begin "$major"
		else
			upgrade "$from" "$oldbin" "$major" $mode
			change "$major"
			keep_answers
			[ $mode = --copy ] && mode=--link || mode=--copy
		fi
		from=$major oldbin=$GV_BIN
	done
	finish "$from"
	gv_stop "data$from"
	gv_check "$from: no crash in its log" has_no_crash "$from"
	end
}

main "$@"
