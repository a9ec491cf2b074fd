# Part of test/run.sh: which lines of src/ its tests execute; sourced.
# shellcheck shell=bash disable=SC2034

# The test build with counters (gcov), under the tests that have a server and under
# the unit programs.  The counts of a server that is killed are lost.
coverage_parts() {
	local ONLY='sql isolation tap' flags='--coverage -fprofile-update=atomic'
	# what makes allocations fail leaves libgcov without memory
	local -x GPUVEC_TEST_COUNTED=1
	if ! command -v gcovr >/dev/null; then
		part coverage skipped "no gcovr"
		return
	fi
	rebuild_server counted TEST_BUILD=1 COPT="-O1 $flags" || return 0
	part "$SERVER sql and isolation" part_sql datacoverage
	part "$SERVER sql through gpuvecd" sql_through_gpuvecd datacoverage-gpuvecd
	part "$SERVER tap" part_tap
	# objects of the same sources, beside those of the server's build
	umask 0						# a gpuvecd of another user counts, too
	unit_flavor coverage GPUVEC_UNIT_SMALL=1 '' FLAGS="-O1 $flags" programs
	umask 022
	part coverage count_coverage
}

# One test: enough of the lines were executed.  build/coverage.txt names the others.
count_coverage() {
	mkdir -p "$GV_ROOT/build"
	if gcovr --root "$SOURCE" --filter "$SOURCE/src/" --fail-under-line 92 \
		"$SOURCE" "$GV_TMP/unit-coverage" >"$GV_ROOT/build/coverage.txt" 2>&1; then
		passed 1
	else
		failed 1 "coverage"
	fi
	tail -4 "$GV_ROOT/build/coverage.txt"
}
