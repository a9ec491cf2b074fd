#!/bin/bash
# gpuvec on a card.
#
# usage: test/gpu/run.sh STAGE[,STAGE...] [FOLDER...] [-- ARGUMENT...]
#
# For any Linux host with an NVIDIA card, its driver and the CUDA toolkit.
# Stages that need PostgreSQL take the one that is installed, or unpack the
# .deb files in FOLDER to / first: a bare machine without network can be given
# postgresql-15, postgresql-client-15, postgresql-server-dev-15, libpq5,
# libpq-dev and the libraries that they name, fetched elsewhere by
# `apt-get download`.  Python packages come the same way, as .whl files of
# `pip download`: psycopg, psycopg-binary, typing-extensions.
#
#	kernels		every kernel against the portable engine, odd sizes
#				(test/unit/engine/check_mirror*.c)
#	sanitize	the same at small size under compute-sanitizer: memory, races,
#				uninitialised memory, barriers
#	sql			the SQL suite through gpuvecd on the card
#	scanner		the list scanner alone, on an index of word vectors
#				(test/bench/scanner/, test/demo's data)
#	data		makes the data sets ARGUMENT..., as test/bench/data.py names
#				them, where the benchmarks look for them; sentences from the
#				file GPUVEC_TEXTS and with the model in GPUVEC_MODEL, if set
#	bench		the list scanner alone, and SQL beside pgvector's hnsw: ARGUMENT
#				is a data set and options of test/bench/card.py; several sets
#				in turn are better several calls.  pgvector's source is found
#				as test/pgvector.sh says.
#
# GPUVEC_TEST_SERVER=cpu: the stages that use PostgreSQL, without a card, to see
# that they work.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

usage() {
	sed -n '4,/^set/p' "$0" | sed '$d; s/^# \?//'
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
	local file
	while read -r file; do
		case $file in
		*.deb) dpkg -x "$file" / ;;
		*.whl) python3 -m zipfile -e "$file" "$GV_TMP/python" ;;
		esac
	done < <(find "$@" -name '*.deb' -o -name '*.whl')
	export PYTHONPATH=$GV_TMP/python${PYTHONPATH:+:$PYTHONPATH}
	# it wants an LLVM, and nothing here is worth compiling
	rm -f /usr/lib/postgresql/*/lib/llvmjit.so
	ldconfig
}

# Compiles the engines, the card's among them if there is one, into
# GV_TMP/card.
build_engines() {
	local dir=$GV_TMP/card file
	[ ! -d "$dir" ] || return 0
	mkdir "$dir"
	if [ "$SERVER" = cuda ]; then
		for file in "$GV_ROOT"/gpu/*.cu; do
			echo "$file"
		done | xargs -P "$(nproc)" -I FILE sh -c \
			"'$NVCC' -std=c++17 -O3 -fmad=false -lineinfo -arch=sm_$ARCH \
				-I'$GV_ROOT/src' -c FILE -o '$dir'/\$(basename FILE).o"
	fi
	for file in "$GV_ROOT"/src/engine/*.c "$GV_ROOT"/src/cpu/*.c; do
		gcc -std=gnu99 -g -O3 -ffp-contract=off -I"$GV_ROOT/src" -c "$file" \
			-o "$dir/$(basename "$file").o"
	done
}

# Links objects and the engines to GV_TMP/card/$1.
link() {
	local program=$GV_TMP/card/$1
	shift
	if [ "$SERVER" = cuda ]; then
		"$NVCC" -cudart static "$@" "$GV_TMP"/card/*.o -lm -o "$program"
	else
		gcc "$@" "$GV_TMP"/card/*.o -lm -o "$program"
	fi
}

build_check() {
	local file dir=$GV_TMP/card
	[ "$SERVER" = cuda ] || gv_die "this stage needs a card"
	build_engines
	[ ! -x "$dir/check_card" ] || return 0
	mkdir "$dir/check"
	for file in "$GV_ROOT"/test/unit/engine/check_{mirror*,builder*}.c \
		"$GV_ROOT/test/unit/gpu/check_card.c"; do
		gcc -std=gnu99 -g -O1 -I"$GV_ROOT/src" \
			-DUNIT_MIRRORS=gv_cuda_mirrors -DUNIT_BUILDERS=gv_cuda_builders \
			-c "$file" \
			-o "$dir/check/$(basename "$file").o"
	done
	link check_card "$dir"/check/*.o
}

build_scanner() {
	local file dir=$GV_TMP/card cuda=()
	build_engines
	[ ! -x "$dir/scanner" ] || return 0
	mkdir "$dir/bench"
	[ "$SERVER" != cuda ] || cuda=(-DGV_HAVE_CUDA)
	for file in "$GV_ROOT"/test/bench/scanner/*.c; do
		gcc -std=gnu99 -O2 "${cuda[@]}" -I"$GV_ROOT/src" -c "$file" \
			-o "$dir/bench/$(basename "$file").o"
	done
	link scanner "$dir"/bench/*.o
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
	GPUVEC_TEST_NVCC=$NVCC GPU_ARCHS=$ARCH GPUVEC_TEST_SERVER=$SERVER ONLY=sql \
		"$GV_ROOT/test/run.sh"
}

# Installs gpuvec into a copy of PostgreSQL and starts a cluster with gpuvecd,
# named $1; further arguments are settings.
start_cluster() {
	local name=$1 config
	shift
	config=$(gv_find_pg_config)
	[ -n "$config" ] || gv_die "no PostgreSQL: name a folder of its packages"
	gv_copy_server "$config"
	if [ ! -d "$GV_TMP/src" ]; then
		gv_copy_source src
		NVCC=$NVCC GPU_ARCHS=$ARCH gv_build src
	fi
	gv_start "$name" "shared_preload_libraries = 'gpuvec'" \
		"gpuvec.server = $SERVER" "$@"
}

# Mirrors an index of word vectors, measures.
stage_scanner() {
	local oid probes data=$GV_TMP/scanner
	build_scanner
	start_cluster scanner 'maintenance_work_mem = 1GB'
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

stage_data() {
	local name
	for name in "${ARGUMENTS[@]}"; do
		python3 "$GV_ROOT/test/bench/data.py" "$name" --queries 10000 \
			"${GPUVEC_DATA:-$GV_ROOT/build/data}/${name//:/-}"
	done
}

# A fifth of the machine's memory, in MB: for shared buffers, and for builds.
memory_share() {
	awk '/^MemTotal:/ { print int($2 / 5120) }' /proc/meminfo
}

# Parallel builds share maintenance_work_mem, for which a container's /dev/shm
# may be too small.
shared_memory_type() {
	local megabytes
	megabytes=$(df -m --output=avail /dev/shm 2>/dev/null | tail -1)
	if [ "${megabytes:-0}" -gt "$(memory_share)" ]; then
		echo posix
	else
		echo mmap
	fi
}

stage_bench() {
	local runas=''
	build_scanner
	start_cluster bench "shared_buffers = $(memory_share)MB" \
		"maintenance_work_mem = $(($(memory_share) / 2))MB" \
		'max_worker_processes = 64' 'max_parallel_workers = 64' \
		'max_connections = 200' 'fsync = on' 'max_wal_size = 32GB' \
		'checkpoint_timeout = 1h' 'autovacuum = off' 'jit = off' \
		'max_parallel_workers_per_gather = 0' \
		'gpuvec.request_timeout = 10s' 'gpuvec.engine = gpu' \
		"dynamic_shared_memory_type = $(shared_memory_type)"
	PGVECTOR_OPTFLAGS=${PGVECTOR_OPTFLAGS--march=native} \
		"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"
	[ "$(id -u)" != 0 ] || runas="runuser -u $GV_USER -- "
	PATH=$GV_BIN:$PATH python3 "$GV_ROOT/test/bench/card.py" \
		--scanner "$runas$GV_TMP/card/scanner" "${ARGUMENTS[@]}"
	gv_stop bench
}

[ $# -ge 1 ] || usage
IFS=, read -ra STAGES <<<"$1"
shift
for stage in "${STAGES[@]}"; do
	case $stage in
	kernels | sanitize | sql | scanner | data | bench) ;;
	*) usage ;;
	esac
done
FOLDERS=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	FOLDERS+=("$1")
	shift
done
[ $# = 0 ] || shift
ARGUMENTS=("$@")
SERVER=${GPUVEC_TEST_SERVER:-cuda}
NVCC=
ARCH=
if [ "$SERVER" = cuda ]; then
	NVCC=$(find_nvcc)
	ARCH=$(card_arch)
	[ -n "$ARCH" ] || gv_die "no card: nvidia-smi names none"
fi
gv_begin
if [ ${#FOLDERS[@]} -gt 0 ]; then
	unpack "${FOLDERS[@]}"
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
