#!/bin/bash
# Installs pgvector 0.8 or newer into a private copy of PostgreSQL, for tests.
#
# usage: test/pgvector.sh PG_CONFIG
#
# PG_CONFIG is that of the copy (test/lib.sh makes it), never the system's.
# Does nothing if a recent pgvector is there already.  Else its source comes
# from PGVECTOR_SRC, or from the Debian or Ubuntu archive that this machine's
# apt is configured for, a later release of it, with apt's state in a folder
# of our own; kept under build/pgvector.  Status 2: it cannot be had here (no
# network, say).
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/archive.sh
. "$GV_ROOT/test/archive.sh"

CACHE=$GV_ROOT/build/pgvector
DEBIAN_SUITES="trixie"
UBUNTU_SUITES="resolute questing noble"

unavailable() {
	echo "pgvector: $*" >&2
	exit 2
}

# true if the installation of $1 has pgvector 0.8 or newer
is_there() {
	local control
	control=$("$1" --sharedir)/extension/vector.control
	[ -e "$control" ] &&
		grep -Eq "^default_version *= *'(0\.([89]|[1-9][0-9])|[1-9])" \
			"$control"
}

fetch() {
	[ ! -e "$SOURCE/vector.control" ] || return 0
	rm -rf "$SOURCE"
	gv_fetch_source pgvector "$CACHE/package" '' "$DEBIAN_SUITES" \
		"$UBUNTU_SUITES" || unavailable "no source to be had:" \
		"$(tail -1 "$CACHE/package.tried")"
	mv "$CACHE"/package/pgvector-*/ "$SOURCE"
	rm -rf "$CACHE/package"
}

# Builds SOURCE, or PGVECTOR_SRC, for $1, once per version and flags.
build() {
	local config=$1 source=${PGVECTOR_SRC:-$SOURCE} dir
	dir=$CACHE/pg$(gv_major "$config")${PGVECTOR_OPTFLAGS:+-opt}
	if [ ! -e "$dir/.built" ] || [ "$source" -nt "$dir/.built" ]; then
		rm -rf "$dir"
		cp -a "$source" "$dir"
		make -C "$dir" -j"$(nproc)" PG_CONFIG="$config" with_llvm=no \
			OPTFLAGS="${PGVECTOR_OPTFLAGS:-}" >"$CACHE/build.log" 2>&1 ||
			{ tail -20 "$CACHE/build.log" >&2 && exit 1; }
		touch "$dir/.built"
	fi
	make -C "$dir" PG_CONFIG="$config" with_llvm=no \
		OPTFLAGS="${PGVECTOR_OPTFLAGS:-}" install >"$CACHE/install.log" \
		2>&1 || { tail -20 "$CACHE/install.log" >&2 && exit 1; }
}

[ $# = 1 ] || gv_die "usage: test/pgvector.sh PG_CONFIG"
SOURCE=$CACHE/src
# releases before 0.8.1 do not compile there
if [ "$(gv_major "$1")" -ge 18 ]; then
	SOURCE=$CACHE/src18 DEBIAN_SUITES="forky sid" UBUNTU_SUITES="resolute"
fi
if ! is_there "$1"; then
	mkdir -p "$CACHE" 2>/dev/null || unavailable "cannot write to $CACHE"
	# clusters of one tree that are made at once would build in one folder
	exec 9>"$CACHE/lock"
	flock 9
	[ -n "${PGVECTOR_SRC:-}" ] || fetch
	build "$1"
fi
