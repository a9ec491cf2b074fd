# Recall at every depth: conditions that only rows of certain ranks match find as many
# of these as gpuvec.recall asks for; and so do limits of all sizes, whether the scan
# knows of them or not (from "The recall that is promised" on); of rows of many kinds.
#
# The first table has lists enough for parents, and clusters of some hundred rows, so
# that a row of rank 500 lies in any of many lists.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRandom;

# First and last rank, queries, and ranks behind them, whose rows match the condition,
# too, so that a scan that has missed some need not read the whole table.
my @bands = (
	[ 1, 10, 120, '31 AND 40' ],
	[ 81, 100, 120, '251 AND 300' ],
	[ 500, 600, 60, '1401 AND 1600' ],
	[ 9000, 10000, 10, '12001 AND 13000' ]);

my $node = new_node('main');

# Three random numbers make a hump; the square of one makes clusters uneven.
my $row = join ', ', map { "e[$_] + w * (random() + random() + random() - 1.5)" } 1 .. 16;
$node->safe_psql('postgres', qq{
	SELECT setseed(0.5);
	CREATE TABLE centers AS SELECT c, 0.15 + 0.5 * random() ^ 2 AS w,
		ARRAY(SELECT 2 * random() FROM generate_series(1, 16) WHERE c = c) AS e
		FROM generate_series(0, 499) AS c;
	CREATE TABLE made AS SELECT g AS id, ARRAY[$row]::real[] AS e
		FROM (SELECT g, floor(500 * random() ^ 2) AS c FROM generate_series(1, 100120) AS g) AS g
		JOIN centers USING (c);
	CREATE TABLE queries AS SELECT id AS q, e FROM made WHERE id <= 120;
	CREATE TABLE rows AS SELECT * FROM made WHERE id > 120;
	CREATE INDEX rows_e ON rows USING gpuivfpq (e);
	ANALYZE rows;
	CREATE TABLE planted (first int, q int, ids int[], behind int[]);
	CREATE TABLE found (first int, q int, recall float8, share float8);
});

# The nearest rows of each query, by one sort, as far as the last of its bands goes.
my $end = join ' ', map { "WHEN q <= $_->[2] THEN " . ($_->[3] =~ s/.* //r) } reverse @bands;
$node->safe_psql('postgres', qq{
	SET enable_indexscan = off;
	CREATE TABLE ranked AS SELECT q.q, n.id, n.r
	FROM queries AS q, LATERAL (SELECT id, row_number() OVER () AS r
		FROM (SELECT id FROM rows ORDER BY e <-> q.e LIMIT CASE $end END) AS s) AS n});

# Notes the rows of a band's ranks for each of its queries.
sub plant
{
	my ($first, $last, $queries, $behind) = @_;

	$node->safe_psql('postgres', qq{
		INSERT INTO planted SELECT $first, q,
			array_agg(id) FILTER (WHERE r BETWEEN $first AND $last),
			array_agg(id) FILTER (WHERE r BETWEEN $behind)
		FROM ranked WHERE q <= $queries GROUP BY q});
	return;
}

# The planted rows that the index finds.
$node->safe_psql('postgres', q{
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
gives($node, q{SET enable_seqscan = off; SET gpuvec.recall = 0.95;
		SELECT count(*) FROM (SELECT id FROM rows ORDER BY e <-> (SELECT e FROM queries LIMIT 1) LIMIT 10000) AS s;
		SELECT returned, full_pass FROM gpuvec_last_scan()}, "10000\n10000|f", 'ten thousand rows take no pass over the table');
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

# Rows of which refine records tell that they are next: the first batches are over
# before they come to these, and return none from behind the ranks they are good for.
plant(300, 309, 60, '601 AND 700');
gives($node, q{
		CREATE INDEX rows_sq8 ON rows USING gpuivfpq (e) WITH (refine = sq8);
		DROP INDEX rows_e;
		ANALYZE rows;
		DELETE FROM planted WHERE first <> 300;
		SELECT ask(.95);
		SELECT avg(share) >= .95 FROM found WHERE first = 300}, "\nt", 'ranks 300 to 309 by refine records');

# The recall that is promised, whoever knows how many rows are requested: of random
# rows of many dimensions, of which codes tell little.  The rows that match a
# condition are anywhere, near the queries or far from them.
my $nrows = long_test() ? 20_000 : 6_000;
my $nqueries = long_test() ? 200 : 8;
my %share = (
	all => 'f >= 0',
	half => 'f < .5',
	tenth => 'f < .1',
	hundredth => 'f < .01',
	half_with => 'near < .5',
	tenth_with => 'near < .1',
	hundredth_with => 'near < .01',
	half_against => 'near >= .5',
	tenth_against => 'near >= .9',
	hundredth_against => 'near >= .99');
my @shares = long_test() ? sort keys %share : qw(half tenth_with half_against);
my @ways = qw(limit executor cursor join);
my @limits = long_test() ? (10, 100, 300, 1000, 3000, 'all') : (10, 300, 'all');
my @indexes = ('(e real_cosine_ops)',
	long_test() ? ('(e real_cosine_ops) WITH (refine = sq8)', '(e real_cosine_ops, f, near)') : ());
my $vector = '(random() + random() + random() - 1.5)::real';
my $vectors = "(SELECT array_agg($vector) FROM generate_series(1, 40) WHERE g = g)";

$node->safe_psql('postgres', qq{
	SELECT setseed(0.25);
	CREATE TABLE anchor AS SELECT $vectors AS e FROM generate_series(1, 1) AS g;
	CREATE TABLE spread AS SELECT g AS id, random() AS f, 0::float8 AS near, $vectors AS e FROM generate_series(1, $nrows) AS g;
	UPDATE spread SET near = (r - .5) / $nrows FROM
		(SELECT s.id, row_number() OVER (ORDER BY (s.e <=> a.e) + .02 * random()) AS r FROM spread AS s, anchor AS a) AS n
		WHERE n.id = spread.id;
	CREATE TABLE keep AS SELECT id, f, near FROM spread;
	ALTER TABLE keep ADD PRIMARY KEY (id);
	CREATE TABLE asking AS SELECT g AS q, (SELECT array_agg((x + .7 * $vector)::real ORDER BY i)
		FROM unnest(a.e) WITH ORDINALITY AS u (x, i) WHERE g = g) AS e FROM anchor AS a, generate_series(1, $nqueries) AS g;
	CREATE TABLE answers (condition text, q int, ids int[]);
	VACUUM ANALYZE spread, keep, asking});
$node->safe_psql('postgres', "INSERT INTO answers SELECT '$_', q.q, n.ids FROM asking AS q,
	LATERAL (SELECT array_agg(id ORDER BY (e <=> q.e) + 0) AS ids FROM spread WHERE $share{$_}) AS n")
  for @shares;
$node->safe_psql('postgres', q{
	CREATE FUNCTION cell(named text, condition text, wanted int, way text, most int,
		OUT recall float8, OUT worst float8, OUT returned float8, OUT short int) LANGUAGE plpgsql
	SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET enable_hashjoin = off
	SET enable_mergejoin = off SET jit = off AS $$
	DECLARE
		a record;
		c refcursor;
		ids int[];
		one int;
		n int;
		ordered text;
		recalls float8[] = '{}';
	BEGIN
		returned = 0; short = 0;
		FOR a IN SELECT answers.ids, asking.e FROM answers JOIN asking USING (q) WHERE answers.condition = named AND q <= most LOOP
			n = least(wanted, cardinality(a.ids));
			ordered = format('SELECT id FROM spread WHERE %s ORDER BY e <=> %L', condition, a.e);
			CASE way
				WHEN 'limit' THEN
					EXECUTE format('SELECT array_agg(id) FROM (%s LIMIT %s) AS s', ordered, wanted) INTO ids;
				WHEN 'executor' THEN
					EXECUTE format('SELECT array_agg(id) FROM (%s LIMIT (SELECT %s)) AS s', ordered, wanted) INTO ids;
				WHEN 'join' THEN
					EXECUTE format('SELECT array_agg(id) FROM (SELECT s.id FROM spread AS s WHERE EXISTS
						(SELECT 1 FROM keep WHERE keep.id = s.id AND keep.%s) ORDER BY e <=> %L LIMIT %s) AS s',
						condition, a.e, wanted) INTO ids;
				WHEN 'cursor' THEN
					ids = '{}';
					OPEN c NO SCROLL FOR EXECUTE ordered;
					LOOP
						FETCH c INTO one;
						EXIT WHEN one IS NULL;
						ids = ids || one;
						EXIT WHEN cardinality(ids) = wanted;
					END LOOP;
					CLOSE c;
			END CASE;
			recalls = recalls || (SELECT count(*)::float8 / n FROM unnest(ids) AS i JOIN unnest(a.ids[1:n]) AS t ON i = t);
			returned = returned + coalesce(cardinality(ids), 0)::float8 / n;
			short = short + (wanted < cardinality(a.ids) * .9 AND coalesce(cardinality(ids), 0) < wanted)::int;
		END LOOP;
		returned = returned / cardinality(recalls);
		SELECT avg(r) INTO recall FROM unnest(recalls) AS r;
		SELECT avg(r) INTO worst FROM (SELECT r FROM unnest(recalls) AS r ORDER BY r LIMIT greatest(cardinality(recalls) / 10, 1)) AS w;
	END
	$$});
for my $index (@indexes)
{
	$node->safe_psql('postgres', "DROP INDEX IF EXISTS spread_e; CREATE INDEX spread_e ON spread USING gpuivfpq $index; ANALYZE spread");
	for my $named ($index eq $indexes[0] ? @shares : qw(half tenth_with))
	{
		my @below;

		for my $i (0 .. $#ways)
		{
			my $way = $ways[$i];

			for my $limit (@limits)
			{
				# all rows take long: in a short run each way has them of one share, for
				# half of the queries
				my $whole = $limit eq 'all' && !long_test();
				next if $whole && $named ne $shares[ $i % @shares ];
				my $most = $nqueries / ($whole ? 2 : 1);
				my $wanted = $limit eq 'all' ? $nrows : $limit;
				my ($recall, $worst, $returned, $short) = split /\|/,
				  $node->safe_psql('postgres', "SELECT * FROM cell('$named', '$share{$named}', $wanted, '$way', $most)");

				note(sprintf '%s, %s, %s, %s: %.3f, worst %.3f, returned %.3f', $index, $named, $way, $limit, $recall, $worst, $returned);
				push @below, "$way, $limit: $recall, worst $worst, returned $returned, short $short"
				  if $recall < .93 || $returned < .93 || $short > 0 || (long_test() && $worst < .85);
			}
		}
		is("@below", '', "the recall promised: $index, $named");
	}
}

# Pages under a condition are parts of one order.
$node->safe_psql('postgres', 'DROP INDEX spread_e; CREATE INDEX spread_e ON spread USING gpuivfpq (e real_cosine_ops); ANALYZE spread');
is($node->safe_psql('postgres', q{
		SET enable_seqscan = off; SET enable_sort = off;
		CREATE FUNCTION pages(query real[], condition text) RETURNS int[] LANGUAGE plpgsql AS $$
		DECLARE
			shown int[] = '{}';
			page int[];
		BEGIN
			FOR o IN 0..19 LOOP
				EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM spread WHERE %s ORDER BY e <=> %L LIMIT 10 OFFSET %s) AS s',
					condition, query, 10 * o) INTO page;
				shown = shown || page;
			END LOOP;
			RETURN shown;
		END
		$$;
		SELECT condition, count(*), count(DISTINCT (q, id)) FROM (VALUES ('f < .5'), ('true')) AS c (condition),
			(SELECT * FROM asking WHERE q <= 6) AS a, unnest(pages(e, condition)) AS id GROUP BY condition ORDER BY condition}),
	"f < .5|1200|1200\ntrue|1200|1200",
	'no row is on two pages');

# Rows deleted and not removable yet are rows that do not match; to tell that
# beforehand ANALYZE need not know of them.
$node->safe_psql('postgres', q{
	CREATE FUNCTION left_found(k int) RETURNS float8 LANGUAGE sql SET enable_seqscan = off AS $$
		SELECT avg((n.d <= f.far + 1e-9)::int) * avg(n.n) / k FROM asking AS q,
			LATERAL (SELECT max(d) AS far FROM (SELECT (e <=> q.e) + 0 AS d FROM spread ORDER BY 1 LIMIT k) AS s) AS f,
			LATERAL (SELECT d, count(*) OVER () AS n FROM (SELECT e <=> q.e AS d FROM spread ORDER BY e <=> q.e LIMIT k) AS s) AS n
	$$});
for my $analyze ('', 'ANALYZE spread;')
{
	for my $k (10, 100)
	{
		cmp_ok(
			$node->safe_psql('postgres', "BEGIN; DELETE FROM spread WHERE id % 10 <> 1; $analyze SELECT left_found($k); ROLLBACK"),
			'>=', .93, "nine of ten rows are deleted: recall of $k rows $analyze");
	}
}
# A query beside which there are fewer rows than elsewhere may take two.
cmp_ok(
	$node->safe_psql('postgres', q{BEGIN; DELETE FROM spread WHERE id % 10 <> 1; ANALYZE spread; SET LOCAL enable_seqscan = off;
		CREATE TEMP TABLE took AS SELECT 0 AS batches LIMIT 0;
		DO $$ BEGIN FOR i IN 1 .. 8 LOOP PERFORM id FROM spread ORDER BY e <=> (SELECT e FROM asking WHERE q = i) LIMIT 10;
			INSERT INTO took SELECT batches FROM gpuvec_last_scan(); END LOOP; END $$;
		SELECT count(*) FILTER (WHERE batches = 1) FROM took; ROLLBACK}),
	'>=', 6, '... which takes one batch where ANALYZE has counted them');

# Rows of many kinds, some of which no codes suit: a target holds for rows like those
# that the index has.
my %kinds = (
	humps => 'random() + random() - 1',
	line => 'i / n::float8 * sin(j) + .001 * random()',
	band => 'sin(j) * (u + w - 1) + .05 * random()',
	fading => 'exp(-j / 3.0) * (random() - .5)',
	tails => 'tan(3 * (random() - .5))',
	lengths => '(random() - .5) * 10 ^ (2 * u)',
	few => 'floor(random() * 4) - 1');
my @cases = (
	[ 'humps', 1, 20000, 'l2', '' ],
	[ 'line', 16, 20000, 'ip', '' ],
	[ 'band', 8, 20000, 'ip', 'rotate = on' ],
	[ 'humps', 16, 20000, 'l2', 'pq_dim = 1' ]);
push @cases, [
	pick(sort keys %kinds), pick(1, 2, 3, 5, 8, 16, 33, 64), pick(1000, 5000, 20000),
	pick('l2', 'ip', 'cosine'), pick('', '', 'refine = sq8', 'spill = 1', 'lists = 500', 'rotate = on', 'pq_dim = 1') ]
	for 1 .. (long_test() ? 100 : 4);
for my $case (@cases)
{
	my ($kind, $dims, $n, $metric, $option) = @$case;
	my $with = $option && "WITH ($option)";

	$node->safe_psql('postgres', qq{
		DROP TABLE IF EXISTS kinds;
		CREATE TABLE kinds AS SELECT i, array_agg(($kinds{$kind})::real) AS e
			FROM (SELECT i, $n AS n, random() AS u, random() AS w FROM generate_series(1, $n) AS i) AS i,
				generate_series(1, $dims) AS j GROUP BY i;
		CREATE INDEX kinds_e ON kinds USING gpuivfpq (e real_${metric}_ops) $with});
	for my $target (.95, .99)
	{
		cmp_ok(
			$node->safe_psql('postgres', "SET gpuvec.recall = $target; SELECT high FROM gpuvec_recall('kinds_e', 10, 200)"),
			'>=', $target - .01, "recall of @$case at $target");
	}
}

done_testing();
