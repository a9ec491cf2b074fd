# CREATE INDEX with parallel workers: the same copies in the same lists whatever
# their number, with and without gpuvecd; what becomes of a build when a worker
# fails, is told to end, or the leader is canceled; WAL; other sessions.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use constant {
	BLCKSZ => 8192,
	DIRECTORY => 3,    # kinds of pages
	SLAB => 4,
	NO_LIST => 0xFFFFFFFF,
	CODE_BYTES => 8,    # of 16 sub-quantizers
	SLOT_BYTES => 32 + 32 * (6 + 4 + 8),
	SLOTS => 13,
	ENTRIES => 291,
};

need_test_build();
my $node = new_remote_node('main', conf => "fsync = off\nmax_worker_processes = 24\n"
	  . "max_parallel_workers = 16\ngpuvec.auto_mirror = off\n"
	  . "maintenance_work_mem = '512MB'\nmin_parallel_table_scan_size = 0\n");
# how many build
my @workers = long_test() ? (0, 1, 2, 8) : (0, 8);
# all are in the leader's sample: of more, which ones gpuvecd trains on, and in
# what order, depends on who reads them first
my $rows = 9_000;

$node->safe_psql('postgres', "
	CREATE TABLE t AS SELECT g AS id, point(g, 16) AS e FROM generate_series(1, $rows) AS g;
	INSERT INTO t SELECT g, NULL FROM generate_series(1, 20) AS g;
	DELETE FROM t WHERE id % 97 = 0;
	VACUUM t;");

# Everything in the lists of an index on pages: list, row, which copy, T, code.
sub contents
{
	my ($index) = @_;
	my $path = $node->safe_psql('postgres',
		"CHECKPOINT; SELECT pg_relation_filepath('$index')");
	my $bytes = slurp_file($node->data_dir . "/$path");
	my (@nitems, @copies);
	my @pages = unpack '(a' . BLCKSZ . ')*', $bytes;

	# the directory comes before all slabs, and its pages in their order
	for my $page (grep { unpack('x8184 S', $_) == DIRECTORY } @pages)
	{
		push @nitems, map { unpack 'L', substr($page, 24 + 28 * $_ + 4, 4) } 0 .. ENTRIES - 1;
	}
	for my $page (grep { unpack('x8184 S', $_) == SLAB } @pages)
	{
		for my $slot (map { substr $page, 24 + SLOT_BYTES * $_, SLOT_BYTES } 0 .. SLOTS - 1)
		{
			my ($list, undef, $ordinal, undef, $second) = unpack 'L5', $slot;
			next if $list == NO_LIST;
			my $count = $nitems[$list] - 32 * $ordinal;
			$count = 32 if $count > 32;
			for my $i (0 .. $count - 1)
			{
				my $code = join '',
				  map { substr $slot, 32 + 320 + 32 * $_ + $i, 1 } 0 .. CODE_BYTES - 1;
				push @copies, join ' ', $list, unpack('H12', substr $slot, 32 + 6 * $i, 6),
				  $second >> $i & 1, unpack('H8', substr $slot, 32 + 192 + 4 * $i, 4),
				  unpack('H*', $code);
			}
		}
	}
	return join "\n", sort @copies;
}

sub build_sql
{
	my ($engine, $workers, %options) = @_;
	my $table = $options{table} // 't';
	my $with = $options{with} // 'lists = 40';
	my $columns = $options{columns} // 'e';
	my $set = join '', map { "SET $_;" } @{ $options{set} // [] };

	return "SET client_min_messages = warning; DROP INDEX IF EXISTS ${table}_e;
		RESET client_min_messages; SET gpuvec.engine = $engine;
		SET max_parallel_maintenance_workers = $workers; $set
		CREATE INDEX ${table}_e ON $table USING gpuivfpq ($columns) WITH ($with);";
}

# Test: gpuvecd holds nothing, no worker is left, no file either.
sub is_tidy
{
	my ($what) = @_;

	ok( wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'parallel worker'"),
		"$what: no worker is left");
	ok(wait_until($node, 'SELECT mirror_bytes = 0 FROM gpuvec_stat'), "$what: gpuvecd has no builder");
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_ls_dir('base/pgsql_tmp', true, false)"), '0', "$what: no file is left");
	return;
}

# The results of calibration, as text.
sub calibration
{
	my ($index) = @_;

	return $node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('$index')");
}

# -- the same copies, the same calibration

for my $engine ('cpu', 'gpu')
{
	my ($right, $calibrated);

	for my $workers (@workers)
	{
		my ($rc, $out, $err) = $node->psql('postgres', build_sql($engine, $workers));
		my $what = "$engine, $workers workers";
		my $found = contents('t_e');

		is($err, '', "$what: built");
		$right //= $found;
		$calibrated //= calibration('t_e');
		is(calibration('t_e'), $calibrated, "$what: the same calibration");
		ok($found eq $right, "$what: the same copies");
		cmp_ok(length $found, '>', $rows * 20, "$what: " . length($found) . ' bytes of them');
	}
	is_whole($node, "$engine, 8 workers");
	is_tidy($engine);
}

# Shared memory is not to be had: no workers, and the same index.
{
	my ($rc, $out, $err) = $node->psql('postgres', build_sql('cpu', 0));
	my $right = contents('t_e');

	($rc, $out, $err) = $node->psql('postgres', build_sql('cpu', 8, set => [ "gpuvec.fault = 'memory 1 team: memory'", 'client_min_messages = debug1' ]));
	is($rc, 0, 'no shared memory: built');
	like($err, qr/WARNING:  no parallel workers, because there is too little shared memory/, '... with a warning');
	unlike($err, qr/using \d+ parallel workers/, '... without workers');
	unlike($err, qr/leak/, '... and nothing is left');
	ok(contents('t_e') eq $right, '... the same copies');
	is_tidy('no shared memory');
}

# -- lists that are trained parent by parent: on rows of all blocks, on those of
# some, on more than fit into memory

$node->safe_psql('postgres', "
	CREATE TABLE many WITH (parallel_workers = 8) AS SELECT g AS id, point(g, 16) AS e
		FROM generate_series(1, 25000) AS g;
	DELETE FROM many WHERE id % 97 = 0;");
for my $memory ('64MB', '2MB')
{
	my ($right, $calibrated);

	for my $workers (@workers)
	{
		my ($rc, $out, $err) = $node->psql('postgres', build_sql('cpu', $workers,
				table => 'many', with => 'lists = 260', set => ["maintenance_work_mem = '$memory'"]));
		my $what = "parents, $memory, $workers workers";
		my $found = contents('many_e');

		is($err, '', "$what: built");
		$right //= $found;
		$calibrated //= calibration('many_e');
		ok($found eq $right, "$what: the same copies");
		is(calibration('many_e'), $calibrated, "$what: the same calibration");
		is( $node->safe_psql('postgres', "SELECT lists BETWEEN 250 AND 260 FROM gpuvec_index_info('many_e')"),
			't', "$what: lists");
	}
	is_sound($node, 'many_e', "parents, $memory");
	is_complete($node, 'many', '<->', 16, "parents, $memory");
}
is_tidy('parents');
$node->safe_psql('postgres', 'DROP TABLE many');

# -- refine records and keys, an index made while rows come and go

for my $engine ('cpu', 'gpu')
{
	my ($rc, $out, $err) = $node->psql('postgres',
		build_sql($engine, 5, with => 'lists = 40, refine = sq8', columns => 'e, id, (id % 7)'));
	is($err, '', "$engine: refine records and keys");
	is_whole($node, "$engine: refine records and keys");

	my $job = background($node, join ' ', map { "INSERT INTO t SELECT $rows + 100 * $_ + g,
		point($rows + 100 * $_ + g, 16) FROM generate_series(1, 50) AS g;
		DELETE FROM t WHERE id % 1009 = $_;" } 1 .. 20);
	for my $round (1 .. (long_test() ? 3 : 2))
	{
		$node->safe_psql('postgres', "SET gpuvec.engine = $engine;
			SET max_parallel_maintenance_workers = 4; REINDEX INDEX CONCURRENTLY t_e;");
	}
	is(end_of($job), 0, "$engine: inserts and deletes meanwhile");
	is_whole($node, "$engine: REINDEX CONCURRENTLY");
	$node->safe_psql('postgres', "DELETE FROM t WHERE id > $rows");
}

# -- there are workers, and their rows are counted

# Begin a build that stops at a step in every process, until what holds them
# (a session) ends.
sub held
{
	my ($step, $engine, $workers, %options) = @_;
	my $holder = $node->background_psql('postgres');

	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $job = background($node, build_sql($engine, $workers,
			set => ["gpuvec.fault = 'wait 1 $step'"], %options));
	ok( wait_until($node, "SELECT count(*) = $workers + 1 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted"), "$engine: $workers workers and the leader at \"$step\"");
	return ($holder, $job);
}

sub let_go
{
	my ($holder) = @_;

	$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
	$holder->quit;
	return;
}

# The messages of a background job.
sub said
{
	my ($job) = @_;
	my $err = $job->{output};

	$err =~ s/out$/err/;
	return slurp_file($err);
}

my $workers_pids = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker'";
{
	my ($holder, $job) = held('build: written', 'cpu', 3);

	is( $node->safe_psql('postgres', "SELECT phase, tuples_done <= tuples_total, tuples_total = (SELECT count(e) FROM t)
			FROM pg_stat_progress_create_index"), 'building index: writing|t|t', 'rows of all are counted');
	let_go($holder);
	is(end_of($job), 0, 'the build goes on');
	is_whole($node, 'held');
}

# -- a worker fails, is told to end; the leader is canceled

for my $case (
	[ 'cpu', 'build: written' ], [ 'gpu', 'build: written' ], [ 'cpu', 'build: climbed' ],
	map { [ 'cpu', $_, with => 'lists = 300' ] } 'lists: read',
	'lists: trained', 'lists: placed', 'lists: moved')
{
	my ($engine, $step, @with) = @$case;
	my $what = "$engine, $step";
	my ($rc, $out, $err) = $node->psql('postgres',
		build_sql($engine, 3, set => ["gpuvec.fault = 'error 1 $step'"], @with), on_error_stop => 1);
	isnt($rc, 0, "$what: an error");
	like($err, qr/ERROR:  gpuvec.fault: stopped at step/, "$what: whosever it was");
	is_tidy("$what: an error");

	my ($holder, $job) = held($step, $engine, 3, @with);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM ($workers_pids LIMIT 1) AS x");
	isnt(end_of($job), 0, "$what: without a worker there is no index");
	like(said($job), qr/terminating (connection|background worker|parallel worker)/, "$what: and why");
	let_go($holder);
	is_tidy("$what: a worker was told to end");

	($holder, $job) = held($step, $engine, 3, @with);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM pg_stat_progress_create_index");
	isnt(end_of($job), 0, "$what: canceled");
	like(said($job), qr/canceling statement due to user request/, "$what: and said so");
	is_tidy("$what: canceled");
	let_go($holder);
	is($node->safe_psql('postgres', "SELECT to_regclass('t_e') IS NULL"), 't', "$what: no index");
}

# -- gpuvecd dies or stops under all of them

my $killed = 0;		# the view may not know yet that it is gone
for my $signal ('KILL', 'STOP')
{
	for my $step ('build: trained', 'build: encoded', 'build: written')
	{
		# in a short run it stops at one of them
		next if !long_test() && $signal eq 'STOP' && $step ne 'build: encoded';
		my $not_done = not_done($step);
		my $what = "$signal at $step";

		ok(wait_until($node, "SELECT state = 'up' AND pid <> $killed FROM gpuvec_stat"),
			"$what: gpuvecd is up");
		my $pid = gpuvecd_pid($node);
		my $holder = $node->background_psql('postgres');
		$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
		my $job = background($node, build_sql('gpu', 3,
				columns => $signal eq 'STOP' ? 'e, id' : 'e',
				set => [ "gpuvec.fault = 'wait 1 $step'", "gpuvec.request_timeout = '500ms'" ]));
		ok( wait_until($node, "SELECT count(*) > 0 FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted"), "$what: there");
		kill $signal, $pid;
		$killed = $pid if $signal eq 'KILL';
		usleep(100_000);
		let_go($holder);
		is(end_of($job), 0, "$what: the index is built");
		kill 'CONT', $pid if $signal eq 'STOP';
		my $err = said($job);
		like($err, qr/NOTICE:  gpuvecd could not $not_done index "t_e": (it (is gone|does not|is not|refused)|the connection ended)/,
			"$what: a notice");
		unlike($err, qr/NOTICE.*NOTICE/s, "$what: one");
		is_whole($node, $what);
	}
}
ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'gpuvecd is up again');

# -- more rows to train on than the leader's sample has are read by all

$node->safe_psql('postgres', "
	CREATE TABLE big AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 15000) AS g;
	CREATE INDEX big_e ON big USING gpuivfpq (e) WITH (lists = 450, train_rows = 100000);");
sub recall
{
	return $node->safe_psql('postgres', q{SET gpuvec.engine = cpu; SET gpuvec.probes = 6;
		SET gpuvec.candidates = 40; SELECT recall FROM gpuvec_recall('big_e', 10, 200)});
}
{
	my %recall;

	for my $workers (0, 4)
	{
		for my $how ('INDEX', 'INDEX CONCURRENTLY')
		{
			# in a short run: alone, and with workers concurrently
			next if !long_test() && ($workers > 0) != ($how ne 'INDEX');
			my ($rc, $out, $err) = $node->psql('postgres', "SET gpuvec.engine = gpu;
				SET max_parallel_maintenance_workers = $workers; REINDEX $how big_e;");
			is($err, '', "$workers workers: REINDEX $how");
			is_sound($node, 'big_e', "$workers workers: REINDEX $how");
			is_complete($node, 'big', '<->', 8, "$workers workers: REINDEX $how");
		}
		$recall{$workers} = recall();
	}
	cmp_ok($recall{4}, '>', $recall{0} - 0.03, "recall as with $recall{0}");
	is_tidy('more rows to train on');
}
for my $signal ('KILL', 'STOP')
{
	ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), "$signal: gpuvecd is up");
	my $pid = gpuvecd_pid($node);
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $job = background($node, "SET gpuvec.engine = gpu; SET gpuvec.request_timeout = '500ms';
		SET max_parallel_maintenance_workers = 4; SET gpuvec.fault = 'wait 1 build: begun'; REINDEX INDEX big_e;");
	ok( wait_until($node, "SELECT count(*) > 0 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted"), "$signal before rows are read: there");
	kill $signal, $pid;
	usleep(100_000);
	let_go($holder);
	is(end_of($job), 0, "$signal before rows are read: the index is built");
	kill 'CONT', $pid if $signal eq 'STOP';
	unlike(said($job), qr/NOTICE.*NOTICE/s, "$signal before rows are read: one notice");
	is_sound($node, 'big_e', "$signal before rows are read");
	is_complete($node, 'big', '<->', 8, "$signal before rows are read");
}
# -- workers who cannot join the build, which the leader has begun

{
	my $socket = $node->data_dir . '/pgsql_tmp.gpuvec.sock';

	ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'alone: gpuvecd is up');
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $job = background($node, "SET gpuvec.engine = gpu;
		SET max_parallel_maintenance_workers = 4; SET gpuvec.fault = 'wait 1 build: begun'; REINDEX INDEX big_e;");
	ok( wait_until($node, "SELECT count(*) > 0 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted"), 'alone: there');
	rename($socket, "$socket.not") or die "$socket: $!";
	let_go($holder);
	is(end_of($job), 0, 'alone: the index is built');
	rename("$socket.not", $socket) or die "$socket: $!";
	# it trains, and places what the leader has
	like(said($job), qr/^[^\n]*NOTICE:  gpuvecd could not build all of index "big_e": it does not listen\nDETAIL:  What it has not done is done without a card, which takes longer\.$/,
		'alone: what others could not have it do');
	is_sound($node, 'big_e', 'alone');
	is_complete($node, 'big', '<->', 8, 'alone');
	is_tidy('alone');
}
for my $engine ('gpu', 'cpu')
{
	$node->safe_psql('postgres', "
		CREATE TABLE late (LIKE big);
		CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (lists = 450, dims = 8);
		INSERT INTO late SELECT * FROM big;
		SET gpuvec.engine = $engine; SET max_parallel_maintenance_workers = 4; SELECT gpuvec_train('late_e');");
	is_sound($node, 'late_e', "$engine: trained in place");
	is_complete($node, 'late', '<->', 8, "$engine: trained in place");
	$node->safe_psql('postgres', 'DROP TABLE late');
}
ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'gpuvecd is up once more');

# -- all of it is in the log

$node->safe_psql('postgres', build_sql('cpu', 4));
my $before = contents('t_e');
$node->stop('immediate');
$node->start;
is(contents('t_e'), $before, 'the same after a crash');
is_whole($node, 'after a crash');
# -- room to build, and none to search what is built

SKIP:
{
	skip 'a card takes other amounts of memory', 4 if $SERVER ne 'cpu';
	$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '5MB'\n");
	$node->restart;
	ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'no room to search: gpuvecd is up');
	$node->safe_psql('postgres', "
		CREATE TABLE wide AS SELECT g AS id, point(g, 22) AS e FROM generate_series(1, 10000) AS g;");
	my ($rc, $out, $err) = $node->psql('postgres', "SET gpuvec.engine = gpu;
		SET max_parallel_maintenance_workers = 3; SET gpuvec.on_gpu_error = error;
		CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 40);");
	like($err, qr/^[^\n]*NOTICE:  gpuvecd could not calibrate index "wide_e": it refused: no memory\nDETAIL:  It is calibrated without a card, which takes longer\.$/,
		'no room to search: one notice');
	is( $node->safe_psql('postgres', "SELECT count(*) > 0 FROM gpuvec_calibration('wide_e')"),
		't', 'no room to search: calibrated');
	is_complete($node, 'wide', '<->', 22, 'no room to search');
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal 11/, 'nothing crashed');

done_testing();
