#!/bin/bash
# A gpuvecd that PostgreSQL does not start, as in containers: in namespaces of its
# own, as another user, and with strangers beside it.
#
# usage: test/external.sh [--here]
#
# As root.  --here: with the PostgreSQL that GV_PG_CONFIG names, a private copy with
# gpuvec, the test build, in it, in the private folder GV_TMP (test/run.sh); else it makes these.
#
# gpuvecd has a PID, mount, IPC and network namespace of its own, where the data
# directories are hidden: it shares one folder with PostgreSQL.  Tests that one
# user can run without root, of a second cluster, too, are in test/t/external.pl,
# those that need no PostgreSQL in test/unit/server/check_folders.c.
#
# Prints 'ok' or 'not ok' and what was tried, a line each, then 'external: N
# passed, M failed'.  Status 2: this cannot be tried here.
set -euo pipefail
here=${1:-}
tmp=${GV_TMP:-} bin=${GV_BIN:-} user=${GV_USER:-}
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

# who runs gpuvecd, and one who has nothing to do with it
RUNNER=47111 STRANGER=47112
PORT=54331 RUN='' OWNER='' PIDS=()

# ---- what there is

ask() { gv_psql -At -h "$GV_TMP/sock" -p "$PORT" "$@"; }

start_cluster() {
	PGPORT=$PORT gv_start external-a \
		"shared_preload_libraries = 'gpuvec'" "gpuvec.server = external" \
		"gpuvec.engine = 'gpu'" "gpuvec.request_timeout = '20s'" \
		"autovacuum = off" "gpuvec.server_directory = '$RUN/a'" \
		"gpuvec.server_owner = '$RUNNER'"
}

# Waits until query $1 says $2.
soon() {
	local n got=
	for ((n = 0; n < 300; n++)); do
		got=$(ask -c "$1" 2>&1) || :
		[ "$got" != "$2" ] || return 0
		sleep .1
	done
	echo "$1: $got, not $2"
	ask -c "SELECT state, advice FROM gpuvec_doctor() WHERE subject = 'gpuvecd'"
	return 1
}

is_up() { soon "SELECT state FROM gpuvec_stat" up; }
is_down() { soon "SELECT state FROM gpuvec_stat" down; }

# The doctor says why gpuvecd is not to be reached: $1, a pattern.
is_down_because() {
	is_down
	local n got=
	for ((n = 0; n < 100; n++)); do
		got=$(ask -c "SELECT state FROM gpuvec_doctor() WHERE subject = 'gpuvecd'")
		[[ ! $got =~ $1 ]] || return 0
		sleep .1
	done
	echo "$got"
	return 1
}

# gpuvecd as user $1, its log in $2, in namespaces of its own; the rest: options.
# It is their process 1, and sees nothing of the data directories.  Sets PID, as
# it is called here, and OUTER, which waits for it.
start_gpuvecd() {
	local uid=$1 log=$GV_TMP/external-$2.log n
	shift 2
	: >>"$log"
	# shellcheck disable=SC2016
	unshare --pid --mount --ipc --net --fork --mount-proc --kill-child \
		bash -c 'for dir in "$0"/external-*/; do mount -t tmpfs none "$dir"; done
			exec setpriv --reuid="$1" --regid="$1" --clear-groups -- "$2" \
				--engine cpu "${@:3}"' \
		"$GV_TMP" "$uid" "$GV_BIN/gpuvecd" "$@" 2>>"$log" >&2 </dev/null &
	OUTER=$!
	for ((n = 0; n < 100; n++)); do
		PID=$(cat "/proc/$OUTER/task/$OUTER/children" 2>/dev/null) || :
		PID=${PID%% *}
		if [ -n "$PID" ] && [ "$(cat "/proc/$PID/comm")" = gpuvecd ]; then
			PIDS+=("$PID")
			return 0
		fi
		sleep .1
	done
	cat "$log"
	return 1
}

# It ends at signal $1, within 20 s, with status $2.
ends() {
	local status=0 n
	kill -"$1" "$PID"
	for ((n = 0; n < 200; n++)); do
		[ -e "/proc/$PID" ] || break
		sleep .1
	done
	kill -KILL "$PID" 2>/dev/null || :
	wait "$OUTER" || status=$?
	[ $status = "$2" ] || { echo "status $status" && return 1; }
}

end() {
	local status=$? pid
	for pid in "${PIDS[@]}"; do kill -TERM "$pid" 2>/dev/null || :; done
	sleep .5
	for pid in "${PIDS[@]}"; do kill -KILL "$pid" 2>/dev/null || :; done
	wait 2>/dev/null || :
	if [ -n "$here" ]; then
		[ ! -e "$GV_TMP/external-a/postmaster.pid" ] ||
			gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/external-a" -s -m immediate stop || :
		exit $status
	fi
	(exit $status)
	gv_end
}

# ---- what is tried

TABLE="CREATE EXTENSION gpuvec;
CREATE TABLE t (id int PRIMARY KEY, e real[]);
INSERT INTO t SELECT g, (SELECT array_agg(sin(g * i * .37)::real) FROM generate_series(1, 64) AS i)
	FROM generate_series(1, 5000) AS g;
CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, refine = sq8)"
# 10 MB of vectors, in few rows
WIDE="CREATE TABLE wide AS SELECT g AS id, array_fill(g::real, '{2000}') AS e FROM generate_series(1, 1300) AS g"
ANSWERS="SELECT array_agg(a) FROM generate_series(1, 20) AS q, LATERAL (SELECT id FROM t ORDER BY e <->
	(SELECT e FROM t WHERE id = q * 31) LIMIT 5) AS a"

# Answers are those of sessions, and gpuvecd gave $1 of them.
is_right() {
	local before got
	before=$(ask -c 'SELECT searches_by_server FROM gpuvec_stat')
	got=$(ask -c "SET enable_seqscan = off" -c "$ANSWERS")
	[ "$got" = "$RIGHT" ] || { echo "$got" && return 1; }
	got=$(ask -c "SELECT searches_by_server - $before FROM gpuvec_stat")
	[ "$got" = "$1" ] || { echo "$got by gpuvecd" && return 1; }
}

# The statement has taken gpuvecd's work, and little of it through the socket: $2
# bytes at most.
by_memory() {
	local before sent
	before=$(ask -c 'SELECT bytes_sent FROM gpuvec_stat')
	ask -c "$1" >"$GV_TMP/external.said" 2>&1 || { cat "$GV_TMP/external.said" && return 1; }
	! grep -E 'NOTICE|WARNING' "$GV_TMP/external.said" || return 1
	sent=$(ask -c "SELECT bytes_sent - $before FROM gpuvec_stat")
	[ "$sent" -lt "$2" ] || { echo "$sent bytes through the socket" && return 1; }
}

try_namespaces() {
	local dir=$RUN/a sets file serving outer
	gv_check "down: there is no folder" is_down_because 'could not access the socket directory: No such file'
	gv_check "without gpuvecd" is_right 0
	gv_check "gpuvecd starts, another user's, in namespaces of its own" \
		start_gpuvecd $RUNNER a --socket "$dir" --owner "$OWNER" --memory 64
	gv_check "up" is_up
	gv_check "its folder and socket are open to be passed through" \
		test "$(stat -c %a:%u "$dir" "$dir"/*.sock | tr '\n' ' ')" = "711:$RUNNER 666:$RUNNER "
	gv_check "it is called 1 where it is" soon "SELECT pid FROM gpuvec_stat" 1
	gv_check "the data directory is hidden from it" \
		test -z "$(ls -A "/proc/$PID/root$GV_TMP/external-a")"
	gv_check "it has its own network" \
		test "$(readlink "/proc/$PID/ns/net")" != "$(readlink /proc/self/ns/net)"
	gv_check "a mirror comes by shared memory" by_memory "SELECT gpuvec_prewarm('t_e')" 50000
	gv_check "... of many times as many bytes" \
		test "$(ask -c 'SELECT bytes > 500000 FROM gpuvec_mirrors')" = t
	gv_check "searches" is_right 20
	for file in gpuvecd@.service compose.yaml pod.yaml; do
		gv_check "as in $file" is_as_in $file
	done
	gv_check "a build" by_memory "REINDEX INDEX t_e" 10000000
	sets=$(ask -c 'SELECT jobs_by_server FROM gpuvec_stat')
	gv_check "work on a set, by shared memory" by_memory \
		"SELECT count(*) FROM gpuvec_exact_search('wide', 'e', (SELECT array_agg(e ORDER BY id) FROM wide WHERE id <= 10), 5)" 500000
	gv_check "... was gpuvecd's" \
		test "$(ask -c 'SELECT jobs_by_server FROM gpuvec_stat')" = $((sets + 1))
	ask -c "SELECT gpuvec_prewarm('t_e')" >/dev/null
	gv_check "process 1 of its namespace ends at SIGTERM" ends TERM 0
	gv_check "down: it has ended" is_down_because 'no socket in the socket directory'
	gv_check "it starts again" start_gpuvecd $RUNNER a --socket "$dir" --owner "$OWNER" --memory 64
	gv_check "up again" is_up
	gv_check "... its mirror, too" soon "SELECT state FROM gpuvec_mirrors" ready
	gv_check "searches again" is_right 20
	serving=$PID outer=$OUTER
	gv_check "another one waits for its end" start_gpuvecd $RUNNER a --socket "$dir" --owner "$OWNER"
	gv_check "... and ends at SIGTERM, process 1 though it is" ends TERM 0
	PID=$serving OUTER=$outer
	gv_check "... which leaves the first one alone" is_right 20
}

try_strangers() {
	local dir=$RUN/a
	gv_check "root cannot talk to it" refused_as 0 "$dir"
	gv_check "a stranger cannot talk to it" refused_as $STRANGER "$dir"
	gv_check "who runs it cannot either" refused_as $RUNNER "$dir"
	chmod 731 "$dir"
	gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/external-a" -s -w -m fast \
		-l "$GV_TMP/external-a/server.log" restart
	gv_check "down: its group may write to the folder" is_down_because 'has mode 731'
	chmod 711 "$dir"
	gv_check "up: it may not any more" is_up
	gv_check "gpuvecd ends" ends TERM 0
	gv_check "a stranger's gpuvecd starts in a folder of root's" \
		start_in_roots_folder
	gv_check "down: it is another user's" is_down_because "gpuvecd belongs to another user"
	gv_check "it ends" ends TERM 0
	rm -rf "$dir"
	mkdir "$dir"
	chown $STRANGER "$dir"
	gv_check "a stranger's gpuvecd starts in his folder" \
		start_gpuvecd $STRANGER stranger --socket "$dir" --owner "$OWNER"
	gv_check "down: that is another user's" is_down_because "the socket directory belongs to user $STRANGER"
	gv_check "it ends, too" ends INT 0
	rm -rf "$dir"
	gv_check "without gpuvecd" is_right 0
}

# A socket in a folder of root's, at which a stranger listens.
start_in_roots_folder() {
	rm -rf "$RUN/a"
	mkdir -m 755 "$RUN/stranger"
	chown $STRANGER "$RUN/stranger"
	start_gpuvecd $STRANGER stranger --socket "$RUN/stranger/s" --owner "$OWNER"
	local n
	for ((n = 0; n < 100; n++)); do
		[ ! -S "$RUN/stranger/s/pgsql_tmp.gpuvec.sock" ] || break
		sleep .1
	done
	mkdir -m 755 "$RUN/a"
	# the same socket by another name
	ln "$RUN/stranger/s/pgsql_tmp.gpuvec.sock" "$RUN/a/"
}

# A client of user $1 is cut off, or cannot connect.
refused_as() {
	# shellcheck disable=SC2016
	setpriv --reuid="$1" --regid="$1" --clear-groups perl -e '
		use IO::Socket::UNIX;
		$SIG{PIPE} = "IGNORE";
		my $socket = IO::Socket::UNIX->new(Peer => "$ARGV[0]/pgsql_tmp.gpuvec.sock") or exit 0;
		syswrite $socket, pack("LSS", 0, 2, 0);
		exit(sysread($socket, my $answer, 1) ? 1 : 0)' "$2"
}

# The options of gpuvecd in unit, compose file or pod; $1 = the file.
command_of() {
	# shellcheck disable=SC2016
	case $1 in
	*.service) sed -n 's/^ExecStart=[^ ]*gpuvecd //; T; s/ \$GPUVECD_OPTIONS//; s/%i/main/gp' "$1" ;;
	*) sed -n 's/^ *command: \["gpuvecd", \(.*\)\]/\1/; T; s/[",]//gp' "$1" ;;
	esac
}

# The command line of $1, a unit, compose file or pod, has its socket in the shared
# folder, and its health check finds the socket of the gpuvecd that runs in $RUN/a,
# and no other.
is_as_in() {
	local file=$GV_ROOT/test/packaging/$1 options health
	[ -e "$file" ] || file=$GV_ROOT/debian/$1
	options=$(command_of "$file")
	[[ $options == "--socket /run/gpuvec/main" ]] || { echo "$options" && return 1; }
	[[ $1 != *.service ]] || return 0
	health=$(sed -n 's/^ *\(test\|command\): \["\(CMD", "\)\?test", \(.*\)\]/\3/; T; s/[",]//g
		s|/run/gpuvec/main|'"$RUN/a"'|p' "$file")
	# shellcheck disable=SC2086
	test ${health:?no health check} || return 1
	# shellcheck disable=SC2086
	! test ${health/pgsql_tmp/nothing}
}

main() {
	if [ "$(id -u)" != 0 ] || ! unshare --pid --mount --ipc --net --fork true; then
		echo "external: it takes root, and namespaces"
		exit 2
	fi
	if [ -n "$here" ]; then
		GV_TMP=$tmp GV_BIN=$bin GV_USER=$user
	else
		gv_begin
		gv_copy_server "$(gv_find_pg_config)"
		gv_copy_source src
		gv_build src TEST_BUILD=1
	fi
	trap end EXIT
	OWNER=$(id -u "$GV_USER")
	# not one of those that are hidden
	RUN=$GV_TMP/shared
	mkdir -m 755 "$RUN"
	chown $RUNNER "$RUN"
	gv_check "a starts" start_cluster
	ask -c "$TABLE; $WIDE" 2>/dev/null
	RIGHT=$(ask -c "SET enable_seqscan = off" -c "SET gpuvec.engine = cpu" -c "$ANSWERS")
	try_namespaces
	try_strangers
	echo "external: $GV_PASSED passed, $GV_FAILED failed"
	[ $GV_FAILED = 0 ]
}

main
