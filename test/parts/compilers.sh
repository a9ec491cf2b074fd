# Parts of test/run.sh without a server: layers, layout, compilers; sourced.
# shellcheck shell=bash disable=SC2034

# Matches nvcc's own warnings, too: "x.cu(7): warning #177-D: ..."
WARNING='warning( #[0-9]+(-D)?)?:'

# Prints the warnings in a compiler's output, $1, each line once: a header's
# would come with every file.  The lines before one say which of our files it is
# about, where that is in a system header.
show_warnings() {
	awk -v warning="$WARNING" \
		-v about='^In (file|function) |^ +(from|inlined from) |: (In|At) ' '
		$0 ~ warning { printf "%s", before; left = 5 }
		$0 ~ about { before = before $0 "\n"; next }
		{ before = "" }
		left-- > 0' "$1" | awk '!seen[$0]++' | head -60
}

# $1 = what is said when it fails, the rest: command; one test: it succeeds and
# warns of nothing
count_silent() {
	local what=$1 log=$GV_TMP/silent.$BASHPID.log
	shift
	if ! "$@" >"$log" 2>&1; then
		tail -40 "$log"
		failed 1 "$what"
	elif grep -qE "$WARNING" "$log"; then
		show_warnings "$log"
		failed 1 "$what: $(grep -cE "$WARNING" "$log") warnings"
	else
		passed 1
	fi
}

# The server was configured for gcc: its flags, and the gnu_printf of its
# header, are not all known to clang.
CLANG_COPT='-Wno-unknown-warning-option -Wno-ignored-attributes'
CLANG_COPT+=' -Wno-ignored-optimization-argument'

build_clang() {
	local clang kind
	clang=$(gv_find_clang)
	if [ -z "$clang" ]; then
		skipped "no clang"
		return
	fi
	gv_copy_source clang
	# its warnings are the parser's: nothing runs, and need not be optimized;
	# with assertions, since gcc's builds are for a server without them.  The
	# release has hardly a line that the test build lacks; gcc compiles both.
	for kind in ${LONG:+''} 1; do
		count_silent "clang, TEST_BUILD=$kind" gv_nice 19 \
			make -C "$GV_TMP/clang" -j"$(nproc)" PG_CONFIG="$GV_PG_CONFIG" \
			CC="$clang" COPT="$CLANG_COPT -O0 -g0 -DUSE_ASSERT_CHECKING" with_llvm=no \
			TEST_BUILD=$kind all
	done
}

# Calls $1 with the path of nvcc, if there is one.
with_nvcc() {
	local nvcc
	nvcc=$(command -v nvcc || find /usr/local/cuda/bin -name nvcc 2>/dev/null) ||
		:
	if [ -z "$nvcc" ]; then
		skipped "no nvcc"
		return
	fi
	"$1" "$nvcc"
}

# Makes $2, with nvcc $1 and further arguments, in a copy of what gcc has built.
make_cuda() {
	rm -rf "$GV_TMP/cuda"
	cp -a "$SOURCE" "$GV_TMP/cuda"
	rm -f "$GV_TMP/cuda/gpuvecd"
	count_silent "nvcc" gv_nice 19 make -C "$GV_TMP/cuda" -j"$(nproc)" \
		PG_CONFIG="$GV_PG_CONFIG" NVCC="$1" GPU_ARCHS="${GPU_ARCHS:-90a}" "${@:2}"
}

# nvcc, $1, compiles all kernels without a warning.  Part cuda optimizes and assembles
# them, and compiles the host's code of their files, which g++ compiles here for the
# emulated GPU.
build_kernels() {
	local quick='-Xcicc -O1'
	if "$1" --help | grep -q -- --Ofast-compile; then
		quick='-Ofc max'
	fi
	make_cuda "$1" kernels NVCC_FLAGS="-std=c++17 -O0 -fmad=false $quick"
}

# gpuvecd with its kernels builds by nvcc, $1; without a card, and with a driver
# that is too old, it says so and ends with status 3.
build_cuda() {
	make_cuda "$1" gpuvecd
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
	if [ -z "$QUICK" ]; then
		part "no warning from nvcc" with_nvcc build_kernels
	fi
	part "no warning from clang" build_clang
	over warnings
}
