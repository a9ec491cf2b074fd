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
#				uninitialized memory, barriers
#	sql			the SQL suite through gpuvecd on the card
#	cards		the kernels on two cards, a mirror divided among them, replicas,
#				gpuvecd with both, where the host has them (test/t/gpus.pl);
#				then queries a second of one replica and of both side by side;
#				or with ARGUMENT..., lists of cards, only what each does in a
#				second: 0 0,1 0 0,1, say, or kmeans 0 0,1, k-means of 8,100,000
#				x 784 by each (test/unit/server/bench_divided.c)
#	faults		the tests of gpuvecd that test/t has, with the card, and what
#				only a card does to it (test/gpu/card_faults.pl)
#	random		the list scanner alone, on random data: ARGUMENT... are those of
#				test/bench/random.c
#	builds		training and encoding alone, on random data: ARGUMENT... are
#				those of test/bench/builds.c
#	billion		a billion rows in a mirror, without PostgreSQL: build, searches
#				and recall: ARGUMENT... are those of test/bench/billion.cu
#	data		makes the data sets ARGUMENT..., as test/bench/data.py names
#				them, where the benchmarks look for them; sentences from the
#				file GPUVEC_TEXTS and with the model in GPUVEC_MODEL, if set
#	bench		SQL beside pgvector's hnsw: ARGUMENT is a data set and options
#				of test/bench/card.py; several sets in turn are better several
#				calls.  pgvector's source is found as test/pgvector.sh says.
#	cardsql		statements of each kind in one table, and builds: ARGUMENT is a
#				data set that is there and options of test/bench/cardsql.py
#	large		very many rows, from COPY to a cold start, and a graph of them:
#				ARGUMENT... are those of test/bench/large.py
#	vast		a hundred million rows, made as they are loaded: ARGUMENT... are
#				those of test/bench/vast.py
#	sets		functions over sets of rows, through gpuvecd and in the session:
#				ARGUMENT... are those of test/bench/setsql.py
#	many		gpuvec_search beside a LATERAL join, through gpuvecd: ARGUMENT...
#				are those of test/bench/many.py
#	peers		selections, exact search, k-NN graphs and k-means beside RAFT,
#				Faiss and cuVS, in one run: FOLDER has their parts, as
#				test/bench/packpeers.py packs them, or is where pip put them
#				(--target); ARGUMENT... are those of the programs to run: select,
#				exact, kmeans or graph and options, all four when left out;
#				exact and kmeans beside cuBLAS's bare product, too.
#				Needs a python3 (3.12) with torch
#	papers		selections as in the papers' experiments: ARGUMENT... are those
#				of test/bench/selectpapers.py (ranks or rows)
#	cores		SQL without the card, on all of the host's cores, beside
#				pgvector's indexes and Faiss: ARGUMENT... are those of
#				test/bench/compare.py or, behind the word inserts, where or
#				paths, of that program, which needs numpy, too; compare also
#				matplotlib, and faiss-cpu for --faiss
#
# GPUVEC_UNIT_MATMUL=own|cublas: kernels and sanitize with one of both; for SQL
# GPUVEC_TEST_MATMUL, likewise.
#
# GPU_PTX=80: kernels and sanitize with code that the driver makes from PTX of
# that version, as on cards that are newer than a build.
#
# All but `cards` and `billion` use one card, the first that CUDA_VISIBLE_DEVICES
# names.
#
# GPUVEC_TEST_SERVER=cpu: the stages that use PostgreSQL, without a card, to see
# that they work; with the test build.
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

# the card's architecture, such as 80; of 9.0 with what it alone has
card_arch() {
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
		head -1 | tr -d '. ' | sed 's/^90$/90a/' || :
}

# Not what packpeers.py has fetched to a folder `wheels`.
unpack() {
	local file
	while read -r file; do
		case $file in
		*.deb) dpkg -x "$file" / ;;
		*.whl) python3 -m zipfile -e "$file" "$GV_TMP/python" ;;
		esac
	done < <(find "$@" -path '*/wheels' -prune -o -name '*.deb' -print -o \
		-name '*.whl' -print)
	export PYTHONPATH=$GV_TMP/python${PYTHONPATH:+:$PYTHONPATH}
	# it wants an LLVM, and nothing here is worth compiling
	rm -f /usr/lib/postgresql/*/lib/llvmjit.so
	ldconfig
}

# Makes targets of test/unit/Makefile with the engines for this card, in
# GV_TMP/card.
build_unit() {
	local code=-arch=sm_$ARCH
	[ "$SERVER" = cuda ] || gv_die "this stage needs a card"
	[ -z "${GPU_PTX:-}" ] ||
		code="-gencode arch=compute_$GPU_PTX,code=compute_$GPU_PTX"
	make -s -j"$(nproc)" -f "$GV_ROOT/test/unit/Makefile" OUT="$GV_TMP/card" \
		NVCC="$NVCC" NVCC_FLAGS="-lineinfo $code" "$@"
}

# The cards of the host that a stage sees: one is enough for most.
one_card() {
	local visible=${CUDA_VISIBLE_DEVICES:-0}
	case $1 in
	cards | billion) ;;
	*) export CUDA_VISIBLE_DEVICES="${visible%%,*}" ;;
	esac
}

stage_kernels() {
	build_unit card
	"$GV_TMP/card/check_card"
}

# All at once, because a tool waits more than it works.
stage_sanitize() {
	local tools="memcheck racecheck initcheck synccheck" tool part flags log
	local parts="mirrors products hopper builders select exact lists sets faults"
	local status=0
	build_unit card
	for tool in $tools; do
		for part in $parts; do
			case $tool.$part in
			# what the host writes into pinned memory it knows nothing of
			initcheck.*) flags="--check-api-memory-access no" ;;
			# it loses count of its barriers, 32 on each SM; memory for more
			# is taken for each launch, which other parts cannot have
			synccheck.exact) flags="--num-cuda-barriers 32768" ;;
			*) flags= ;;
			esac
			{
				# shellcheck disable=SC2086
				GPUVEC_UNIT_SMALL=1 compute-sanitizer --tool $tool $flags \
					--error-exitcode 9 --print-limit 20 \
					"$GV_TMP/card/check_card" $part 2>&1 &&
					echo "exit 0, $SECONDS s" || echo "failed"
			} >"$GV_TMP/$tool.$part" &
		done
	done
	wait
	for tool in $tools; do
		for part in $parts; do
			log=$GV_TMP/$tool.$part
			gv_note "$tool.$part: $(tail -1 "$log")"
			cat "$log"
			tail -1 "$log" | grep -q '^exit 0' || status=1
		done
	done
	return $status
}

stage_sql() {
	GPUVEC_TEST_NVCC=$NVCC GPU_ARCHS=$ARCH GPUVEC_TEST_SERVER=$SERVER ONLY="sql sqlserved" \
		"$GV_ROOT/test/run.sh"
}

# Compiles test/bench/$1.c or .cu, a benchmark of the engine, to GV_TMP/card/$1.
build_bench() {
	local source=$GV_ROOT/test/bench/$1 compile
	build_unit engines
	compile=(gcc -std=gnu99 "$source.c")
	[ ! -e "$source.cu" ] ||
		compile=("$NVCC" -std=c++17 -arch="sm_$ARCH" "$source.cu")
	"${compile[@]}" -O2 -DGV_HAVE_CUDA -I"$GV_ROOT" -I"$GV_ROOT/src" \
		-c -o "$GV_TMP/card/$1.o"
	"$NVCC" -cudart static "$GV_TMP/card/$1.o" "$GV_TMP/card/engines.a" -ldl -lm \
		-o "$GV_TMP/card/$1"
}

# Runs it with ARGUMENTS or, where there are none, with those that follow.
run_bench() {
	local name=$1
	shift
	build_bench "$name"
	[ ${#ARGUMENTS[@]} = 0 ] || set -- "${ARGUMENTS[@]}"
	"$GV_TMP/card/$name" "$@"
}

stage_builds() { run_bench builds 1000000 128 10000; }

stage_billion() { run_bench billion 100000000 96 100000 40 2 8:60 16:100; }

stage_random() {
	run_bench random 845060 384 8450 136 36 60 1 16 64 1024 10000
}

stage_cards() {
	if [ ${#ARGUMENTS[@]} -gt 0 ]; then
		build_unit cardserver
		GPUVEC_UNIT_ENGINE=cuda "$GV_TMP/card/card/check_server" --bench \
			"${ARGUMENTS[@]}"
		return
	fi
	[ "$SERVER" != cuda ] || [ "$(nvidia-smi -L | grep -c ^GPU)" -ge 2 ] ||
		gv_die "this stage needs two cards"
	if [ "$SERVER" = cuda ]; then
		build_unit card cardserver
		GPUVEC_UNIT_SMALL=1 "$GV_TMP/card/check_card"
		GPUVEC_UNIT_SMALL=1 GPUVEC_UNIT_ENGINE=cuda \
			"$GV_TMP/card/card/check_server" sets
	fi
	GPUVEC_TEST_NVCC=$NVCC GPU_ARCHS=$ARCH GPUVEC_TEST_SERVER=$SERVER \
		ONLY=tap TAP=gpus "$GV_ROOT/test/run.sh"
	if [ "$SERVER" = cuda ]; then
		cards_replicas
	fi
}

# Two million rows: answers of one card and of shards on several have to be the
# same, and replicas to be nearly as many times as fast.
cards_replicas() {
	local shape="2000000 96 4000 24 20 200 1 64 1024 10000" spread spreads
	build_bench random
	spreads=("" "-d 2" "-r 2")
	[ "$(nvidia-smi -L | grep -c ^GPU)" -lt 4 ] ||
		spreads+=("-d 2 -r 2" "-d 4" "-r 4")
	for spread in "${spreads[@]}"; do
		# shellcheck disable=SC2086
		"$GV_TMP/card/random" -l 2 $spread $shape
	done
}

# For card_faults.pl gpuvecd is linked with broken.cu, by an nvcc that does so.
stage_faults() {
	local dir=$GV_TMP/faults
	[ "$SERVER" = cuda ] || gv_die "this stage needs a card"
	mkdir "$dir"
	"$NVCC" -O1 -arch="sm_$ARCH" "$GV_ROOT/test/gpu/hog.cu" -o "$dir/hog"
	"$NVCC" -std=c++17 -O1 -arch="sm_$ARCH" -I"$GV_ROOT/src" \
		-I"$GV_ROOT" -c "$GV_ROOT/test/gpu/broken.cu" -o "$dir/broken.o"
	cat >"$dir/nvcc" <<-EOF
		#!/bin/bash
		case " \$* " in
		*' -c '*) exec '$NVCC' "\$@" ;;
		esac
		exec '$NVCC' "\$@" '$dir/broken.o' -Xlinker --wrap=gv_mirror_begin_shards \
			-Xlinker --wrap=gv_mirror_put_list
	EOF
	chmod +x "$dir/nvcc"
	GPUVEC_TEST_NVCC=$dir/nvcc GPU_ARCHS=$ARCH GPUVEC_TEST_SERVER=cuda \
		GPUVEC_TEST_HOG=$dir/hog ONLY=tap \
		TAP="${TAP-gpuvecd_lifecycle mirrors coherence remote_search damage races whole_table}" "$GV_ROOT/test/run.sh"
}

# Installs gpuvec into a copy of PostgreSQL and starts a cluster with gpuvecd,
# named $1; further arguments are settings.
start_cluster() {
	local name=$1 config kind=()
	shift
	# only that has an engine without a card
	[ "$SERVER" = cuda ] || kind=(TEST_BUILD=1)
	config=$(gv_find_pg_config)
	[ -n "$config" ] || gv_die "no PostgreSQL: name a folder of its packages"
	gv_copy_server "$config"
	if [ ! -d "$GV_TMP/src" ]; then
		gv_copy_source src
		NVCC=$NVCC GPU_ARCHS=$ARCH gv_build src "${kind[@]}"
	fi
	gv_start "$name" "shared_preload_libraries = 'gpuvec'" \
		"gpuvec.server = $SERVER" \
		"gpuvec.matmul = ${GPUVEC_TEST_MATMUL:-auto}" "$@"
}

# Options are the benchmark's, should both run in one call.
stage_data() {
	local name folder
	for name in "${ARGUMENTS[@]}"; do
		[ "${name#-}" = "$name" ] || break
		folder=${GPUVEC_DATA:-$GV_ROOT/build/data}/${name//:/-}
		if [ ! -e "$folder/meta.json" ]; then
			python3 "$GV_ROOT/test/bench/data.py" "$name" "$folder" \
				--queries 10000
		fi
	done
}

# A fifth of the machine's memory in MB, at most $1.
memory_share() {
	awk -v most="$1" '/^MemTotal:/ {
		mb = int($2 / 5120)
		print mb < most ? mb : most
	}' /proc/meminfo
}

# maintenance_work_mem in MB.
build_mb() { memory_share 8192; }

# Parallel builds share maintenance_work_mem, for which a container's /dev/shm
# may be too small.
shared_memory_type() {
	local megabytes
	megabytes=$(df -m --output=avail /dev/shm 2>/dev/null | tail -1)
	if [ "${megabytes:-0}" -gt "$(build_mb)" ]; then
		echo posix
	else
		echo mmap
	fi
}

# Reserves huge pages for $1 MB of shared buffers until the stage ends, besides
# those that the host has, if this is root.  Without them a new session spends
# its first seconds on page faults.
reserve_huge_pages() {
	local file=/proc/sys/vm/nr_hugepages before size
	[ -w $file ] || return 0
	before=$(cat $file)
	size=$(awk '/^Hugepagesize:/ { print int($2 / 1024) }' /proc/meminfo)
	# shellcheck disable=SC2064
	trap "echo $before >$file" EXIT
	echo $((before + ($1 + $1 / 10) / size)) >$file
	grep HugePages_Total /proc/meminfo
}

# Runs test/bench/$1.py in a cluster of its own; further arguments are settings.
measure() {
	local program=$1
	shift
	reserve_huge_pages "$(memory_share 32768)"
	start_cluster bench "shared_buffers = $(memory_share 32768)MB" \
		"maintenance_work_mem = $(build_mb)MB" \
		'max_worker_processes = 64' 'max_parallel_workers = 64' \
		'max_connections = 200' 'fsync = on' 'max_wal_size = 32GB' \
		'checkpoint_timeout = 1h' 'autovacuum = off' 'jit = off' \
		'max_parallel_workers_per_gather = 0' \
		"dynamic_shared_memory_type = $(shared_memory_type)" "$@"
	case $program in
	setsql | many | paths) ;;
	*)
		export PGVECTOR_OPTFLAGS=${PGVECTOR_OPTFLAGS--march=native}
		"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"
		;;
	esac
	PATH=$GV_BIN:$PATH python3 "$GV_ROOT/test/bench/$program.py" \
		"${ARGUMENTS[@]}"
	gv_stop bench
}

stage_bench() {
	measure card 'gpuvec.request_timeout = 10s' 'gpuvec.engine = gpu'
}

stage_cardsql() {
	measure cardsql 'gpuvec.request_timeout = 10s'
}

stage_large() {
	measure large 'gpuvec.request_timeout = 60s' 'gpuvec.engine = gpu'
}

stage_vast() {
	measure vast 'gpuvec.request_timeout = 600s' 'gpuvec.engine = gpu'
}

stage_sets() {
	measure setsql 'gpuvec.request_timeout = 60s' 'gpuvec.engine = gpu'
}

stage_many() {
	ARGUMENTS+=(--engine gpu)
	measure many 'gpuvec.request_timeout = 10s'
}

# The packages of packpeers.py, unpacked to GV_TMP/peers, or a folder itself.
find_peers() {
	local folder
	for folder in "${FOLDERS[@]}"; do
		if [ -e "$folder/peers.tar.xz.aa" ]; then
			mkdir -p "$GV_TMP/peers"
			cat "$folder"/peers.tar.xz.* | tar -C "$GV_TMP/peers" -xJ
			echo "$GV_TMP/peers"
			return
		fi
		if [ -d "$folder/libcuvs" ]; then
			echo "$folder"
			return
		fi
	done
	gv_die "no peers: name a folder where test/bench/packpeers.py packed them"
}

# Every program, or the one that is asked for.
stage_peers() {
	local bench=$GV_ROOT/test/bench peers program status=0
	[ "$SERVER" = cuda ] || gv_die "this stage needs a card"
	peers=$(find_peers)
	PATH=$(dirname "$NVCC"):$PATH
	for program in select exact kmeans graph; do
		if [ ${#ARGUMENTS[@]} -gt 0 ] && [ "${ARGUMENTS[0]}" != $program ]; then
			continue
		fi
		python3 "$bench/${program}card.py" --peers "$peers" \
			"${ARGUMENTS[@]:1}" || status=1
	done
	return $status
}

stage_papers() {
	[ "$SERVER" = cuda ] || ARGUMENTS+=(--processor)
	PATH=$(dirname "${NVCC:-.}"):$PATH python3 "$GV_ROOT/test/bench/selectpapers.py" \
		"${ARGUMENTS[@]}"
}

stage_cores() {
	local program=compare
	case ${ARGUMENTS[0]:-} in
	compare | inserts | where | paths)
		program=${ARGUMENTS[0]}
		ARGUMENTS=("${ARGUMENTS[@]:1}")
		;;
	esac
	[ "$program" = paths ] ||
		ARGUMENTS+=(--maintenance-work-mem "$(build_mb)MB")
	measure "$program" 'gpuvec.server = off' 'gpuvec.engine = cpu' \
		"max_parallel_maintenance_workers = $(($(nproc) - 1))"
}

[ $# -ge 1 ] || usage
IFS=, read -ra STAGES <<<"$1"
shift
for stage in "${STAGES[@]}"; do
	case $stage in
	kernels | sanitize | sql | builds | billion | cards | faults | random | \
		data | bench | cardsql | large | vast | sets | many | peers | papers | cores) ;;
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
	(set -e; one_card "$stage"; "stage_$stage")
	[ $? -eq 0 ] || { gv_note "stage $stage failed"; status=1; }
	set -e
done
exit $status
