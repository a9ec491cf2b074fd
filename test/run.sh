#!/bin/bash
# Every test of gpuvec (`make test`; with --long: `make test-long`).
#
# usage: test/run.sh [--long]
#
# Include rules, compiler warnings (gcc, clang, nvcc), unit programs (plain,
# sanitized, and the CUDA engine on emulated threads), SQL and isolation tests,
# TAP tests; these last on a private copy of PostgreSQL in a temporary folder,
# so that no existing cluster or installation is touched.  The build for that
# copy is gcc's, and the plain unit programs have its objects.  Ends with a table
# of what each part took, wall clock and processor, one line 'N passed, N
# failed', and status 0 only if nothing failed.
#
# The server's tests run while unit programs and the compilers without them,
# which are niced, take what time of the processors is left.
#
# --long sets GPUVEC_TEST_LONG=1, which makes unit programs and TAP tests use
# their full sizes (100,000 damaged conversations with gpuvecd, among others),
# and adds parts, one after the other:
#	levels			check_engine with each of the processor's instructions
#	valgrind		the unit programs under valgrind
#	cardwhole		the CUDA engine's whole checks on emulated threads, and
#					gpuvecd's with that engine
#	cardolder		what older cards do
#	cardsanitized	the same sanitized, at small size
#	sqllevels		the SQL tests with each of the processor's instructions
#	plainbuffers	the SQL tests without what leans on PostgreSQL's insides
#					(src/page/buffer/README)
#	ubsan			a server with the undefined-behaviour sanitizer
#	servers			every other PostgreSQL found under /usr/lib/postgresql or, in
#					their place, named in PG_CONFIGS, be it one with assertions
#					(test/servers.sh builds such)
#	clients			what clients from PyPI send (test/clients; skipped where PyPI
#					cannot be reached)
#
# ONLY="part ..." runs just these parts: layers warnings unit sql isolation tap,
# and those above, with --long or without; ONLY="servers tap" runs the TAP tests
# on this server and on the others, ONLY=servers all tests on the others.  What
# ends early says which are left.
# TAP="name ..." runs just these TAP tests, by the beginnings of their names
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

LONG=${GPUVEC_TEST_LONG:-}
SERVER_ENGINE=${GPUVEC_TEST_SERVER:-cpu}
DEFAULT_PARTS='layers warnings unit sql isolation tap'
LONG_PARTS='levels valgrind cardwhole cardolder cardsanitized sqllevels
	plainbuffers ubsan servers clients'
SERVER='' SOURCE=''
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

# Is part $1 to be run?  By default all are, but for those of --long.
wanted() {
	if [ -z "${ONLY:-}" ]; then
		[ -n "$LONG" ] || [[ " $DEFAULT_PARTS " == *" $1 "* ]]
	else
		[[ " $ONLY " == *" $1 "* ]]
	fi
}

wanted_any() {
	local name
	for name in "$@"; do
		if wanted "$name"; then return; fi
	done
	return 1
}

# Part $1 of ONLY's names, which is not begun again, is over.
over() { if wanted "$1"; then echo "$1" >>"$GV_TMP/over"; fi; }

seconds() { echo $((SECONDS - $1)) s; }

# Sets TENTHS to the processor time, in tenths of a second, of this shell, of
# what it has waited for and of the servers that it has stopped.
processor() {
	local file=$GV_TMP/times.$BASHPID
	times >"$file"
	TENTHS=$(awk -v ticks="$GV_TICKS" -v hertz="$(getconf CLK_TCK)" '{
			for (i = 1; i <= 2; i++) {
				split($i, t, /[ms]/)
				seconds += 60 * t[1] + t[2]
			}
		}
		END { printf "%d", 10 * (seconds + ticks / hertz) }' \
		"$file")
}

# $1 tenths as seconds
tenths() { echo "$(($1 / 10)).$(($1 % 10))"; }

# Runs a part, $2 and further arguments, beside those to come; join_parts
# shows what it printed.  $1 = its name.  What it counted and took is in
# GV_TMP/parts.
BESIDE=()
beside() {
	local name=$1 log=$GV_TMP/parts/${1// /_}
	shift
	(
		PASSED=0 FAILED=0 SKIPPED=0 BESIDE=() GV_TICKS=0
		began=$EPOCHREALTIME
		"$@"
		processor
		wall=$((${EPOCHREALTIME/./} - ${began/./}))
		echo "$began $((wall / 100000)) $TENTHS $PASSED $FAILED $SKIPPED" \
			"$name" >"$log.part"
	) >"$log.log" 2>&1 &
	BESIDE+=("$name" "$!")
}

join_parts() {
	local name log wall tenths p f
	while [ ${#BESIDE[@]} -gt 0 ]; do
		name=${BESIDE[0]} log=$GV_TMP/parts/${BESIDE[0]// /_}
		wait "${BESIDE[1]}" || :
		BESIDE=("${BESIDE[@]:2}")
		if [ ! -e "$log.part" ]; then
			echo "FAILED: $name: it ended too soon" >>"$log.log"
			echo "$EPOCHREALTIME 0 0 0 1 0 $name" >"$log.part"
		fi
		read -r _ wall tenths p f _ <"$log.part"
		if [ "$f" = 0 ] && [ "$p" != 0 ]; then
			echo "$name: $p passed, $(tenths "$wall") s," \
				"processor $(tenths "$tenths") s" >>"$log.log"
		fi
		cat "$log.log"
	done
}

# A part and nothing beside it.
part() {
	beside "$@"
	join_parts
}

# Several parts, one after the other, beside others: what they print comes at
# once.
LANES=()
lane() {
	(
		BESIDE=() LANES=()
		"$@"
	) &
	LANES+=("$!")
}

join_lanes() {
	local pid
	for pid in "${LANES[@]}"; do
		wait "$pid" || part "a lane" false
	done
	LANES=()
}

# What every part took, and all counts.
show_parts() {
	local wall tenths p f s name all=0
	printf '%-48s %9s %9s\n' part seconds processor
	while read -r _ wall tenths p f s name; do
		passed "$p"
		FAILED=$((FAILED + f)) SKIPPED=$((SKIPPED + s)) all=$((all + tenths))
		printf '%-48s %9s %9s\n' "$name" "$(tenths "$wall")" \
			"$(tenths "$tenths")"
	done < <(cat "$GV_TMP"/parts/*.part | LC_ALL=C sort -n)
	printf '%-48s %9s %9s\n' all "$SECONDS.0" "$(tenths "$all")"
}

# Runs a program whose last line is 'NAME: N passed, M failed' and counts it;
# what it printed is shown when something failed.
count_program() {
	local log status=0 line p=0 f=0
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
		failed "$f" "$* (status $status)"
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

part_layers() {
	count_program "$GV_ROOT/test/unit/check_layers.pl"
}

# ---- compilers

# $1 = what is said when it fails, the rest: command; one test: it succeeds and
# warns of nothing
count_silent() {
	local what=$1 log=$GV_TMP/silent.$BASHPID.log
	shift
	if ! "$@" >"$log" 2>&1; then
		tail -40 "$log"
		failed 1 "$what"
	elif grep -q 'warning:' "$log"; then
		# each once: a header's would come with every file
		grep -A4 'warning:' "$log" | awk '!seen[$0]++' | head -60
		failed 1 "$what: $(grep -c 'warning:' "$log") warnings"
	else
		passed 1
	fi
}

# The server was configured for gcc: its flags, and the gnu_printf of its
# header, are not all known to clang.
build_clang() {
	local clang
	clang=$(gv_find_clang)
	if [ -z "$clang" ]; then
		skipped "no clang"
		return
	fi
	gv_copy_source clang
	count_silent "clang" gv_nice 19 \
		make -C "$GV_TMP/clang" -j"$(nproc)" PG_CONFIG="$GV_PG_CONFIG" \
		CC="$clang" all \
		COPT="-Wno-unknown-warning-option -Wno-ignored-attributes \
			-Wno-ignored-optimization-argument"
}

# gpuvecd with its kernels builds, where there is a compiler for them; without
# a card, and with a driver that is too old, it says so and ends with status 3.
# All but the kernels is in the copy of what gcc has built.
build_nvcc() {
	local nvcc
	nvcc=$(command -v nvcc || find /usr/local/cuda/bin -name nvcc 2>/dev/null) ||
		:
	if [ -z "$nvcc" ]; then
		skipped "no nvcc"
		return
	fi
	cp -a "$SOURCE" "$GV_TMP/cuda"
	rm "$GV_TMP/cuda/gpuvecd"
	count_silent "nvcc" gv_nice 19 \
		make -C "$GV_TMP/cuda" -j"$(nproc)" PG_CONFIG="$GV_PG_CONFIG" \
		NVCC="$nvcc" GPU_ARCHS="${GPU_ARCHS:-90a}" gpuvecd
	if [ ! -e "$GV_TMP/cuda/gpuvecd" ] || [ -e /dev/nvidiactl ]; then
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
	LD_LIBRARY_PATH=$2 "$GV_TMP/cuda/gpuvecd" --engine cuda \
		--data "$GV_TMP/nocard" >"$log" 2>&1 || status=$?
	if [ $status = 3 ] && grep -q "$1" "$log"; then
		passed 1
	else
		cat "$log"
		failed 1 "gpuvecd, $1 (status $status)"
	fi
}

other_compilers() {
	part "no warning from nvcc" build_nvcc
	part "no warning from clang" build_clang
	over warnings
}

# ---- unit programs: engine (with the portable kernels), page (with the
# server's headers, but no server), gpuvecd with what tests it, and the CUDA
# engine on emulated threads

SANITIZE='-fsanitize=address,undefined -fno-omit-frame-pointer'
SANITIZE+=' -fno-sanitize-recover=undefined'

# What test/unit/Makefile makes; $1 = folder, the rest: targets and variables.
# The plain engine is the server's.
build_unit() {
	local dir=$GV_TMP/unit-$1
	shift
	mkdir -p "$dir"
	count_silent "it does not compile without warnings" gv_nice 10 \
		make -s -j"$(nproc)" -f "$SOURCE/test/unit/Makefile" OUT="$dir" \
		PG_CONFIG="$(gv_find_pg_config)" CC=gcc CXX=g++ "$@"
}

# Settings, if any, and a program that computes and never waits.
run_niced() { count_program gv_nice 10 env "$@"; }

# $1 = flavour, $2 = settings of check_engine, the rest: for make
unit_flavour() {
	local dir=$1 settings=$2
	shift 2
	part "unit $dir build" build_unit "$dir" "$@"
	if [ -e "$GV_TMP/unit-$dir/gpuvecd" ]; then
		# shellcheck disable=SC2086
		beside "unit $dir check_engine" \
			run_niced $settings "$GV_TMP/unit-$dir/check_engine"
		beside "unit $dir check_page" \
			count_program "$GV_TMP/unit-$dir/check_page"
		beside "unit $dir check_server" \
			count_program "$GV_TMP/unit-$dir/check_server"
		join_parts
	fi
}

# The CUDA engine on emulated threads, against the portable engine.  $1 = name,
# $2 = folder, $3 = settings, the rest: for make
unit_card() {
	local name=$1 dir=$2 settings=$3 part
	shift 3
	part "$name build" build_unit "$dir" BUILT="$SOURCE" "$@" card
	if [ -e "$GV_TMP/unit-$dir/check_card" ]; then
		for part in mirrors hopper builders select exact lists sets faults \
			open; do
			# shellcheck disable=SC2086
			beside "$name $part" \
				run_niced $settings "$GV_TMP/unit-$dir/check_card" $part
		done
		join_parts
	fi
}

unit_parts() {
	local small=GPUVEC_UNIT_SMALL=1
	unit_flavour plain '' BUILT="$SOURCE" programs
	# every size is the plain one's
	unit_flavour sanitized "$([ -n "$LONG" ] || echo $small)" \
		FLAGS="$SANITIZE" programs
	unit_card "unit card" plain $small
	over unit
}

# Of --long.  Programs that are there already are not made again.
long_unit_parts() {
	local level part
	if wanted_any levels valgrind; then
		part "unit plain build again" build_unit plain BUILT="$SOURCE" programs
	fi
	if wanted levels; then
		for level in $(other_levels); do
			beside "check_engine $level" run_niced \
				GPUVEC_UNIT_SIMD="$level" "$GV_TMP/unit-plain/check_engine"
		done
		join_parts
		over levels
	fi
	if wanted valgrind; then
		run_valgrind
		over valgrind
	fi
	if wanted cardwhole; then
		unit_card "card whole" plain '' cardserver
		part "card whole check_server" run_niced GPUVEC_UNIT_ENGINE=cuda \
			"$GV_TMP/unit-plain/card/check_server"
		over cardwhole
	fi
	if wanted cardolder; then
		part "card older build" build_unit plain BUILT="$SOURCE" card
		for part in mirrors exact lists; do
			beside "card older $part" run_niced GPUVEC_EMULATED_CARD=80 \
				GPUVEC_UNIT_SMALL=1 "$GV_TMP/unit-plain/check_card" $part
		done
		join_parts
		over cardolder
	fi
	if wanted cardsanitized; then
		card_sanitized
		over cardsanitized
	fi
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
		beside "valgrind $program" run_niced GPUVEC_UNIT_SMALL=1 \
			"${valgrind[@]}" "$dir/$program"
	done
	beside "valgrind check_server" run_niced GPUVEC_UNIT_SMALL=1 \
		GPUVECD="$dir/watched" "$dir/check_server"
	join_parts
}

# Streams take another order; -O1: the sanitizers' code is what is slow to
# compile.
card_sanitized() {
	local settings='GPUVEC_EMULATED_SEED=2 GPUVEC_UNIT_SMALL=1'
	unit_card "card sanitized" cardsanitized "$settings" \
		FLAGS="-O1 $SANITIZE" cardserver
	# shellcheck disable=SC2086
	part "card sanitized check_server" run_niced $settings \
		GPUVEC_UNIT_ENGINE=cuda "$GV_TMP/unit-cardsanitized/card/check_server"
}

# ---- parts with a server

# Autovacuum would keep rows alive that a test has deleted and vacuums.
SQL_SETTINGS=('max_prepared_transactions = 10' 'autovacuum = off')

# Copies the server of $1, which is the one to test from now on.  SERVER is its
# name in what is printed, TAG in the names of folders, SOURCE where the sources
# are compiled for it.
choose_server() {
	local config=$1
	TAG=$(gv_major "$config")
	SERVER="PostgreSQL $TAG"
	if "$config" --configure | grep -q enable-cassert; then
		SERVER+=" with assertions"
		TAG+=assert
	fi
	gv_copy_server "$config"
	SOURCE=$GV_TMP/src$TAG
}

# Builds gpuvec for it; more arguments go to make.  A warning of gcc is a
# failure.
build_gcc() {
	if [ ! -d "$SOURCE" ]; then
		gv_copy_source "src$TAG"
	fi
	count_silent "gcc" make -C "$SOURCE" -j"$(nproc)" \
		PG_CONFIG="$GV_PG_CONFIG" CC=gcc "$@" all
}

is_built() { [ -e "$SOURCE/gpuvec.so" ] && [ -e "$SOURCE/gpuvecd" ]; }

# Installs that into the copy, and pgvector where it is to be had.
install_gpuvec() {
	gv_build "src$TAG" CC=gcc "$@"
	gv_own "$SOURCE"
	if "$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"; then
		sed -n "s/^default_version *= *'\(.*\)'/\1/p" \
			"$("$GV_PG_CONFIG" --sharedir)/extension/vector.control" \
			>"$GV_TMP/pgvector$TAG"
		echo "$SERVER with pgvector $(cat "$GV_TMP/pgvector$TAG")"
	else
		skipped "$SERVER: everything with pgvector (it is not to be had)"
	fi
	touch "$SOURCE.installed"
}

# Both, once; arguments go to make.  False when something went wrong.
prepare_server() {
	if ! is_built; then
		part "$SERVER: no warning from gcc" build_gcc "$@"
	fi
	if is_built && [ ! -e "$SOURCE.installed" ]; then
		part "$SERVER install" install_gpuvec "$@"
	fi
	PGVECTOR=$(cat "$GV_TMP/pgvector$TAG" 2>/dev/null) || :
	export GPUVEC_PGVECTOR=$PGVECTOR
	[ -e "$SOURCE.installed" ]
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
	local TIMEFORMAT='%0R %1U %1S'
	{
		time {
			# who waits for ever shall not make all others wait
			timeout --foreground 3600 perl -I "$GV_PGXS/test/perl" \
				-I test/t "$1" >"$dir/out" 2>"$dir/err" </dev/null ||
				echo "exit $?" >>"$dir/out"
			# a server counts when it is gone
			sleep 0.2
		}
	} 2>"$dir/time"
	# data folders are large: keep the failed ones' logs only
	find "$dir/tmp_check" -mindepth 1 -maxdepth 1 ! -name log \
		-exec rm -rf {} +
}

# $1 = folder of one TAP file.  Top-level lines only: subtests are indented.
count_tap_file() {
	local name ok bad skips wall=0 user=0 system=0 tenths
	name="$SERVER $(basename "$1")"
	read -r wall user system <"$1/time" || :
	tenths=$((10#${user/./} + 10#${system/./}))
	TAP_TENTHS=$((TAP_TENTHS + tenths))
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
		echo "$name: $ok passed, $wall s, processor $((tenths / 10)) s"
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

# Numbers of TAP files by how long they take, so that none runs alone at the end.
TAP_LONGEST='025 019 024 006 018 010 007 028 027 016 002 012 022 020 030 013
	011 001 004 014 031 003 015 005 021 009 032 008 026 029 017 023'

# Names TAP files in the order in which they run, new ones first: these may take
# any time.
tap_in_order() {
	local file number shorter
	for file in "$@"; do
		number=$(basename "$file" | cut -d_ -f1)
		shorter=${TAP_LONGEST#*"$number"}
		echo "${#shorter} $file"
	done | sort -rns -k1,1 | cut -d' ' -f2-
}

# Runs TAP files, $1 at a time.  A server's parent ends at once: each file's
# shell becomes the parent of such orphans (PR_SET_CHILD_SUBREAPER), so that
# their processor time is the file's.
run_tap_files() {
	local processes=$1
	shift
	# shellcheck disable=SC2016
	printf '%s\0' "$@" | PATH=$GV_BIN:$PATH gv_as xargs -0 -n 1 \
		-P "$processes" perl -e 'eval {
			require "sys/syscall.ph";
			syscall(&SYS_prctl, 36, 1, 0, 0, 0)
		}; exec @ARGV' bash -c 'run_tap_file "$1"' run_tap_file || :
}

# One initdb for all TAP files: what PostgreSQL::Test::Cluster (from 16 on) and
# test/t/Gpuvec.pm copy.
make_tap_template() {
	export INITDB_TEMPLATE=$GV_TMP/template$TAG
	mkdir -m 700 "$INITDB_TEMPLATE"
	gv_own "$INITDB_TEMPLATE"
	# the locale is that of PostgreSQL::Test::Utils
	gv_as env -u LC_ALL LC_MESSAGES=C "$GV_BIN/initdb" -A trust -N \
		-D "$INITDB_TEMPLATE" >"$GV_TMP/initdb.log" 2>&1 ||
		unset INITDB_TEMPLATE
}

part_tap() {
	local name files=() dir began=$SECONDS
	for name in ${TAP:-''}; do
		files+=("$SOURCE"/test/t/"$name"*.pl)
	done
	mapfile -t files < <(tap_in_order "${files[@]}")
	make_tap_template
	mkdir "$GV_TMP/tap$TAG"
	gv_own "$GV_TMP/tap$TAG"
	export -f run_tap_file
	export GV_TMP GV_PGXS SOURCE TAG GPUVEC_TEST_LONG=$LONG
	export PG_REGRESS=$GV_PGXS/test/regress/pg_regress
	# they wait much of their time: three at once, at least
	run_tap_files $(($(nproc) > 3 ? $(nproc) : 3)) "${files[@]}"
	# with this program of test/gpu/run.sh; these need the card for themselves
	if [ -n "${GPUVEC_TEST_HOG:-}" ]; then
		run_tap_files 1 "$SOURCE"/test/gpu/*.pl
	fi
	TAP_TENTHS=0
	for dir in "$GV_TMP/tap$TAG"/*/; do
		count_tap_file "${dir%/}"
	done
	echo "$SERVER tap: $(seconds "$began"), processor $((TAP_TENTHS / 10)) s"
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

# All wanted parts of the chosen server.
server_parts() {
	local name
	wanted_any sql isolation tap clients sqllevels plainbuffers || return 0
	prepare_server || return 0
	if wanted_any sql isolation; then
		part "$SERVER sql and isolation" part_sql "data$TAG"
	fi
	if wanted sql; then
		part "$SERVER sql through gpuvecd" sql_through_gpuvecd \
			"data$TAG-gpuvecd"
	fi
	if wanted sqllevels; then
		part "$SERVER sql with levels" sql_by_levels "data$TAG"
	fi
	if wanted tap; then
		part "$SERVER tap" part_tap
	fi
	if wanted clients; then
		part "$SERVER clients" part_clients "dataclients$TAG"
	fi
	if wanted plainbuffers; then
		part "$SERVER sql on plain buffers" sql_on_plain_buffers \
			"dataplain$TAG"
	fi
	for name in sql isolation tap clients sqllevels plainbuffers; do
		over $name
	done
}

# gpuvec with the undefined-behaviour sanitizer, under the SQL tests
ubsan_parts() {
	local ONLY='sql isolation'
	make -s -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" clean
	rm -f "$SOURCE.installed"
	SERVER="$SERVER sanitized"
	prepare_server SHLIB_LINK="-lm -lubsan" \
		COPT="-fsanitize=undefined -fno-sanitize=alignment" || return 0
	part "$SERVER sql and isolation" part_sql dataubsan
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

# The others than $1's, with the parts that ONLY names beside this one.
more_servers() {
	local others other names=${ONLY:-}
	wanted_any sql isolation tap clients || names=
	others=$(other_servers "$1")
	[ -n "$others" ] || part "other servers" skipped "no other PostgreSQL"
	for other in $others; do
		choose_server "$other"
		ONLY=$names server_parts
	done
}

# What is left of a run that ends early, for ONLY.
show_left() {
	local name left=
	for name in ${ONLY:-$DEFAULT_PARTS ${LONG:+$LONG_PARTS}}; do
		grep -qsx "$name" "$GV_TMP/over" || left+=" $name"
	done
	[ -z "$left" ] || echo "not run: ONLY=\"${left# }\" would"
}

# The parts that run side by side.
run_default() {
	if wanted layers; then beside layers part_layers; fi
	if [ -n "$SERVER" ]; then
		part "$SERVER: no warning from gcc" build_gcc
	fi
	join_parts
	over layers
	if ! is_built; then return; fi
	if wanted warnings; then lane other_compilers; fi
	if wanted unit; then lane unit_parts; fi
	server_parts
	join_lanes
}

# A stop says what is left.
end() {
	local status=$?
	set +e
	show_left
	(exit $status)
	gv_end
}

main() {
	local config what=test
	case ${1:-} in
	'') ;;
	--long) LONG=1 ;;
	*) gv_die "usage: test/run.sh [--long]" ;;
	esac
	# shellcheck disable=SC2086
	if wanted_any $LONG_PARTS; then
		what=long
	fi
	"$GV_ROOT/test/setup.sh" $what
	gv_begin
	trap end EXIT
	mkdir "$GV_TMP/parts"
	export GPUVEC_TEST_LONG=$LONG
	config=$(gv_find_pg_config)
	# shellcheck disable=SC2086
	if wanted_any warnings unit sql isolation tap $LONG_PARTS; then
		choose_server "$config"
	fi
	run_default
	if is_built; then long_unit_parts; fi
	if wanted ubsan; then
		ubsan_parts
		over ubsan
	fi
	if wanted servers; then
		more_servers "$config"
		over servers
	fi
	show_parts
	if [ $SKIPPED != 0 ]; then
		echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	else
		echo "$PASSED passed, $FAILED failed"
	fi
	[ $FAILED = 0 ] && [ $PASSED != 0 ]
}

main "$@"
