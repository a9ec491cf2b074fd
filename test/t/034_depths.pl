# Recall at every depth: conditions that only certain ranks fulfil find as many
# of their rows as gpuvec.recall asks for.
#
# The table has lists enough for parents, and clusters of some hundred rows, so
# that a row of rank 500 lies in any of many lists.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# First and last rank, queries, and rows behind, which fulfil the condition,
# too, so that a scan that has missed some need not read the whole table.
my @bands = (
	[ 1, 10, 120, '31 AND 40' ],
	[ 81, 100, 120, '251 AND 300' ],
	[ 500, 600, 60, '1401 AND 1600' ],
	[ 9000, 10000, 10, '12001 AND 13000' ]);

my $node = new_node('main');

# Three random numbers make a hump; the square of one makes clusters uneven.
my $row = join ', ', map { "e[$_] + w * (random() + random() + random() - 1.5)" } 1 .. 16;
$node->safe_psql(
	'postgres', qq{
	SELECT setseed(0.5);
	CREATE TABLE centres AS SELECT c, 0.15 + 0.5 * random() ^ 2 AS w,
		ARRAY(SELECT 2 * random() FROM generate_series(1, 16) WHERE c = c) AS e
		FROM generate_series(0, 499) AS c;
	CREATE TABLE made AS SELECT g AS id, ARRAY[$row]::real[] AS e
		FROM (SELECT g, floor(500 * random() ^ 2) AS c FROM generate_series(1, 100120) AS g) AS g
		JOIN centres USING (c);
	CREATE TABLE queries AS SELECT id AS q, e FROM made WHERE id <= 120;
	CREATE TABLE rows AS SELECT * FROM made WHERE id > 120;
	CREATE INDEX rows_e ON rows USING gpuivfpq (e);
	ANALYZE rows;
	CREATE TABLE planted (first int, q int, ids int[], behind int[]);
	CREATE TABLE found (first int, q int, recall float8, share float8);
});

# Rows of a band's ranks for each of its queries, by a sort.
sub plant
{
	my ($first, $last, $queries, $behind) = @_;
	my ($end) = $behind =~ /(\d+)$/;

	$node->safe_psql(
		'postgres', qq{
		SET enable_indexscan = off;
		INSERT INTO planted SELECT $first, q.q,
			array_agg(n.id) FILTER (WHERE r BETWEEN $first AND $last),
			array_agg(n.id) FILTER (WHERE r BETWEEN $behind)
		FROM queries AS q, LATERAL (SELECT id, row_number() OVER () AS r
			FROM (SELECT id FROM rows ORDER BY e <-> q.e LIMIT $end) AS s) AS n
		WHERE q.q <= $queries GROUP BY q.q});
	return;
}

# What of the planted rows the index finds.
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION ask(target float8) RETURNS void LANGUAGE plpgsql
	SET enable_seqscan = off SET enable_bitmapscan = off AS $$
	DECLARE
		p record;
	BEGIN
		PERFORM set_config('gpuvec.recall', target::text, true);
		FOR p IN SELECT * FROM planted JOIN queries USING (q) LOOP
			EXECUTE format('INSERT INTO found
				SELECT %s, %s, %s, count(*) FILTER (WHERE id = ANY (%L))::float8 / %s FROM
					(SELECT id FROM rows WHERE id = ANY (%L) ORDER BY e <-> %L LIMIT %s) AS s',
				p.first, p.q, target, p.ids, cardinality(p.ids),
				p.ids || p.behind, p.e, cardinality(p.ids));
		END LOOP;
	END
	$$;
});

plant(@$_) for @bands;
like(
	$node->safe_psql('postgres',
		q{SET enable_seqscan = off; EXPLAIN SELECT id FROM rows WHERE id = ANY ('{1,2}')
		ORDER BY e <-> (SELECT e FROM queries LIMIT 1) LIMIT 2}),
	qr/Index Scan using rows_e/,
	'the index is used');
is( $node->safe_psql('postgres',
		q{SET enable_seqscan = off; SET gpuvec.recall = 0.95;
		SELECT count(*) FROM (SELECT id FROM rows ORDER BY e <-> (SELECT e FROM queries LIMIT 1) LIMIT 10000) AS s;
		SELECT given, finished FROM gpuvec_last_scan()}),
	"10000\n10000|f",
	'ten thousand rows take no pass over the table');
for my $recall (0.95, 0.99)
{
	$node->safe_psql('postgres', "SELECT ask($recall)");
	for (@bands)
	{
		my ($first, $last, $queries) = @$_;
		# Three standard errors; rows of one query are found or missed together,
		# so it counts for four.
		my $margin = 3 * sqrt($recall * (1 - $recall) / (4 * $queries));
		my $share = $node->safe_psql('postgres',
			"SELECT avg(share) FROM found WHERE first = $first AND recall = $recall");

		cmp_ok($share, '>=', $recall - $margin, "ranks $first to $last at $recall");
		note("ranks $first to $last at $recall: $share");
	}
}

done_testing();
