#!/bin/bash
# Other versions of PostgreSQL, built for tests, each once.
#
# usage: test/servers.sh VERSION... [--cassert]
#
# Builds every major VERSION, with assertions where the last word is --cassert,
# into build/servers/VERSION (or build/servers/VERSIONassert; GPUVEC_SERVERS names
# another folder than build/servers), and prints the path of its pg_config.
# Sources come from the Debian or Ubuntu archive that this machine's apt is
# configured for, or a later release of it, and stay, for reading, in
# build/servers/src.  There are binaries, without assertions: of 16, which no
# release of Debian has, in a package of PyPI (without TAP's modules); of 19, and of
# others whose sources cannot be had, in Debian's suites, with the libraries that
# they were built for.  A version that is not to be had is named, with the places
# where it was looked for, the others are built, and the status is 1.  Ten minutes
# and 400 MB each on one processor (JOBS=4 uses more).  Then, say,
#
#	PG_CONFIGS="$(test/servers.sh 17 18)" make test-long
#	PG_CONFIG=$(test/servers.sh 15 --cassert) make test
#
# Tests with pgvector need one that compiles there, for 18 0.8.1 or newer: where
# the archive has none, PGVECTOR_SRC names its source (test/pgvector.sh).
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/archive.sh
. "$GV_ROOT/test/archive.sh"

SERVERS=${GPUVEC_SERVERS:-$GV_ROOT/build/servers}

usage() { gv_die "usage: test/servers.sh VERSION... [--cassert]"; }

# The releases with version $1: Debian's have one each.
debian_suites() {
	case $1 in
	15) echo bookworm ;;
	17) echo trixie forky sid ;;
	18) echo forky sid ;;
	*) echo forky sid experimental ;;
	esac
}

ubuntu_suites() {
	case $1 in
	16) echo noble ;;
	17) echo questing plucky ;;
	*) echo resolute ;;
	esac
}

# The sources of version $1, as PostgreSQL's developers released them: the
# distribution's patches, which an archive may even lack, fix folders that a
# private copy must not have.  False,
# with the reasons, if they are not to be had.
fetch() {
	local dir=$SERVERS/src/$1
	[ ! -e "$dir/configure" ] || return 0
	gv_fetch_source "postgresql-$1" "$dir.files" --tar-only \
		"$(debian_suites "$1")" "$(ubuntu_suites "$1")" || {
		printf '%s\n' "the source of postgresql-$1 is not to be had:" >&2
		sed 's/^/  /' "$dir.files.tried" >&2
		rm -rf "$dir.files".*
		return 1
	}
	rm -rf "$dir" "$dir.partial"
	mkdir "$dir.partial"
	tar -C "$dir.partial" -xf "$dir.files"/*.orig.tar.* --strip-components=1 ||
		return 1
	mv "$dir.partial" "$dir"
	rm -rf "$dir.files"
}

# Runs a command in the folder $1 with its output in $2.
logged() {
	local dir=$1 log=$2
	shift 2
	(cd "$dir" && "$@") >>"$log" 2>&1 || {
		tail -20 "$log" >&2
		gv_die "failed: $* (in $dir)"
	}
}

# Builds version $1 into $2; further arguments go to configure.  What
# extensions need for their tests lies under pgxs afterwards: pg_regress,
# the isolation tester and the Perl modules.  Of contrib, what our tests use.
build() {
	local version=$1 prefix=$2 build=$2.build log=$2.log part
	shift 2
	rm -rf "$build" "$prefix"
	mkdir -p "$build"
	: >"$log"
	logged "$build" "$log" "../src/$version/configure" -q --prefix="$prefix" \
		--enable-tap-tests --enable-debug --without-readline \
		--without-icu "$@"
	logged "$build" "$log" make -s -j"${JOBS:-1}"
	for part in . contrib/{auto_explain,pg_trgm,postgres_fdw} \
		src/test/{regress,isolation,perl}; do
		logged "$build" "$log" make -s -j"${JOBS:-1}" -C "$part" install
	done
	rm -rf "$build"
	touch "$prefix/.built"
}

# Version 16 into $1 from PyPI's pgserver, a whole installation with pgxs, whose
# programs find their libraries where their package was made, or beside it.
unpack_wheel() {
	local dir=$1.wheel file
	rm -rf "$dir" "$1"
	mkdir -p "$dir"
	python3 -m pip download -q --disable-pip-version-check --no-deps -d "$dir" \
		pgserver >"$1.log" 2>&1 && python3 -m zipfile -e "$dir"/*.whl "$dir" ||
		return 1
	mv "$dir/pgserver/pginstall" "$1"
	cp -a "$dir"/pgserver.libs/* "$1/lib"
	rm -rf "$dir"
	# a wheel keeps no modes
	find "$1/bin" "$1/lib" -type f | while read -r file; do
		if [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ]; then
			chmod 755 "$file"
			patchelf --set-rpath "$1/lib" "$file"
		fi
	done
	"$1/bin/pg_config" --version | grep -q "^PostgreSQL 16" || return 1
	touch "$1/.built"
}

# Version $1 into $2 from Debian's binary packages.  Programs find the libraries
# of their release beside them, and what they load does, too; headers and flags ask
# for no more than our older C library and compiler have.
unpack_packages() {
	local version=$1 root=$2 libraries loader file flag suites='experimental sid'
	case $version in
	17) suites=trixie ;;
	18) suites='forky sid' ;;
	esac
	gv_fetch_packages "$root" "$suites" "postgresql-$version" \
		"postgresql-client-$version" "postgresql-server-dev-$version" || return 1
	# it wants LLVM, which is not unpacked; without the file there is no JIT
	rm -f "$root/usr/lib/postgresql/$version/lib/llvmjit.so"
	libraries=$(echo "$root"/usr/lib/*-linux-gnu)
	loader=$(find "$libraries" -name 'ld-linux*.so.*' | head -1)
	find "$root/usr/lib/postgresql/$version" -type f -perm -u+x |
		while read -r file; do
			if patchelf --print-interpreter "$file" >/dev/null 2>&1; then
				patchelf --set-interpreter "$loader" --force-rpath \
					--set-rpath "$libraries" "$file"
			fi
		done
	sed -i -E -e 's/^#define (HAVE_DECL_STRL(CAT|CPY)) 1/#define \1 0/' \
		-e 's,^#define (HAVE_STRL(CAT|CPY)|HAVE_TYPEOF_UNQUAL) 1,/* \1 */,' \
		"$root/usr/include/postgresql/$version/server/pg_config.h"
	for flag in $("$root/usr/lib/postgresql/$version/bin/pg_config" --cflags); do
		gcc "$flag" -fsyntax-only -x c /dev/null 2>/dev/null ||
			sed -i "s/ $flag\\b//" \
				"$root/usr/lib/postgresql/$version/lib/pgxs/src/Makefile.global"
	done
	ln -s "usr/lib/postgresql/$version/bin" "$root/bin"
	"$root/bin/pg_config" --version | grep -q "^PostgreSQL $version" || return 1
	touch "$root/.built"
}

main() {
	local versions=() word suffix='' options=() prefix status=0
	for word in "$@"; do
		case $word in
		--cassert) suffix=assert options=(--enable-cassert CFLAGS=-O1) ;;
		[1-9][0-9]) versions+=("$word") ;;
		*) usage ;;
		esac
	done
	[ ${#versions[@]} != 0 ] || usage
	"$GV_ROOT/test/setup.sh" servers >&2
	umask 022
	for word in "${versions[@]}"; do
		prefix=$SERVERS/$word$suffix
		if [ ! -e "$prefix/.built" ]; then
			if [ "$word$suffix" = 16 ] && unpack_wheel "$prefix"; then
				:
			elif [ "$word$suffix" = 19 ] && unpack_packages 19 "$prefix"; then
				:
			elif fetch "$word"; then
				build "$word" "$prefix" "${options[@]}"
			elif [ -z "$suffix" ] && unpack_packages "$word" "$prefix"; then
				:
			else
				status=1
				continue
			fi
		fi
		echo "$prefix/bin/pg_config"
	done
	return $status
}

main "$@"
