#!/bin/bash
# Rows divided among servers behind postgres_fdw (sql/docs/scaling.md, "Rows divided
# among servers"): one server that is asked and three with data, in networks of their own.
#
# usage: test/hosts/run.sh [--installed PG_CONFIG]
#
# Runs on a private copy of the PostgreSQL that PG_CONFIG names, with this tree's
# gpuvec, the test build; --installed: on that of another script's copy
# (test/run.sh).  As root
# each server has a network namespace, and a bridge connects them; elsewhere they
# listen at addresses of the loopback, and what is asked of a broken link is
# skipped.  With GPUVEC_TEST_LONG=1 each server has 250,000 rows (ROWS says
# otherwise) and times are printed, else 5,000.  hosts.pl asks.  Ends with 'N
# passed, N failed'.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=test/hosts/servers.sh
. "$GV_ROOT/test/hosts/servers.sh"

SERVERS=3						# with data; server 0 is asked
DIMS=64
PORT=54320						# server N listens at PORT + N

# A process in a network of its own, which holds it.  Sets HELD.
hold_network() {
	local i
	unshare --net sleep infinity &
	HELD=$!
	# until it has left ours
	for ((i = 0; i < 100; i++)); do
		[ "$(readlink "/proc/$HELD/ns/net")" = "$(readlink /proc/self/ns/net)" ] ||
			return 0
		sleep .05
	done
	return 1
}

within() { nsenter --net="/proc/$1/ns/net" "${@:2}"; }

# A network for each server, with a link to a bridge in another one.  False
# where this system does not let us.
make_networks() {
	local i hub
	[ "$(id -u)" = 0 ] && command -v ip >/dev/null &&
		unshare --net true 2>/dev/null && hold_network || return 1
	hub=$HELD
	within "$hub" ip link add bridge type bridge 2>/dev/null &&
		within "$hub" ip link set bridge up || return 1
	for ((i = 0; i <= SERVERS; i++)); do
		hold_network || return 1
		NETWORKS[i]=$HELD
		within "$hub" ip link add "link$i" type veth peer name eth0 \
			netns "$HELD" &&
			within "$hub" ip link set "link$i" master bridge up &&
			within "$HELD" ip link set lo up &&
			within "$HELD" ip address add "10.77.0.$((i + 1))/24" dev eth0 &&
			within "$HELD" ip link set eth0 up || return 1
	done
	HUB=$hub NETWORK=10.77.0
}

# Server $1: stop, start, cut (its link), mend.  For hosts.pl.
control_host() {
	GV_NETWORK=${NETWORKS[$1]:-}
	case $2 in
	cut) within "$HUB" ip link set "link$1" down ;;
	mend) within "$HUB" ip link set "link$1" up ;;
	*) control "$@" ;;
	esac
}

start_server() {
	local settings=() shared=128MB
	[ -z "${GPUVEC_TEST_LONG:-}" ] || shared=1GB
	settings=("listen_addresses = '$NETWORK.$(($1 + 1))'"
		"shared_buffers = $shared" "maintenance_work_mem = 256MB"
		'autovacuum = off' 'max_wal_size = 4GB' 'wal_level = minimal'
		'max_wal_senders = 0')
	if [ "$1" != 0 ]; then
		settings+=("session_preload_libraries = 'auto_explain'"
			'auto_explain.log_min_duration = 0')
	fi
	# one of them has its searches done by gpuvecd
	if [ "$1" = "$SERVERS" ]; then
		settings+=("shared_preload_libraries = 'gpuvec'"
			"gpuvec.server = cpu" "gpuvec.engine = gpu")
	fi
	GV_NETWORK=${NETWORKS[$1]:-} PGPORT=$((PORT + $1)) \
		gv_start "data$1" "${settings[@]}" || return 1
	# before the lines of initdb, which trust the loopback
	sed -i '1i host all app all scram-sha-256' "$GV_TMP/data$1/pg_hba.conf"
	PGPORT=$((PORT + $1)) gv_psql -c 'SELECT pg_reload_conf()' >/dev/null
}

install() {
	if [ "${1:-}" = --installed ]; then
		GV_PG_CONFIG=$2
		GV_BIN=$("$2" --bindir)
		return
	fi
	[ $# = 0 ] || gv_die "usage: test/hosts/run.sh [--installed PG_CONFIG]"
	"$GV_ROOT/test/setup.sh" test
	gv_copy_server "$(gv_find_pg_config)"
	gv_copy_source src
	gv_build src TEST_BUILD=1
	"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" || gv_note "without pgvector"
}

main() {
	local i
	gv_begin
	install "$@"
	if ! make_networks; then
		NETWORK=127.0.77 NETWORKS=()
	fi
	for ((i = 0; i <= SERVERS; i++)); do
		start_server "$i" || gv_die "server $i does not start"
	done
	ask_servers "$GV_ROOT/test/hosts/hosts.pl" HOSTS_NETWORK="$NETWORK" \
		HOSTS_LINKS="${NETWORKS[*]:+1}" HOSTS_DIMS="$DIMS"
}

if [ "${1:-}" = --control ]; then
	# shellcheck source=/dev/null
	. "$2/control"
	control_host "$3" "$4"
else
	main "$@"
fi
