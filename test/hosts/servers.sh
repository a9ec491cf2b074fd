# Shared by test/hosts/run.sh and test/citus/run.sh: servers 0 to SERVERS, which are
# clusters data0, data1, ... of one folder, and the Perl program that asks them.
# Sourced; bash.
# shellcheck shell=bash

# networks of the servers, and of the bridge between them, if there are any
NETWORKS=() HUB=''

# Server $1: stop (at once), start.
control() {
	local data=$GV_TMP/data$1
	case $2 in
	stop) gv_as "$GV_BIN/pg_ctl" -D "$data" -w -s -m immediate stop ;;
	start) gv_as "$GV_BIN/pg_ctl" -D "$data" -w -s -l "$data/server.log" start ;;
	esac
}

# Runs the Perl program $1, which stops and starts servers by `SCRIPT --control
# FOLDER SERVER VERB`; further arguments are settings of its environment.  Prints
# what is not ok, and 'N passed, N failed'.
ask_servers() {
	local program=$1 out=$GV_TMP/out passed failed skipped status=0 i
	shift
	declare -p GV_TMP GV_USER GV_BIN NETWORKS HUB >"$GV_TMP/control"
	env HOSTS="$GV_TMP" HOSTS_CONTROL="$(realpath "$0") --control $GV_TMP" \
		HOSTS_PORT="$PORT" HOSTS_SERVERS="$SERVERS" PATH="$GV_BIN:$PATH" "$@" \
		perl -I "$GV_ROOT/test/t" -I "$GV_ROOT/test/hosts" "$program" >"$out" 2>&1 || status=$?
	grep -v '^ok ' "$out" || :
	for ((i = 0; i <= SERVERS; i++)); do
		grep -E 'PANIC:|TRAP:|terminated by signal' "$GV_TMP/data$i/server.log" &&
			status=1
	done
	passed=$(grep -c '^ok ' "$out") || :
	failed=$(grep -c '^not ok ' "$out") || :
	skipped=$(grep -c '^ok .*# skip' "$out") || :
	if [ $status != 0 ] || [ "$passed" = 0 ]; then
		failed=$((failed > 0 ? failed : 1))
	fi
	if [ "$skipped" != 0 ]; then
		echo "$((passed - skipped)) passed, $failed failed, $skipped skipped"
	else
		echo "$passed passed, $failed failed"
	fi
	[ "$failed" = 0 ]
}
