# Shared by the scripts under test/: finding tools, a private folder that is
# gone at exit, and a private copy of PostgreSQL with clusters in it.
# Sourced, not run; bash.  All names begin with gv_ or GV_.
#
# Nothing outside ${TMPDIR:-/tmp} is written: PostgreSQL finds its libraries
# and extensions relative to its own executable, so a copy of its folders is
# a complete installation, and gpuvec is installed into that copy only.
# shellcheck shell=bash disable=SC2034

GV_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GV_TMP=
GV_USER=
GV_NETWORK=
# processor time, in clock ticks, of servers that gv_stop has stopped
GV_TICKS=0
# gpuvecd without kernels, which take minutes to compile and need a card to run
# (test/gpu/run.sh has them; test/run.sh compiles them once)
export NVCC=${GPUVEC_TEST_NVCC-}
# a make of the scripts is nobody's sub-make
unset MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES

gv_die() {
	printf '%s\n' "$@" >&2
	exit 1
}

gv_note() { printf '== %s\n' "$*"; }

GV_PASSED=0
GV_FAILED=0

# counts a check $1: does the command after it succeed?  Its output is shown if
# not.
gv_check() {
	local what=$1
	shift
	if "$@" >"$GV_TMP/check.out" 2>&1; then
		echo "ok - $what"
		GV_PASSED=$((GV_PASSED + 1))
	else
		echo "not ok - $what"
		sed 's/^/    /' "$GV_TMP/check.out" | head -60
		GV_FAILED=$((GV_FAILED + 1))
	fi
}

# ---- tools

# true if this pg_config belongs to a server that extensions can be built for
gv_is_server() {
	local bin pgxs
	bin=$("$1" --bindir 2>/dev/null) && pgxs=$("$1" --pgxs 2>/dev/null) &&
		[ -x "$bin/postgres" ] && [ -e "$pgxs" ] &&
		[ -e "$("$1" --includedir-server)/postgres.h" ]
}

# the pg_config to use, as an absolute path; nothing when there is none
gv_find_pg_config() {
	local candidate
	if [ -n "${PG_CONFIG:-}" ]; then
		command -v "$PG_CONFIG" || gv_die "PG_CONFIG=$PG_CONFIG: not found"
		return
	fi
	while read -r candidate; do
		if [ -n "$candidate" ] && gv_is_server "$candidate"; then
			echo "$candidate"
			return
		fi
	done < <(
		command -v pg_config
		find /usr/lib/postgresql -path '*/bin/pg_config' 2>/dev/null |
			sort -rV
	)
}

gv_find_clang() {
	command -v clang ||
		find /usr/bin /usr/lib/llvm-*/bin -maxdepth 1 -regextype egrep \
			-regex '.*/clang(-[0-9]+)?' 2>/dev/null | sort -V | tail -1 || :
}

gv_major() { "$1" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/'; }

# ---- private folder

# Makes GV_TMP, removed at exit with everything that still runs in it.
# Sets GV_USER: who runs servers (initdb refuses root).
gv_begin() {
	# the copies below must be readable by the unprivileged user
	umask 022
	GV_TMP=$(mktemp -d "${TMPDIR:-/tmp}/gpuvec.XXXXXX")
	trap gv_end EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	chmod 755 "$GV_TMP"
	mkdir "$GV_TMP/home" "$GV_TMP/tmp" "$GV_TMP/sock"
	GV_USER=$(id -un)
	if [ "$(id -u)" = 0 ]; then
		GV_USER=nobody
		gv_own "$GV_TMP/home" "$GV_TMP/tmp" "$GV_TMP/sock"
		gv_as test -w "$GV_TMP/home" ||
			gv_die "user $GV_USER cannot reach $GV_TMP:" \
				"set TMPDIR to a folder that everyone can enter"
	fi
	# a session of its own: what kills this script may kill its group, too
	# shellcheck disable=SC2016
	setsid bash -c '. "$0" && gv_watch "$@"' "$GV_ROOT/test/lib.sh" $$ \
		"$GV_TMP" </dev/null >/dev/null 2>&1 &
	export PGHOST=$GV_TMP/sock PGPORT=54321 PGUSER=postgres
	export PGDATABASE=postgres LC_ALL=C
	# seconds that servers may take to start, and TAP tests wait: a busy machine is slow
	export PGCTLTIMEOUT=300 PG_TEST_TIMEOUT_DEFAULT=300
	# to ccache, if it is used, copies in another folder are the same
	export CCACHE_BASEDIR=$GV_TMP CCACHE_NOHASHDIR=1
	export CCACHE_SLOPPINESS=include_file_mtime,include_file_ctime
	unset PGDATA PGSERVICE PGOPTIONS PGPASSFILE PGHOSTADDR
}

# Runs a command as GV_USER, in GV_TMP, with all its leavings there; in a
# session of its own, where no key of the terminal reaches it.  GV_NETWORK, if
# set, is a process in whose network it runs.
gv_as() {
	local status=0
	(
		cd "$GV_TMP" || exit
		export HOME=$GV_TMP/home TMPDIR=$GV_TMP/tmp
		if [ "$(id -u)" = 0 ]; then
			exec ${GV_NETWORK:+nsenter --net="/proc/$GV_NETWORK/ns/net"} \
				setsid runuser -u "$GV_USER" -- "$@"
		fi
		exec setsid "$@"
	) <&0 &
	wait $! || status=$?
	return $status
}

# Runs a command, $2 and further arguments, with niceness $1.  Linux may divide
# the processors by sessions first, and counts niceness within one only: the
# command gets a session, and that has the same niceness.
gv_nice() {
	local niceness=$1
	shift
	# shellcheck disable=SC2016
	setsid -w nice -n "$niceness" sh -c \
		'{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; exec "$@"' \
		"$niceness" "$@"
}

# Gives files to the user that runs the servers.
gv_own() {
	if [ "$(id -u)" = 0 ]; then
		chown -R "$GV_USER:" "$@"
	fi
}

# Ends the servers whose data is in GV_TMP, each by its own process id.
gv_kill_servers() {
	local file pid
	while read -r file; do
		pid=$(head -1 "$file")
		case $(readlink "/proc/$pid/cwd" 2>/dev/null) in
		"$GV_TMP"/*) kill -QUIT "$pid" 2>/dev/null && sleep 0.5 ;;
		esac
	done < <(find "$GV_TMP" -name postmaster.pid 2>/dev/null)
}

# The processes that process $1 has started, and theirs.
gv_children() {
	local child
	# shellcheck disable=SC2013
	for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
		echo "$child"
		gv_children "$child"
	done
}

# Where process $1, which has the private folder $2, is killed, no trap of its
# runs.  Waits for that, and ends what still runs there.
gv_watch() {
	local dir
	while kill -0 "$1" 2>/dev/null; do sleep 1; done
	GV_TMP=$2
	for dir in /proc/[0-9]*; do
		case $(readlink "$dir/cwd") in
		"$GV_TMP" | "$GV_TMP"/*)
			[ -e "$dir/cwd/postmaster.pid" ] || kill -KILL "${dir#/proc/}"
			;;
		esac
	done
	gv_kill_servers
	sleep 1
	rm -rf "$GV_TMP"
}

gv_end() {
	local status=$?
	trap - EXIT
	trap '' HUP INT TERM
	# all at once, or one whose command ends would go on to the next
	# shellcheck disable=SC2046
	kill -TERM $(gv_children $$) 2>/dev/null || :
	gv_kill_servers
	cd /
	# a server that is just going down may still write
	rm -rf "$GV_TMP" 2>/dev/null || { sleep 1 && rm -rf "$GV_TMP"; }
	exit $status
}

# ---- private installation

# Copies the installation of pg_config $1 to GV_TMP/pgN (N: major version)
# and sets GV_PG_CONFIG, GV_BIN and GV_PGXS (.../pgxs/src) to the copy's.
gv_copy_server() {
	local config=$1 root dir
	root=$GV_TMP/pg$(gv_major "$config")
	# everything that an extension's `make install` writes to
	for dir in --bindir --pkglibdir --sharedir --pkgincludedir \
		--includedir-server; do
		dir=$("$config" "$dir")
		[ -e "$root$dir" ] && continue
		mkdir -p "$(dirname "$root$dir")"
		cp -a "$dir" "$(dirname "$root$dir")/"
		# one that is installed there leaves scripts of other versions
		rm -f "$root$dir"/extension/gpuvec*
	done
	# only read, so a link does
	for dir in --includedir --libdir; do
		dir=$("$config" "$dir")
		[ -e "$root$dir" ] && continue
		mkdir -p "$(dirname "$root$dir")"
		ln -s "$dir" "$root$dir"
	done
	GV_BIN=$root$("$config" --bindir)
	GV_PG_CONFIG=$GV_BIN/pg_config
	GV_PGXS=$("$GV_PG_CONFIG" --pgxs)
	GV_PGXS=${GV_PGXS%/makefiles/*}
	[ "$("$GV_PG_CONFIG" --sharedir)" = "$root$("$config" --sharedir)" ] ||
		gv_die "$config: this installation cannot be copied"
}

# Copies the sources, without what was built from them, to GV_TMP/$1.
gv_copy_source() {
	mkdir "$GV_TMP/$1"
	tar -C "$GV_ROOT" -cf - --exclude=./.git --exclude=./build \
		--exclude='*.o' --exclude='*.d' --exclude='*.so' --exclude='*.bc' \
		--exclude=./gpuvecd --exclude=./gpu/objects --exclude=./src/kind --exclude=./tmp_check \
		--exclude=./results --exclude=./output_iso . |
		tar -C "$GV_TMP/$1" -xf - --no-same-owner
}

# Builds and installs the sources in GV_TMP/$1 into the copy; further
# arguments go to make.  The output is shown only when that fails.
gv_build() {
	local dir=$GV_TMP/$1 log=$GV_TMP/build-$1.log
	shift
	if ! make -C "$dir" -j"$(nproc)" PG_CONFIG="$GV_PG_CONFIG" "$@" all \
		>"$log" 2>&1 ||
		! make -C "$dir" PG_CONFIG="$GV_PG_CONFIG" "$@" install \
			>>"$log" 2>&1; then
		cat "$log"
		return 1
	fi
}

# ---- cluster

# Makes and starts a cluster in GV_TMP/$1; further arguments are settings.
# GV_INITDB is one more option of initdb.
gv_start() {
	local data=$GV_TMP/$1
	shift
	mkdir "$data"
	chmod 700 "$data"
	gv_own "$data"
	gv_as "$GV_BIN/initdb" -D "$data" -U postgres -A trust -N --locale=C \
		--encoding=UTF8 ${GV_INITDB:+"$GV_INITDB"} >"$GV_TMP/initdb.log" 2>&1 ||
		{ cat "$GV_TMP/initdb.log" && return 1; }
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$PGHOST'"
		echo "port = $PGPORT"
		echo "fsync = off"
		# no worker beside what is tested or measured
		echo "gpuvec.auto_calibrate = off"
		[ $# = 0 ] || printf '%s\n' "$@"
	} >>"$data/postgresql.conf"
	gv_as "$GV_BIN/pg_ctl" -D "$data" -l "$data/server.log" -w -s start ||
		{ tail -20 "$data/server.log" && return 1; }
}

# Wait a minute at most until the gpuvecd of cluster $1 listens.
gv_wait_socket() {
	local i
	for ((i = 0; i < 600; i++)); do
		[ ! -S "$GV_TMP/$1/pgsql_tmp.gpuvec.sock" ] || return 0
		sleep .1
	done
}

gv_stop() {
	local stat
	# what the postmaster and the processes that it waited for have taken
	if read -ra stat 2>/dev/null \
		<"/proc/$(head -1 "$GV_TMP/$1/postmaster.pid")/stat"; then
		GV_TICKS=$((GV_TICKS + stat[13] + stat[14] + stat[15] + stat[16]))
	fi
	gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/$1" -w -s -m fast stop
}

gv_psql() { "$GV_BIN/psql" -X -q -v ON_ERROR_STOP=1 "$@"; }
