#!/bin/bash
# Planted faults: does a test catch each of them?
#
# usage: test/faults/run.sh [NAME...]        (default: all)
#
# Each row of the table beside this script is a fault, and names the quickest test
# that notices it.  apply.pl beside it puts rows into sources.
#
# The sources are built once, for tests (make TEST_BUILD=1).  For each fault a
# copy of them, with the objects, is changed, built and tested by that test
# alone.  A fault passes if the test ran and failed, while it passes without the
# fault.  The last line is 'faults: N passed, N failed'; status 0 only if nothing
# failed.
#
# FAULTS_TRUST=1 does not run the tests without faults first, FAULTS_LOGS=folder
# keeps what they print with them.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

# the tests' short forms
unset GPUVEC_TEST_LONG
FAULTS=$GV_ROOT/test/faults
SOURCE=
PASSED=0
FAILED=0
# a test that a fault makes wait for ever is ended
LIMIT=${FAULTS_LIMIT:-900}
# seconds that a TAP test waits for what does not come: fewer with a fault
PATIENCE=180

# ---- building

build() {
	make -C "$SOURCE" -j"$(nproc)" PG_CONFIG="$GV_PG_CONFIG" CC=gcc TEST_BUILD=1 all
}

build_unit() {
	make -C "$SOURCE" -j"$(nproc)" -f test/unit/Makefile \
		PG_CONFIG="$GV_PG_CONFIG" CC=gcc BUILT="$SOURCE" OUT=build/unit "$@"
}

# Builds what a test of kind $1 needs.
build_for() {
	build || return 1
	case $1 in
	unit) build_unit programs ;;
	card) build_unit card ;;
	*) make -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" CC=gcc TEST_BUILD=1 install &&
		gv_own "$SOURCE" ;;
	esac
}

# ---- tests: status 0 passed, 1 failed, 2 did not run

# $1 = program under build/unit, with arguments
run_unit() {
	local status=0
	GPUVEC_UNIT_SMALL=1 timeout "$LIMIT" "$SOURCE/build/unit/$1" \
		"${@:2}" || status=$?
	# 125 to 127: timeout or the shell could not run it
	case $status in
	0) return 0 ;;
	125 | 126 | 127) return 2 ;;
	*) return 1 ;;
	esac
}

# $1 = REGRESS or ISOLATION, $2 = the other, $3 = test
run_regress() {
	local log=$GV_TMP/regress.log status=0
	cp -a "$GV_TMP/template" "$GV_TMP/data"
	gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/data" -l "$GV_TMP/data/server.log" \
		-w -s start || return 2
	gv_as timeout "$LIMIT" make -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" \
		TAP_TESTS= "$2=" "$1=$3" installcheck >"$log" 2>&1 || status=$?
	gv_as "$GV_BIN/pg_ctl" -D "$GV_TMP/data" -w -s -m immediate stop || :
	rm -rf "$GV_TMP/data"
	cat "$log" "$SOURCE/regression.diffs" 2>/dev/null || :
	[ "$status" != 0 ] || return 0
	if [ "$status" = 124 ] ||
		grep -qE '\.\.\. FAILED|^not ok [0-9]' "$log"; then
		return 1
	fi
	return 2
}

# $1 = a TAP file's name
run_tap() {
	local dir=$GV_TMP/tap status=0 file
	file=$SOURCE/test/t/$1.pl
	rm -rf "$dir"
	mkdir -p "$dir/tmp_check/log"
	gv_own "$dir"
	# shellcheck disable=SC2016
	PATH=$GV_BIN:$PATH PG_TEST_TIMEOUT_DEFAULT=$PATIENCE TESTDIR=$dir TESTDATADIR=$dir/tmp_check \
		TESTLOGDIR=$dir/tmp_check/log \
		PG_REGRESS=$GV_PGXS/test/regress/pg_regress \
		gv_as timeout "$LIMIT" bash -c 'cd "$0" && exec perl "$@"' \
		"$SOURCE" -I "$GV_PGXS/test/perl" -I test/t "$file" \
		>"$GV_TMP/tap.out" 2>&1 </dev/null || status=$?
	gv_kill_servers
	cat "$GV_TMP/tap.out"
	grep -qE '^(not )?ok ' "$GV_TMP/tap.out" || return 2
	[ "$status" = 0 ] || return 1
}

# A test as in the table
run_test() {
	case $1 in
	unit) run_unit "$2" ;;
	card) run_unit check_card "$2" ;;
	sql) run_regress REGRESS ISOLATION "$2" ;;
	isolation) run_regress ISOLATION REGRESS "$2" ;;
	tap) run_tap "$2" ;;
	*) return 2 ;;
	esac
}

# ---- faults

# All that the wanted tests need.
build_sound() {
	local kind
	for kind in sql unit card; do
		[[ "sql ${ROWS[*]}" != *"$kind "* ]] || build_for $kind || return 1
	done
}

# Sources as they are, with objects, in GV_TMP/sound.
prepare() {
	gv_copy_server "$(gv_find_pg_config)"
	if [[ "${ROWS[*]}" == *" sql pgvector_"* ]]; then
		"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"
	fi
	gv_copy_source sound
	SOURCE=$GV_TMP/src
	mv "$GV_TMP/sound" "$SOURCE"
	build_sound >"$GV_TMP/build.log" 2>&1 || {
		tail -40 "$GV_TMP/build.log"
		gv_die "the sources do not build"
	}
	cp -a "$SOURCE" "$GV_TMP/sound"
	gv_start template 'max_prepared_transactions = 10' 'autovacuum = off'
	gv_stop template
}

# Sound sources at the place where they were compiled.
restore() {
	rm -rf "$SOURCE"
	cp -a "$GV_TMP/sound" "$SOURCE"
}

# Does the test $1 $2 pass without a fault?  Asked once of each.
passes_sound() {
	local mark=$GV_TMP/sound-$1-$2
	[ -z "${FAULTS_TRUST:-}" ] || return 0
	if [ ! -e "$mark" ]; then
		restore
		if build_for "$1" >"$mark.log" 2>&1 &&
			run_test "$1" "$2" >>"$mark.log" 2>&1; then
			echo yes >"$mark"
		else
			tail -40 "$mark.log"
			echo no >"$mark"
		fi
	fi
	grep -q yes "$mark"
}

# The fault $1, which test $2 $3 notices: prints what became of it; false unless
# the test noticed.  $4 = log
try_fault() {
	local kind=$2 name=$3 log=$4 status=0
	passes_sound "$kind" "$name" || {
		echo "$kind $name fails without it" && return 1
	}
	restore
	"$FAULTS/apply.pl" -d "$SOURCE" "$1" >"$log" 2>&1 || {
		echo "does not apply" && return 1
	}
	build_for "$kind" >>"$log" 2>&1 || {
		echo "does not build" && return 1
	}
	PATIENCE=60 run_test "$kind" "$name" >>"$log" 2>&1 || status=$?
	case $status in
	0) echo "NOT caught by $kind $name" && return 1 ;;
	1) echo "caught by $kind $name" ;;
	*) echo "$kind $name did not run" && return 1 ;;
	esac
}

main() {
	local list row name kind tested what began log
	list=$("$FAULTS/apply.pl" --list "$@")
	mapfile -t ROWS <<<"$list"
	gv_begin
	log=$GV_TMP/fault.log
	prepare
	for row in "${ROWS[@]}"; do
		read -r name kind tested <<<"$row"
		began=$SECONDS
		: >"$log"
		if what=$(try_fault "$name" "$kind" "$tested" "$log"); then
			PASSED=$((PASSED + 1))
		else
			FAILED=$((FAILED + 1))
			tail -30 "$log"
		fi
		if [ -n "${FAULTS_LOGS:-}" ]; then
			cp "$log" "$FAULTS_LOGS/$name.log"
		fi
		echo "fault $name: $what, $((SECONDS - began)) s"
	done
	echo "faults: $PASSED passed, $FAILED failed"
	[ $FAILED = 0 ] && [ $PASSED != 0 ]
}

main "$@"
