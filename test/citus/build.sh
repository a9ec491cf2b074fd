#!/bin/bash
# Installs Citus into a private copy of PostgreSQL, for test/citus/run.sh.
#
# usage: test/citus/build.sh PG_CONFIG
#
# PG_CONFIG is that of the copy (test/lib.sh makes it), never the system's.  Does
# nothing if Citus is there already.  Else CITUS_SRC is a folder with its source, a
# release that knows this PostgreSQL; no archive of Debian or Ubuntu has it, so the
# folder is yours to fetch.  It is only read: built in a copy under build/citus,
# once per version, in minutes.  Status 2: there is no source.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

CACHE=$GV_ROOT/build/citus

# Which release to fetch for major version $1: the last that knows it.
release_for() {
	case $1 in
	15) echo v13.2.2 ;;
	*) echo v14.0.0 ;;
	esac
}

unavailable() {
	local major
	major=$(gv_major "$1")
	printf '%s\n' "skipped: PostgreSQL $major has no Citus, and $2; for this one" \
		"  git clone --depth 1 -b $(release_for "$major")" \
		"    https://github.com/citusdata/citus" \
		"  CITUS_SRC=\$PWD/citus test/citus/run.sh" >&2
	exit 2
}

# Builds for $1, unless what was built is younger than the source.
build() {
	local config=$1 dir
	dir=$CACHE/pg$(gv_major "$config")
	if [ ! -e "$dir/.built" ] || [ "$CITUS_SRC/configure" -nt "$dir/.built" ]; then
		"$GV_ROOT/test/setup.sh" citus
		rm -rf "$dir"
		cp -a "$CITUS_SRC" "$dir"
		# a checkout's files have no order in time, and make would want autoconf
		touch "$dir/configure"
		# 13.2.2 has a function of its own in place of one that minor versions of
		# 15 brought to their headers
		if grep -q 'have_createdb_privilege' \
			"$("$config" --includedir-server)/commands/dbcommands.h"; then
			perl -0777 -pi -e 's/static inline bool\s+have_createdb_privilege\(void\)\n\{.*?\n\}\n//s' \
				"$dir/src/include/pg_version_compat.h"
		fi
		if ! (cd "$dir" && ./configure PG_CONFIG="$config" --without-libcurl) \
			>"$CACHE/build.log" 2>&1 ||
			! make -C "$dir" -j"$(nproc)" PG_CONFIG="$config" with_llvm=no \
				>>"$CACHE/build.log" 2>&1; then
			tail -20 "$CACHE/build.log" >&2
			exit 1
		fi
		touch "$dir/.built"
	fi
	make -C "$dir" PG_CONFIG="$config" with_llvm=no install \
		>"$CACHE/install.log" 2>&1 ||
		{ tail -20 "$CACHE/install.log" >&2 && exit 1; }
}

[ $# = 1 ] || gv_die "usage: test/citus/build.sh PG_CONFIG"
if [ ! -e "$("$1" --sharedir)/extension/citus.control" ]; then
	[ -n "${CITUS_SRC:-}" ] || unavailable "$1" "CITUS_SRC is not set"
	[ -e "$CITUS_SRC/src/backend/distributed/citus.control" ] ||
		unavailable "$1" "$CITUS_SRC is not its source"
	CITUS_SRC=$(cd "$CITUS_SRC" && pwd)
	mkdir -p "$CACHE"
	# runs of one tree that begin at once would build in one folder
	exec 9>"$CACHE/lock"
	flock 9
	build "$1"
fi
