# Parts of test/run.sh: the unit programs; sourced.
# shellcheck shell=bash disable=SC2034

# Engine (with the portable kernels), page (with the server's headers, but no
# server), gpuvecd with what tests it, and the CUDA engine on emulated threads

SANITIZE='-fsanitize=address,undefined -fno-omit-frame-pointer'
SANITIZE+=' -fno-sanitize-recover=undefined'

# Makes unit programs (test/unit/Makefile); $1 = folder, the rest: targets and
# variables.
# The plain engine is that of the server's test build.
build_unit() {
	local dir=$GV_TMP/unit-$1
	shift
	mkdir -p "$dir"
	count_silent "it does not compile without warnings" gv_nice 10 \
		make -s -j"$(nproc)" -f "$SOURCE/test/unit/Makefile" OUT="$dir" \
		PG_CONFIG="$(gv_find_pg_config)" CC=gcc CXX=g++ DEBUG=-g1 "$@"
}

# Settings, if any, and a program that computes and never waits.
run_niced() { count_program gv_nice 10 env "$@"; }

# $1 = flavor, $2 = settings of check_engine, $3 = of check_server, the rest:
# for make
unit_flavor() {
	local dir=$1 settings=$2 served=$3
	shift 3
	part "unit $dir build" build_unit "$dir" "$@"
	if [ -e "$GV_TMP/unit-$dir/gpuvecd" ]; then
		# shellcheck disable=SC2086
		beside "unit $dir check_engine" \
			run_niced $settings "$GV_TMP/unit-$dir/check_engine"
		beside "unit $dir check_page" \
			count_program "$GV_TMP/unit-$dir/check_page"
		# shellcheck disable=SC2086
		beside "unit $dir check_server" count_program \
			env $served "$GV_TMP/unit-$dir/check_server"
		join_parts
	fi
}

# Inputs that once found something, and those that the fuzz targets begin with
# (test/fuzz/README).  $1 = name, $2 = folder with the engine, $3 = its flags
fuzz_replay() {
	local dir=$GV_TMP/unit-fuzz-$1 target
	mkdir "$dir"
	count_silent "it does not compile without warnings" gv_nice 10 \
		make -s -j"$(nproc)" -f "$SOURCE/test/fuzz/Makefile" OUT="$dir" \
		BUILT="$2" PG_CONFIG="$(gv_find_pg_config)" \
		CC=gcc FLAGS="$3"
	for target in page protocol; do
		[ -x "$dir/fuzz_$target" ] || continue
		mkdir "$dir/seeds-$target"
		"$dir/fuzz_$target" --seeds "$dir/seeds-$target"
		run_niced "$dir/fuzz_$target" "$dir/seeds-$target" \
			"$SOURCE/test/fuzz/corpus/$target"
	done
}

# The parts of check_card, and the smallest of them.
CARD='mirrors products hopper builders select exact lists sets faults memory open'
CARD_SMALLEST='select faults open'

# Parts of check_card that run with cuBLAS, too, in place of our own products.
CUBLAS='mirrors exact sets faults'

# The CUDA engine on emulated threads, against the portable engine.  $1 = name,
# $2 = folder, $3 = settings, $4 = its parts, the rest: for make
unit_card() {
	local name=$1 dir=$2 settings=$3 parts=$4 part
	shift 4
	part "$name build" build_unit "$dir" BUILT="$TEST_SOURCE" "$@" card
	if [ -e "$GV_TMP/unit-$dir/check_card" ]; then
		for part in $parts; do
			# shellcheck disable=SC2086
			beside "$name $part" \
				run_niced $settings "$GV_TMP/unit-$dir/check_card" $part
		done
		# what older cards do, cuBLAS always (the rest: cardolder) and not at all
		for part in $CUBLAS; do
			# shellcheck disable=SC2086
			beside "$name cublas $part" run_niced $settings \
				GPUVEC_UNIT_MATMUL=cublas GPUVEC_EMULATED_CARD=80 \
				"$GV_TMP/unit-$dir/check_card" $part
		done
		beside "$name cublas open" run_niced GPUVEC_EMULATED_NO_CUBLAS=1 \
			GPUVEC_EMULATED_CARD=80 "$GV_TMP/unit-$dir/check_card" open
		join_parts
	fi
}

# Of gpuvecd's tests two take most of the time, for mirrors of some MB.
unit_parts() {
	local small=GPUVEC_UNIT_SMALL=1 served=GPUVEC_UNIT_SMALL_TESTS=parts,devices
	local CUBLAS=
	unit_flavor plain $small $served BUILT="$TEST_SOURCE" programs
	if [ -z "$QUICK" ]; then
		part "unit fuzz" fuzz_replay plain "$TEST_SOURCE" ''
		# so small, they take less time than the compiler takes to optimize
		unit_card "unit card" plain $small "$CARD_SMALLEST" FLAGS=-O1 DEBUG=-g0
	fi
	over unit
}

# Of --long.
unit_whole() {
	unit_flavor plain '' '' BUILT="$TEST_SOURCE" programs
	unit_flavor sanitized '' '' FLAGS="$SANITIZE" programs
	part "unit fuzz sanitized" fuzz_replay sanitized \
		"$GV_TMP/unit-sanitized" "$SANITIZE"
	unit_card "unit card" plain GPUVEC_UNIT_SMALL=1 "$CARD"
}

# Of --long: races of gpuvecd's threads, and the engine's.
thread_parts() {
	# one test asks for more memory than there is
	unit_flavor thread \
		'GPUVEC_UNIT_SMALL=1 TSAN_OPTIONS=allocator_may_return_null=1' \
		GPUVEC_UNIT_SMALL_TESTS=parts,devices \
		FLAGS=-fsanitize=thread programs
	if [ -e "$GV_TMP/unit-thread/gpuvecd" ] && prepare_server; then
		part "thread tap" of_test_build thread_tap
	fi
}

# TAP files of mirrors, searches by gpuvecd and its life, with the gpuvecd that
# ThreadSanitizer watches; one test more: it says nothing.
thread_tap() {
	local races=$GV_TMP/races reports
	cp "$GV_TMP/unit-thread/gpuvecd" "$("$GV_PG_CONFIG" --bindir)/gpuvecd"
	mkdir "$races"
	gv_own "$races"
	TSAN_OPTIONS="log_path=$races/gpuvecd" \
		TAP=${TAP:-gpuvecd_lifecycle mirrors gpus coherence remote_search damage standby} part_tap
	reports=$(find "$races" -type f)
	if [ -z "$reports" ]; then
		passed 1
	else
		# shellcheck disable=SC2086
		head -60 $reports
		failed 1 "$SERVER: $(wc -w <<<"$reports") gpuvecd with a race"
	fi
}

# Of --long: libFuzzer itself.
long_fuzz() {
	if "$GV_ROOT/test/fuzz/run.sh" --can; then
		count_program gv_nice 10 "$GV_ROOT/test/fuzz/run.sh"
	else
		skipped "no libFuzzer"
	fi
}

# Of --long.  Programs that are there already are not made again.
long_unit_parts() {
	local level part
	once unitwhole unit_whole
	once thread thread_parts
	if wanted_any levels valgrind; then
		part "unit plain build again" build_unit plain BUILT="$TEST_SOURCE" programs
	fi
	if wanted levels; then
		for level in $(other_levels); do
			beside "check_engine $level" run_niced \
				GPUVEC_UNIT_SIMD="$level" "$GV_TMP/unit-plain/check_engine"
		done
		join_parts
		over levels
	fi
	once valgrind run_valgrind
	if wanted cardwhole; then
		unit_card "card whole" plain '' "$CARD" cardserver
		part "card whole check_server" run_niced GPUVEC_UNIT_ENGINE=cuda \
			"$GV_TMP/unit-plain/card/check_server"
		over cardwhole
	fi
	if wanted cardolder; then
		part "card older build" build_unit plain BUILT="$TEST_SOURCE" card
		for part in mirrors builders exact lists sets; do
			beside "card older $part" run_niced GPUVEC_EMULATED_CARD=80 \
				GPUVEC_UNIT_SMALL=1 "$GV_TMP/unit-plain/check_card" $part
			beside "card older cublas $part" run_niced \
				GPUVEC_EMULATED_CARD=80 GPUVEC_UNIT_MATMUL=cublas \
				"$GV_TMP/unit-plain/check_card" $part
		done
		join_parts
		over cardolder
	fi
	once cardsanitized card_sanitized
}

# Everything once, because it is fifty times slower there; some hundred with
# fused products, which valgrind computes by itself: the engine's tests are
# portable, but for those that compare all levels.  Of the server's tests it is
# the server that is watched (threads that run to the end are no leak).
run_valgrind() {
	local valgrind=(valgrind -q --error-exitcode=99 --leak-check=full)
	local dir=$GV_TMP/unit-plain names n i
	# while one thread trains the loop shall have its turns
	printf '#!/bin/sh\nexec %s %s %s %s/gpuvecd "$@"\n' "${valgrind[*]}" \
		--errors-for-leak-kinds=definite --fair-sched=try "$dir" \
		>"$dir/watched"
	chmod +x "$dir/watched"
	# as many at a time as there are processors
	n=$(nproc)
	for ((i = 0; i < n; i++)); do
		mapfile -t names < <("$dir/check_engine" --names | awk "NR % $n == $i")
		[ ${#names[@]} != 0 ] || continue
		beside "valgrind check_engine $i" run_niced GPUVEC_UNIT_SMALL=1 \
			GPUVEC_UNIT_SIMD=portable "${valgrind[@]}" "$dir/check_engine" \
			"${names[@]}"
	done
	beside "valgrind check_page" run_niced "${valgrind[@]}" "$dir/check_page"
	beside "valgrind check_server" run_niced GPUVEC_UNIT_SMALL=1 \
		GPUVECD="$dir/watched" "$dir/check_server"
	join_parts
}

# Streams take another order; -O1: the sanitizers' code is what is slow to
# compile.  Where the products come from is little code, and the two long parts
# do not run twice for it.
card_sanitized() {
	local settings='GPUVEC_EMULATED_SEED=2 GPUVEC_UNIT_SMALL=1'
	local CUBLAS='sets faults'
	unit_card "card sanitized" cardsanitized "$settings" "$CARD" \
		FLAGS="-O1 $SANITIZE" cardserver
	# shellcheck disable=SC2086
	part "card sanitized check_server" run_niced $settings \
		GPUVEC_UNIT_ENGINE=cuda "$GV_TMP/unit-cardsanitized/card/check_server"
}
