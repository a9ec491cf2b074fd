# Each call of the session's engine fails once, in everything that calls it: the
# statement ends with an error, the session goes on, and no row is lost.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $node = new_node('main', conf => "fsync = off\nmax_worker_processes = 0\n");
my $rows = long_test() ? 5000 : 1200;
my $with = 'WITH (lists = 9, refine = sq8)';

$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE t AS SELECT g AS id, point(g, 6) AS e FROM generate_series(1, $rows) AS g;
	CREATE TABLE late (LIKE t);
	CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (lists = 9, dims = 6);
	INSERT INTO late SELECT * FROM t;");

# Statements that call the engine, and what has to be true whenever one of
# them failed, and when it has not.
my @statements = (
	[ 'build', "CREATE INDEX t_e ON t USING gpuivfpq (e) $with",
		"SELECT to_regclass('t_e') IS NULL" ],
	[ 'scan', "SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> point(7, 6) LIMIT 10 OFFSET 140) AS x",
		'SELECT true' ],
	[ 'insert', "INSERT INTO t SELECT g + 10000, point(g, 6) FROM generate_series(1, 5) AS g",
		"SELECT count(*) = $rows FROM t" ],
	[ 'calibrate', "SELECT count(*) FROM gpuvec_calibrate('t_e')",
		'SELECT true' ],
	[ 'recall', "SELECT recall > 0.5 FROM gpuvec_recall('t_e', 5, 20)",
		'SELECT true' ],
	[ 'train', "SELECT gpuvec_train('late_e')",
		'SELECT true' ],
	[ 'rebuild', 'REINDEX INDEX CONCURRENTLY t_e',
		"SELECT true" ]);

# Run a statement so that the n-th call fails; true if it did.
sub fails
{
	my ($what, $statement, $action, $n) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "
		SET client_min_messages = warning;
		SET enable_seqscan = off;
		SET max_parallel_maintenance_workers = 0;
		SET gpuvec.fault = '$action $n engine';
		$statement", on_error_stop => 1);
	my $said = $action eq 'memory' ? qr/out of memory/ : qr/the engine failed/;

	return 0 if $rc == 0;
	die "$what, call $n: $err" unless $err =~ $said && $err !~ /server closed/;
	return 1;
}

for my $case (@statements)
{
	my ($what, $statement, $after) = @$case;
	my $n = 1;
	my $tries = 0;

	for (;;)
	{
		last if !fails($what, $statement, $tries % 2 ? 'memory' : 'failed', $n);
		$tries++;
		is($node->safe_psql('postgres', $after), 't', "$what: call $n failed");
		if ($what eq 'rebuild')
		{
			$node->safe_psql('postgres', 'DROP INDEX IF EXISTS t_e_ccnew');
		}
		# every call in the beginning, then fewer and fewer
		$n = $n < 12 ? $n + 1 : int($n * (long_test() ? 1.5 : 2.5));
	}
	cmp_ok($tries, '>', 2, "$what: at last no call failed");
	are_whole($node, $what, [ [ 't_e', 't', '<->', 6 ], [ 'late_e', 'late', '<->', 6 ] ], warnings => 1);
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/,
	'nothing crashed');

done_testing();
