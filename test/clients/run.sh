#!/bin/bash
# Clients from PyPI, in pinned versions, on gpuvec; the examples and searches of
# sql/docs/recipes.md as they are printed.
#
# usage: test/clients/run.sh [--here] [PROGRAM...]
#
# Programs: drivers frameworks stores recipes langchain_store haystack_store
# pgvector_python owntable vectordbbench (all).  Each says in its header what it tries.  They run in a
# cluster of test/cluster.sh; --here: on the server that PGHOST and PGPORT name,
# where they make and drop databases.  Packages of PyPI are kept in
# build/clients.  Prints what is not ok, a line for each program, and ends with
# 'N passed, N failed'; programs whose packages PyPI does not give are skipped.
# One that is stopped says which programs are left.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

PROGRAMS='drivers frameworks stores recipes langchain_store haystack_store
	pgvector_python owntable vectordbbench'

if [ "${1:-}" != --here ]; then
	"$GV_ROOT/test/setup.sh" bench
	DATABASE=empty exec "$GV_ROOT/test/cluster.sh" \
		"$GV_ROOT/test/clients/run.sh" --here "$@"
fi
shift

passed=0 failed=0 skipped=0
read -rd '' -a left <<<"${*:-$PROGRAMS}" || :
out=$(mktemp)
trap '[ ${#left[@]} = 0 ] || echo "not run: test/clients/run.sh ${left[*]}"
	rm -f "$out"' EXIT
trap 'exit 130' INT TERM
while [ ${#left[@]} != 0 ]; do
	program=${left[0]}
	status=0 began=$SECONDS
	"$GV_ROOT/test/clients/$program.py" >"$out" 2>&1 || status=$?
	ok=$(grep -c '^ok ' "$out") || :
	bad=$(grep -c '^not ok ' "$out") || :
	left=("${left[@]:1}")
	if [ $status = 2 ]; then
		echo "$program skipped: $(tail -1 "$out")"
		skipped=$((skipped + 1))
		continue
	fi
	# one that ends early, or tries nothing, has failed, too
	if [ $status != 0 ] || [ "$ok" = 0 ]; then
		grep -v '^ok ' "$out" || :
		bad=$((bad > 0 ? bad : 1))
	fi
	echo "$program: $ok passed, $bad failed, $((SECONDS - began)) s"
	passed=$((passed + ok)) failed=$((failed + bad))
done
if [ $skipped != 0 ]; then
	echo "$passed passed, $failed failed, $skipped skipped"
else
	echo "$passed passed, $failed failed"
fi
[ $failed = 0 ]
