#!/bin/bash
# Installs what building and testing gpuvec needs, on Debian or Ubuntu.
#
# usage: test/setup.sh [demo|test|long|bench|servers|citus]   (default: test)
#
# Run as root: says which packages are missing and installs them with apt-get.
# Run as another user: prints the apt-get line and fails.  Does nothing, and
# needs no network, when all is there.  Creates no database cluster and leaves
# the existing ones alone.  PG_CONFIG names the PostgreSQL to use, if it is
# not the distribution's.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

# Where postgresql-common is told not to create a cluster while we install.
DROPIN_DIR=/etc/postgresql-common/createcluster.d
DROPIN=$DROPIN_DIR/gpuvec-setup.conf

has() { command -v "$1" >/dev/null; }

# The major version to install: the newest that is partly there, else the
# distribution's default.
wanted_version() {
	local found
	found=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' \
		2>/dev/null | sort -n | tail -1)
	[ -n "$found" ] || found=$(apt-cache depends postgresql 2>/dev/null |
		sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)
	echo "$found"
}

# Debian's package of libFuzzer, of the clang that is there; nothing if it is
# installed with clang or not to be had.
fuzzer_package() {
	local clang major name
	clang=$(gv_find_clang)
	[ -n "$clang" ] || return 0
	major=$("$clang" -dumpversion | cut -d. -f1)
	name=libclang-rt-$major-dev
	if apt-cache show "$name" >/dev/null 2>&1; then echo "$name"; fi
}

# One missing package a line; @V stands for PostgreSQL's major version.
missing_packages() {
	if ! has make || ! has gcc || ! has g++; then echo build-essential; fi
	if [ -z "$(gv_find_pg_config)" ]; then
		echo postgresql-@V
		echo postgresql-server-dev-@V
	fi
	case $1 in test | long)
		has perl && perl -MIPC::Run -e 1 2>/dev/null ||
			echo libipc-run-perl
		has prove || echo perl
		[ -n "$(gv_find_clang)" ] || echo clang
		;;
	esac
	# the source package of pgvector is unpacked with it
	case $1 in test | long | bench) has dpkg-source || echo dpkg-dev ;; esac
	case $1 in long | bench)
		has python3 && python3 -c 'import ensurepip' 2>/dev/null ||
			echo python3-venv
		;;
	esac
	case $1 in long)
		has valgrind || echo valgrind
		has gcovr || echo gcovr
		has sqlsmith || echo sqlsmith
		"$GV_ROOT/test/fuzz/run.sh" --can || fuzzer_package
		;;
	esac
	case $1 in servers)
		has bison || echo bison
		has flex || echo flex
		has patchelf || echo patchelf
		perl -MIPC::Run -e 1 2>/dev/null || echo libipc-run-perl
		[ -e /usr/include/zlib.h ] || echo zlib1g-dev
		;;
	esac
	# Citus includes headers of libpq's inside, too
	case $1 in citus)
		[ -e /usr/include/openssl/ssl.h ] || echo libssl-dev
		[ -e /usr/include/gssapi/gssapi.h ] || echo libkrb5-dev
		[ -e /usr/include/lz4.h ] || echo liblz4-dev
		[ -e /usr/include/zstd.h ] || echo libzstd-dev
		;;
	esac
}

# $1 = version; stdin: package names
with_version() { sed "s/@V/$1/" | sort -u; }

# Installing PostgreSQL's package creates a cluster unless this file says no;
# it is there only as long as apt-get runs.
forbid_cluster() {
	made_dir=
	[ -d "$DROPIN_DIR" ] || made_dir=1
	mkdir -p "$DROPIN_DIR"
	trap allow_cluster EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	echo 'create_main_cluster = false' >"$DROPIN"
}

allow_cluster() {
	rm -f "$DROPIN"
	if [ -n "$made_dir" ]; then
		rmdir -p --ignore-fail-on-non-empty "$DROPIN_DIR" 2>/dev/null || :
	fi
}

install_packages() {
	export DEBIAN_FRONTEND=noninteractive
	forbid_cluster
	apt-get install -y -q --no-install-recommends "$@" </dev/null
}

main() {
	local what=${1:-test} missing version packages
	case $what in
	demo | test | long | bench | servers | citus) ;;
	*) gv_die "usage: test/setup.sh [demo|test|long|bench|servers|citus]" ;;
	esac
	missing=$(missing_packages "$what")
	[ -n "$missing" ] || return 0

	has apt-get || gv_die "missing, and no apt-get here: ${missing//$'\n'/ }"
	if [ "$(id -u)" = 0 ] && ! apt-cache show libipc-run-perl \
		>/dev/null 2>&1; then
		echo "setup: apt-get update"
		apt-get update -q </dev/null
	fi
	version=$(wanted_version)
	if [ "$(id -u)" != 0 ]; then
		mapfile -t packages < <(with_version "${version:-15}" <<<"$missing")
		gv_die "missing packages; install them with:" \
			"  sudo apt-get install ${packages[*]}"
	fi
	[ -n "$version" ] || gv_die "cannot tell which postgresql to install"
	mapfile -t packages < <(with_version "$version" <<<"$missing")
	echo "setup: installing ${packages[*]}"
	install_packages "${packages[@]}"
}

main "$@"
