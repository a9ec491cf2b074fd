# Parts of test/run.sh with a server; sourced.
# shellcheck shell=bash disable=SC2034

# Autovacuum would keep rows alive that a test has deleted and vacuums.
SQL_SETTINGS=('max_prepared_transactions = 10' 'autovacuum = off')

# Copies the server of $1, which is the one to test from now on.  SERVER is its
# name in what is printed, TAG in the names of folders, SOURCE where the sources
# are compiled for it, TEST_SOURCE where the test build of them is.
choose_server() {
	local config=$1
	TAG=$(gv_major "$config")
	SERVER="PostgreSQL $TAG"
	if "$config" --configure | grep -q enable-cassert; then
		SERVER+=" with assertions"
		TAG+=assert
	fi
	gv_copy_server "$config"
	SOURCE=$GV_TMP/src$TAG
	TEST_SOURCE=$SOURCE-test
}

# Builds gpuvec for it, by gcc unless arguments, which go to make, say
# otherwise.  A warning is a failure.  -g1: lines are what logs and reports show.
build_server() {
	if [ ! -d "$SOURCE" ]; then
		gv_copy_source "src$TAG"
	fi
	count_silent "compiler" make -C "$SOURCE" -j"$(nproc)" \
		PG_CONFIG="$GV_PG_CONFIG" CC=gcc COPT=-g1 "$@" all
}

is_built() { [ -e "$SOURCE/gpuvec.so" ] && [ -e "$SOURCE/gpuvecd" ]; }

# The test build (make TEST_BUILD=1), beside it: its objects, of which only those
# that differ are made anew.  Then the release has no symbol that is for tests.
build_for_tests() {
	cp -a "$SOURCE" "$TEST_SOURCE"
	SOURCE=$TEST_SOURCE build_server TEST_BUILD=1 "$@"
	count_program "$GV_ROOT/test/unit/check_symbols.pl" "$SOURCE" "$TEST_SOURCE"
}

# Part $1, and its arguments, with the test build, which is what is installed
# meanwhile.
of_test_build() {
	install_built "$TEST_SOURCE"
	SOURCE=$TEST_SOURCE "$@"
	install_built "$SOURCE"
}

# The same of a part that asks gpuvecd; on a card the release does.
of_served_build() {
	if [ "$SERVER_ENGINE" = cpu ]; then of_test_build "$@"; else "$@"; fi
}

# Do wanted parts have the test build?
wants_test_build() {
	wanted_any tap external sqlsmith hosts && return
	[ "$SERVER_ENGINE" = cpu ] || return
	wanted sqlserved || { wanted sql && [ -z "$QUICK" ]; }
}

# Installs what is built in a folder.
install_built() {
	make -s -C "$1" PG_CONFIG="$GV_PG_CONFIG" install >"$GV_TMP/install.log" 2>&1 ||
		cat "$GV_TMP/install.log"
	gv_own "$1"
}

# Installs that into the copy, and pgvector where it is to be had.
install_gpuvec() {
	gv_build "src$TAG" CC=gcc "$@"
	gv_own "$SOURCE"
	if "$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG"; then
		sed -n "s/^default_version *= *'\(.*\)'/\1/p" \
			"$("$GV_PG_CONFIG" --sharedir)/extension/vector.control" \
			>"$GV_TMP/pgvector$TAG"
		echo "$SERVER with pgvector $(cat "$GV_TMP/pgvector$TAG")"
	else
		skipped "$SERVER: everything with pgvector (it is not to be had)"
	fi
	touch "$SOURCE.installed"
}

# Both, once; arguments go to make.  False when something went wrong.
prepare_server() {
	if ! is_built; then
		part "$SERVER: no warning from the compiler" build_server "$@"
	fi
	if is_built && [ ! -e "$SOURCE.installed" ]; then
		part "$SERVER install" install_gpuvec "$@"
	fi
	PGVECTOR=$(cat "$GV_TMP/pgvector$TAG" 2>/dev/null) || :
	export GPUVEC_PGVECTOR=$PGVECTOR
	[ -e "$SOURCE.installed" ]
}

# Counts the lines of pg_regress, of 15 ('test NAME ... ok') and of later ones
# ('ok 1 - NAME').  $1 = part, $2 = log, $3 = status, $4 = folder with diffs
count_regress() {
	local ok bad
	ok=$(grep -cE '^(test .* \.\.\. ok|ok [0-9])|^ +.* \.\.\. ok ' "$2") || :
	bad=$(grep -cE '\.\.\. FAILED|^not ok [0-9]' "$2") || :
	passed "$ok"
	if [ "$bad" = 0 ] && [ "$3" != 0 ]; then
		bad=1
	fi
	if [ "$bad" != 0 ]; then
		if [ -s "$4/regression.diffs" ]; then
			grep -E 'FAILED|^not ok' "$2" || :
			head -400 "$4/regression.diffs"
		else
			tail -40 "$2"
		fi
		failed "$bad" "$1"
	else
		echo "$1: $ok passed, $5"
	fi
}

# Runs the tests that the Makefile lists in variable $2, REGRESS or ISOLATION,
# against the running cluster, or of these the ones named after the fourth
# argument.  $1 = part's name, $3 = the other variable, $4 = folder, under the
# sources, where the differences are written
installcheck() {
	local log=$GV_TMP/$2.log status=0 began=$SECONDS all names name
	all=" $(make -s -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" print-"$2") "
	names=$all
	[ $# = 4 ] || names=
	for name in "${@:5}"; do
		[[ $all != *" $name "* ]] || names+=" $name"
	done
	if [ -z "${names// /}" ]; then
		failed 1 "$SERVER $1: the Makefile lists no such test"
		return 0
	fi
	gv_as make -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" TAP_TESTS= "$3=" \
		"$2=$names" installcheck >"$log" 2>&1 || status=$?
	count_regress "$SERVER $1" "$log" $status "$SOURCE/$4" \
		"$(seconds "$began")"
}

# One test more: no backend crashed, and no sanitizer spoke.
check_server_log() {
	local log=$GV_TMP/$1/server.log
	local bad='PANIC:|TRAP:|terminated by signal|runtime error:'
	if grep -qE "$bad" "$log"; then
		grep -E -A3 "$bad" "$log" | head -40
		failed 1 "$SERVER: see its log above"
	else
		passed 1
	fi
}

# SQL and isolation tests on a cluster of their own; $1 = its name
part_sql() {
	gv_start "$1" "${SQL_SETTINGS[@]}" || {
		failed 1 "$SERVER: does not start"
		return 0
	}
	if wanted sql; then
		installcheck sql REGRESS ISOLATION .
	fi
	if wanted isolation; then
		installcheck isolation ISOLATION REGRESS output_iso
	fi
	gv_stop "$1"
	check_server_log "$1"
}

# SQL tests that ask gpuvecd for a search of an index of each kind and for each
# function over whole tables.  The others have no more of it (TAP file build has
# builds, with what calibration finds): part sqlserved.
THROUGH_GPUVECD=(coarse exact filter graph half keys kmeans recall refine
	rotate scan search search_keys searched select)

# SQL tests, or those named after the first argument, once more, on a cluster whose
# searches go to gpuvecd as soon as it has a mirror; $1 = its name
sql_through_gpuvecd() {
	local answered
	gv_start "$1" "${SQL_SETTINGS[@]}" \
		"shared_preload_libraries = 'gpuvec'" "gpuvec.server = $SERVER_ENGINE" \
		"gpuvec.matmul = ${GPUVEC_TEST_MATMUL:-auto}" \
		'gpuvec.engine = gpu' || {
		failed 1 "$SERVER with gpuvecd: does not start"
		return 0
	}
	# loading the engine takes a card some seconds
	gv_wait_socket "$1"
	installcheck "sql through gpuvecd" REGRESS ISOLATION . "${@:2}"
	answered=$(gv_as "$GV_BIN/psql" -XAt -d contrib_regression \
		-c 'SELECT least(searches_by_server, jobs_by_server) FROM gpuvec_stat')
	if [ "${answered:-0}" -gt 100 ]; then
		passed 1
	else
		failed 1 "$SERVER: gpuvecd answered ${answered:-no} searches or sets"
	fi
	gv_stop "$1"
	check_server_log "$1"
}

# Runs one TAP file in a folder of its own, where its output goes.  Called
# through gv_as and xargs, so HOME and TMPDIR are private already.
run_tap_file() {
	local dir
	dir=$GV_TMP/tap$TAG/$(basename "$1" .pl)
	mkdir -p "$dir/tmp_check/log"
	cd "$SOURCE" || exit
	export TESTDIR=$dir TESTDATADIR=$dir/tmp_check
	export TESTLOGDIR=$dir/tmp_check/log
	local TIMEFORMAT='%0R %1U %1S'
	{
		time {
			# who waits for ever shall not make all others wait
			timeout --foreground 3600 perl -I "$GV_PGXS/test/perl" \
				-I test/t "$1" >"$dir/out" 2>"$dir/err" </dev/null ||
				echo "exit $?" >>"$dir/out"
			# a server counts when it is gone
			sleep 0.2
		}
	} 2>"$dir/time"
	# data folders are large: keep the failed ones' logs only
	find "$dir/tmp_check" -mindepth 1 -maxdepth 1 ! -name log \
		-exec rm -rf {} +
}

# $1 = folder of one TAP file.  Top-level lines only: subtests are indented.
count_tap_file() {
	local name ok bad skips log wall=0 user=0 system=0
	name="$SERVER $(basename "$1")"
	read -r wall user system <"$1/time" || :
	skips=$(grep -cE '^ok .*# (skip|SKIP)|^1\.\.0 *# *SKIP' "$1/out") || :
	ok=$(grep -E '^ok ' "$1/out" | grep -cvE '# (skip|SKIP)') || :
	bad=$(grep -E '^not ok ' "$1/out" | grep -cv '# TODO') || :
	passed "$ok"
	SKIPPED=$((SKIPPED + skips))
	if [ "$bad" = 0 ] && { grep -q '^exit ' "$1/out" ||
		[ $((ok + skips)) = 0 ]; }; then
		bad=1
	fi
	if [ "$bad" = 0 ]; then
		echo "$name: $ok passed, $wall s," \
			"processor $(tenths $((10#${user/./} + 10#${system/./}))) s"
		return
	fi
	grep -E '^not ok |^exit ' "$1/out" || :
	tail -40 "$1/err"
	# what it died of
	if grep -q '^exit ' "$1/out"; then
		tail -n 10 "$1"/tmp_check/log/regress_log_* || :
	fi
	for log in "$1"/tmp_check/log/*.log; do
		[ -e "$log" ] || continue
		echo "--- $(basename "$log")"
		grep -vE ' (LOG|STATEMENT): ' "$log" | tail -25 || :
	done
	failed "$bad" "$name"
}

# TAP files by how long they take, so that none is last and alone.
TAP_LONGEST='build whole_table dead_rows conditions gpus training damage
	gpuvecd_lifecycle mirrors crash errors memory cancel depths training_worker standby
	remote_search formats external coherence buffers statements hosts races lost_writes
	allocations history random_damage monitoring reference upgrade concurrent
	options'

# TAP files that a run for each commit leaves to .ci/matrix.  Each repeats at size, or
# with other settings, what SQL, isolation or other TAP files ask once.
TAP_LEFT='build whole_table dead_rows conditions gpus training training_worker memory
	depths formats buffers hosts allocations history reference documents'

# Names TAP files in the order in which they run, new ones first: these may take
# any time.
tap_in_order() {
	local file longest shorter
	# shellcheck disable=SC2086
	printf -v longest ' %s ' $TAP_LONGEST
	for file in "$@"; do
		shorter=${longest#* "$(basename "$file" .pl)" }
		echo "${#shorter} $file"
	done | sort -rns -k1,1 | cut -d' ' -f2-
}

# Runs TAP files, $1 at a time.  A server's parent ends at once: each file's
# shell becomes the parent of such orphans (PR_SET_CHILD_SUBREAPER), so that
# their processor time is the file's.
run_tap_files() {
	local processes=$1
	shift
	# shellcheck disable=SC2016
	printf '%s\0' "$@" | PATH=$GV_BIN:$PATH gv_as xargs -0 -n 1 \
		-P "$processes" perl -e 'eval {
			require "sys/syscall.ph";
			syscall(&SYS_prctl, 36, 1, 0, 0, 0)
		}; exec @ARGV' bash -c 'run_tap_file "$1"' run_tap_file || :
}

# One initdb for all TAP files: what PostgreSQL::Test::Cluster (from 16 on) and
# test/t/Gpuvec.pm copy.
make_tap_template() {
	export INITDB_TEMPLATE=$GV_TMP/template$TAG
	rm -rf "$INITDB_TEMPLATE"
	mkdir -m 700 "$INITDB_TEMPLATE"
	gv_own "$INITDB_TEMPLATE"
	# the locale is that of PostgreSQL::Test::Utils
	gv_as env -u LC_ALL LC_MESSAGES=C "$GV_BIN/initdb" -A trust -N \
		-D "$INITDB_TEMPLATE" >"$GV_TMP/initdb.log" 2>&1 ||
		unset INITDB_TEMPLATE
}

part_tap() {
	local name files=() file dir
	for name in ${TAP:-}; do
		files+=("$SOURCE/test/t/$name.pl")
	done
	[ ${#files[@]} != 0 ] || files=("$SOURCE"/test/t/*.pl)
	if [ -z "${TAP:-}${ONLY:-}$LONG" ]; then
		# shellcheck disable=SC2086
		mapfile -t files < <(printf '%s\n' "${files[@]}" |
			grep -vE "/($(printf '%s|' $TAP_LEFT)-)\.pl$")
	fi
	mapfile -t files < <(tap_in_order "${files[@]}")
	make_tap_template
	rm -rf "$GV_TMP/tap$TAG"
	mkdir "$GV_TMP/tap$TAG"
	gv_own "$GV_TMP/tap$TAG"
	export -f run_tap_file
	export GV_TMP GV_PGXS SOURCE TAG GPUVEC_TEST_LONG=$LONG
	export PG_REGRESS=$GV_PGXS/test/regress/pg_regress
	# they wait much of their time: three at once, at least
	run_tap_files $(($(nproc) > 3 ? $(nproc) : 3)) "${files[@]}"
	# with this program of test/gpu/run.sh; these need the card for themselves
	if [ -n "${GPUVEC_TEST_HOG:-}" ]; then
		run_tap_files 1 "$SOURCE"/test/gpu/*.pl
		files+=("$SOURCE"/test/gpu/*.pl)
	fi
	# one whose shell was killed has no time, and xargs begins no other then
	mapfile -t files < <(printf '%s\n' "${files[@]}" | sort)
	for file in "${files[@]}"; do
		dir=$GV_TMP/tap$TAG/$(basename "$file" .pl)
		if [ -s "$dir/time" ]; then
			count_tap_file "$dir"
		else
			failed 1 "$SERVER $(basename "$dir"): it was not run to its end"
		fi
	done
}

# Clients from PyPI and what sql/docs/recipes.md says of them, on a cluster named $1.
part_clients() {
	if [ -z "$PGVECTOR" ]; then
		skipped "$SERVER clients: they need pgvector"
		return
	fi
	gv_start "$1"
	count_program env PATH="$GV_BIN:$PATH" "$GV_ROOT/test/clients/run.sh" --here
	gv_stop "$1"
	check_server_log "$1"
}

# Runs a program that ends with 'N passed, N failed', or with status 2 and why it is
# skipped; $1 = a file for what it prints.
run_or_skip() {
	local out=$GV_TMP/$1 status=0
	shift
	"$@" >"$out" 2>&1 || status=$?
	if [ $status = 2 ]; then
		skipped "$(tail -1 "$out")"
		return
	fi
	count_program cat "$out"
}

# gpuvecd in namespaces of its own, beside strangers; with the server that is
# installed.
part_external() {
	run_or_skip external.all env GV_TMP="$GV_TMP" GV_BIN="$GV_BIN" \
		GV_USER="$GV_USER" "$GV_ROOT/test/external.sh" --here
}

# One round of clients and faults, on a server of its own.
part_soak() {
	local out=$GV_TMP/soak.out
	if ROUNDS=1 SECONDS_EACH=60 "$GV_ROOT/test/soak.sh" 1 >"$out" 2>&1; then
		passed 1
	else
		cat "$out"
		failed 1 soak
	fi
}

# pg_upgrade between the versions of $1 and of the other servers.
part_upgrade() {
	# shellcheck disable=SC2046
	run_or_skip upgrade.out "$GV_ROOT/test/upgrade.sh" "$1" $(other_servers "$1")
}

# All wanted parts of the chosen server.
server_parts() {
	wanted_any sql isolation tap external sqlserved sqlsmith hosts clients plainbuffers ||
		return 0
	prepare_server || return 0
	if wanted_any sql isolation; then
		part "$SERVER sql and isolation" part_sql "data$TAG"
	fi
	if [ ! -d "$TEST_SOURCE" ] && wants_test_build; then
		part "$SERVER test build" build_for_tests
	fi
	if wanted sqlserved; then
		part "$SERVER sql through gpuvecd" of_served_build \
			sql_through_gpuvecd "data$TAG-gpuvecd"
	elif wanted sql && [ -z "$QUICK" ]; then
		part "$SERVER sql through gpuvecd" of_served_build \
			sql_through_gpuvecd "data$TAG-gpuvecd" "${THROUGH_GPUVECD[@]}"
	fi
	over sql isolation sqlserved
	once tap part "$SERVER tap" of_test_build part_tap
	once external part "$SERVER external" of_test_build part_external
	once sqlsmith part "$SERVER sqlsmith" of_test_build run_or_skip \
		"sqlsmith$TAG.out" "$GV_ROOT/test/sqlsmith.sh" --installed "$GV_PG_CONFIG"
	once hosts part "$SERVER hosts" of_test_build count_program \
		"$GV_ROOT/test/hosts/run.sh" --installed "$GV_PG_CONFIG"
	once clients part "$SERVER clients" part_clients "dataclients$TAG"
	once plainbuffers part "$SERVER sql on plain buffers" sql_on_plain_buffers "dataplain$TAG"
}

# Builds anew, with arguments for make; $1 = what the server is called then
rebuild_server() {
	if [ -d "$SOURCE" ]; then
		make -s -C "$SOURCE" PG_CONFIG="$GV_PG_CONFIG" clean
	fi
	rm -rf "$SOURCE.installed" "$TEST_SOURCE"
	SERVER="PostgreSQL $TAG $1"
	shift
	prepare_server "$@"
}

# gpuvec with the undefined-behavior sanitizer, under the SQL tests
ubsan_parts() {
	local ONLY='sql isolation'
	rebuild_server sanitized SHLIB_LINK="-lm -lubsan" \
		COPT="-fsanitize=undefined -fno-sanitize=alignment" || return 0
	part "$SERVER sql and isolation" part_sql dataubsan
}

# gpuvec as clang compiles it, under the SQL tests.  Bitcode is not made again.
clang_parts() {
	local ONLY='sql isolation' clang
	clang=$(gv_find_clang)
	if [ -z "$clang" ]; then
		part clang skipped "no clang"
		return
	fi
	rebuild_server "by clang" CC="$clang" with_llvm=no \
		COPT="$CLANG_COPT" || return 0
	part "$SERVER sql and isolation" part_sql dataclang
}

# The other servers to test with, one pg_config a line.
other_servers() {
	local config
	for config in ${PG_CONFIGS:-/usr/lib/postgresql/*/bin/pg_config}; do
		if gv_is_server "$config" &&
			[ "$("$config" --bindir)" != "$("$1" --bindir)" ]; then
			echo "$config"
		fi
	done
}

# The SQL tests once more with gpuvec built without what leans on PostgreSQL's
# insides (src/page/README, "Ways Around PostgreSQL"); $1 = the cluster's name
sql_on_plain_buffers() {
	rm -f "$SOURCE"/src/page/bufcache.o "$SOURCE"/src/page/delta.o
	gv_build "$(basename "$SOURCE")" COPT=-DIVFPQ_PLAIN_BUFFERS || {
		failed 1 "$SERVER: build with plain buffers"
		return 0
	}
	gv_own "$SOURCE"
	gv_start "$1" "${SQL_SETTINGS[@]}" || {
		failed 1 "$SERVER with plain buffers: does not start"
		return 0
	}
	installcheck "sql on plain buffers" REGRESS ISOLATION .
	gv_stop "$1"
	check_server_log "$1"
}

# The others than $1's, with the parts that ONLY names beside this one.
more_servers() {
	local others other names=${ONLY:-}
	wanted_any sql isolation tap external sqlsmith hosts clients || names=
	others=$(other_servers "$1")
	[ -n "$others" ] || part "other servers" skipped "no other PostgreSQL"
	for other in $others; do
		choose_server "$other"
		ONLY=$names server_parts
	done
}
