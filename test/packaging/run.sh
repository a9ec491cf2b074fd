#!/bin/bash
# Packages for Debian, PGXN and containers: built, compared, installed, upgraded
# and removed, each in a bare folder of Debian.
#
# usage: test/packaging/run.sh [SUITE...]        (default: bookworm trixie sid)
#
# Needs root, debootstrap and Debian's archive, as apt here is configured for
# it; touches nothing outside build/packaging.  Half an hour a suite on one
# processor.  Ends with 'N passed, N failed'.
#
# PARTS="part ..." runs these only:
#	files		versions agree, manual page and META.json are sound, systemd takes
#				the drop-in and the unit, compose file and pod agree with themselves
#	build		a suite's packages, built twice in different places: the same
#				bytes, clean to lintian
#	upgrade		the version before installed, six statements, upgrade, the same,
#				purge: no trace (from the version after 1.0.0 on)
#	autopkgtest	debian/tests with the null runner
#	dockerfile	what the Dockerfile does, done in a bare folder, and where
#				PostgreSQL has images of extensions, one mounted read-only
#	cuda		(only if named) gpuvecd-cuda, by the CUDA that is in /usr/local/cuda
#				here, for GPU_ARCHS (see the Makefile)
# BEFORE=REVISION is the version before; default: the one before gpuvec.control
# last changed its version
# CHECK=1 has the first build run the SQL tests
#
# Packages stay in build/packaging/SUITE/packages.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=test/packaging/lib.sh
. "$(dirname "$0")/lib.sh"

VERSION=$(version_of "$GV_ROOT")
PARTS=${PARTS:-files build upgrade autopkgtest dockerfile}

wanted() { [[ " $PARTS " == *" $1 "* ]]; }

# ---- files

same_versions() {
	local changelog meta
	changelog=$(sed -n '1s/.*(\(.*\)-[^-]*).*/\1/p' "$GV_ROOT/debian/changelog")
	meta=$(perl -MJSON::PP -0777 -ne '
		my $m = decode_json($_);
		print join " ", $m->{version},
			map { $_->{version} } values %{$m->{provides}}' \
		"$GV_ROOT/META.json")
	echo "gpuvec.control $VERSION, changelog $changelog, META.json $meta"
	[ "$changelog" = "$VERSION" ] && [ "$meta" = "$VERSION $VERSION $VERSION" ]
}

# Each extension has a script that makes this version and, once a version before
# can be updated, one that does so.
has_scripts() {
	local name
	for name in gpuvec gpuvec_pgvector; do
		echo "$name"
		grep -qx "default_version = '$VERSION'" "$GV_ROOT/$name.control"
		ls "$GV_ROOT/sql/$name--$VERSION.sql"
		! has_updates || ls "$GV_ROOT/sql/$name--"*"--$VERSION.sql"
	done
}

# Is there a version before that can be updated?  None is before 1.0.0.
has_updates() { [ "$VERSION" != 1.0.0 ]; }

# META.json has what PGXN asks for, and names files that are there.
sound_meta() {
	perl -MJSON::PP -0777 -e '
		my ($root) = @ARGV;
		open my $f, "<", "$root/META.json" or die $!;
		my $m = decode_json(<$f>);
		my @missing = grep { !defined $m->{$_} }
			qw(name version abstract maintainer license provides meta-spec);
		for my $p (values %{$m->{provides}})
		{
			push @missing, grep { !defined $p->{$_} } qw(file version);
			push @missing, $p->{file} if !-e "$root/$p->{file}";
		}
		die "missing: @missing\n" if @missing' "$GV_ROOT"
}

sound_manual() {
	! LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z \
		"$GV_ROOT/debian/gpuvecd.8" 2>&1 >/dev/null | grep .
}

options_of_gpuvecd() {
	local program=$GV_ROOT/gpuvecd
	[ -x "$program" ] ||
		make -s -C "$GV_ROOT" gpuvecd NVCC= PG_CONFIG="$(gv_find_pg_config)" >&2
	"$program" --help | grep -o -- '--[a-z][a-z-]*' | sort -u
}

# The manual page has the options that the program has.
same_options() {
	diff <(options_of_gpuvecd) \
		<(sed 's/\\-/-/g' "$GV_ROOT/debian/gpuvecd.8" |
			grep -o -- '--[a-z][a-z-]*' | sort -u)
}

# systemd takes the drop-in, without a word, with PostgreSQL's own unit.
sound_unit() {
	local dir=$WORK/units unit=/lib/systemd/system/postgresql@.service said
	rm -rf "$dir"
	mkdir -p "$dir/postgresql@.service.d"
	[ -e "$unit" ] || gv_die "no $unit: install postgresql-common"
	grep -v '^AssertPathExists' "$unit" >"$dir/postgresql@.service"
	cp "$PACKAGING/postgresql@.service.conf" \
		"$dir/postgresql@.service.d/gpuvec.conf"
	said=$(SYSTEMD_UNIT_PATH=$dir: systemd-analyze verify --man=no \
		"$dir/postgresql@15-main.service" 2>&1) || :
	echo "$said"
	[ -z "$said" ]
}

# Checks the unit of a gpuvecd that is not PostgreSQL's child: the program has
# its options.
sound_own_unit() {
	local dir=$WORK/own-unit unit=$GV_ROOT/debian/gpuvecd@.service said options
	rm -rf "$dir"
	mkdir -p "$dir"
	# the program need not be installed here
	sed 's|^ExecStart=/usr/sbin/gpuvecd|ExecStart=/bin/true|' \
		"$unit" >"$dir/gpuvecd@.service"
	said=$(SYSTEMD_UNIT_PATH=$dir: systemd-analyze verify --man=no \
		"$dir/gpuvecd@15-main.service" 2>&1) || :
	options=$(grep -E '^(ExecStart=|#.*GPUVECD_OPTIONS=|# .*the option )' "$unit" |
		grep -o -- '--[a-z][a-z-]*' | sort -u)
	echo "$said; $options"
	[ -z "$said" ] && [ -n "$options" ] &&
		[ -z "$(comm -23 <(echo "$options") <(options_of_gpuvecd))" ]
}

# In the compose file and in the pod the containers share one folder, which both
# name alike, gpuvecd's socket is not in that itself, and only gpuvecd has a card.
sound_containers() {
	python3 - "$PACKAGING" <<'PYTHON'
import sys, yaml
folder = sys.argv[1]
compose = yaml.safe_load(open(folder + '/compose.yaml'))['services']
pod = yaml.safe_load(open(folder + '/pod.yaml'))
containers = {c['name']: c for c in pod['spec']['containers']}
options = {
	'compose': compose['postgres']['environment']['POSTGRES_OPTIONS'],
	'pod': containers['postgres']['env'][0]['value'],
}
mounts = {
	'compose': [[v.rsplit(':', 1)[1] for v in compose[n]['volumes'] if v.startswith('run:')]
		for n in ('postgres', 'gpuvecd')],
	'pod': [[m['mountPath'] for m in containers[n]['volumeMounts'] if m['name'] == 'run']
		for n in ('postgres', 'gpuvecd')],
}
for name, command in ('compose', compose['gpuvecd']['command']), ('pod', containers['gpuvecd']['command']):
	socket = command[command.index('--socket') + 1]
	assert mounts[name][0] == mounts[name][1] and len(mounts[name][0]) == 1, mounts[name]
	assert socket.startswith(mounts[name][0][0] + '/'), socket
	assert '-c gpuvec.server_directory=' + socket in options[name], options[name]
	assert '-c gpuvec.server=external' in options[name]
assert 'deploy' in compose['gpuvecd'] and 'deploy' not in compose['postgres']
assert 'resources' in containers['gpuvecd'] and 'resources' not in containers['postgres']
named = {v['name'] for v in pod['spec']['volumes']}
used = {m['name'] for c in containers.values() for m in c['volumeMounts']}
assert named == used, (named, used)
PYTHON
}

check_files() {
	check "versions agree" same_versions
	check "scripts of the version" has_scripts
	check "META.json" sound_meta
	check "manual page" sound_manual
	check "manual page: its options are gpuvecd's" same_options
	check "systemd: drop-in" sound_unit
	check "systemd: gpuvecd's own unit" sound_own_unit
	check "compose file and pod" sound_containers
}

# ---- sources

# The sources of version $2 from folder $1, packed and unpacked in $3, with this
# tree's debian/; what is built is named $2-1.
make_source() {
	local from=$1 version=$2 to=$3/gpuvec-$2
	rm -rf "$3"
	mkdir -p "$to"
	tar -C "$from" -cf - --exclude=./.git --exclude=./build --exclude='*.o' \
		--exclude='*.d' --exclude='*.so' --exclude='*.bc' --exclude=./gpuvecd \
		--exclude=./gpu/objects --exclude=./tmp_check --exclude=./results \
		--exclude=./output_iso --exclude=./debian --exclude=__pycache__ \
		. | tar -C "$to" -xf - --no-same-owner
	chmod -R u+rwX,go+rX,go-w "$to"
	tar -C "$3" --sort=name --owner=0 --group=0 --numeric-owner \
		--mtime=@0 -czf "$3/gpuvec_$version.orig.tar.gz" "gpuvec-$version"
	cp -r "$GV_ROOT/debian" "$to/"
	rm -rf "$to/debian/files" "$to/debian/.debhelper" "$to"/debian/*.substvars
	sed -i "1s/(.*)/($version-1)/" "$to/debian/changelog"
}

# The sources of the version before, in $1; prints which that is.
make_source_before() {
	local revision=${BEFORE:-} version
	if [ -z "$revision" ]; then
		# the last commit that changed the line, and what was before it
		revision=$(git -C "$GV_ROOT" log -1 --format=%H -G'^default_version' \
			-- gpuvec.control 2>/dev/null)^
	fi
	rm -rf "$1.tree"
	mkdir -p "$1.tree"
	git -C "$GV_ROOT" archive "$revision" | tar -C "$1.tree" -xf -
	version=$(version_of "$1.tree")
	make_source "$1.tree" "$version" "$1"
	rm -rf "$1.tree"
	echo "$version"
}

# ---- build

# Packages of the sources $2 are built in folder $1 below /$3; $4... = settings
# of the environment.
build_in() {
	local dir=$1 source=$2 place=$3
	shift 3
	mkdir -p "$dir/$place"
	cp -r "$source/." "$dir/$place/"
	inside "$dir" chown -R builder: "/$place"
	inside "$dir" setpriv --reuid=builder --regid=builder --clear-groups \
		env HOME=/nonexistent PG_UPDATECONTROL=yes "$@" sh -ec '
		umask ${MASK:-022}
		cd /$0/gpuvec-*
		pg_buildext updatecontrol
		dpkg-buildpackage -us -uc -i' "$place"
}

# With CHECK=1 the SQL tests run.
profiles() { if [ -n "${CHECK:-}" ]; then echo none; else echo nocheck; fi; }

# The folder in which suite $1 is built, with all that needs.
make_builder() {
	local dir=$WORK/$1/builder
	bare_folder "$1" "$dir"
	mkdir "$dir/src"
	cp -r "$WORK/$1/source/." "$dir/src/"
	inside "$dir" apt-get -qq update
	inside "$dir" apt-get -qqy install build-essential \
		postgresql-server-dev-all lintian
	inside "$dir" sh -ec 'cd /src/gpuvec-*
		PG_UPDATECONTROL=yes pg_buildext updatecontrol
		apt-get -qqy "-P$0" build-dep .' "$(profiles)"
	inside "$dir" useradd -r builder
}

# Packages of suite $1; then in another place, at another time, with other jobs,
# time zone and umask.
build_once() {
	local dir=$WORK/$1/builder
	build_in "$dir" "$WORK/$1/source" build/first \
		DEB_BUILD_OPTIONS="parallel=2 $(profiles)" \
		DEB_BUILD_PROFILES="$(profiles)"
	mkdir -p "$WORK/$1/packages"
	cp "$dir"/build/first/*.{deb,dsc,changes,tar.*} "$WORK/$1/packages/"
}

build_again() {
	local dir=$WORK/$1/builder file status=0
	build_in "$dir" "$WORK/$1/source" srv/another/place/second \
		DEB_BUILD_OPTIONS='nocheck parallel=3' DEB_BUILD_PROFILES=nocheck \
		TZ=Asia/Tokyo LANG=C MASK=002
	for file in "$WORK/$1"/packages/*.deb; do
		cmp "$file" "$dir/srv/another/place/second/$(basename "$file")" &&
			sha256sum "$file" || status=1
	done
	return $status
}

clean_to_lintian() {
	inside "$WORK/$1/builder" sh -c 'cd /build/first &&
		lintian --allow-root --fail-on error,warning --display-info \
			--suppress-tags initial-upload-closes-no-bugs *.changes'
}

# Package $1, a file, has one unit gpuvecd@.service, whose program and manual page it
# has, too, and no instance of it starts by itself.
right_unit() {
	local dir=$WORK/unit unit path
	rm -rf "$dir"
	dpkg-deb -x "$1" "$dir"
	dpkg-deb -e "$1" "$dir/DEBIAN"
	unit=$(find "$dir" -name '*.service')
	echo "$unit"
	[[ $unit =~ ^$dir(/usr)?/lib/systemd/system/gpuvecd@\.service$ ]] || return 1
	path=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")
	[ -x "$dir${path:?}" ] || return 1
	path=$(sed -n 's/^Documentation=man:\(.*\)(\(.\))$/man\2\/\1.\2.gz/p' "$unit")
	[ -e "$dir/usr/share/man/${path:?}" ] || return 1
	! find "$dir" -name '*.wants' | grep . || return 1
	! grep -E 'gpuvecd@|systemctl' "$dir"/DEBIAN/p*
}

# The extension alone needs PostgreSQL and C's library; gpuvecd's files are its
# own.
right_contents() {
	local dir=$WORK/$1/packages module depends
	module=$(ls "$dir"/postgresql-*-gpuvec_*.deb)
	depends=$(dpkg-deb -f "$module" Depends)
	echo "$depends"
	[ "$(tr ',' '\n' <<<"$depends" | grep -vcE ' *(postgresql-[0-9]+|libc6)\b')" = 0 ] ||
		return 1
	dpkg-deb -c "$module" | awk '{print $6}' >"$WORK/$1/module.list"
	dpkg-deb -c "$dir"/gpuvecd_*.deb | awk '{print $6}' >"$WORK/$1/gpuvecd.list"
	! grep gpuvecd "$WORK/$1/module.list" || return 1
	grep -x ./usr/sbin/gpuvecd "$WORK/$1/gpuvecd.list"
	grep -x ./usr/share/man/man8/gpuvecd.8.gz "$WORK/$1/gpuvecd.list"
	right_unit "$dir"/gpuvecd_*.deb || return 1
	! grep -v '/$' "$WORK/$1/gpuvecd.list" | grep -xFf - "$WORK/$1/module.list"
}

check_build() {
	check "$1: what building needs" make_builder "$1"
	[ $OK = 0 ] || return 0
	check "$1: packages are built" build_once "$1"
	[ $OK = 0 ] || return 0
	check "$1: lintian" clean_to_lintian "$1"
	check "$1: what is in the packages" right_contents "$1"
	check "$1: built again, the same bytes" build_again "$1"
}

# Packages of the version before, built once; their version is in the file
# `version`.
build_before() {
	local dir=$WORK/$1/builder version
	[ ! -e "$WORK/$1/before/version" ] || return 0
	version=$(make_source_before "$WORK/$1/source-before")
	[ -e "$dir/usr/bin/lintian" ] || make_builder "$1"
	build_in "$dir" "$WORK/$1/source-before" build/before \
		DEB_BUILD_OPTIONS='nocheck parallel=2' DEB_BUILD_PROFILES=nocheck
	mkdir -p "$WORK/$1/before"
	cp "$dir"/build/before/*.deb "$WORK/$1/before/"
	echo "$version" >"$WORK/$1/before/version"
}

# gpuvecd-cuda, beside the others; it needs nothing of NVIDIA's to be installed.
build_cuda() {
	local dir=$WORK/$1/builder
	mkdir -p "$dir/usr/local/cuda"
	export BIND=/usr/local/cuda
	build_in "$dir" "$WORK/$1/source" build/cuda \
		DEB_BUILD_OPTIONS='nocheck parallel=2' \
		DEB_BUILD_PROFILES='nocheck pkg.gpuvec.cuda' \
		${GPU_ARCHS:+"GPU_ARCHS=$GPU_ARCHS"}
	mkdir -p "$WORK/$1/cuda"
	cp "$dir"/build/cuda/*.deb "$WORK/$1/cuda/"
}

right_cuda() {
	local package said
	package=$(ls "$WORK/$1"/cuda/gpuvecd-cuda_*.deb)
	dpkg-deb -f "$package" Depends Conflicts Replaces Provides
	rm -rf "$WORK/$1/cuda/files"
	dpkg-deb -x "$package" "$WORK/$1/cuda/files"
	right_unit "$package" || return 1
	ldd "$WORK/$1/cuda/files/usr/sbin/gpuvecd"
	! ldd "$WORK/$1/cuda/files/usr/sbin/gpuvecd" | grep -i cud || return 1
	! readelf -d "$WORK/$1/cuda/files/usr/sbin/gpuvecd" | grep -iE 'r(un)?path' ||
		return 1
	# it has kernels, and so looks for a card
	said=$(timeout 20 "$WORK/$1/cuda/files/usr/sbin/gpuvecd" \
		--data "$WORK/$1/cuda/files" 2>&1) || :
	echo "$said"
	grep 'could not start engine: no NVIDIA driver\|ready' <<<"$said"
}

# ---- in a bare folder

# The script $2 of this folder in a bare folder of suite $1, with the packages
# in $3 and the sources' README and data; further arguments are the script's.
# Its lines 'ok' and 'not ok' are counted.
run_bare() {
	local suite=$1 script=$2 packages=$3 dir=$WORK/$1/bare-$2 log=$WORK/$1/$2.log
	shift 3
	bare_folder "$suite" "$dir"
	mkdir -p "$dir/srv/gpuvec" "$dir/srv/source/test"
	cp $packages "$dir/srv/gpuvec/"
	cp -r "$GV_ROOT/README.md" "$dir/srv/source/"
	cp -r "$GV_ROOT/test/demo" "$GV_ROOT/test/packaging" "$dir/srv/source/test/"
	make_repository "$dir" >/dev/null 2>&1
	inside "$dir" bash "/srv/source/test/packaging/$script" "$@" \
		>"$log" 2>&1 </dev/null &
	wait $! || echo "not ok: $script ends" >>"$log"
	grep -E '^(not )?ok: ' "$log" | sed "s/^/$suite: /; s/: not ok: /: FAILED: /"
	PASSED=$((PASSED + $(grep -c '^ok: ' "$log" || :)))
	if grep -q '^not ok: ' "$log"; then
		FAILED=$((FAILED + $(grep -c '^not ok: ' "$log")))
		tail -40 "$log" | sed 's/^/    /'
	fi
	rm -rf "$dir"
}

check_suite() {
	local suite=$1 packages=$WORK/$1/packages before=$WORK/$1/before
	make_source "$GV_ROOT" "$VERSION" "$WORK/$suite/source"
	if wanted build; then
		rm -rf "$packages"
		check_build "$suite"
		[ $OK = 0 ] || [ -d "$packages" ] || return 0
	fi
	if wanted cuda; then
		if [ ! -e "$WORK/$suite/builder/usr/bin/lintian" ]; then
			check "$suite: what building needs" make_builder "$suite"
		fi
		check "$suite: gpuvecd-cuda is built" build_cuda "$suite"
		check "$suite: what is in gpuvecd-cuda" right_cuda "$suite"
	fi
	if wanted upgrade && has_updates; then
		check "$suite: packages of the version before" build_before "$suite"
		if [ $OK = 0 ]; then
			run_bare "$suite" upgrade.sh "$packages/*.deb $before/*.deb" \
				"$(cat "$before/version")" "$VERSION"
		fi
	fi
	if wanted autopkgtest; then
		run_bare "$suite" autopkgtest.sh "$packages/*"
	fi
	if wanted dockerfile; then
		run_bare "$suite" dockerfile.sh "$packages/*.deb"
	fi
	rm -rf "$WORK/$suite"/{builder,source,source-before}
}

# Programs inside of a folder do not get the signal.
# shellcheck disable=SC2046
stop() {
	trap '' HUP INT TERM
	kill -KILL $(gv_children $$) 2>/dev/null || :
	exit 1
}

# One that ends early says so, and what it had counted.
DOING=files
end() {
	[ -z "$DOING" ] ||
		echo "stopped in $DOING: $PASSED passed, $FAILED failed until then"
}

main() {
	local passed failed
	trap stop HUP INT TERM
	trap end EXIT
	mkdir -p "$WORK"
	if wanted files; then check_files; fi
	if [ "$PARTS" != files ]; then
		[ "$(id -u)" = 0 ] || gv_die "bare folders need root"
		command -v debootstrap >/dev/null || gv_die "debootstrap is not here"
		[ $# != 0 ] || set -- bookworm trixie sid
		for DOING in "$@"; do
			passed=$PASSED failed=$FAILED
			mkdir -p "$WORK/$DOING"
			check "$DOING: a bare folder" make_bare "$DOING"
			if [ $OK = 0 ]; then check_suite "$DOING"; fi
			echo "$DOING: $((PASSED - passed)) passed, $((FAILED - failed)) failed"
		done
	fi
	DOING=
	summary
}

# (bash reads on in a script that was edited meanwhile)
main "$@"; exit
