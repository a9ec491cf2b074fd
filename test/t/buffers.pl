# Shared buffers that do not hold tables and indexes, so that scans ask for pages ahead:
# answers are right, and nothing stays pinned when a scan stops in the middle.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $rows = long_test() ? 40_000 : 10_000;
my $dims = 64;
my $node = new_node('main', conf => "shared_buffers = 1MB\ntemp_buffers = 800kB\neffective_io_concurrency = 16\n");

# A session's output, and its warnings.
sub said
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, on_error_stop => 0);

	return "$out\n$err";
}

$node->safe_psql('postgres', qq{
	CREATE TABLE plain (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO plain SELECT g, point(g, $dims) FROM generate_series(1, $rows) AS g;
	CREATE TABLE refined AS TABLE plain;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e) WITH (lists = 200);
	CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 20, refine = sq8);
	-- lists that go on elsewhere
	INSERT INTO plain SELECT g, point(g, $dims) FROM generate_series($rows + 1, 2 * $rows) AS g;
	INSERT INTO refined SELECT g, point(g, $dims) FROM generate_series($rows + 1, 2 * $rows) AS g;
});

# -- answers, whatever may be under way at once
for my $table (qw(plain refined))
{
	my %found;

	is_whole($node, 'larger than shared buffers', $table, '<->', $dims);
	for my $concurrency (0, 1, 64)
	{
		$node->safe_psql('postgres',
			"ALTER SYSTEM SET effective_io_concurrency = $concurrency; SELECT pg_reload_conf()");
		$found{answers($node, $table, '<->', $dims, 120, 5)} = 1;
	}
	is(scalar keys %found, 1, "$table: one answer at any concurrency");
}
like(said(qq{
	CREATE TEMP TABLE own AS SELECT * FROM plain WHERE id <= $rows / 2;
	CREATE INDEX own_e ON own USING gpuivfpq (e) WITH (lists = 50);
	INSERT INTO own SELECT * FROM plain WHERE id BETWEEN $rows / 2 + 1 AND $rows;
	DELETE FROM own WHERE id % 3 > 0;
	VACUUM own;
	INSERT INTO own SELECT * FROM plain WHERE id BETWEEN $rows + 1 AND 1.5 * $rows;
	SELECT complete('own', '<->', $dims), count(*) FROM own;
	SELECT count(*) FROM gpuvec_verify_index('own_e')}),
	qr/^(\d+) rows, \1 distinct\|\1\n0$/m, 'a temporary table');

# -- a scan that is not read to its end, or goes on after a savepoint
unlike(said(qq{
	SET enable_seqscan = off;
	BEGIN;
	DECLARE few CURSOR FOR SELECT id FROM plain ORDER BY e <-> point(3, $dims);
	FETCH 15 FROM few;
	SAVEPOINT here;
	FETCH 200 FROM few;
	DECLARE more CURSOR FOR SELECT id FROM refined ORDER BY e <-> point(5, $dims);
	FETCH 12 FROM more;
	ROLLBACK TO here;
	FETCH 30 FROM few;
	COMMIT}),
	qr/WARNING|ERROR/, 'cursors left open');

# -- canceled at any moment
my $canceled = 0;
for my $ms (1 .. 15)
{
	my $said = said(qq{
		SET enable_seqscan = off;
		-- for its own message alone: SET might be canceled, too
		SET LOCAL statement_timeout = ${\(3 * $ms)} \\;
		SELECT count(*) FROM (SELECT id FROM plain ORDER BY e <-> point($ms, $dims)) AS x;
		SELECT count(*) FROM (SELECT id FROM refined ORDER BY e <-> point($ms, $dims) LIMIT 20) AS x});

	$canceled++ if $said =~ /canceling statement/;
	fail("after a cancel: $said") if $said =~ /WARNING/ || $said !~ /^20$/m;
}
cmp_ok($canceled, '>', 0, "canceled $canceled times");

# -- VACUUM cuts the tables' ends off
my $size = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname IN ('plain', 'refined')";
my $before = $node->safe_psql('postgres', $size);
for my $table (qw(plain refined))
{
	my $pages = "SELECT pg_relation_size('$table')";
	my $full = $node->safe_psql('postgres', "DELETE FROM $table WHERE id > $rows / 2; $pages");

	# it leaves a page as it is that somebody is just writing out
	for (1 .. 100)
	{
		last if $node->safe_psql('postgres', "VACUUM $table; $pages") < $full / 2;
	}
	is_whole($node, 'truncated by VACUUM', $table, '<->', $dims);
}
cmp_ok($node->safe_psql('postgres', $size), '<', $before / 2, 'tables are shorter');

$node->stop;
unlike(slurp_file($node->logfile), qr/refcount leak|was not closed|TRAP|PANIC/,
	'nothing stayed pinned');

done_testing();
