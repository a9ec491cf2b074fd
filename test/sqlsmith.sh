#!/bin/bash
# Random statements of Debian's sqlsmith on tables, views and indexes of all kinds.
#
# usage: test/sqlsmith.sh [--installed PG_CONFIG]
#
# Runs on a private copy of the PostgreSQL that PG_CONFIG names, best one with
# assertions (test/servers.sh 18 --cassert), with this tree's gpuvec, the test build,
# which looks at each plan; --installed: on that of another script's copy
# (test/run.sh).  For SQLSMITH_SECONDS (60) one sqlsmith
# runs with the planner's settings, and one with settings for which indexes and
# workers are cheap.  SEED is theirs.  The relations are those of statements.pl
# (test/t/GpuvecTwins.pm), and views over them, since sqlsmith by itself orders
# by nothing.  A crash, a failed assertion and an internal error (XX000, XX001,
# XX002) that our code raises are failures.  Ends with 'sqlsmith: N passed, N failed';
# status 2 and why, if it cannot run.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

SECONDS_EACH=${SQLSMITH_SECONDS:-60}
SEED=${SEED:-1}
# statements where the index's order is wanted, one beside another
CHEAP='-c enable_seqscan=off -c parallel_setup_cost=0 -c parallel_tuple_cost=0
	-c min_parallel_table_scan_size=0 -c min_parallel_index_scan_size=0
	-c geqo_threshold=3'

# Views that order by distance in the ways that plans may use, and others.
views() {
	local name op type query
	while read -r name op type; do
		query="(SELECT v::$type FROM public.asked WHERE id = 2)"
		cat <<-END
			CREATE VIEW ${name}_near AS SELECT *, v $op $query AS d
			FROM $name ORDER BY v $op $query LIMIT 20;
			CREATE VIEW ${name}_tenant AS SELECT id, tenant, v $op $query AS d
			FROM $name WHERE tenant = 7 ORDER BY v $op $query LIMIT 20;
			CREATE VIEW ${name}_all AS SELECT id, cat, v, v $op $query AS d
			FROM $name ORDER BY v $op $query;
			CREATE VIEW ${name}_within AS SELECT id, cat, v
			FROM $name WHERE v $op $query < 5;
			CREATE VIEW ${name}_beside AS SELECT q.id AS asked, s.*
			FROM public.asked AS q, LATERAL (SELECT t.id, t.cat, t.v $op q.v::$type AS d
				FROM $name AS t WHERE t.cat <> q.a ORDER BY t.v $op q.v::$type LIMIT 5) AS s;
			CREATE VIEW ${name}_rank AS SELECT id, count(*) OVER () AS n,
				row_number() OVER (ORDER BY v $op $query) AS place FROM $name LIMIT 30;
		END
	done
	echo 'GRANT ALL ON ALL TABLES IN SCHEMA ours TO smith;'
}

prepare() {
	gv_psql -c 'CREATE EXTENSION gpuvec'
	local pgvector=0
	if [ -e "$("$GV_PG_CONFIG" --sharedir)/extension/vector.control" ]; then
		gv_psql -c 'CREATE EXTENSION gpuvec_pgvector CASCADE'
		pgvector=1
	fi
	perl -I "$GV_ROOT/test/t" -MGpuvecRows -MGpuvecTwins \
		-e "print \$POINT, twins_sql(1500, $pgvector)" | gv_psql
	{
		echo 'SET search_path = ours, public;'
		echo 'CREATE ROLE smith LOGIN; GRANT USAGE ON SCHEMA ours TO smith;'
		echo 'ALTER ROLE smith SET search_path = ours, public;'
		echo 'GRANT SELECT ON ALL TABLES IN SCHEMA public TO smith;'
		perl -I "$GV_ROOT/test/t" -MGpuvecTwins -e "
			print join(' ', \$_->{name}, \$_->{op}, \$_->{type} // 'real[]'), qq(\\n)
				for grep { !\$_->{column} } twins($pgvector)" | views
	} | gv_psql
}

# One sqlsmith until the time is over; begun again with the next seed where it ends
# before, as after a crash.  $1 = seed, $2 = settings, $3 = a file
smith() {
	local seed=$1 end=$((SECONDS + SECONDS_EACH)) left
	while left=$((end - SECONDS)) && [ $left -gt 0 ]; do
		PGOPTIONS=$2 timeout $left sqlsmith --seed="$seed" --exclude-catalog \
			--verbose --target="host=$PGHOST port=$PGPORT dbname=$PGDATABASE user=smith" \
			>>"$3" 2>&1 || :
		seed=$((seed + 100))
		sleep 1
	done
}

# Internal errors in the log that a source file of ours raises: with the line
# before, which is the error itself.
internal_errors() {
	local sources
	sources=$(find "$GV_ROOT/src" -name '*.c' -printf '%f\n' | paste -sd'|')
	grep -A6 -E 'ERROR:  XX00[0-9]: ' "$1" |
		grep -E -B6 "LOCATION:  .*, (${sources//./\\.}):" || :
}

unlogged() { ! grep -nE -A3 "$@" | head -60 | grep .; }

install() {
	if [ "${1:-}" = --installed ]; then
		GV_PG_CONFIG=$2
		GV_BIN=$("$2" --bindir)
		return
	fi
	[ $# = 0 ] || gv_die "usage: test/sqlsmith.sh [--installed PG_CONFIG]"
	"$GV_ROOT/test/setup.sh" test
	gv_copy_server "$(gv_find_pg_config)"
	gv_copy_source src
	gv_build src TEST_BUILD=1
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" || gv_note "without pgvector"
}

main() {
	local log pids=() out
	command -v sqlsmith >/dev/null || {
		echo 'sqlsmith: the package sqlsmith is not installed'
		exit 2
	}
	gv_begin
	install "$@"
	gv_start smith 'max_worker_processes = 16' 'log_error_verbosity = verbose' \
		'jit = off' 'autovacuum = off' 'log_min_messages = error'
	log=$GV_TMP/smith/server.log
	prepare
	out=$GV_TMP/smith.out
	smith "$SEED" '' "$out.1" &
	pids+=($!)
	smith "$((SEED + 1))" "$CHEAP" "$out.2" &
	pids+=($!)
	wait "${pids[@]}"
	gv_check 'no crash, no failed assertion' \
		unlogged 'PANIC:|TRAP:|terminated by signal|runtime error:' "$log"
	internal_errors "$log" >"$out.internal"
	gv_check 'no internal error of ours' unlogged . "$out.internal"
	# or nothing was asked
	gv_check 'statements succeeded' grep -qE '^[eCSt.]*[.]' "$out.1" "$out.2"
	gv_note "$(grep -hE '^[eCSt.]+$' "$out".? | tr -cd . | wc -c) statements succeeded," \
		"$(grep -hE '^[eCSt.]+$' "$out".? | tr -cd eCSt | wc -c) others"
	gv_stop smith
	echo "sqlsmith: $GV_PASSED passed, $GV_FAILED failed"
	[ $GV_FAILED = 0 ]
}

main "$@"
