# Errors that no statement causes.  There is no room for temporary files, or for the
# index itself; each call of the session's engine fails once; every read, write and sync
# of users' files may fail, and of temporary files (GpuvecDisk).  The statement succeeds
# or says why it did not; no other statement notices, and no row is lost.

use strict;
use warnings;
use Errno qw(EIO ENOSPC);
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDisk;

need_test_build();
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => ['--wal-segsize=1']);
$node->append_conf('postgresql.conf', "autovacuum = off\njit = off\nmin_wal_size = 2MB\nmax_wal_size = 64MB\n");
$node->start;
load_gpuvec($node);


# -- no room for temporary files
$node->safe_psql('postgres', q{
	CREATE TABLE t AS SELECT g AS id, ARRAY[g % 100, g / 100, g % 7, g % 11]::real[] AS e
	FROM generate_series(1, 30000) AS g;
	CREATE TABLE edges AS SELECT g AS key, g + 1 AS neighbor, g::real AS distance FROM generate_series(1, 40000) AS g});
my $few = "SET temp_file_limit = '64kB'; SET maintenance_work_mem = '1MB'; SET work_mem = '64kB';";
says($node, "$few CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10)",
	qr/ERROR:  temporary file size exceeds "?temp_file_limit/, 'build: no room');
$node->safe_psql('postgres', 'CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10, dims = 4)');
says($node, "$few SET enable_seqscan = off; SET gpuvec.scan_order = relaxed;
	SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> '{1,2,3,4}') AS q",
	qr/ERROR:  temporary file size exceeds "?temp_file_limit/, 'scan: no room');
says($node, "$few SELECT count(*) FROM gpuvec_smoothest_path('edges', 1, 2)",
	qr/ERROR:  temporary file size exceeds "?temp_file_limit/, 'path: no room');
is_whole($node, 'temporary files', 't', '<->', 4, exact => 0);

# -- no room for the index, by a limit on the size of files, which the server meets as
# it would a full disk: codes are larger than rows that compress well
my $limit_kb = 4096;
$node->safe_psql('postgres', q{
	CREATE TABLE wide (id serial, e real[]);
	INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 3000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 10, pq_dim = 900, spill = 0)});
gives($node, "SELECT pg_relation_size('wide') < $limit_kb * 512", 't', 'the table is small');
$node->stop;
my @limited = (
	'bash', '-c', 'ulimit -f "$1" && shift && exec "$@"', 'limited', $limit_kb,
	'pg_ctl', '--wait', '--pgdata', $node->data_dir, '--log', $node->logfile, 'start');
system_or_bail(@limited);
$node->_update_pid(1);
says($node, 'INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392]) FROM generate_series(1, 6000) AS g',
	qr/ERROR:  could not extend file.*File too large/s, 'insert: no room');
is_whole($node, 'insert failed', 'wide', '<->', 1400);

# with room again it takes everything that failed, and nothing is lost
$node->stop;
$node->start;
$node->safe_psql('postgres', 'VACUUM wide');
is_whole($node, 'room again', 'wide', '<->', 1400);
my $pages = q{SELECT pg_relation_size('wide_e') / 8192};
my $before = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres', 'INSERT INTO wide (e) SELECT e FROM wide WHERE id <= 500');
gives($node, $pages, $before, 'room again: new rows go where failed ones were');
is_complete($node, 'wide', '<->', 1400, 'room again');
$node->stop;
# no worker calls or trains beside the session
$node->append_conf('postgresql.conf', "max_worker_processes = 0\nmax_parallel_maintenance_workers = 0\n");
$node->start;
$node->safe_psql('postgres', 'DROP TABLE t, wide');

# -- a call of the session's engine fails
my $rows = long_test() ? 5000 : 1200;

$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE t AS SELECT g AS id, point(g, 6) AS e FROM generate_series(1, $rows) AS g;
	CREATE TABLE late (LIKE t);
	CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (lists = 9, dims = 6);
	INSERT INTO late SELECT * FROM t;");

# Statements that call the engine, and what has to be true whenever one of
# them failed, and when it has not.
my @calling = (
	[ 'build', 'CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 9, refine = sq8)', "SELECT to_regclass('t_e') IS NULL" ],
	[ 'scan', 'SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> point(7, 6) LIMIT 10 OFFSET 140) AS x' ],
	[ 'insert', 'INSERT INTO t SELECT g + 10000, point(g, 6) FROM generate_series(1, 5) AS g', "SELECT count(*) = $rows FROM t" ],
	[ 'calibrate', "SELECT count(*) FROM gpuvec_calibrate('t_e')" ],
	[ 'recall', "SELECT recall > 0.5 FROM gpuvec_recall('t_e', 5, 20)" ],
	[ 'train', "SELECT gpuvec_train('late_e')" ],
	[ 'rebuild', 'REINDEX INDEX CONCURRENTLY t_e' ]);

for (@calling)
{
	my ($what, $statement, $after) = @$_;
	my $n = 1;
	my $tries = 0;

	for (;;)
	{
		my ($action, $said) = $tries % 2 ? ('memory', qr/out of memory/) : ('failed', qr/engine failed/);
		my ($rc, undef, $err) = $node->psql('postgres', "SET client_min_messages = warning; SET enable_seqscan = off;
			SET gpuvec.fault = '$action $n engine'; $statement");

		last if $rc == 0;
		die "$what, call $n: $err" unless $err =~ $said && $err !~ /server closed/;
		$tries++;
		gives($node, $after, 't', "$what: call $n failed") if $after;
		$node->safe_psql('postgres', 'DROP INDEX IF EXISTS t_e_ccnew') if $what eq 'rebuild';
		# every call in the beginning, then fewer and fewer
		$n = $n < 12 ? $n + 1 : int($n * (long_test() ? 1.5 : 2.5));
	}
	cmp_ok($tries, '>', 2, "$what: at last no call failed");
	are_whole($node, $what, [ [ 't_e', 't', '<->', 6 ], [ 'late_e', 'late', '<->', 6 ] ], warnings => 1);
}
no_crash($node);
$node->safe_psql('postgres', 'DROP TABLE t, late');

# -- a call of the disk fails: so many of each kind and statement
my $most = $ENV{FAILURES} // (long_test() ? 400 : 6);

# so few buffers that pages are read and written
$node->append_conf('postgresql.conf',
	"fsync = on\nmax_wal_size = 1GB\nshared_buffers = 256kB\nwork_mem = 64kB\n"
	  . "maintenance_work_mem = 1MB\nrestart_after_crash = on\n");
$node->stop;
start_on_bad_disk($node);
$node->safe_psql('postgres', q{
	CREATE TABLE t (id serial, e real[]);
	INSERT INTO t (e) SELECT point(g, 16) FROM generate_series(1, 3000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e, id) WITH (lists = 20, refine = sq8);
	CREATE TABLE spare (id serial, e real[]);
	INSERT INTO spare (e) SELECT e FROM t});
my @indexes = ([ 't_e', 't', '<->', 16, [ 'id < 300', 'id BETWEEN 500 AND 700' ] ]);

sub nearest { my ($condition, $limit) = @_; return "SELECT count(*) FROM (SELECT id FROM t WHERE $condition ORDER BY e <-> point(5, 16) LIMIT $limit) AS x"; }

# name, statements before it, the statement
my @statements = (
	[ 'scan', '', nearest('true', 50) ],
	[ 'filtered scan', '', nearest('id % 7 = 1', 50) ],
	[ 'keyed scan', '', nearest('id < 500', 50) ],
	[ 'all rows', '', 'SET gpuvec.scan_order = relaxed; ' . nearest('true', 'ALL') ],
	[ 'gpuvec_search', '', q{SELECT count(*) FROM gpuvec_search('t_e', ARRAY[point(1, 16), point(2, 16)], 10)} ],
	[ 'insert', '', 'INSERT INTO t (e) SELECT point(g, 16) FROM generate_series(5001, 5300) AS g' ],
	[ 'VACUUM', 'DELETE FROM t WHERE id % 5 = (SELECT max(id) % 5 FROM t)', 'VACUUM t' ],
	[ 'build', 'DROP INDEX IF EXISTS spare_e', 'CREATE INDEX spare_e ON spare USING gpuivfpq (e, id) WITH (lists = 20, refine = sq8)' ],
	[ 'training', '', q{SELECT gpuvec_train('t_e')} ],
	[ 'REINDEX', '', 'REINDEX INDEX t_e' ],
	[ 'CHECKPOINT', 'UPDATE t SET e = e WHERE id % 20 = 3', 'CHECKPOINT' ]);

# part of them
@statements = grep { $_->[0] =~ /$ENV{STATEMENTS}/ } @statements if $ENV{STATEMENTS};

for (@statements)
{
	my ($name, $before, $sql) = @$_;

	for my $kind (sort keys %CALLS)
	{
		$node->safe_psql('postgres', $before) if $before;
		fail_call($CALLS{$kind}, 0, 0);
		$node->safe_psql('postgres', "SET enable_seqscan = off; $sql");
		my $calls = calls_seen();
		my ($failed, @odd) = (0);

		# VACUUM changes most in steps
		for my $n (some_of($calls, $name eq 'VACUUM' ? 8 * $most : $most))
		{
			my $error = $kind eq 'writes' && $n % 2 ? ENOSPC : EIO;

			$node->safe_psql('postgres', $before) if $before;
			fail_call($CALLS{$kind}, $error, $n);
			my ($rc, undef, $err) = $node->psql('postgres', "SET enable_seqscan = off; $sql");
			my $seen = calls_seen();
			fail_call(0, 0, 0);
			$failed++ if $rc;
			# a sync that fails is a PANIC: the server recovers
			if ($kind eq 'syncs')
			{
				wait_until($node, 'SELECT true') or push @odd, "$n: the server is gone";
			}
			elsif ($rc && $err !~ /(?:ERROR|FATAL):.*(Input\/output error|No space left on device)/)
			{
				push @odd, "$n of $seen: $err";
			}
		}
		is(join('', @odd), '', "$name: $failed of some of $calls $kind fail, and say so");
		are_whole($node, "$name, $kind", \@indexes, warnings => 1) if $calls > 0;
	}
}
my $log = slurp_file($node->logfile);
unlike($log, qr/terminated by signal 11|TRAP:|leaked|leak detected/i, 'no crash and no leak');
$node->stop;
done_testing();
