#!/bin/bash
# The demo (`make demo`): gpuvec on 50,000 real word vectors.
#
# Builds gpuvec, installs it into a private copy of PostgreSQL, starts a
# throw-away cluster, loads the words, creates an index, and shows neighbors
# that a person can judge, recall against exact search, time and size.
# Status 0 only if the index was used and recall@10 is at least 0.95.
# Needs PostgreSQL and a compiler (test/setup.sh), nothing else; leaves nothing
# behind.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

WORDS=(paris violin thursday uranium happy volcano)
WANTED=0.95

ask() { gv_psql -At "$@"; }

now_ms() { date +%s%3N; }

# Runs SQL $2 and prints it with the time it took; $1 is shown in its place.
timed() {
	local start
	start=$(now_ms)
	gv_psql -c "$2"
	printf '  %-66s %6d ms\n' "$1" $(($(now_ms) - start))
}

load() {
	gv_psql -c 'CREATE EXTENSION gpuvec' -c 'CREATE TABLE words
		(id int PRIMARY KEY, word text NOT NULL, embedding real[])'
	gzip -dc "$GV_ROOT/test/demo/glove-50k.copy.gz" |
		gv_psql -c 'COPY words FROM STDIN'
	gv_psql -c 'CREATE INDEX ON words (word)' -c 'VACUUM ANALYZE words'
}

# The nearest words to $1, other than itself.
neighbors() {
	ask -v word="$1" <<-'SQL'
		SELECT string_agg(word, ', ')
		FROM (SELECT word FROM words
			ORDER BY embedding <=> (SELECT embedding FROM words
				WHERE word = :'word')
			LIMIT 8) n
		WHERE word <> :'word'
	SQL
}

# Makes search(is_exact), which searches the 10 neighbors of 200 words into
# the table found (exact, query, distance) and the time into took.
make_search() {
	gv_psql <<-'SQL'
		CREATE TABLE found (exact bool, query int, distance float8);
		CREATE TABLE took (exact bool, ms float8);
		CREATE FUNCTION search(is_exact bool) RETURNS void LANGUAGE plpgsql
		AS $$
		DECLARE
			q record;
			ids int[];
			began timestamptz;
			spent float8 := 0;
		BEGIN
			FOR q IN SELECT id, embedding FROM words WHERE id % 250 = 7
			LOOP
				began := clock_timestamp();
				ids := ARRAY(SELECT id FROM words
					ORDER BY embedding <=> q.embedding LIMIT 11);
				spent := spent + extract(epoch FROM
					clock_timestamp() - began) * 1000;
				-- the word itself, at distance zero, is no find
				INSERT INTO found SELECT is_exact, q.id,
						w.embedding <=> q.embedding
					FROM words w
					WHERE w.id = ANY (ids) AND w.id <> q.id
					ORDER BY 3 LIMIT 10;
			END LOOP;
			INSERT INTO took VALUES (is_exact, spent / 200);
		END $$;
	SQL
}

# A session each, since a session keeps its plans; the first one warms up.
compare() {
	local search='SET max_parallel_workers_per_gather = 0'
	make_search
	ask -o /dev/null -c "$search" -c 'SELECT search(false)'
	gv_psql -c 'TRUNCATE found, took'
	ask -o /dev/null -c "$search" -c 'SELECT search(false)'
	ask -o /dev/null -c "$search" -c 'SET enable_indexscan = off' \
		-c 'SELECT search(true)'
}

# A row that is as near as the tenth exact one is right: ties are no loss.
recall_by_comparison() {
	ask <<-'SQL'
		SELECT round(avg(hits) / 10, 4) FROM (
			SELECT (SELECT count(*) FROM found f
				WHERE NOT f.exact AND f.query = e.query
				AND f.distance <= e.tenth) AS hits
			FROM (SELECT query, max(distance) AS tenth FROM found
				WHERE exact GROUP BY query) e) h
	SQL
}

recall_by_function() {
	ask -c "SELECT round(recall::numeric, 4),
		round(low::numeric, 4), round(high::numeric, 4)
		FROM gpuvec_recall('words_embedding_idx'::regclass, 10, 200)"
}

uses_index() {
	ask -c "EXPLAIN (COSTS OFF) SELECT id FROM words
		ORDER BY embedding <=> (SELECT embedding FROM words WHERE id = 1)
		LIMIT 10" | grep -q 'Index Scan using words_embedding_idx'
}

took_ms() { ask -c "SELECT round(ms::numeric, 2) FROM took WHERE exact = $1"; }

size_of() { ask -c "SELECT pg_size_pretty(pg_relation_size('$1'))"; }

at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }

report() {
	local recall row word recalls

	printf '\nNearest words\n'
	for word in "${WORDS[@]}"; do
		printf '  %-10s %s\n' "$word" "$(neighbors "$word")"
	done

	compare
	recall=$(recall_by_comparison)
	row=$(recall_by_function)
	IFS='|' read -ra recalls <<<"$row"
	printf '\nCompared with exact search (10 nearest, 200 queries, one process)\n'
	printf '  %-24s %12s %12s\n' '' gpuivfpq exact
	printf '  %-24s %12s %12s\n' 'recall@10' "$recall" 1.0000
	printf '  %-24s %9s ms %9s ms\n' 'time per query' "$(took_ms false)" \
		"$(took_ms true)"
	printf '  %-24s %12s %12s\n' 'size (index, table)' \
		"$(size_of words_embedding_idx)" "$(size_of words)"
	printf '  %-24s %12s    (%s to %s)\n\n' 'gpuvec_recall()' \
		"${recalls[0]}" "${recalls[1]}" "${recalls[2]}"

	uses_index || gv_die "demo: the index was not used"
	if ! at_least "$recall" $WANTED || ! at_least "${recalls[0]}" $WANTED; then
		gv_die "demo: recall@10 is below $WANTED"
	fi
	echo "demo: recall@10 $recall, at least $WANTED as it should be"
}

"$GV_ROOT/test/setup.sh" demo
gv_begin
gv_note "building gpuvec (a minute or two), starting a cluster in $GV_TMP"
gv_copy_server "$(gv_find_pg_config)"
gv_copy_source src
gv_build src
gv_start data
printf '\n50,000 English words, 50 dimensions (GloVe), %s\n' \
	"$("$GV_BIN/postgres" --version)"
load
timed 'CREATE INDEX ON words USING gpuivfpq (embedding real_cosine_ops)' \
	'CREATE INDEX ON words USING gpuivfpq (embedding real_cosine_ops)'
report
cat <<'NEXT'

Next, read "Your first index" in README.md.  To try it on a throw-away server, run
`DATABASE=empty test/cluster.sh', which opens psql.  The picture test/demo/words.png
shows some of these words.
NEXT
