#!/bin/bash
#
# check_layers.sh
#		Proves the include rules of the layers (src/README).
#
# Usage: check_layers.sh [tree]; the tree defaults to this file's.
# Prints each offending line and "layers: N passed, M failed".

set -u
command -v perl >/dev/null || { echo "layers: needs perl" >&2; exit 2; }
shopt -s nullglob globstar

tree=${1:-$(dirname "$0")/../..}
cd "$tree" || exit 2
passed=0
failed=0

if [ ! -f src/engine/gv_engine.h ]; then
	echo "layers: $tree is no gpuvec tree" >&2
	exit 2
fi

# Lines of the files $3.. that match $1 and not $2 (empty: all count), with
# comments blanked so that prose about a rule does not break it.
offences() {
	local bad=$1 good=$2 file
	shift 2
	for file in "$@"; do
		perl -0777 -pe 's{/\*.*?\*/}{ ($_ = $&) =~ tr/\n//cd; $_ }gse;
						s{//[^\n"]*$}{}gm' "$file" |
			grep -nE "$bad" |
			if [ -n "$good" ]; then grep -vE "$good"; else cat; fi |
			sed "s|^|$file:|"
	done
}

# rule TEXT BAD GOOD FILE...
rule() {
	local text=$1 found
	shift
	found=$(offences "$@")
	if [ -z "$found" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAILED: $text"
		echo "$found"
	fi
}

include='^[0-9]*:?[[:space:]]*#[[:space:]]*include[[:space:]]*'
any="${include}[<\"]"
standard="${include}<(assert|ctype|errno|fenv|float|inttypes|limits|math|stdalign|stdarg|stdbool|stddef|stdint|stdio|stdlib|string|time)\\.h>"
engine_ok="$standard|${include}\"engine/[a-z_0-9]+\\.h\""
cpu_ok="$engine_ok|${include}\"cpu/[a-z_0-9]+\\.h\"|${include}<immintrin\\.h>"

engine=(src/engine/**/*.[ch])
cpu=(src/cpu/**/*.[ch])
system_ok="$standard|${include}<(dirent|fcntl|getopt|poll|pthread|signal|time|unistd)\\.h>|${include}<sys/[a-z_]+\\.h>"
server_ok="$system_ok|${include}\"(engine|server)/[a-z_0-9]+\\.h\""

page=(src/page/**/*.[ch])
client=(src/client/**/*.[ch])
am=(src/am/**/*.[ch])
set=(src/set/**/*.[ch])
server=(src/server/**/*.[ch])
gpu=(gpu/**/*.[ch] gpu/**/*.cu gpu/**/*.cuh gpu/**/*.cpp gpu/**/*.hpp)
source=(src/**/*.[ch])

rule "src/engine includes C standard and engine headers only" \
	"$any" "$engine_ok" "${engine[@]}"
rule "src/cpu includes C standard, intrinsics, engine and cpu headers only" \
	"$any" "$cpu_ok" "${cpu[@]}"
rule "src/page knows neither engine, cpu, client, server nor am" \
	"${include}[<\"](\\.\\./)*(src/)?(engine|cpu|client|server|am)/" "" \
	"${page[@]}"
rule "src/am reaches the engine, gpuvecd and its clients by one header each" \
	"${include}[<\"](\\.\\./)*(src/)?(cpu|engine|server|client)/|gv_cpu" \
	"${include}\"(engine/gv_engine|server/gv_protocol|client/ivfpqclient)\\.h\"" \
	"${am[@]}"
rule "src/set reaches engine, am and clients of gpuvecd by their contracts only" \
	"${include}[<\"](\\.\\./)*(src/)?(cpu|page|client|server|engine|am)/|gv_cpu" \
	"${include}\"(engine/gv_(engine|select|set)|am/ivfpq|client/ivfpqclient)\\.h\"" \
	"${set[@]}"
rule "src/client knows page, engine/mirror/gv_mirror.h, gv_builder.h, gv_set.h and protocol/gv_protocol.h" \
	"${include}[<\"](\\.\\./)*(src/)?(cpu|am|engine|server)/|gv_cpu" \
	"${include}\"(engine/gv_(engine|mirror|builder|set)|server/gv_protocol)\\.h\"" \
	"${client[@]}"
rule "src/server includes system, engine and server headers only" \
	"$any" "$server_ok" "${server[@]}"
rule "the protocol needs no system" \
	"$any" "$standard|${include}\"(engine|server)/gv_(engine|protocol)\\.h\"" \
	src/server/gv_protocol.[ch]
rule "threads in gpuvecd only: src/engine, src/cpu and backends have none" \
	"${include}<(pthread|threads)\\.h>|pthread_|\\bfork[[:space:]]*\\(" "" \
	"${engine[@]}" "${cpu[@]}" "${page[@]}" "${am[@]}" "${set[@]}"

notcompat=()
for file in "${source[@]}" "${gpu[@]}"; do
	[ "$file" = src/pgcompat.h ] || notcompat+=("$file")
done
rule "version tests stand in src/pgcompat.h only" \
	'PG_VERSION_NUM|PG_MAJORVERSION|CATALOG_VERSION_NO|CATALOG_VERSION' "" \
	"${notcompat[@]}"

rule "no CUDA header outside gpu/" \
	"${include}[<\"][^>\"]*(cuda|cublas|cooperative_groups|mma\\.h|cub/|thrust/|nvml|\\.cuh)" \
	"" "${source[@]}"
rule "gpu/ includes no PostgreSQL header" \
	"${include}[<\"](postgres|pg_|access/|storage/|utils/|catalog/|commands/|nodes/|executor/|c\\.h|fmgr|pgcompat)" \
	"" "${gpu[@]}"

# Only src/page changes pages.
notpage=()
for file in "${source[@]}" "${gpu[@]}"; do
	case $file in
		src/page/*) ;;
		*) notpage+=("$file") ;;
	esac
done
rule "only src/page changes pages" \
	'\b(GenericXLog[A-Za-z]*|MarkBufferDirty[A-Za-z]*|PageInit|PageAddItem[A-Za-z]*|PageSet[A-Z][A-Za-z]*|log_newpage[a-z_]*|XLogInsert|smgrextend)[[:space:]]*\(' \
	"" "${notpage[@]}"

echo "layers: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
