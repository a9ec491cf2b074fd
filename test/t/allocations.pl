# Every allocation may fail (test/memory): a statement of each kind is run again and
# again, a later one of the module's allocations failing each time, alone or with all
# that follow it.  The statement succeeds or says that it is out of memory; its session
# goes on, keeps no lock, and answers the same statement rightly, which fails once more
# with all that a session remembers there; indexes are sound, find every row once, and
# are exact.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use Time::HiRes qw(usleep);

plan skip_all => 'libgcov crashes where its own allocations fail'
  if $ENV{GPUVEC_TEST_COUNTED};

use constant { ENDLESS => 2_147_483_647, OUT_OF_MEMORY => '53200' };

# allocations that fail, of each statement
my $most = $ENV{FAILURES} // (long_test() ? 300 : 3);
my $node = new_remote_node('main',
	conf => "fsync = off\nautovacuum = off\nmax_worker_processes = 16\ngpuvec.auto_mirror = off\n"
	  . "restart_after_crash = off\nmin_parallel_table_scan_size = 0\nmaintenance_work_mem = '128MB'\n");

$node->safe_psql('postgres', q{
	CREATE TABLE t (id serial, e real[]);
	INSERT INTO t (e) SELECT point(g, 8) FROM generate_series(1, 1200) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e, id) WITH (lists = 12, refine = sq8);
	CREATE TABLE spare (id int, e real[]);
	CREATE TABLE selected AS SELECT sin(i) AS x FROM generate_series(1, 70000) AS i;
	INSERT INTO spare SELECT id, e FROM t;
	CREATE INDEX spare_e ON spare USING gpuivfpq (e, id) WITH (lists = 12);
	CREATE TABLE edges AS SELECT g AS key, g % 7000 AS neighbor, g::real AS distance FROM generate_series(1, 40000) AS g;
	CREATE TABLE young (id int, e real[]);
	CREATE INDEX young_e ON young USING gpuivfpq (e) WITH (dims = 8, lists = 12, train_rows = 1000);
	ALTER DATABASE postgres SET enable_seqscan = off;
	ALTER DATABASE postgres SET client_min_messages = error});
is_mirrored($node, 't_e', 'SELECT FROM t ORDER BY e <-> point(1, 8) LIMIT 1', 't');
my @indexes = ([ 't_e', 't', '<->', 8, [ 'id < 300', 'id BETWEEN 500 AND 700' ] ]);

sub nearest
{
	my ($condition, $limit) = @_;

	return 'SELECT array_agg(id) FROM (SELECT id FROM t '
	  . "WHERE $condition ORDER BY e <-> point(5, 8) LIMIT $limit) AS x";
}
my $search = q{SELECT array_agg(x ORDER BY x::text) FROM gpuvec_search('t_e', ARRAY[point(1, 8), point(2, 8)], 10) AS x};
my $build = 'CREATE INDEX spare_e ON spare USING gpuivfpq (e, id) WITH (lists = 12, refine = sq8)';
my $alone = 'SET max_parallel_maintenance_workers = 0;';
my $remote = 'SET gpuvec.engine = gpu; SET gpuvec.probes = 1000;';

# name, statements before it, the statement; tables with an index of it
my @statements = (
	[ 'scan', '', nearest('true', 50) ],
	[ 'filtered scan', '', nearest('id % 7 = 1', 50) ],
	[ 'keyed scan', '', nearest('id < 500', 50) ],
	[ 'all rows', 'SET gpuvec.scan_order = relaxed;', 'SELECT count(*) FROM (' . nearest('true', 10000) . ') AS x' ],
	[ 'rows within a distance', 'SET gpuvec.radius_recall = 0.99;', 'SELECT count(*) FROM t WHERE e <-> point(5, 8) < 0.9' ],
	[ 'scan through gpuvecd', $remote, nearest('true', 50) ],
	[ 'keyed scan through gpuvecd', $remote, nearest('id < 500', 50) ],
	[ 'views of mirrors', '', 'SELECT count(*) > 0 FROM gpuvec_stat, gpuvec_mirrors' ],
	[ 'gpuvec_search', '', $search ],
	[ 'gpuvec_search through gpuvecd', $remote, $search ],
	[ 'insert', 'DELETE FROM t WHERE id > 1200;', 'INSERT INTO t (e) SELECT point(g, 8) FROM generate_series(5001, 5020) AS g' ],
	[ 'VACUUM', 'UPDATE t SET e = e WHERE id % 20 = 3;', 'VACUUM (INDEX_CLEANUP on) t' ],
	[ 'build', "$alone DROP INDEX IF EXISTS spare_e;", $build ],
	[ 'parallel build', 'DROP INDEX IF EXISTS spare_e;', $build ],
	[ 'parallel build in workers', 'DROP INDEX IF EXISTS spare_e;', $build ],
	[ 'build through gpuvecd', "$remote DROP INDEX IF EXISTS spare_e;", $build ],
	[ 'training', 'TRUNCATE young; INSERT INTO young SELECT id, e FROM t WHERE id <= 1000;',
		q{SELECT gpuvec_train('young_e')} ],
	[ 'REINDEX', $alone, 'REINDEX INDEX t_e' ],
	[ 'REINDEX CONCURRENTLY', $alone, 'REINDEX INDEX CONCURRENTLY t_e' ],
	[ 'calibration', '', q{SELECT count(*) FROM gpuvec_calibrate('t_e')} ],
	[ 'verification', '', q{SELECT count(*) FROM gpuvec_verify_index('t_e')} ],
	[ 'exact search', '', q{SELECT array_agg(x::text ORDER BY x::text) FROM gpuvec_exact_search('t', 'e', ARRAY[point(1, 8), point(2, 8)], 10) AS x} ],
	[ 'graph', '', q{SELECT count(*) FROM gpuvec_knn_graph('t', 'id', 'e', 5)} ],
	[ 'graph through an index', '', q{SELECT count(*) FROM gpuvec_knn_graph('t', 'id', 'e', 5, 'l2', 'index')} ],
	[ 'graph through gpuvecd', $remote, q{SELECT count(*) FROM gpuvec_knn_graph('t', 'id', 'e', 5)} ],
	[ 'k-means', '', q{SELECT count(*) FROM gpuvec_kmeans('t', 'e', 9, 3)} ],
	[ 'path', '', q{SELECT count(*) FROM gpuvec_smoothest_path('edges', 1, 6999)} ],
	[ 'selection', '', q{SELECT array_agg(x::text) FROM gpuvec_select((SELECT array_agg(id::real) FROM t), 5) AS x} ],
	[ 'percentiles', '', q{SELECT count(*) FROM gpuvec_percentiles('selected', 'x', '{.1,.5}')} ],
	[ 'doctor', '', 'SELECT count(*) > 0 FROM gpuvec_doctor($$' . nearest('true', 50) . '$$)' ]);
# part of them
@statements = grep { $_->[0] =~ /$ENV{STATEMENTS}/ } @statements if $ENV{STATEMENTS};

# The statement once, and behind its rows a line with $what and its SQLSTATE.
sub told
{
	my ($what, $sql) = @_;

	return "$sql;\n\\echo \@$what :SQLSTATE\n";
}

# The statement while allocation $n fails, then whether it left a lock or memory of
# the engine's, then the statement again.
sub failing
{
	my ($n, $before, $sql) = @_;

	return "$before\nSELECT current_setting('gpuvec.fault_live') AS live \\gset\n"
	  . "SET gpuvec.fault_allocation = $n;\n"
	  . told('failing', $sql)
	  . "SET gpuvec.fault_allocation = 0;\n"
	  . told('left', q{SELECT locktype, relation::regclass, mode FROM pg_locks
		WHERE pid = pg_backend_pid() AND (relation >= 16384 OR locktype IN ('advisory', 'page', 'tuple', 'object'))
		UNION ALL SELECT 'live', NULL, live FROM current_setting('gpuvec.fault_live') AS live WHERE live <> :'live'})
	  . "$before\n" . told('again', $sql);
}

# What is wrong with what that printed, so many times; $right is what the statement
# prints.
sub wrong_in
{
	my ($printed, $right, $times) = @_;
	my %said;

	while ($printed =~ s/\A(.*?)^\@(\w+) (\w+)\n//ms)
	{
		my ($text, $what, $state) = ($1, $2, $3);

		$said{$what}++;
		$said{failed}++ if $state eq OUT_OF_MEMORY;
		next if $what eq 'failing' && $state eq OUT_OF_MEMORY && $text eq '';
		return "$what: $state $text" if $state ne '00000' || $text ne ($what eq 'left' ? '' : $right);
	}
	return "the session ended: $printed" if grep { ($said{$_} // 0) != $times } qw(failing left again);
	return ('', $said{failed} // 0);
}

for (@statements)
{
	my ($name, $before, $sql) = @$_;
	my $out = $node->safe_psql('postgres',
		"$before\nSET gpuvec.fault_allocation = ${\ENDLESS};\n$sql;\n"
		  . "SELECT '\@', ${\ENDLESS} - current_setting('gpuvec.fault_allocation')::int");
	my ($right, $count) = $out =~ /\A(.*?)^\@\|(\d+)\z/ms or die "$name: $out";
	my ($failed, @odd) = (0);

	# what takes long fails in a new session alone
	my $times = long_test() || $name !~ /build|INDEX|calibration/ ? 2 : 1;
	my @cases = map { [ $_, 'off' ], [ $_, 'on' ] } some_of($count, $count < 10 ? $count : $most);
	# by turns
	@cases = @cases[ grep { $_ % 4 % 3 == 0 } 0 .. $#cases ] unless long_test() || $count < 10;
	for (@cases)
	{
		my ($n, $after) = @$_;
		my $due = $name =~ /workers/ ? -$n : $n;
		my $script = failing($due, $before, $sql);
		my (undef, $printed, $err) = $node->psql('postgres',
			"SET gpuvec.fault_after = $after;\n" . $script x $times, on_error_stop => 0);
		my ($wrong, $failures) = wrong_in("$printed\n", $right, $times);

		push @odd, "$n ($after): $wrong: $err\n" if $wrong;
		$failed++ if $failures;
		last if @odd > 5;
	}
	is(join('', @odd), '', "$name: some of $count allocations fail, the session says so $failed times");
	are_whole($node, $name, [ @indexes, [ 'spare_e', 'spare', '<->', 8 ] ])
	  if $name =~ /build|INDEX|VACUUM|insert|training|calibration/;
}

# Background workers: the setting is the database's, which they take when they begin.
# $start makes them begin, $done is true when they have done their work.
sub worker_fails
{
	my ($name, $n, $start, $done) = @_;
	my $after = $n % 2 ? 'off' : 'on';
	my $told = -s $node->logfile;
	my $asked = "SET gpuvec.fault_allocation = 0; $done";

	$node->safe_psql('postgres', "ALTER DATABASE postgres SET gpuvec.fault_allocation = $n;
		ALTER DATABASE postgres SET gpuvec.fault_after = $after");
	$node->psql('postgres', "SET gpuvec.fault_allocation = 0; $start");
	for (1 .. 600)
	{
		last if slurp_file($node->logfile, $told) =~ /out of memory/
		  || $node->safe_psql('postgres', $asked) eq 't';
		usleep(50_000);
	}
	my $failed = slurp_file($node->logfile, $told) =~ /out of memory/;
	$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET gpuvec.fault_allocation;
		ALTER DATABASE postgres RESET gpuvec.fault_after');
	my $is_done = 0;
	# who has failed may want to be asked anew, or pauses
	for (1 .. 600)
	{
		$is_done = $node->safe_psql('postgres', $done) eq 't';
		last if $is_done;
		$node->safe_psql('postgres', $start);
		usleep(200_000);
	}
	ok($is_done, "$name: allocation $n " . ($failed ? 'fails' : 'does not fail') . ', and it is done all the same');
	return;
}

for my $n (long_test() ? map { int(1.2**$_) } 1 .. 40 : (2, 5, 150))
{
	$node->safe_psql('postgres', 'TRUNCATE young; INSERT INTO young SELECT id, e FROM spare');
	worker_fails('training worker', $n, 'VACUUM young', q{SELECT lists > 0 FROM gpuvec_index_info('young_e')});
	are_whole($node, "training worker, $n", [ [ 'young_e', 'young', '<->', 8 ] ]);
	$node->safe_psql('postgres', 'REINDEX INDEX spare_e');
	worker_fails(
		'loader', $n,
		'SET gpuvec.auto_mirror = on; SET gpuvec.engine = gpu; SELECT FROM spare ORDER BY e <-> point(1, 8) LIMIT 1',
		q{SELECT count(*) > 0 FROM gpuvec_mirrors WHERE index = 'spare_e'::regclass AND state = 'ready'});
}

my $log = slurp_file($node->logfile);
unlike($log, qr/terminated by signal|TRAP:|PANIC|leaked|leak detected|still referenced|still active/i,
	'no crash and no leak');
$node->stop;
done_testing();
