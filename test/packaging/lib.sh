# Shared by the scripts of test/packaging: checks that are counted, bare folders
# of Debian's suites, and commands inside of them.  Sourced after ../lib.sh.
# shellcheck shell=bash disable=SC2034

# shellcheck source=test/archive.sh
. "$GV_ROOT/test/archive.sh"

PACKAGING=$GV_ROOT/test/packaging
WORK=$GV_ROOT/build/packaging
PASSED=0 FAILED=0 OK=0

version_of() { sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$1/gpuvec.control"; }

# Counts a command as passed or failed, and shows the output of one that failed;
# OK says which.  Not to be called where a failure is looked at, as before `||`:
# then the shell would go on after one inside of the command.  $1 = what is
# checked
check() {
	local what=$1 log=$WORK/check-$$.log
	shift
	set +e
	# a signal is heard while the shell waits, not while it runs a command
	(set -e && "$@") >"$log" 2>&1 </dev/null &
	wait $!
	OK=$?
	set -e
	if [ $OK = 0 ]; then
		PASSED=$((PASSED + 1))
		echo "ok: $what"
	else
		FAILED=$((FAILED + 1))
		echo "FAILED: $what"
		tail -40 "$log" | sed 's/^/    /'
	fi
	rm -f "$log"
}

summary() {
	echo "$PASSED passed, $FAILED failed"
	[ $FAILED = 0 ] && [ $PASSED != 0 ]
}

# ---- bare folders

# Debian's archive as this machine's apt is configured, or none
archive_of_debian() { gv_archives debian | grep -v -- '-security' | head -1; }

# A bare folder of suite $1 as a tar file, made once.  debootstrap's mounts in
# it are gone when it ends, so `rm` never goes through them.
make_bare() {
	local tar=$WORK/bare-$1.tar uri key
	[ ! -e "$tar" ] || return 0
	read -r uri key < <(archive_of_debian)
	rm -rf --one-file-system "${WORK:?}/boot"
	unshare --mount --pid --fork --kill-child --propagation private \
		debootstrap --variant=minbase ${key:+"--keyring=$key"} "$1" "$WORK/boot" \
		"$uri"
	rm -f "$WORK"/boot/var/cache/apt/archives/*.deb
	tar -C "$WORK/boot" --one-file-system -cf "$tar.partial" .
	mv "$tar.partial" "$tar"
	rm -rf --one-file-system "${WORK:?}/boot"
}

# Unpacks the bare folder of suite $1 as $2, where nothing starts by itself.
bare_folder() {
	rm -rf "$2"
	mkdir -p "$2"
	tar -C "$2" -xf "$WORK/bare-$1.tar"
	cp /etc/resolv.conf "$2/etc/resolv.conf"
	printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
	chmod 755 "$2/usr/sbin/policy-rc.d"
	# a mirror may be a snapshot
	printf '%s;\n' 'Acquire::Retries "3"' 'Acquire::Check-Valid-Until "false"' \
		'APT::Install-Recommends "false"' >"$2/etc/apt/apt.conf.d/90gpuvec"
}

# Runs a command in folder $1, with processes and mounts of its own: what it
# leaves running ends, and what it mounts goes, when it ends.  BIND = a folder that
# is seen there, too.
inside() {
	local dir=$1
	shift
	# shellcheck disable=SC2016
	BIND=${BIND:-} unshare --mount --pid --fork --kill-child --propagation private sh -c '
		mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
		mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" &&
		{ [ -z "$BIND" ] || mount --bind "$BIND" "$0$BIND"; } &&
		exec chroot "$0" /usr/bin/env -i LANG=C.UTF-8 HOME=/root \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			DEBIAN_FRONTEND=noninteractive "$@"' "$dir" "$@"
}

# Makes the packages in $1/srv/gpuvec known to apt there.
make_repository() {
	(cd "$1/srv/gpuvec" && dpkg-scanpackages --multiversion . >Packages)
	echo 'deb [trusted=yes] file:/srv/gpuvec ./' \
		>"$1/etc/apt/sources.list.d/gpuvec.list"
}
