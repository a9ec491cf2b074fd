#!/bin/bash
# Every test of gpuvec (`make test`; with --long: `make test-long`; with --quick:
# `make check-quick`, for each commit).
#
# usage: test/run.sh [--quick | --long]
#
# Include rules, compiler warnings (gcc, clang, nvcc), unit programs (those of the
# CUDA engine on emulated threads, too) at small size, SQL and isolation tests,
# those that search once more through gpuvecd, TAP tests, a gpuvecd of its own
# (test/external.sh); these last on a private copy of
# PostgreSQL in a temporary folder, so that no existing cluster or installation is
# touched.  The builds for that copy are gcc's: the release, which all parts have
# but for TAP tests and unit programs, which have the test build (make
# TEST_BUILD=1).  Ends with a table of what each part took, wall clock and
# processor, one line 'N passed, N failed', and status 0 only if nothing failed.
#
# --quick: include rules, warnings of gcc and clang, SQL and isolation tests, and
# the plain unit programs at small size: three minutes of two processors.
#
# The server's tests run while unit programs and the compilers without them,
# which are niced, take what time of the processors is left.
#
# --long sets GPUVEC_TEST_LONG=1, which makes unit programs and TAP tests use
# their full sizes (100,000 damaged conversations with gpuvecd, among others),
# and adds parts, one after the other:
#	unitwhole		the unit programs at full size, plain and sanitized, and the CUDA
#					engine's on emulated threads, all parts
#	thread			check_engine, check_server, and TAP files that ask gpuvecd, with
#					ThreadSanitizer
#	sqlserved		all SQL tests through gpuvecd
#	cuda			gpuvecd with its kernels, and what it says without a card
#	fuzz			FUZZ_SECONDS (60) of each fuzz target (test/fuzz/README; skipped
#					where clang has no libFuzzer)
#	levels			check_engine with each of the processor's instructions
#	valgrind		the unit programs under valgrind
#	cardwhole		the CUDA engine's whole checks on emulated threads, and
#					gpuvecd's with that engine
#	cardolder		what older cards do
#	cardsanitized	the same sanitized, at small size
#	plainbuffers	the SQL tests without what leans on PostgreSQL's insides
#					(src/page/README, "Ways Around PostgreSQL")
#	ubsan			a server with the undefined-behavior sanitizer
#	coverage		which lines of src/ the tests of a server and the unit programs
#					execute: 92 % at least (skipped without gcovr)
#	clang			the SQL and isolation tests with what clang has compiled
#	servers			every other PostgreSQL found under /usr/lib/postgresql or, in
#					their place, named in PG_CONFIGS, be it one with assertions
#					(test/servers.sh builds such)
#	upgrade			pg_upgrade from each of these versions to the next (skipped where
#					there is one only)
#	sqlsmith		SQLSMITH_SECONDS (60) of sqlsmith's statements on tables and
#					indexes of all kinds (test/sqlsmith.sh; skipped where it is not
#					installed)
#	hosts			rows divided among servers in networks of their own, 250,000
#					each (test/hosts/run.sh; skipped without postgres_fdw)
#	clients			clients from PyPI (test/clients/run.sh; skipped where PyPI
#					cannot be reached)
#	soak			one round of test/soak.sh
#	faults			are planted faults found (test/faults)?
#
# ONLY="part ..." runs just these parts: layers warnings unit sql isolation tap
# external, and those above, with --long or without; ONLY="servers tap" runs the TAP tests
# on this server and on the others, ONLY=servers all tests on the others.  What
# ends early says which are left.
# TAP="name ..." runs just these TAP tests, by the names of their files; without,
# part tap leaves out those of TAP_LEFT, if ONLY does not name it
#
# The parts are in test/parts; here is what runs beside what.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"
for file in "$GV_ROOT"/test/parts/*.sh; do
	# shellcheck source=/dev/null
	. "$file"
done

# each build says which kind it is
unset TEST_BUILD
LONG=${GPUVEC_TEST_LONG:-} QUICK=
# shellcheck disable=SC2034
SERVER_ENGINE=${GPUVEC_TEST_SERVER:-cpu}
DEFAULT_PARTS='layers warnings unit sql isolation tap external'
QUICK_PARTS='layers warnings unit sql isolation'
LONG_PARTS='unitwhole thread sqlserved cuda fuzz levels valgrind cardwhole cardolder cardsanitized
	plainbuffers ubsan clang coverage servers upgrade sqlsmith hosts clients soak faults'
# that need the test build
TEST_PARTS='warnings unit tap unitwhole thread levels valgrind cardwhole cardolder
	cardsanitized'
BUILT_PARTS='unitwhole thread sqlserved cuda levels valgrind cardwhole cardolder cardsanitized
	plainbuffers servers sqlsmith hosts clients'
# shellcheck disable=SC2034
SERVER='' SOURCE='' TEST_SOURCE=''
PASSED=0 FAILED=0 SKIPPED=0

# Prints the parts left of a run that ends early, for ONLY.
show_left() {
	local name left=
	for name in ${ONLY:-$DEFAULT_PARTS ${LONG:+$LONG_PARTS}}; do
		grep -qsx "$name" "$GV_TMP/over" || left+=" $name"
	done
	[ -z "$left" ] || echo "not run: ONLY=\"${left# }\" would"
}

# The parts that run side by side.  Those that build anew with flags of their own
# need no build of gcc's before.
run_default() {
	if wanted layers; then
		beside layers part_layers
		beside format part_format
	fi
	# shellcheck disable=SC2086
	if [ -n "$SERVER" ] && wanted_any $DEFAULT_PARTS $BUILT_PARTS; then
		part "$SERVER: no warning from gcc" build_server
		# shellcheck disable=SC2086
		if is_built && wanted_any $TEST_PARTS; then
			part "$SERVER: test build" build_for_tests
		fi
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
	--quick) QUICK=1 ONLY=${ONLY:-$QUICK_PARTS} ;;
	*) gv_die "usage: test/run.sh [--quick | --long]" ;;
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
	if wanted_any warnings unit sql isolation tap external $LONG_PARTS; then
		choose_server "$config"
	fi
	run_default
	once fuzz part fuzz long_fuzz
	if is_built; then
		long_unit_parts
		once cuda part cuda with_nvcc build_cuda
	fi
	once ubsan ubsan_parts
	once clang clang_parts
	once coverage coverage_parts
	once servers more_servers "$config"
	once upgrade part upgrade part_upgrade "$config"
	once soak part soak part_soak
	once faults part faults count_program "$GV_ROOT/test/faults/run.sh"
	show_parts
	if [ $SKIPPED != 0 ]; then
		echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	else
		echo "$PASSED passed, $FAILED failed"
	fi
	[ $FAILED = 0 ] && [ $PASSED != 0 ]
}

main "$@"
