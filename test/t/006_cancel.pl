# Cancelling: every phase of a build, scans of every kind, inserts and VACUUM
# end soon after the request, by pg_cancel_backend and by statement_timeout,
# and leave no damage.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# half a second is the promise; the rest is for machines that do other things
my $limit_ms = 500 + 1500;
my $rows = long_test() ? 30_000 : 15_000;

# as slow as it can be
my $node = new_node('main', conf => "shared_buffers = 64MB\ngpuvec.simd = portable\n");
$node->safe_psql(
	'postgres', qq{
	-- clusters by the first elements; the rest is cheap to make
	CREATE TABLE slow (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO slow SELECT g, p || p || p || p || p || p || p || p || p || p || p || p
	FROM generate_series(1, $rows) AS g, LATERAL (VALUES (point(g, 32))) AS v (p);

	-- Wait until another session has come to a phase (of CREATE INDEX, or of
	-- VACUUM), cancel it, and wait for its end; how many ms that took.
	CREATE FUNCTION cancel_at(command text, wanted text) RETURNS int
	LANGUAGE plpgsql AS \$\$
	DECLARE
		victim int;
		begun timestamptz = clock_timestamp();
		view text = CASE command WHEN 'vacuum' THEN 'pg_stat_progress_vacuum'
			ELSE 'pg_stat_progress_create_index' END;
	BEGIN
		WHILE victim IS NULL AND clock_timestamp() < begun + '60 s' LOOP
			PERFORM pg_stat_clear_snapshot();
			EXECUTE format('SELECT pid FROM %I WHERE phase = \$1', view) INTO victim USING wanted;
			PERFORM pg_sleep(0.001);
		END LOOP;
		-- into the middle of it
		PERFORM pg_sleep(0.02);
		begun = clock_timestamp();
		PERFORM pg_cancel_backend(victim);
		WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = victim AND state = 'active') LOOP
			PERFORM pg_stat_clear_snapshot();
			PERFORM pg_sleep(0.001);
		END LOOP;
		RETURN CASE WHEN victim IS NULL THEN NULL
			ELSE 1000 * extract(epoch FROM clock_timestamp() - begun) END;
	END
	\$\$;
});

# Test: the job, which was begun, ends soon when cancelled in that phase.
sub test_cancel
{
	my ($sql, $command, $phase) = @_;
	my $job = background($node, "$sql; SELECT pg_sleep(0.5)");
	my $ms = $node->safe_psql('postgres', "SELECT cancel_at('$command', '$phase')");

	if ($ms eq '')
	{
		# it went past unseen: do not wait for what it does now
		$ms = 1e9;
		$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	}
	cmp_ok($ms, '<=', $limit_ms, "$command, $phase: ended after $ms ms");
	is(end_of($job) >> 8, 3, "$command, $phase: was cancelled");
	return;
}

# Test: a statement with a timeout of its own ends soon after it.
sub test_timeout
{
	my ($what, $sql, $timeout_ms) = @_;
	my $begun = time;
	my ($rc, $out, $err) =
	  $node->psql('postgres', "SET statement_timeout = $timeout_ms; $sql");
	my $ms = int(1000 * (time - $begun)) - $timeout_ms;

	like($err, qr/canceling statement due to statement timeout/,
		"$what: timed out after $timeout_ms ms");
	cmp_ok($ms, '<=', $limit_ms, "$what: ended $ms ms later");
	return;
}

# -- the build
my $create = 'CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = 400)';
for my $phase ('sampling', 'clustering', 'training codes', 'assigning')
{
	test_cancel($create, 'create index', "building index: $phase");
}
my $begun = time;
$node->safe_psql('postgres', "$create; DROP INDEX slow_e");
my $took_ms = 1000 * (time - $begun);
for my $share (.05, .25, .5)
{
	test_timeout('build', $create, int($share * $took_ms));
}
is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_class WHERE relname = 'slow_e'}),
	'0', 'nothing is left of the index');

# writing is the shortest phase: many copies, one sub-quantizer per dimension
$node->safe_psql(
	'postgres', q{
	CREATE TABLE many AS SELECT g AS id, ARRAY[g % 100, g / 100, g % 7, g % 11, 0, 0, 0, 0]::real[] AS e
	FROM generate_series(1, 60000) AS g});
test_cancel(
	'CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 30000)',
	'create index', 'building index: clustering');
test_cancel(
	"SET maintenance_work_mem = '2MB'; CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 20, pq_dim = 8)",
	'create index', 'building index: writing');

# -- cancelled REINDEX CONCURRENTLY leaves the old index as it was
$node->safe_psql('postgres', 'CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = 50)');
test_cancel('REINDEX INDEX slow_e', 'create index', 'building index: assigning');
test_cancel('REINDEX INDEX CONCURRENTLY slow_e', 'create index', 'building index: assigning');
is_sound($node, 'slow_e', 'REINDEX cancelled');
is_exact($node, 'slow', '<->', 384, 'REINDEX cancelled');
$node->safe_psql('postgres', 'DROP INDEX IF EXISTS slow_e_ccnew');

# -- scans: batches, the pass over the table at the end, rescans
my $scan = 'SET enable_seqscan = off; SET gpuvec."order" = relaxed; SELECT count(*) FROM ';
test_timeout('whole table', "$scan (SELECT id FROM slow ORDER BY e <-> point(1, 384)) AS q", 20);
test_timeout('rescans',
	"$scan slow AS a, LATERAL (SELECT id FROM slow AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);
test_timeout('many lists and candidates',
	"SET gpuvec.probes = 10000; SET gpuvec.candidates = 1000000;
	 $scan slow AS a, LATERAL (SELECT id FROM slow AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);
$node->safe_psql('postgres',
	'CREATE TABLE waiting (LIKE slow); CREATE INDEX waiting_e ON waiting USING gpuivfpq (e);
	 INSERT INTO waiting SELECT * FROM slow');
test_timeout('pending rows', "$scan (SELECT id FROM waiting ORDER BY e <-> point(1, 384)) AS q", 20);
test_timeout('pending rows, again and again',
	"$scan slow AS a, LATERAL (SELECT id FROM waiting AS b ORDER BY b.e <-> a.e LIMIT 1) AS q", 300);

# -- inserts: what came in is dead, and VACUUM takes it
test_timeout('insert', 'INSERT INTO slow SELECT a.* FROM slow AS a, slow AS b', 500);
is_sound($node, 'slow_e', 'insert cancelled');
is_complete($node, 'slow', '<->', 384, 'insert cancelled');

# -- VACUUM
$node->safe_psql('postgres', 'DELETE FROM slow WHERE id % 3 = 0; DELETE FROM waiting WHERE id % 3 = 0');
test_cancel('SET vacuum_cost_delay = 5; SET vacuum_cost_limit = 20; VACUUM slow',
	'vacuum', 'vacuuming indexes');
is_sound($node, 'slow_e', 'VACUUM cancelled', warnings => 1);
is_complete($node, 'slow', '<->', 384, 'VACUUM cancelled');
$node->safe_psql('postgres', 'VACUUM slow; VACUUM waiting');
is_sound($node, 'slow_e', 'VACUUM done');
is_exact($node, 'slow', '<->', 384, 'VACUUM done');
is_complete($node, 'waiting', '<->', 384, 'VACUUM done');

done_testing();
