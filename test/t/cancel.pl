# Canceling: every phase of a build, scans of every kind, inserts and VACUUM
# end soon after the request, by pg_cancel_backend and by statement_timeout,
# and leave no damage.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use Time::HiRes qw(time);

my ($rows, $dims) = long_test() ? (30_000, 384) : (6000, 256);
my $vector = join ' || ', ('p') x ($dims / 32);

# as slow as it can be
my $node = new_node('main', conf => "shared_buffers = 64MB\ngpuvec.simd = portable\n");
$node->safe_psql('postgres', qq{
	-- clusters by the first elements; the rest is cheap to make
	CREATE TABLE slow (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO slow SELECT g, $vector
	FROM generate_series(1, $rows) AS g, LATERAL (VALUES (point(g, 32))) AS v (p)});

# Test: a build ends soon when canceled in that phase.
sub cancel_build
{
	my ($sql, $phase) = @_;

	return test_cancel($node, "$sql: $phase", $sql, 'pg_stat_progress_create_index', "phase = 'building index: $phase'");
}

# -- the build
my $drop = 'SET client_min_messages = warning; DROP INDEX IF EXISTS slow_e;';
sub create
{
	my ($lists) = @_;

	return "$drop CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = $lists)";
}
# clustering so many lists takes long: what comes behind it has to do with fewer
cancel_build(create(400), $_) for 'sampling', 'clustering';
my $create = create(long_test() ? 400 : 150);
cancel_build($create, $_) for 'training codes', 'assigning';
my $begun = time;
$node->safe_psql('postgres', "$create; DROP INDEX slow_e");
my $took_ms = 1000 * (time - $begun);
# the last is early enough for a build that others kept from the cores meanwhile
test_timeout($node, 'build', $create, int($_ * $took_ms)) for .05, .15, .3;
gives($node, q{SELECT count(*) FROM pg_class WHERE relname = 'slow_e'}, '0', 'nothing is left of the index');

# -- a build that is deep in the engine serves those who wait for it, and ends
# when one of its workers does
my $deep = long_test() ? 12_000 : 6000;
my $copies = join ' || ', ('p') x 32;
$node->safe_psql('postgres', qq{
	CREATE TABLE deep (id int, e real[]) WITH (parallel_workers = 1);
	ALTER TABLE deep ALTER e SET STORAGE EXTERNAL;
	INSERT INTO deep SELECT g, $copies
	FROM generate_series(1, $deep) AS g, LATERAL (VALUES (point(g, 32))) AS v (p);});
{
	my $phase = q{SELECT phase = 'building index: clustering' FROM pg_stat_progress_create_index};
	my ($after, $status, $ms);

	# three tries, as test_cancel has them
	for (1 .. 3)
	{
		$node->safe_psql('postgres', 'CREATE DATABASE other');
		my $job = background($node, q{SET client_min_messages = warning; DROP INDEX IF EXISTS deep_e;
			SET maintenance_work_mem = '512MB';
			CREATE INDEX deep_e ON deep USING gpuivfpq (e) WITH (lists = 250)});

		ok(wait_until($node, $phase), 'in the engine: clustering');
		$after = $node->safe_psql('postgres', "DROP DATABASE other; $phase");
		$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'parallel worker'});
		my $begun = time;
		$status = end_of($job);
		$ms = int(1000 * (time - $begun));
		last if $after eq 't' && $status != 0 && $ms <= 2000;
		note("in the engine: '$after', ended after $ms ms, status $status");
	}
	is($after, 't', 'in the engine: DROP DATABASE does not wait for its end');
	isnt($status, 0, 'in the engine: a worker was told to end');
	cmp_ok($ms, '<=', 2000, "in the engine: the build ended after $ms ms");
}
$node->safe_psql('postgres', 'DROP TABLE deep');

# writing is the shortest phase: many postings, one sub-quantizer per dimension
$node->safe_psql('postgres', q{
	CREATE TABLE many AS SELECT g AS id, ARRAY[g % 100, g / 100, g % 7, g % 11, 0, 0, 0, 0]::real[] AS e
	FROM generate_series(1, 60000) AS g});
cancel_build('DROP INDEX IF EXISTS many_e; CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 30000)', 'clustering');
cancel_build(
	"SET maintenance_work_mem = '2MB'; DROP INDEX IF EXISTS many_e; CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 20, pq_dim = 8)",
	'writing');

# -- canceled REINDEX CONCURRENTLY leaves the old index as it was
$node->safe_psql('postgres', 'SET gpuvec.simd = auto; CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = 50)');
cancel_build('REINDEX INDEX slow_e', 'assigning');
cancel_build('REINDEX INDEX CONCURRENTLY slow_e', 'assigning');
is_whole($node, 'REINDEX canceled', 'slow', '<->', $dims);
$node->safe_psql('postgres', 'DROP INDEX IF EXISTS slow_e_ccnew');

# -- scans: batches, the pass over the table at the end, rescans
my $scan = 'SET enable_seqscan = off; SET gpuvec.scan_order = relaxed; SELECT count(*) FROM ';
test_timeout($node, 'whole table', "$scan (SELECT id FROM slow ORDER BY e <-> point(1, $dims)) AS q", 20);
test_timeout($node, 'rescans',
	"$scan slow AS a, LATERAL (SELECT id FROM slow AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);
test_timeout($node, 'many lists and candidates',
	"SET gpuvec.probes = 10000; SET gpuvec.candidates = 1000000;
	 $scan slow AS a, LATERAL (SELECT id FROM slow AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);
$node->safe_psql('postgres',
	'CREATE TABLE waiting (LIKE slow); CREATE INDEX waiting_e ON waiting USING gpuivfpq (e);
	 INSERT INTO waiting SELECT * FROM slow');
test_timeout($node, 'pending rows', "$scan (SELECT id FROM waiting ORDER BY e <-> point(1, $dims)) AS q", 20);
test_timeout($node, 'pending rows, again and again',
	"$scan slow AS a, LATERAL (SELECT id FROM waiting AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);

# -- inserts: what came in is dead, and VACUUM takes it
test_timeout($node, 'insert', 'INSERT INTO slow SELECT a.* FROM slow AS a, slow AS b', 500);
is_whole($node, 'insert canceled', 'slow', '<->', $dims, exact => 0);

# -- functions of many rows
$node->safe_psql('postgres', 'CREATE TABLE chain AS SELECT i AS key, i + 1 AS neighbor, 1.0::real AS distance FROM generate_series(1, 1000000) AS i');
test_timeout($node, 'a path', "SELECT count(*) FROM gpuvec_smoothest_path('chain', 1, 1000001)", 100);
test_timeout($node, 'percentiles', "SELECT * FROM gpuvec_percentiles('chain', 'distance', '{.5}')", 20);
test_timeout($node, 'a selection', q{SELECT count(*) FROM gpuvec_select(array_fill(1::real, ARRAY[10000000]), 10000000, 'multi')}, 150);

# -- VACUUM
$node->safe_psql('postgres', 'DELETE FROM slow WHERE id % 3 = 0; DELETE FROM waiting WHERE id % 3 = 0');
test_cancel(
	$node, 'VACUUM',
	'SET vacuum_cost_delay = 5; SET vacuum_cost_limit = 20; VACUUM slow',
	'pg_stat_progress_vacuum', "phase = 'vacuuming indexes'");
is_whole($node, 'VACUUM canceled', 'slow', '<->', $dims, warnings => 1, exact => 0);
$node->safe_psql('postgres', 'VACUUM slow; VACUUM waiting');
is_whole($node, 'VACUUM done', 'slow', '<->', $dims);
is_complete($node, 'waiting', '<->', $dims, 'VACUUM done');

done_testing();
