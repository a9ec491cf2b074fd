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
	rm -rf "$GV_TMP/tap$TAG"
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

# One test: enough of the lines were executed.  The other lines are in
# build/coverage.json, error paths among them in build/coverage.txt.
count_coverage() {
	local json=$GV_ROOT/build/coverage.json
	local list=$GV_ROOT/build/coverage.txt
	mkdir -p "$GV_ROOT/build"
	gcovr --root "$SOURCE" --filter "$SOURCE/src/" --json "$json" \
		"$SOURCE" "$GV_TMP/unit-coverage" >"$GV_TMP/gcovr.log" 2>&1 || {
		tail -20 "$GV_TMP/gcovr.log"
		failed 1 "gcovr"
		return 0
	}
	count_program "$GV_ROOT/test/coverage.pl" "$json" "$SOURCE" "$list"
	cat "$list"
}
