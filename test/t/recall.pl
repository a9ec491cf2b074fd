# Recall has floors: for one list, ten, the defaults, and 1 for all lists with
# enough candidates; for each metric; of rows that a build, pgbench's inserts
# or what VACUUM leaves brought in.  And a stored row finds itself first.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = long_test() ? 100_000 : 10_000;
my $queries = long_test() ? 100 : 40;
my %class = ('<->' => 'real_l2_ops', '<#>' => 'real_ip_ops', '<=>' => 'real_cosine_ops');

my $node = new_node('main');

# Overlapping clusters in 32 dimensions: neighbors lie in several lists.
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION near(g int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
		SELECT array_agg((sin(g % 50 * 131 + i * 17) + 1.5 * (n - floor(n)))::real ORDER BY i)
		FROM generate_series(1, 32) AS i,
			LATERAL (VALUES (abs(sin(g * 12.9898 + i * 78.233)) * 43758.5453)) AS v (n)
	$$;
	CREATE TABLE queries (q int, e real[]);
	CREATE TABLE bounds (operator text, q int, bound float8);
});
$node->safe_psql('postgres',
	"INSERT INTO queries SELECT g, near(g + 5000000) FROM generate_series(1, $queries) AS g");

# The distance of the tenth nearest row, for each query, by a sort.
sub find_bounds
{
	$node->safe_psql('postgres', 'TRUNCATE bounds');
	for my $operator (keys %class)
	{
		$node->safe_psql('postgres',
			"SET enable_indexscan = off; INSERT INTO bounds
			SELECT '$operator', q.q, max(n.d) FROM queries AS q,
				LATERAL (SELECT r.e $operator q.e AS d FROM rows AS r ORDER BY 1 LIMIT 10) AS n
			GROUP BY q.q");
	}
	return;
}

# Test: recall@10 is $floor at least.
sub test_recall
{
	my ($what, $operator, $probes, $candidates, $floor) = @_;
	my $recall = $node->safe_psql(
		'postgres', qq{
		SET enable_seqscan = off;
		SET gpuvec.probes = $probes;
		SET gpuvec.candidates = $candidates;
		SELECT round(count(*) FILTER (WHERE n.d <= b.bound)::numeric / (10 * $queries), 4)
		FROM queries AS q JOIN bounds AS b ON b.q = q.q AND operator = '$operator',
			LATERAL (SELECT r.e $operator q.e AS d FROM rows AS r
				ORDER BY r.e $operator q.e LIMIT 10) AS n});

	cmp_ok($recall, '>=', $floor, "$what, $operator, probes $probes, candidates $candidates");
	note("$what $operator $probes $candidates: $recall");
	return;
}

# All floors for all metrics.  @_: name of the state, floors for one list, for
# ten, for the defaults
sub test_floors
{
	my ($what, $one, $ten, $default) = @_;

	find_bounds();
	for my $operator (sort keys %class)
	{
		my ($index) = $operator eq '<->' ? 'l2' : $operator eq '<#>' ? 'ip' : 'cosine';

		like(
			$node->safe_psql(
				'postgres',
				"SET enable_seqscan = off; EXPLAIN SELECT id FROM rows
				ORDER BY e $operator near(1) LIMIT 10"),
			qr/Index Scan using rows_$index/,
			"$what: $operator uses its index");
		test_recall($what, $operator, 1, 200, $one);
		test_recall($what, $operator, 10, 200, $ten);
		test_recall($what, $operator, 0, 0, $default);
		test_recall($what, $operator, 16777216, $rows * 3, 1);
		is_sound($node, "rows_$index", $what);
	}

	# a row is its own nearest
	is( $node->safe_psql(
			'postgres', q{
			SET enable_seqscan = off;
			SELECT count(*) FILTER (WHERE n.id = r.id), count(*) FROM
				(SELECT * FROM rows ORDER BY id LIMIT 100) AS r,
				LATERAL (SELECT id FROM rows AS s ORDER BY s.e <-> r.e LIMIT 1) AS n}),
		'100|100',
		"$what: a query that is a row finds it first");
	return;
}

sub create_indexes
{
	$node->safe_psql(
		'postgres', q{
		SET client_min_messages = warning;
		CREATE INDEX rows_l2 ON rows USING gpuivfpq (e) WITH (lists = 100);
		CREATE INDEX rows_ip ON rows USING gpuivfpq (e real_ip_ops) WITH (lists = 100);
		CREATE INDEX rows_cosine ON rows USING gpuivfpq (e real_cosine_ops) WITH (lists = 100)});
	return;
}

# built from all rows
$node->safe_psql('postgres',
	"CREATE TABLE rows (id serial PRIMARY KEY, e real[]);
	 INSERT INTO rows (e) SELECT near(g) FROM generate_series(1, $rows) AS g");
create_indexes();
test_floors('built', 0.12, 0.82, 0.93);

# half of them vacuumed away
$node->safe_psql('postgres', 'DELETE FROM rows WHERE id % 2 = 0; VACUUM rows');
test_floors('vacuumed', 0.12, 0.82, 0.93);

# a tenth of them built, the rest inserted by many sessions
$node->safe_psql('postgres', 'TRUNCATE rows RESTART IDENTITY');
$node->safe_psql('postgres',
	"INSERT INTO rows (e) SELECT near(g) FROM generate_series(1, $rows / 10) AS g;
	 REINDEX TABLE rows");
my $each = int($rows * 0.9 / 100 / 5);
$node->pgbench(
	"--no-vacuum --client=5 --jobs=2 --transactions=$each --random-seed=7",
	0,
	[qr{actually processed}],
	[qr{^(pgbench: setting random seed to 7\n)?$}],
	'inserts by pgbench',
	{
		'recall_insert' => q{\set g random(1, 10000000)
INSERT INTO rows (e) SELECT near(:g + g) FROM generate_series(1, 100) AS g;}
	});
test_floors('inserted', 0.12, 0.82, 0.93);

# what gpuvec_recall says is near to what was measured
my ($recall, $low, $high) = split /\|/,
  $node->safe_psql('postgres', "SELECT * FROM gpuvec_recall('rows_l2')");
cmp_ok($recall, '>=', 0.9, "gpuvec_recall says $recall");
ok($low <= $recall && $recall <= $high, "... between $low and $high");

done_testing();
