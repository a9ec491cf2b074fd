#!/bin/bash
# Every test of gpuvec (`make test`; with --long: `make test-long`).
#
# usage: test/run.sh [--long]
#
# Parts: include rules, compiler warnings (gcc and clang), unit programs (plain
# and sanitized; one of them runs gpuvecd), SQL and isolation tests, TAP tests;
# these last on a private copy of PostgreSQL in a temporary folder, so that no
# existing cluster or installation is touched.  Ends with one line 'N passed, N
# failed', and status 0 only if nothing failed.
#
# --long sets GPUVEC_TEST_LONG=1, which makes unit programs and TAP tests use
# their full sizes (100,000 damaged conversations with gpuvecd, among others),
# and adds the unit programs under valgrind, the CUDA engine's whole checks on
# emulated threads and gpuvecd's with that engine, also sanitized at small size,
# the engine's and the SQL tests with each of the processor's instructions, the
# SQL tests without what leans on PostgreSQL's insides (src/page/buffer/README),
# a server with the undefined-behaviour sanitizer, what clients from PyPI send
# (test/clients; skipped where PyPI cannot be reached), and every other PostgreSQL
# found under /usr/lib/postgresql or, in their place, named in PG_CONFIGS, be it
# one with assertions (test/servers.sh builds such).
#
# ONLY="part ..." runs just these parts: layers warnings unit sql isolation tap
# clients
# TAP="name ..." runs just these TAP tests, by the beginnings of their names
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/unit/build.sh
. "$GV_ROOT/test/unit/build.sh"

LONG=${GPUVEC_TEST_LONG:-}
SERVER_ENGINE=${GPUVEC_TEST_SERVER:-cpu}
PASSED=0 FAILED=0 SKIPPED=0

# ---- counting

passed() { PASSED=$((PASSED + $1)); }

# $1 = how many; the rest says what
failed() {
	FAILED=$((FAILED + $1))
	shift
	printf 'FAILED: %s\n' "$*"
}

skipped() {
	SKIPPED=$((SKIPPED + 1))
	printf 'skipped: %s\n' "$*"
}

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

seconds() { echo $((SECONDS - $1)) s; }

# Runs a part, $2 and further arguments, beside those to come; join_parts shows
# what it printed and counts its tests.  $1 = a name for files.
BESIDE=()
beside() {
	local name=$1
	shift
	(
		PASSED=0 FAILED=0 SKIPPED=0
		"$@"
		echo "$PASSED $FAILED $SKIPPED" >"$GV_TMP/$name.counts"
	) >"$GV_TMP/$name.beside" 2>&1 &
	BESIDE+=("$name" "$!")
}

join_parts() {
	local name p f s
	while [ ${#BESIDE[@]} -gt 0 ]; do
		name=${BESIDE[0]}
		wait "${BESIDE[1]}" || :
		BESIDE=("${BESIDE[@]:2}")
		cat "$GV_TMP/$name.beside"
		if read -r p f s 2>/dev/null <"$GV_TMP/$name.counts"; then
			passed "$p"
			FAILED=$((FAILED + f))
			SKIPPED=$((SKIPPED + s))
		else
			failed 1 "$name: it ended too soon"
		fi
	done
}

# Runs a program whose last line is 'NAME: N passed, M failed' and counts it;
# what it printed is shown when something failed.  $1 = name of the part.
count_program() {
	local part=$1 log status=0 line p=0 f=0 began=$SECONDS
	shift
	log=$GV_TMP/program.$BASHPID.log
	"$@" >"$log" 2>&1 </dev/null || status=$?
	line=$(grep -E '^[^:]+: [0-9]+ passed, [0-9]+ failed' "$log" |
		tail -1) || :
	if [[ $line =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
		p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
	elif [ $status = 0 ]; then
		status=none
	fi
	passed "$p"
	if [ "$f" = 0 ] && [ "$status" != 0 ]; then
		f=1
	fi
	if [ "$f" != 0 ]; then
		tail -60 "$log"
		failed "$f" "$part (status $status)"
	else
		echo "$part: $p passed, $(seconds "$began")"
	fi
}

# The levels of instructions that this processor has, but for the best, which
# all tests use that are not told otherwise.
other_levels() {
	echo portable
	if grep -qs avx512bw /proc/cpuinfo; then
		echo avx2
	fi
}

# ---- parts without a server

part_layers() {
	count_program layers "$GV_ROOT/test/unit/check_layers.pl"
}

# $1 = name, the rest: command; one test: it succeeds and warns of nothing
count_silent() {
	local part=$1 log=$GV_TMP/silent.$BASHPID.log began=$SECONDS
	shift
	if ! "$@" >"$log" 2>&1; then
		tail -40 "$log"
		failed 1 "$part"
	elif grep -q 'warning:' "$log"; then
		# each once: a header's would come with every file
		grep -A4 'warning:' "$log" | awk '!seen[$0]++' | head -60
		failed 1 "$part: $(grep -c 'warning:' "$log") warnings"
	else
		passed 1
		echo "$part: ok, $(seconds "$began")"
	fi
}

part_warnings() {
	local clang config
	config=$(gv_find_pg_config)
	gv_copy_source gcc
	count_silent "no warning from gcc" \
		make -C "$GV_TMP/gcc" -j"$(nproc)" PG_CONFIG="$config" CC=gcc all
	clang=$(gv_find_clang)
	if [ -z "$clang" ]; then
		skipped "no clang"
		beside cuda part_cuda
		return
	fi
	gv_copy_source clang
	# it takes longest, and unit programs but one of the cores
	beside cuda part_cuda
	# The server was configured for gcc: its flags, and the gnu_printf of its
	# header, are not all known to clang.
	count_silent "no warning from clang" \
		make -C "$GV_TMP/clang" -j"$(nproc)" PG_CONFIG="$config" \
		CC="$clang" all \
		COPT="-Wno-unknown-warning-option -Wno-ignored-attributes \
			-Wno-ignored-optimization-argument"
}

# gpuvecd with its kernels builds, where there is a compiler for them; without
# a card, and with a driver that is too old, it says so and ends with status 3.
part_cuda() {
	local nvcc
	nvcc=$(command -v nvcc || find /usr/local/cuda/bin -name nvcc 2>/dev/null) ||
		:
	if [ -z "$nvcc" ]; then
		skipped "no nvcc"
		return
	fi
	count_silent "no warning from nvcc" \
		make -C "$GV_TMP/gcc" -j"$(nproc)" PG_CONFIG="$(gv_find_pg_config)" \
		NVCC="$nvcc" GPU_ARCHS="${GPU_ARCHS:-90a}" -B gpuvecd
	if [ -e /dev/nvidiactl ]; then
		return
	fi
	mkdir "$GV_TMP/nocard"
	no_card "no NVIDIA driver" ""
	gcc -shared -fPIC -o "$GV_TMP/nocard/libcuda.so.1" \
		"$GV_ROOT/test/unit/gpu/old_driver.c"
	no_card "driver is for CUDA 11.4, older than" "$GV_TMP/nocard"
}

# gpuvecd says $1 where libraries are looked for in $2 first, and ends.
no_card() {
	local status=0 log=$GV_TMP/nocard.log
	LD_LIBRARY_PATH=$2 "$GV_TMP/gcc/gpuvecd" --engine cuda \
		--data "$GV_TMP/nocard" >"$log" 2>&1 || status=$?
	if [ $status = 3 ] && grep -q "$1" "$log"; then
		passed 1
	else
		cat "$log"
		failed 1 "gpuvecd, $1 (status $status)"
	fi
}

# The CUDA engine on emulated threads, against the portable engine.
# $1 = name, the rest: flags
unit_card() {
	local dir=$GV_TMP/unit-card-$1 log=$GV_TMP/unit-build.log part
	shift
	mkdir "$dir"
	if build_card "$dir" "$@" >"$log" 2>&1 && ! grep -q 'warning:' "$log"; then
		for part in mirrors hopper builders select exact lists sets faults \
			open; do
			beside "$(basename "$dir").$part" count_program \
				"unit $(basename "$dir") $part" "$dir/check_card" $part
		done
		join_parts
		if [ -n "$LONG" ]; then
			GPUVEC_UNIT_ENGINE=cuda count_program \
				"unit $(basename "$dir") check_server" "$dir/check_server"
		fi
	else
		cat "$log"
		failed 1 "unit $(basename "$dir"): does not compile without warnings"
	fi
}

# Compiles the unit programs: engine (with the portable kernels), page (with
# the server's headers, but no server) and gpuvecd with what tests it.
# $1 = flavour, the rest: flags of that flavour
unit_flavour() {
	local dir=$GV_TMP/unit-$1 log=$GV_TMP/unit-build.log
	shift
	mkdir "$dir" "$dir/server"
	build_unit "$dir" "$@" >"$log" 2>&1 && ! grep -q 'warning:' "$log"
}

# $1 = flavour
run_unit() {
	local program
	for program in "$GV_TMP/unit-$1"/check_*; do
		count_program "unit $1 $(basename "$program")" "$program"
	done
}

# Everything once, because it is fifty times slower there; of the server's
# tests it is the server that is watched (threads that run to the end are no
# leak).
run_valgrind() {
	local valgrind=(valgrind -q --error-exitcode=99 --leak-check=full)
	local dir=$GV_TMP/unit-plain program
	# while one thread trains the loop shall have its turns
	printf '#!/bin/sh\nexec %s %s %s %s/gpuvecd "$@"\n' "${valgrind[*]}" \
		--errors-for-leak-kinds=definite --fair-sched=try "$dir" \
		>"$dir/watched"
	chmod +x "$dir/watched"
	for program in check_engine check_page; do
		GPUVEC_UNIT_SMALL=1 count_program "unit valgrind $program" \
			"${valgrind[@]}" "$dir/$program"
	done
	GPUVEC_UNIT_SMALL=1 GPUVECD=$dir/watched count_program \
		"unit valgrind check_server" "$dir/check_server"
}

# The engine with other instructions than the processor's best.
run_levels() {
	local level
	for level in $(other_levels); do
		GPUVEC_UNIT_SIMD=$level count_program \
			"unit plain check_engine $level" "$GV_TMP/unit-plain/check_engine"
	done
}

part_unit() {
	local part sanitize=(-fsanitize=address -fsanitize=undefined
		-fno-omit-frame-pointer
		-fno-sanitize-recover=undefined)
	export GPUVEC_TEST_LONG=$LONG
	unit_one plain
	unit_one sanitized "${sanitize[@]}"
	if [ -n "$LONG" ]; then
		run_levels
		run_valgrind
		unit_card whole
		# what older cards do
		for part in mirrors exact lists; do
			beside "older.$part" count_program "unit card older $part" \
				env GPUVEC_EMULATED_CARD=80 GPUVEC_UNIT_SMALL=1 \
				"$GV_TMP/unit-card-whole/check_card" $part
		done
		join_parts
		# streams take another order; -O1: the sanitizers' code is what is slow
		# to compile
		GPUVEC_EMULATED_SEED=2 GPUVEC_UNIT_SMALL=1 \
			unit_card sanitized -O1 "${sanitize[@]}"
	else
		GPUVEC_UNIT_SMALL=1 unit_card small
	fi
}

unit_one() {
	if unit_flavour "$@"; then
		run_unit "$1"
	else
		cat "$GV_TMP/unit-build.log"
		failed 1 "unit $1: does not compile without warnings"
	fi
}

# ---- parts with a server

# Autovacuum would keep rows alive that a test has deleted and vacuums.
SQL_SETTINGS=('max_prepared_transactions = 10' 'autovacuum = off')

# Installs gpuvec, and pgvector where it is to be had, into a fresh copy of
# the server of $1; further arguments go to make.  SERVER is its name in what
# is printed, TAG in the names of folders.
prepare_server() {
	local config=$1
	shift
	TAG=$(gv_major "$config")
	SERVER="PostgreSQL $TAG"
	if "$config" --configure | grep -q enable-cassert; then
		SERVER+=" with assertions"
		TAG+=assert
	fi
	gv_copy_server "$config"
	SOURCE=$GV_TMP/src$TAG
	if [ ! -d "$SOURCE" ]; then
		gv_copy_source "src$TAG"
	fi
	if ! gv_build "src$TAG" "$@"; then
		failed 1 "$SERVER: build"
		return 1
	fi
	gv_own "$SOURCE"
	PGVECTOR=
	if "$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"; then
		PGVECTOR=$(sed -n "s/^default_version *= *'\(.*\)'/\1/p" \
			"$("$GV_PG_CONFIG" --sharedir)/extension/vector.control")
		echo "$SERVER with pgvector $PGVECTOR"
	else
		skipped "$SERVER: everything with pgvector (it is not to be had)"
	fi
	export GPUVEC_PGVECTOR=$PGVECTOR
}

# Counts the lines of pg_regress, of 15 ('test NAME ... ok') and of later ones
# ('ok 1 - NAME').  $1 = part, $2 = log, $3 = status, $4 = folder with diffs
count_regress() {
	local ok bad
	ok=$(grep -cE '^(test .* \.\.\. ok|ok [0-9])|^ +.* \.\.\. ok ' "$2") || :
	bad=$(grep -cE '\.\.\. FAILED|^not ok [0-9]' "$2") || :
	passed "$ok"
	if [ "$bad" = 0 ] && [ "$3" != 0 ]; then
		bad=1
	fi
	if [ "$bad" != 0 ]; then
		if [ -s "$4/regression.diffs" ]; then
			grep -E 'FAILED|^not ok' "$2" || :
			head -400 "$4/regression.diffs"
		else
			tail -40 "$2"
		fi
		failed "$bad" "$1"
	else
		echo "$1: $ok passed, $5"
	fi
}

# Runs the tests that the Makefile lists in variable $2, REGRESS or ISOLATION,
# against the running cluster, but for those named after the fourth argument.
# $1 = part's name, $3 = the other variable, $4 = folder, under the sources,
# where the differences are written
installcheck() {
	local log=$GV_TMP/$2.log status=0 began=$SECONDS names name
	names=" $(make -s -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" print-"$2") "
	for name in "${@:5}"; do
		names=${names/ $name / }
	done
	[ -n "${names// /}" ] || return 0
	gv_as make -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" TAP_TESTS= "$3=" \
		"$2=$names" installcheck >"$log" 2>&1 || status=$?
	count_regress "$SERVER $1" "$log" $status "$SOURCE/$4" \
		"$(seconds "$began")"
}

# One test more: no backend crashed, and no sanitizer spoke.
check_server_log() {
	local log=$GV_TMP/$1/server.log
	local bad='PANIC:|TRAP:|terminated by signal|runtime error:'
	if grep -qE "$bad" "$log"; then
		grep -E -A3 "$bad" "$log" | head -40
		failed 1 "$SERVER: see its log above"
	else
		passed 1
	fi
}

# SQL and isolation tests on a cluster of their own; $1 = its name
part_sql() {
	if wanted sql || wanted isolation; then
		gv_start "$1" "${SQL_SETTINGS[@]}" || {
			failed 1 "$SERVER: does not start"
			return 0
		}
		if wanted sql; then
			installcheck sql REGRESS ISOLATION .
		fi
		if wanted isolation; then
			installcheck isolation ISOLATION REGRESS output_iso
		fi
		gv_stop "$1"
		check_server_log "$1"
	fi
	if wanted sql; then
		sql_through_gpuvecd "$1-gpuvecd"
	fi
	if [ -n "$LONG" ] && wanted sql; then
		sql_by_levels "$1"
	fi
}

# The SQL tests with other instructions; $1 = what the clusters are called
sql_by_levels() {
	local level
	for level in $(other_levels); do
		gv_start "$1-$level" "${SQL_SETTINGS[@]}" \
			"gpuvec.simd = $level" || {
			failed 1 "$SERVER with $level: does not start"
			return 0
		}
		installcheck "sql with $level" REGRESS ISOLATION .
		gv_stop "$1-$level"
		check_server_log "$1-$level"
	done
}

# SQL tests that ask gpuvecd for no search of an index and for no work on a set:
# they are about names, rights and options, plans and values, or builds, which
# the other files have, too.  One that is not listed runs.
NOT_THROUGH_GPUVECD=(bad_input cost extension options path pgvector_extension
	pgvector_operators real_operators train validate verify)

# The other SQL tests once more, on a cluster whose searches go to gpuvecd as
# soon as it has a mirror; $1 = its name
sql_through_gpuvecd() {
	local answered
	gv_start "$1" "${SQL_SETTINGS[@]}" \
		"shared_preload_libraries = 'gpuvec'" "gpuvec.server = $SERVER_ENGINE" \
		'gpuvec.engine = gpu' || {
		failed 1 "$SERVER with gpuvecd: does not start"
		return 0
	}
	installcheck "sql through gpuvecd" REGRESS ISOLATION . \
		"${NOT_THROUGH_GPUVECD[@]}"
	answered=$(gv_as "$GV_BIN/psql" -XAt -d contrib_regression \
		-c 'SELECT least(searches_by_server, sets_by_server) FROM gpuvec_stat')
	if [ "${answered:-0}" -gt 100 ]; then
		passed 1
	else
		failed 1 "$SERVER: gpuvecd answered ${answered:-no} searches or sets"
	fi
	gv_stop "$1"
	check_server_log "$1"
}

# Runs one TAP file in a folder of its own, where its output goes.  Called
# through gv_as and xargs, so HOME and TMPDIR are private already.
run_tap_file() {
	local dir
	dir=$GV_TMP/tap$TAG/$(basename "$1" .pl)
	mkdir -p "$dir/tmp_check/log"
	cd "$SOURCE"
	export TESTDIR=$dir TESTDATADIR=$dir/tmp_check
	export TESTLOGDIR=$dir/tmp_check/log
	local began=$SECONDS
	# who waits for ever shall not make all others wait
	timeout --foreground 3600 perl -I "$GV_PGXS/test/perl" -I test/t "$1" \
		>"$dir/out" 2>"$dir/err" </dev/null || echo "exit $?" >>"$dir/out"
	echo "$((SECONDS - began)) s" >"$dir/time"
	# data folders are large: keep the failed ones' logs only
	find "$dir/tmp_check" -mindepth 1 -maxdepth 1 ! -name log \
		-exec rm -rf {} +
}

# $1 = folder of one TAP file.  Top-level lines only: subtests are indented.
count_tap_file() {
	local name ok bad skips
	name="$SERVER $(basename "$1")"
	skips=$(grep -cE '^ok .*# (skip|SKIP)|^1\.\.0 *# *SKIP' "$1/out") || :
	ok=$(grep -E '^ok ' "$1/out" | grep -cvE '# (skip|SKIP)') || :
	bad=$(grep -E '^not ok ' "$1/out" | grep -cv '# TODO') || :
	passed "$ok"
	SKIPPED=$((SKIPPED + skips))
	if [ "$bad" = 0 ] && { grep -q '^exit ' "$1/out" ||
		[ $((ok + skips)) = 0 ]; }; then
		bad=1
	fi
	if [ "$bad" = 0 ]; then
		echo "$name: $ok passed, $(cat "$1/time")"
		return
	fi
	grep -E '^not ok |^exit ' "$1/out" || :
	tail -40 "$1/err"
	for log in "$1"/tmp_check/log/*.log; do
		[ -e "$log" ] || continue
		echo "--- $(basename "$log")"
		grep -vE ' (LOG|STATEMENT): ' "$log" | tail -25
	done
	failed "$bad" "$name"
}

# Runs TAP files, $1 at a time.
run_tap_files() {
	local processes=$1
	shift
	# shellcheck disable=SC2016
	printf '%s\0' "$@" | PATH=$GV_BIN:$PATH gv_as xargs -0 -n 1 \
		-P "$processes" bash -c 'run_tap_file "$1"' run_tap_file || :
}

part_tap() {
	local name files=() dir
	for name in ${TAP:-''}; do
		files+=("$SOURCE"/test/t/"$name"*.pl)
	done
	mkdir "$GV_TMP/tap$TAG"
	gv_own "$GV_TMP/tap$TAG"
	export -f run_tap_file
	export GV_TMP GV_PGXS SOURCE TAG GPUVEC_TEST_LONG=$LONG
	export PG_REGRESS=$GV_PGXS/test/regress/pg_regress
	run_tap_files "$(nproc)" "${files[@]}"
	# with this program of test/gpu/run.sh; these need the card for themselves
	if [ -n "${GPUVEC_TEST_HOG:-}" ]; then
		run_tap_files 1 "$SOURCE"/test/gpu/*.pl
	fi
	for dir in "$GV_TMP/tap$TAG"/*/; do
		count_tap_file "${dir%/}"
	done
}

# What clients from PyPI send, and README's examples for frameworks, on a
# cluster named $1.
part_clients() {
	local program out status ok bad began
	if [ -z "$PGVECTOR" ]; then
		skipped "$SERVER clients: they need pgvector"
		return
	fi
	gv_start "$1"
	for program in drivers frameworks; do
		out=$GV_TMP/$program.out status=0 began=$SECONDS
		"$GV_ROOT/test/clients/$program.py" >"$out" 2>&1 || status=$?
		if [ $status = 2 ]; then
			skipped "$SERVER clients: $(tail -1 "$out")"
			break
		fi
		ok=$(grep -c '^ok ' "$out") || :
		bad=$(grep -c '^not ok ' "$out") || :
		if [ $status != 0 ] || [ "$ok" = 0 ]; then
			grep -v '^ok ' "$out" || :
			failed "$((bad > 0 ? bad : 1))" "$SERVER clients: $program"
		fi
		passed "$ok"
		echo "$SERVER clients: $program: $ok passed, $(seconds $began)"
	done
	gv_stop "$1"
	check_server_log "$1"
}

# by default a part of --long only: it needs the network
wanted_clients() { wanted clients && [ -n "$LONG${ONLY:-}" ]; }

server_parts() {
	wanted sql || wanted isolation || wanted tap || wanted_clients || return 0
	prepare_server "$1" || return 0
	part_sql "data$TAG"
	if wanted tap; then
		part_tap
	fi
	if wanted_clients; then
		part_clients "dataclients$TAG"
	fi
	if [ -n "$LONG" ] && wanted sql; then
		sql_on_plain_buffers "dataplain$TAG"
	fi
}

# gpuvec with the undefined-behaviour sanitizer, under the SQL tests
sanitized_server() {
	wanted sql || wanted isolation || return 0
	prepare_server "$1" || return 0
	make -s -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" clean
	gv_build "$(basename "$SOURCE")" SHLIB_LINK="-lm -lubsan" \
		COPT="-fsanitize=undefined -fno-sanitize=alignment" || {
		failed 1 "$SERVER: sanitized build"
		return 0
	}
	gv_own "$SOURCE"
	SERVER="$SERVER sanitized"
	part_sql dataubsan
}

# The other servers to test with, one pg_config a line.
other_servers() {
	local config
	for config in ${PG_CONFIGS:-/usr/lib/postgresql/*/bin/pg_config}; do
		if gv_is_server "$config" &&
			[ "$("$config" --bindir)" != "$("$1" --bindir)" ]; then
			echo "$config"
		fi
	done
}

# The SQL tests once more with gpuvec built without what leans on PostgreSQL's
# insides (src/page/buffer/README); $1 = the cluster's name
sql_on_plain_buffers() {
	rm -f "$SOURCE"/src/page/buffer/*.o
	gv_build "$(basename "$SOURCE")" COPT=-DIVFPQ_PLAIN_BUFFERS || {
		failed 1 "$SERVER: build with plain buffers"
		return 0
	}
	gv_own "$SOURCE"
	gv_start "$1" "${SQL_SETTINGS[@]}" || {
		failed 1 "$SERVER with plain buffers: does not start"
		return 0
	}
	installcheck "sql on plain buffers" REGRESS ISOLATION .
	gv_stop "$1"
	check_server_log "$1"
}

# What --long adds to the server of $1.
more_servers() {
	local others other
	wanted sql || wanted isolation || wanted tap || wanted_clients || return 0
	sanitized_server "$1"
	others=$(other_servers "$1")
	[ -n "$others" ] || skipped "no other PostgreSQL"
	for other in $others; do
		server_parts "$other"
	done
}

main() {
	local config what=test
	case ${1:-} in
	'') ;;
	--long) LONG=1 ;;
	*) gv_die "usage: test/run.sh [--long]" ;;
	esac
	if [ -n "$LONG" ]; then
		what=long
	fi
	"$GV_ROOT/test/setup.sh" $what
	gv_begin
	config=$(gv_find_pg_config)
	if wanted layers; then part_layers; fi
	if wanted warnings; then part_warnings; fi
	if wanted unit; then part_unit; fi
	join_parts
	server_parts "$config"
	if [ -n "$LONG" ]; then more_servers "$config"; fi
	echo "took $SECONDS s"
	if [ $SKIPPED != 0 ]; then
		echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	else
		echo "$PASSED passed, $FAILED failed"
	fi
	[ $FAILED = 0 ] && [ $PASSED != 0 ]
}

main "$@"
