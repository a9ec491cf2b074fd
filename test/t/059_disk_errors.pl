# Every read, write and sync of users' files may fail, and of temporary files
# (GpuvecDisk): a statement of each kind is run again and again, a later call
# failing each time.  It succeeds or says why it did not; no other statement
# notices: indexes are sound, find every row once, and are exact.

use strict;
use warnings;
use Errno qw(EIO ENOSPC);
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDisk;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# calls that fail, of each kind and statement
my $most = $ENV{FAILURES} // (long_test() ? 400 : 6);
my $node = PostgreSQL::Test::Cluster->new('main');

$node->init;
# so few buffers that pages are read and written
$node->append_conf('postgresql.conf',
	"fsync = on\nautovacuum = off\njit = off\nshared_buffers = 256kB\nwork_mem = 64kB\n"
	  . "maintenance_work_mem = 1MB\nrestart_after_crash = on\nmax_parallel_maintenance_workers = 0\n");
start_on_bad_disk($node);
load_gpuvec($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id serial, e real[]);
	INSERT INTO t (e) SELECT point(g, 16) FROM generate_series(1, 3000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e, id) WITH (lists = 20, refine = sq8);
	CREATE TABLE spare (id serial, e real[]);
	INSERT INTO spare (e) SELECT e FROM t});
my @indexes = ([ 't_e', 't', '<->', 16, [ 'id < 300', 'id BETWEEN 500 AND 700' ] ]);

# name, statements before it, the statement
my @statements = (
	[ 'scan', '', 'SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> point(5, 16) LIMIT 50) AS x' ],
	[ 'filtered scan', '',
		'SELECT count(*) FROM (SELECT id FROM t WHERE id % 7 = 1 ORDER BY e <-> point(5, 16) LIMIT 50) AS x' ],
	[ 'keyed scan', '',
		'SELECT count(*) FROM (SELECT id FROM t WHERE id < 500 ORDER BY e <-> point(5, 16) LIMIT 50) AS x' ],
	[ 'all rows', '',
		'SET gpuvec.scan_order = relaxed; SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> point(5, 16)) AS x' ],
	[ 'gpuvec_search', '', q{SELECT count(*) FROM gpuvec_search('t_e', ARRAY[point(1, 16), point(2, 16)], 10)} ],
	[ 'insert', '', 'INSERT INTO t (e) SELECT point(g, 16) FROM generate_series(5001, 5300) AS g' ],
	[ 'VACUUM', 'DELETE FROM t WHERE id % 5 = (SELECT max(id) % 5 FROM t)', 'VACUUM t' ],
	[ 'build', 'DROP INDEX IF EXISTS spare_e',
		'CREATE INDEX spare_e ON spare USING gpuivfpq (e, id) WITH (lists = 20, refine = sq8)' ],
	[ 'training', 'SELECT 1', q{SELECT gpuvec_train('t_e')} ],
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
