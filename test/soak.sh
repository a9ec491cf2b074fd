#!/bin/bash
# Soak: clients that write, search and rebuild, while at random processes are
# killed, disks fill and memory is short; after each round all must be whole.
#
# usage: test/soak.sh HOURS        (a fraction will do)
#
# SEED=N          what happens at random, printed by each run; the same clients
#                 then issue the same statements, and the same faults come at
#                 the same seconds (not in the same order to the millisecond)
# ROUND=N         begin with the plan of round N
# ROUNDS=N        end after so many rounds
# FAULTS="a b"    only these faults (test/soak/SoakFaults.pm lists them); "none"
# FAULTS_EACH=N   so many of them in each round, otherwise none to six
# TABLES="a b"    only these tables (test/soak/SoakTables.pm)
# SECONDS_EACH=N  how long clients work in a round
#
# Runs on a private copy of the PostgreSQL that PG_CONFIG names.  As root, all
# of it happens in namespaces of its own: the disk that fills is a tmpfs, shared
# memory is counted, and no kill can hit another process.  Elsewhere the first
# two are left out, and processes are known by their folders.  Logs of failed
# rounds are kept in build/soak.  Ends with 'N rounds passed, M failed', and
# status 0 only if none failed.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

APART=(unshare --mount --ipc --pid --fork --mount-proc --kill-child)

# Runs the rounds, once there is a server; as root, process 1 of its namespace.
inside() {
	export SOAK_DISK=$GV_TMP/disk SOAK_LOGS=$GV_TMP/logs
	export SOAK_FAILED=$GV_TMP/failed
	if [ -n "$SOAK_PRIVATE" ]; then
		mount -t tmpfs -o "size=${DISK_MB:-3500}m" soak "$SOAK_DISK"
		mount -t tmpfs -o mode=1777 soak /dev/shm
		gv_own "$SOAK_DISK"
	fi
	trap 'exit 143' TERM INT HUP
	# memory that is freed goes back at once, so what is left is a leak: without
	# this each of malloc's arenas keeps up to twice the largest block
	gv_as env PATH="$GV_BIN:$PATH" MALLOC_MMAP_THRESHOLD_=1048576 \
		MALLOC_TRIM_THRESHOLD_=2097152 perl -I "$GV_TMP/src/test/soak" \
		-I "$GV_TMP/src/test/t" "$GV_TMP/src/test/soak/soak.pl" "$1"
}

# Keeps the logs of failed rounds.
end() {
	local status=$?
	set +e
	# a second signal would leave the folder
	trap '' HUP INT TERM
	if [ -n "$(ls -A "$GV_TMP/failed" 2>/dev/null)" ]; then
		mkdir -p "$GV_ROOT/build/soak"
		cp -r "$GV_TMP/failed/." "$GV_ROOT/build/soak/"
		echo "soak: logs of failed rounds are in $GV_ROOT/build/soak" >&2
	fi
	(exit $status)
	gv_end
}

main() {
	local status=0
	case ${1:-} in
	'' | *[!0-9.]*) gv_die "usage: test/soak.sh HOURS" ;;
	esac
	"$GV_ROOT/test/setup.sh" test
	gv_begin
	trap end EXIT
	gv_copy_server "$(gv_find_pg_config)"
	gv_copy_source src
	gv_build src TEST_BUILD=1
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" || gv_note "without pgvector"
	mkdir "$GV_TMP/disk" "$GV_TMP/logs" "$GV_TMP/failed"
	gv_own "$GV_TMP/disk" "$GV_TMP/logs" "$GV_TMP/failed"
	if [ "$(id -u)" = 0 ] && "${APART[@]}" true 2>/dev/null; then
		export GV_BIN SOAK_TMP=$GV_TMP SOAK_USER=$GV_USER SOAK_PRIVATE=1
		"${APART[@]}" "$GV_TMP/src/test/soak.sh" --inside "$1" &
		wait $! || status=$?
	else
		gv_note "no namespaces: no full disk, shared memory is not counted"
		export SOAK_PRIVATE=
		inside "$1" || status=$?
	fi
	return $status
}

if [ "${1:-}" = --inside ]; then
	GV_TMP=$SOAK_TMP GV_USER=$SOAK_USER
	inside "$2"
else
	main "$@"
fi
