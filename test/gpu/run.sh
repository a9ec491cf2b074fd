#!/bin/bash
# gpuvec on a card.
#
# usage: test/gpu/run.sh STAGE[,STAGE...] [FOLDER]
#
# For any Linux host with an NVIDIA card, its driver and the CUDA toolkit.
# Stages that need PostgreSQL take the one that is installed, or unpack the
# .deb files in FOLDER to / first: a bare machine without network can be given
# postgresql-15, postgresql-client-15, postgresql-server-dev-15, libpq5,
# libpq-dev and the libraries that they name, fetched elsewhere by
# `apt-get download`.
#
#	kernels		every kernel against the portable engine, odd sizes
#				(test/unit/engine/check_mirror*.c)
#	sanitize	the same at small size under compute-sanitizer: memory, races,
#				uninitialised memory, barriers
#	sql			the SQL suite through gpuvecd on the card
#	lists		the choice of lists alone, by exact scores and by the filter
#				(test/bench/lists.cu)
#	scanner		the list scanner alone, on an index of word vectors
#				(test/bench/scanner.c, test/demo's data)
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

usage() {
	sed -n '4,22p' "$0" | sed 's/^# \?//'
	exit 2
}

find_nvcc() {
	command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null ||
		gv_die "no nvcc: install the CUDA toolkit"
}

# the card's architecture, such as 90
card_arch() {
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
		head -1 | tr -d '. ' || :
}

unpack() {
	local deb
	for deb in "$1"/*.deb; do
		dpkg -x "$deb" /
	done
	# it wants an LLVM, and nothing here is worth compiling
	rm -f /usr/lib/postgresql/*/lib/llvmjit.so
	ldconfig
}

# Compiles the engines for this card, and what runs on them, into GV_TMP/card.
build_check() {
	local dir=$GV_TMP/card file objects=()
	[ ! -d "$dir" ] || return 0
	mkdir "$dir"
	for file in "$GV_ROOT"/gpu/*.cu; do
		echo "$file"
	done | xargs -P "$(nproc)" -I FILE sh -c \
		"'$NVCC' -std=c++17 -O3 -fmad=false -lineinfo -arch=sm_$ARCH \
			-I'$GV_ROOT/src' -c FILE -o '$dir'/\$(basename FILE).o"
	for file in "$GV_ROOT"/src/engine/*.c "$GV_ROOT"/src/cpu/*.c; do
		gcc -std=gnu99 -g -O3 -ffp-contract=off -I"$GV_ROOT/src" -c "$file" \
			-o "$dir/$(basename "$file").o"
	done
	objects=("$dir"/*.o)
	for file in "$GV_ROOT"/test/unit/engine/check_mirror*.c \
		"$GV_ROOT/test/unit/gpu/check_card.c"; do
		gcc -std=gnu99 -g -O1 -I"$GV_ROOT/src" \
			-DUNIT_MIRRORS=gv_cuda_mirrors -c "$file" \
			-o "$dir/$(basename "$file").o"
	done
	"$NVCC" -cudart static "$dir"/check_*.o "${objects[@]}" -lm \
		-o "$dir/check_card"
	gcc -std=gnu99 -O2 -I"$GV_ROOT/src" -DGV_HAVE_CUDA \
		-c "$GV_ROOT/test/bench/scanner.c" -o "$dir/scanner.o"
	"$NVCC" -cudart static "$dir/scanner.o" "${objects[@]}" -lm \
		-o "$dir/scanner"
	"$NVCC" -std=c++17 -O2 -arch="sm_$ARCH" -I"$GV_ROOT/src" -I"$GV_ROOT/gpu" \
		-cudart static "$GV_ROOT/test/bench/lists.cu" "${objects[@]}" -lm \
		-o "$dir/lists"
}

stage_kernels() {
	build_check
	"$GV_TMP/card/check_card"
}

stage_sanitize() {
	local tool status=0
	build_check
	for tool in memcheck racecheck initcheck synccheck; do
		gv_note "$tool"
		GPUVEC_UNIT_SMALL=1 compute-sanitizer --tool "$tool" \
			--error-exitcode 9 --print-limit 20 "$GV_TMP/card/check_card" ||
			status=1
	done
	return $status
}

stage_sql() {
	GPUVEC_TEST_NVCC=$NVCC GPU_ARCHS=$ARCH GPUVEC_TEST_SERVER=cuda ONLY=sql \
		"$GV_ROOT/test/run.sh"
}

# The usual index, a word index with many probes, and many lists.
stage_lists() {
	build_check
	"$GV_TMP/card/lists" 384 8192 30
	"$GV_TMP/card/lists" 384 8192 150
	"$GV_TMP/card/lists" 50 500 13
	"$GV_TMP/card/lists" 384 100000 100
	"$GV_TMP/card/lists" 384 1000000 300
}

# Starts a cluster with gpuvecd, mirrors an index, measures.
stage_scanner() {
	local config oid probes data=$GV_TMP/scanner
	build_check
	config=$(gv_find_pg_config)
	gv_copy_server "$config"
	gv_copy_source src
	NVCC=$NVCC GPU_ARCHS=$ARCH gv_build src
	gv_start scanner "shared_preload_libraries = 'gpuvec'" \
		'gpuvec.server = cuda' 'maintenance_work_mem = 1GB'
	gv_as "$GV_BIN/psql" -Xqc 'CREATE EXTENSION gpuvec' \
		-c 'CREATE TABLE words (id int, word text, embedding real[])'
	gzip -dc "$GV_ROOT"/test/demo/*.copy.gz |
		gv_as "$GV_BIN/psql" -Xqc 'COPY words FROM STDIN'
	gv_as "$GV_BIN/psql" -Xqc 'CREATE INDEX words_e ON words
		USING gpuivfpq (embedding real_cosine_ops)' \
		-c "SELECT gpuvec_prewarm('words_e')"
	read -r oid probes < <(gv_as "$GV_BIN/psql" -XAtF ' ' -c "
		SELECT 'words_e'::regclass::oid, probes || ' ' || 2 * candidates
		FROM gpuvec_calibration('words_e') WHERE k = 10 AND recall = 0.95")
	# shellcheck disable=SC2086
	gv_as "$GV_TMP/card/scanner" "$data" "$oid" $probes
	gv_stop scanner
}

[ $# -ge 1 ] || usage
IFS=, read -ra STAGES <<<"$1"
for stage in "${STAGES[@]}"; do
	case $stage in
	kernels | sanitize | sql | lists | scanner) ;;
	*) usage ;;
	esac
done
NVCC=$(find_nvcc)
ARCH=$(card_arch)
[ -n "$ARCH" ] || gv_die "no card: nvidia-smi names none"
gv_begin
if [ $# -ge 2 ]; then
	unpack "$2"
fi
status=0
for stage in "${STAGES[@]}"; do
	gv_note "stage $stage"
	# a subshell that is no condition, so that set -e holds in it
	set +e
	(set -e; "stage_$stage")
	[ $? -eq 0 ] || { gv_note "stage $stage failed"; status=1; }
	set -e
done
exit $status
