#!/bin/bash
# Fuzzes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.  Leaks are
# not looked for: that takes half of the time, and what a session leaks its end
# frees.
#
# usage: test/fuzz/run.sh [TARGET...]		page protocol (default: all)
#		 test/fuzz/run.sh --can				status 0: clang has libFuzzer
#
# FUZZ_SECONDS	of each target (60)
# FUZZ_OUT		where everything is built and kept, with what was found
#				(build/fuzz)
#
# Begins with the target's seeds, the kept corpus and what earlier runs left in
# FUZZ_OUT.  An input that finds a fault is in FUZZ_OUT/faults-TARGET: README
# says what to do with it.  The last line is "fuzz: N passed, N failed".
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

SECONDS_EACH=${FUZZ_SECONDS:-60}
OUT=${FUZZ_OUT:-$GV_ROOT/build/fuzz}
CLANG=$(gv_find_clang)
PASSED=0 FAILED=0

can_fuzz() {
	[ -n "$CLANG" ] && [ -e \
		"$("$CLANG" -print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a" ]
}

# $1 = target
fuzz() {
	local name=$1 dir=$OUT/corpus-$1 faults=$OUT/faults-$1 length=257
	[ "$name" = page ] || length=13000
	mkdir -p "$dir" "$OUT/seeds-$name" "$faults"
	"$OUT/replay/fuzz_$name" --seeds "$OUT/seeds-$name"
	gv_note "$name: $SECONDS_EACH s"
	if "$OUT/fuzz_$name" -max_total_time="$SECONDS_EACH" -max_len=$length \
		-len_control=0 -detect_leaks=0 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$faults/" "$dir" "$OUT/seeds-$name" \
		"$GV_ROOT/test/fuzz/corpus/$name" >"$OUT/$name.log" 2>&1; then
		PASSED=$((PASSED + 1))
		grep -E 'stat::|^Done' "$OUT/$name.log"
	else
		FAILED=$((FAILED + 1))
		tail -40 "$OUT/$name.log"
	fi
}

main() {
	local name
	if [ "${1:-}" = --can ]; then
		can_fuzz
		return
	fi
	can_fuzz || gv_die "clang has no libFuzzer (test/setup.sh long)"
	[ $# -gt 0 ] || set -- page protocol
	mkdir -p "$OUT"
	make -s -j"$(nproc)" -f "$GV_ROOT/test/fuzz/Makefile" OUT="$OUT" \
		CC="$CLANG" FUZZER=1
	make -s -j"$(nproc)" -f "$GV_ROOT/test/fuzz/Makefile" OUT="$OUT/replay" \
		CC=gcc
	for name in "$@"; do
		fuzz "$name"
	done
	echo "fuzz: $PASSED passed, $FAILED failed"
	[ $FAILED = 0 ]
}

main "$@"
