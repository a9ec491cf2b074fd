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

# 'URI keyring' of every archive of the distribution ($1) that apt uses here
archives() {
	{ cat /etc/apt/sources.list.d/*.sources 2>/dev/null || :; } |
		awk -v id="$1" '
		function out() {
			if (uri ~ ("/" id "/?$")) print uri, key
			uri = key = ""
		}
		/^URIs:/ { uri = $2 }
		/^Signed-By: *\// { key = $2 }
		/^[ \t]*$/ { out() }
		END { out() }'
	{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
		2>/dev/null || :; } |
		awk -v id="$1" '
		$1 == "deb" {
			key = ""
			if (match($0, /signed-by=[^] ]*/))
				key = substr($0, RSTART + 10, RLENGTH - 10)
			sub(/\[[^]]*\]/, "")
			if ($2 ~ ("/" id "/?$")) print $2, key
		}'
}

# Fetches the source package into CACHE/src from suite $1 of archive $2, whose
# keyring is $3.
fetch_suite() {
	local apt=$CACHE/apt options
	rm -rf "$apt" "$CACHE/src.partial"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" \
		"$CACHE/src.partial"
	echo "deb-src ${3:+[signed-by=$3]} $2 $1 main universe" \
		>"$apt/sources.list"
	if [ "$distribution" = debian ]; then
		sed -i 's/ universe$//' "$apt/sources.list"
	fi
	options=(-o "Dir::Etc::sourcelist=$apt/sources.list"
		-o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
		-o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
		-o Acquire::Languages=none -o Acquire::Retries=2)
	apt-get -qq "${options[@]}" update >"$CACHE/fetch.log" 2>&1 &&
		(cd "$CACHE/src.partial" &&
			apt-get -qq "${options[@]}" source pgvector) \
			>>"$CACHE/fetch.log" 2>&1 || return 1
	mv "$CACHE"/src.partial/pgvector-*/ "$CACHE/src"
	rm -rf "$apt" "$CACHE/src.partial"
}

fetch() {
	local suites suite uri key
	[ ! -e "$CACHE/src/vector.control" ] || return 0
	[ -r /etc/os-release ] || unavailable "not Debian or Ubuntu"
	distribution=$(. /etc/os-release && echo "$ID")
	case $distribution in
	debian) suites=$DEBIAN_SUITES ;;
	ubuntu) suites=$UBUNTU_SUITES ;;
	*) unavailable "not Debian or Ubuntu" ;;
	esac
	mkdir -p "$CACHE" 2>/dev/null || unavailable "cannot write to $CACHE"
	rm -rf "$CACHE/src"
	while read -r uri key; do
		for suite in $suites; do
			if fetch_suite "$suite" "$uri" "$key"; then return; fi
		done
	done < <(archives "$distribution" | sort -u)
	unavailable "no source to be had:" \
		"$(tail -1 "$CACHE/fetch.log" 2>/dev/null)"
}

# Builds CACHE/src, or PGVECTOR_SRC, for $1, once per version and flags.
build() {
	local config=$1 source=${PGVECTOR_SRC:-$CACHE/src} dir
	dir=$CACHE/pg$(gv_major "$config")${PGVECTOR_OPTFLAGS:+-opt}
	if [ ! -e "$dir/.built" ] || [ "$source" -nt "$dir/.built" ]; then
		rm -rf "$dir"
		mkdir -p "$CACHE"
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
if ! is_there "$1"; then
	[ -n "${PGVECTOR_SRC:-}" ] || fetch
	build "$1"
fi
