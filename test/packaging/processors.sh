#!/bin/bash
# The engine and its tests on other processors than this one: an older x86 by
# qemu (Nehalem, which has no AVX at all, and Haswell, which has AVX2), and
# arm64, compiled with a cross compiler.
#
# usage: test/packaging/processors.sh
#
# Needs qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; what is
# missing is skipped, and so is AVX2 where qemu gathers wrongly (7.2, bookworm's,
# does).  QEMU=FOLDER/ names another's programs: trixie's package is static.
#
# For each processor: check_engine (small), check_page and check_server of
# test/unit/Makefile, so no illegal instruction, and digest.c, whose hashes have
# to be those of this processor: the same bits; here and on arm64 with each level
# of instructions.  An hour on one processor; ends with 'N passed, N failed'.
#
# PROGRAMS="digest check_page" runs these only; PROCESSORS="Nehalem Haswell arm64"
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

OUT=$GV_ROOT/build/processors
PROGRAMS=${PROGRAMS:-digest check_page check_server check_engine}
PROCESSORS=${PROCESSORS:-Nehalem Haswell arm64}
PASSED=0 FAILED=0 SKIPPED=0
ARM=aarch64-linux-gnu
QEMU=${QEMU:-}
# Features that qemu lacks.  It says so once for each thread, into gpuvecd's
# log, which nobody reads here: a full pipe stops it.
NOT_HASWELL=,-pcid,-x2apic,-tsc-deadline,-invpcid,-hle,-rtm

# The unit programs, and the digest, of compiler $1 in folder $2.
build() {
	nice make -s -j2 -f "$GV_ROOT/test/unit/Makefile" OUT="$2" CC="$1" \
		HEADERS="$("$(gv_find_pg_config)" --includedir-server)"
	# shellcheck disable=SC2046
	"$1" -std=gnu11 -O1 -Wall -Wextra -I"$GV_ROOT/src" \
		"$GV_ROOT/test/packaging/digest.c" \
		$(find "$2/src/engine" "$2/src/cpu" -name '*.o' | sort) \
		-lm -o "$2/digest"
}

passed() { PASSED=$((PASSED + 1)) && echo "ok: $*"; }
failed() { FAILED=$((FAILED + 1)) && echo "FAILED: $*"; }

# Runs program $2 of folder $3 on processor $1; the rest is what runs it.
run() {
	local name=$1 program=$2 dir=$3 log=$OUT/$1.$2.log
	shift 3
	if [ "$program" = digest ]; then
		"$@" "$dir/digest" >"$log" 2>"$log.errors" || :
		if cmp -s "$log" "$OUT/digest.here"; then
			passed "$name: the same bits as here ($(wc -l <"$log") results)"
		else
			failed "$name: other bits than here"
			diff "$OUT/digest.here" "$log" | head -10 || :
			tail -5 "$log.errors"
		fi
		return
	fi
	# check_server starts this
	printf '#!/bin/sh\nexec %s "$@"\n' "$* $dir/gpuvecd" >"$OUT/$name.gpuvecd"
	chmod +x "$OUT/$name.gpuvecd"
	if GPUVEC_UNIT_SMALL=1 GPUVECD=$OUT/$name.gpuvecd "$@" "$dir/$program" \
		>"$log" 2>&1 && grep -q '[1-9][0-9]* passed, 0 failed' "$log"; then
		passed "$name: $(grep ' passed, ' "$log" | tail -1)"
	else
		failed "$name: $program, status $?"
		tail -10 "$log"
	fi
}

# Whatever instructions processor $1 has, the digest is that of this one with
# its best: of each level, by folder $2; the rest is what runs it.
compare_levels() {
	local name=$1 dir=$2 level log status
	shift 2
	for level in portable avx2 avx512 neon; do
		log=$OUT/$name.digest.$level
		status=0
		"$@" "$dir/digest" $level >"$log" 2>"$log.errors" || status=$?
		if cmp -s "$log" "$OUT/digest.here"; then
			passed "$name, $level: the same bits"
		elif [ $status != 3 ]; then
			failed "$name, $level: other bits, status $status"
		elif [ "$name $level" = 'arm64 neon' ]; then
			failed "$name: it has no NEON"
		fi
	done
}

# Does qemu, as Haswell, find what a gather with index register 4 is to find?
# Without a gather this number of a register means that there is none.
gathers() {
	cat >"$OUT/gather.c" <<-'END'
		#include <immintrin.h>
		int main(void)
		{
			long long from[4] = {1, 2, 3, 4}, got[4];
			register __m256i at __asm__("ymm4") = _mm256_set_epi64x(0, 1, 2, 3);
			__m256i all = _mm256_set1_epi64x(-1), found = all;
			__asm__("vpgatherqq %1, (%3,%2,8), %0" : "+x"(found), "+x"(all)
				: "x"(at), "r"(from) : "memory");
			_mm256_storeu_si256((__m256i *) got, found);
			return got[0] != 4 || got[1] != 3 || got[2] != 2 || got[3] != 1;
		}
	END
	gcc -O1 -mavx2 "$OUT/gather.c" -o "$OUT/gather" && "$@" "$OUT/gather"
}

# Prints the command that runs programs of processor $1, and where they are;
# nothing if it cannot be had.
runner() {
	local words
	case $1 in
	arm64)
		command -v "${QEMU}qemu-aarch64" >/dev/null &&
			command -v $ARM-gcc >/dev/null &&
			echo "$OUT/arm64 ${QEMU}qemu-aarch64 -L /usr/$ARM"
		;;
	*)
		command -v "${QEMU}qemu-x86_64" >/dev/null &&
			[ "$(uname -m)" = x86_64 ] || return 0
		words="${QEMU}qemu-x86_64 -cpu $1"
		# shellcheck disable=SC2086
		if [ "$1" = Haswell ]; then
			words+=$NOT_HASWELL
			gathers $words || return 0
		fi
		echo "$OUT/here $words"
		;;
	esac
}

main() {
	local name program words
	mkdir -p "$OUT"
	build gcc "$OUT/here"
	"$OUT/here/digest" >"$OUT/digest.here"
	compare_levels here "$OUT/here"
	for name in $PROCESSORS; do
		read -ra words < <(runner "$name") || {
			SKIPPED=$((SKIPPED + 1))
			echo "skipped: $name cannot be had here"
			continue
		}
		if [ "$name" = arm64 ]; then
			build $ARM-gcc "$OUT/arm64"
			compare_levels "$name" "${words[@]}"
		fi
		# what it would take is not there: the tests would be of another level
		if [ "$name" = Nehalem ] &&
			"${words[@]:1}" "${words[0]}/digest" avx2 >/dev/null 2>&1; then
			failed "$name: it has AVX2"
		fi
		for program in $PROGRAMS; do
			run "$name" "$program" "${words[@]}"
		done
	done
	if [ $SKIPPED != 0 ]; then
		echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	else
		echo "$PASSED passed, $FAILED failed"
	fi
	[ $FAILED = 0 ]
}

main "$@"
