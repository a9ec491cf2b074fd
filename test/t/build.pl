# CREATE INDEX and its kin.  With parallel workers the same postings are in the same
# lists whatever their number, with and without gpuvecd, which builds as well as the
# session itself.  Whatever becomes of gpuvecd meanwhile, the index is built and sound;
# what becomes of a build when a worker fails, is told to end, or the leader is
# canceled; memory, WAL and other sessions.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use List::Util qw(max);
use Time::HiRes qw(usleep);

use constant {
	BLCKSZ => 8192,
	DIRECTORY => 3,    # kinds of pages
	SMALL_LISTS => 4,
	RECORDS => 7,
	NO_LIST => 0xFFFFFFFF,
	CODE_BYTES => 8,    # of 16 sub-quantizers
	PAGE_BYTES => 8160,
	ENTRIES => 291,
};

need_test_build();
my $node = new_remote_node('main', conf => "max_worker_processes = 24\n"
	  . "max_parallel_workers = 16\ngpuvec.auto_mirror = off\n"
	  . "maintenance_work_mem = '512MB'\nmin_parallel_table_scan_size = 0\n");
# workers of a build
my @workers = long_test() ? (0, 1, 2, 8) : (0, 8);
# all are in the leader's sample: of more, which ones gpuvecd trains on, and in
# what order, depends on who reads them first
my $rows = 9_000;
# gpuvecd gets so many rows at a time
my $slots = int(($rows + 8191) / 8192);

$node->safe_psql('postgres', "
	CREATE TABLE t AS SELECT g AS id, point(g, 16) AS e FROM generate_series(1, $rows) AS g;
	INSERT INTO t SELECT g, NULL FROM generate_series(1, 20) AS g;
	DELETE FROM t WHERE id % 97 = 0;
	VACUUM t;");

# Everything in the lists of an index on pages: list, row, which posting of it, T, code;
# and its refine records, which have so many bytes of codes (0: it has none).
sub contents
{
	my ($index, $record_codes) = @_;
	my $at = 32 + 32 * (6 + 4 + ($record_codes ? 6 : 0));    # of the codes in a slot
	my $slot_bytes = $at + 32 * CODE_BYTES;
	my $record_bytes = 4 * int((18 + ($record_codes // 0) + 3) / 4);
	my $path = $node->safe_psql('postgres', "CHECKPOINT; SELECT pg_relation_filepath('$index')");
	my $bytes = slurp_file($node->data_dir . "/$path");
	my (@nitems, @postings);
	my @pages = unpack '(a' . BLCKSZ . ')*', $bytes;

	# the directory comes before all small-list pages, and its pages in their order
	for my $page (grep { unpack('x8184 S', $_) == DIRECTORY } @pages)
	{
		push @nitems, map { unpack 'L', substr($page, 24 + 28 * $_ + 4, 4) } 0 .. ENTRIES - 1;
	}
	for my $page (grep { unpack('x8184 S', $_) == SMALL_LISTS } @pages)
	{
		for my $slot (map { substr $page, 24 + $slot_bytes * $_, $slot_bytes } 0 .. int(PAGE_BYTES / $slot_bytes) - 1)
		{
			my ($list, undef, $ordinal, undef, $second) = unpack 'L5', $slot;
			next if $list == NO_LIST;
			my $count = $nitems[$list] - 32 * $ordinal;
			$count = 32 if $count > 32;
			for my $i (0 .. $count - 1)
			{
				my $code = join '',
				  map { substr $slot, $at + 32 * $_ + $i, 1 } 0 .. CODE_BYTES - 1;
				push @postings, join ' ', $list, unpack('H12', substr $slot, 32 + 6 * $i, 6),
				  $second >> $i & 1, unpack('H8', substr $slot, 32 + 192 + 4 * $i, 4),
				  unpack('H*', $code);
			}
		}
	}
	for my $page (grep { unpack('x8184 S', $_) == RECORDS } @pages)
	{
		push @postings, map { 'record ' . unpack 'H*', substr($page, 32 + $record_bytes * $_, $record_bytes) }
		  0 .. unpack('S', substr $page, 30, 2) - 1;
	}
	return join "\n", sort @postings;
}

# Statements that build an index anew, by an engine and so many workers; options:
# table, columns, with, set (settings), memory.
sub build_sql
{
	my ($engine, $workers, %options) = @_;
	my $table = $options{table} // 't';
	my $with = $options{with} // 'lists = 40';
	my $columns = $options{columns} // 'e';
	my $memory = $options{memory} // ($workers ? '512MB' : '64MB');
	my $set = join '', map { "SET $_;" } @{ $options{set} // [] };

	return "SET client_min_messages = warning; DROP INDEX IF EXISTS ${table}_e;
		RESET client_min_messages; SET gpuvec.engine = $engine; SET maintenance_work_mem = '$memory';
		SET max_parallel_maintenance_workers = $workers; $set
		CREATE INDEX ${table}_e ON $table USING gpuivfpq ($columns) WITH ($with);";
}

# Build so; the status, and what was said.
sub build
{
	my ($rc, $out, $err) = $node->psql('postgres', build_sql(@_), on_error_stop => 1);

	return ($rc, $err);
}

# Test: an index is built so, with no word.
sub is_built { my ($what, @how) = @_; return is(join(' ', build(@how)), '0 ', "$what: built"); }

# Bytes that gpuvecd got; the supervisor's pings are among them.
sub received { return stat_of($node, 'bytes_sent'); }

# Test: gpuvecd holds nothing, no worker is left, no file either.
sub is_tidy
{
	my ($what) = @_;

	comes($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'parallel worker'", "$what: no worker is left");
	soon($node, 'mirror_bytes = 0', "$what: gpuvecd has no builder");
	return gives($node, "SELECT count(*) FROM pg_ls_dir('base/pgsql_tmp', true, false)", '0', "$what: no file is left");
}

# The results of calibration, as text.
sub calibration { return $node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('$_[0]') ORDER BY k, recall"); }

# The ends of the 95 % interval of recall@10, at fixed search parameters.
sub recall
{
	my ($index, $probes, $queries) = @_;

	return split /\|/, $node->safe_psql('postgres', qq{
		SET gpuvec.engine = cpu; SET gpuvec.probes = $probes; SET gpuvec.candidates = 40;
		SELECT low, high, recall FROM gpuvec_recall('$index', 10, $queries)});
}

# -- the same postings, the same calibration; many's lists are trained parent by parent:
# on rows of all blocks, on those of some, on more than fit into memory

$node->safe_psql('postgres', "
	CREATE TABLE many WITH (parallel_workers = 8) AS SELECT g AS id, point(g, 16) AS e
		FROM generate_series(1, 25000) AS g;
	DELETE FROM many WHERE id % 97 = 0;");
for my $case ([ 'cpu', 't', 40, '512MB' ], [ 'gpu', 't', 40, '512MB' ], [ 'gpu', 't', '40, rotate', '512MB' ],
	[ 'cpu', 'many', 260, '64MB' ], [ 'cpu', 'many', 260, '2MB' ])
{
	my ($engine, $table, $lists, $memory) = @$case;
	my ($right, $calibrated);

	for my $workers (@workers)
	{
		my $what = "$table, $engine, lists = $lists, $memory, $workers workers";

		is_built($what, $engine, $workers, table => $table, with => "lists = $lists", memory => $memory);
		my $found = contents("${table}_e");
		$right //= $found;
		$calibrated //= calibration("${table}_e");
		is(calibration("${table}_e"), $calibrated, "$what: the same calibration");
		ok($found eq $right, "$what: the same postings");
		cmp_ok(length $found, '>', $rows * 20, "$what: " . length($found) . ' bytes of them');
		gives($node, "SELECT lists BETWEEN 250 AND 260 FROM gpuvec_index_info('many_e')", 't', "$what: lists") if $table eq 'many';
	}
	is_whole($node, "$engine, $memory, workers", $table, '<->', 16, exact => $table eq 't');
	is_tidy($engine);
}
$node->safe_psql('postgres', 'DROP TABLE many');

# Shared memory is not to be had: no workers, and the same index.
{
	build('cpu', 0, memory => '512MB');
	my $right = contents('t_e');
	my ($rc, $err) = build('cpu', 8, set => [ "gpuvec.fault = 'memory 1 team: memory'", 'client_min_messages = debug1' ]);

	is($rc, 0, 'no shared memory: built');
	like($err, qr/WARNING:  could not allocate shared memory for parallel workers/, '... with a warning');
	unlike($err, qr/using \d+ parallel workers|leak/, '... without workers, and nothing is left');
	ok(contents('t_e') eq $right, '... the same postings');
	is_tidy('no shared memory');
}


# -- gpuvecd alone builds as well as the session

for my $with ('lists = 40', 'lists = 300, spill = 0', 'lists = 40, refine = sq8', 'lists = 40, rotate', 'lists = 1')
{
	my $before = received();
	is_built("$with: the session", 'cpu', 0, with => $with);
	# of fewer queries recall is good to .05 only
	my $queries = long_test() ? 1000 : 400;
	my ($own) = recall('t_e', 3, $queries);

	cmp_ok(received() - $before, '<', 10_000, '... alone');
	is_built("$with: gpuvecd", 'gpu', 0, with => $with);
	cmp_ok(received() - $before, '>', ($rows - $rows / 90) * 64, '... and got all rows');
	# two samples of queries may differ more, once
	my @high = map { (recall('t_e', 3, $queries))[1] } 1 .. 2;
	cmp_ok(max(@high), '>', $own, "$with: recall as with $own");
	is_whole($node, $with);
	gives($node, "SELECT (SELECT count(*) > 0 FROM gpuvec_calibration('t_e')) AND recall >= 0.9
		FROM gpuvec_recall('t_e', 10, 100)", 't', "$with: calibrated");
}
# more lists than the sample that stays here has rows
gives($node, q{
	SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error;
	SET maintenance_work_mem = '64MB'; SET max_parallel_maintenance_workers = 0;
	CREATE TABLE crowded AS SELECT g AS id, point(g, 4) AS e FROM generate_series(1, 14000) AS g;
	CREATE INDEX crowded_e ON crowded USING gpuivfpq (e) WITH (lists = 12100);
	SELECT (SELECT count(*) > 0 FROM gpuvec_calibration('crowded_e')) AND recall >= 0.9
	FROM gpuvec_recall('crowded_e', 10, 100)}, 't', '12,100 lists: calibrated');
$node->safe_psql('postgres', 'DROP TABLE crowded');
# keys stay here, and meet their rows when these come back
for my $with ('lists = 40', 'lists = 40, refine = sq8', 'lists = 40, rotate')
{
	is_built("keys, $with", 'gpu', 0, with => $with, columns => 'e, id, (id % 7)');
	is_whole($node, "keys, $with");
}
{
	my $before = received();

	is_built('auto', 'auto', 0);
	cmp_ok(received() - $before, '<', 10_000, 'gpuvecd has no card, so it is not asked');
}
$node->safe_psql('postgres', q{
	SET gpuvec.engine = gpu; SET max_parallel_maintenance_workers = 0;
	CREATE INDEX t_cos ON t USING gpuivfpq (e real_cosine_ops) WITH (lists = 30);
	CREATE INDEX t_ip ON t USING gpuivfpq (e real_ip_ops) WITH (lists = 30);});
are_whole($node, 'other distances', [ [ 't_cos', 't', '<=>', 16 ], [ 't_ip', 't', '<#>', 16 ] ]);
$node->safe_psql('postgres', 'DROP INDEX t_cos, t_ip');

# training in place, REINDEX
$node->safe_psql('postgres', '
	CREATE TABLE late (LIKE t);
	CREATE INDEX late_e ON late USING gpuivfpq (e, id) WITH (lists = 40, dims = 16, refine = sq8);
	INSERT INTO late SELECT * FROM t;');
for my $case ([ 'trained', q{SELECT gpuvec_train('late_e')} ], [ 'reindexed', 'REINDEX INDEX CONCURRENTLY late_e' ])
{
	my ($what, $sql) = @$case;
	my $before = received();

	$node->safe_psql('postgres', "SET gpuvec.engine = gpu; SET max_parallel_maintenance_workers = 0; $sql");
	cmp_ok(received() - $before, '>', $rows * 60, "$what: gpuvecd trains");
	is_whole($node, $what, 'late', '<->', 16);
}
$node->safe_psql('postgres', 'DROP TABLE late');

# -- refine records and keys, an index made while rows come and go

for my $engine ('cpu', 'gpu')
{
	is_built("$engine: refine records and keys", $engine, 5, with => 'lists = 40, refine = sq8', columns => 'e, id, (id % 7)');
	is_whole($node, "$engine: refine records and keys");

	my $job = background($node, join ' ', map { "INSERT INTO t SELECT $rows + 100 * $_ + g,
		point($rows + 100 * $_ + g, 16) FROM generate_series(1, 50) AS g;
		DELETE FROM t WHERE id % 1009 = $_;" } 1 .. 20);
	$node->safe_psql('postgres', "SET gpuvec.engine = $engine;
		SET max_parallel_maintenance_workers = 4; REINDEX INDEX CONCURRENTLY t_e;") for 1 .. (long_test() ? 3 : 2);
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
	my $holder = hold($node);
	my $job = background($node, build_sql($engine, $workers,
			set => ["gpuvec.fault = 'wait 1 $step'"], %options));

	is_held($node, "$engine: $workers workers and the leader at \"$step\"", $workers + 1);
	return ($holder, $job);
}

for ([ 'build: written', 'cpu', 3, "phase = 'building index: writing' AND tuples_done <= tuples_total AND tuples_total = (SELECT count(e) FROM t)" ],
	[ 'build: encoded', 'gpu', 0, "phase = 'building index: assigning' AND tuples_done > 0" ])
{
	my ($step, $engine, $workers, $counted) = @$_;
	my ($holder, $job) = held($step, $engine, $workers);

	gives($node, "SELECT $counted FROM pg_stat_progress_create_index", 't', "$step: rows of all are counted");
	release($holder);
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
	my ($rc, $err) = build($engine, 3, set => ["gpuvec.fault = 'error 1 $step'"], @with);
	isnt($rc, 0, "$what: an error");
	like($err, qr/ERROR:  gpuvec.fault: stopped at step/, "$what: whosever it was");
	is_tidy("$what: an error");

	for (
		[ "pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1) AS x",
			qr/terminating (connection|background worker|parallel worker)/, 'a worker is told to end' ],
		[ 'pg_cancel_backend(pid) FROM pg_stat_progress_create_index', qr/canceling statement due to user request/, 'canceled' ])
	{
		my ($act, $message, $how) = @$_;
		my ($holder, $job) = held($step, $engine, 3, @with);

		$node->safe_psql('postgres', "SELECT $act");
		isnt(end_of($job), 0, "$what, $how: there is no index");
		like(errors_of($job), $message, "$what, $how: and why");
		release($holder);
		is_tidy("$what, $how");
	}
	gives($node, "SELECT to_regclass('t_e') IS NULL", 't', "$what: no index");
}

# -- gpuvecd dies or stops at every step, under the session alone and under workers

build('gpu', 0);
my $calibration = calibration('t_e');

# Test: statements build an index though at a step something is done to gpuvecd, and
# have such a message, once.  Options: table; operator; fails: they do not; cancel (when
# the session waits for gpuvecd).
sub test_disturbed
{
	my ($what, $step, $signal, $sql, $message, %options) = @_;

	$what .= ", $signal at $step";
	soon_up($node, $what);
	my $pid = gpuvecd_pid($node);
	my $holder = hold($node);
	my $job = background($node, "SET gpuvec.fault = 'wait $step'; $sql");
	is_held($node, "$what: there");
	kill $signal, $pid;
	usleep(100_000);
	release($holder);
	if ($options{cancel})
	{
		usleep(200_000);
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM pg_stat_progress_create_index');
	}
	my $status = end_of($job);
	$signal eq 'STOP' ? kill('CONT', $pid) : ok(revive($node), "$what: there is another gpuvecd");
	like(errors_of($job), $message, "$what: says so");
	unlike(errors_of($job), qr/NOTICE.*NOTICE/s, "$what: once");
	if ($options{fails})
	{
		isnt($status, 0, "$what: fails");
		return gives($node, "SELECT to_regclass('t_e') IS NULL", 't', "$what: no index");
	}
	is($status, 0, "$what: the index is built");
	return is_whole($node, $what, $options{table} ? ($options{table}, '<->', 8, exact => 0) : ('t', $options{operator}));
}

# The NOTICE's words for the work that gpuvecd could not do, if it was lost at a step.
sub not_done
{
	my ($step) = @_;

	return 'build' if $step =~ /begun|sent/;
	return 'calibrate' if $step =~ /written/;
	# all answers may be on their way already
	return $step =~ /encoded/ ? '(build all of|calibrate)' : 'build all of';
}

my @steps = ('1 build: begun', '1 build: sent', '1 build: trained',
	(map { "$_ build: encoded" } 1 .. $slots), '1 build: written');
# in a short run it stops at some of them
my %disturbed = (
	'0 KILL' => \@steps,
	'0 STOP' => long_test() ? \@steps : [ '1 build: sent', '1 build: encoded', '1 build: written' ],
	'3 KILL' => [ '1 build: trained', '1 build: encoded', '1 build: written' ],
	'3 STOP' => long_test() ? [ '1 build: trained', '1 build: encoded', '1 build: written' ] : ['1 build: encoded']);
for my $case (sort keys %disturbed)
{
	my ($workers, $signal) = split / /, $case;
	my $why = 'gpuvecd has exited|no response|the connection was lost' . ($workers ? '|gpuvecd is not|request refused' : '');

	for my $step (@{ $disturbed{$case} })
	{
		my $not_done = not_done($step);

		test_disturbed(
			"$workers workers", $step, $signal,
			build_sql('gpu', $workers,
				columns => $workers && $signal eq 'STOP' ? 'e, id' : 'e', set => ["gpuvec.request_timeout = '500ms'"]),
			qr/NOTICE:  gpuvecd could not $not_done index "t_e": ($why)/);
		# whoever searches for it, calibration finds the same
		is(calibration('t_e'), $calibration, "$signal at $step: as calibrated by gpuvecd") if !$workers && $step =~ /written/;
	}
}
# keys of rows that it did not give back
test_disturbed('keys', $_, 'KILL', build_sql('gpu', 0, columns => 'e, id, (id % 7)'), qr/could not build|could not calibrate/)
  for '1 build: trained', '1 build: encoded';
# rotated rows have the same lists, codes, records, whoever encodes them
for ([ 'real_l2_ops', '<->', 'rotate', 0 ], [ 'real_cosine_ops', '<=>', 'rotate, refine = sq8', 16 ],
	[ 'real_ip_ops', '<#>', 'rotate, refine = half', 32 ])
{
	my ($opclass, $operator, $with, $record_codes) = @$_;
	my @how = ('gpu', 0, columns => "e $opclass", with => "lists = 40, pq_dim = 16, $with");

	is_built("$opclass, $with", @how);
	my $right = contents('t_e', $record_codes);
	my $rotated = calibration('t_e');
	is(scalar(() = $right =~ /^record/mg), $record_codes ? $node->safe_psql('postgres', 'SELECT count(e) FROM t') : 0,
		"$opclass, $with: a record for each row");
	test_disturbed("$opclass, $with", '1 build: trained', 'KILL', build_sql(@how),
		qr/could not build all of index "t_e"/, operator => $operator);
	ok(contents('t_e', $record_codes) eq $right, "$opclass, $with: the same without gpuvecd");
	is(calibration('t_e'), $rotated, "$opclass, $with: the same calibration");
}
# who wants an error gets one, but not for the work that is left when the index is there
my $strict = build_sql('gpu', 0, set => ['gpuvec.on_gpu_error = error']);
test_disturbed('an error is wanted', '1 build: trained', 'KILL', $strict, qr/ERROR:  gpuvecd could not build index "t_e"/, fails => 1);
test_disturbed('an error is wanted', '1 build: written', 'KILL', $strict, qr/NOTICE:  gpuvecd could not calibrate index "t_e"/);
# canceled while gpuvecd is waited for
test_disturbed('canceled', $_, 'STOP', build_sql('gpu', 0, set => ["gpuvec.request_timeout = '60s'"]),
	qr/canceling statement due to user request/, fails => 1, cancel => 1) for @steps[ 0 .. 2 ];
is_built('afterwards', 'gpu', 0);
is_whole($node, 'afterwards');

# -- more rows to train on than the leader's sample has are read by all

$node->safe_psql('postgres', "
	CREATE TABLE big AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 15000) AS g;
	CREATE INDEX big_e ON big USING gpuivfpq (e) WITH (lists = 450, train_rows = 100000);");
{
	my %recall;

	for my $workers (0, 4)
	{
		for my $how ('INDEX', 'INDEX CONCURRENTLY')
		{
			# in a short run: alone, and with workers concurrently
			next if !long_test() && ($workers > 0) != ($how ne 'INDEX');
			says($node, "SET gpuvec.engine = gpu; SET max_parallel_maintenance_workers = $workers; REINDEX $how big_e;",
				qr/^$/, "$workers workers: REINDEX $how");
			is_whole($node, "$workers workers: REINDEX $how", 'big', '<->', 8, exact => 0);
		}
		$recall{$workers} = (recall('big_e', 6, 200))[2];
	}
	cmp_ok($recall{4}, '>', $recall{0} - 0.03, "recall as with $recall{0}");
	# workers rotate, too
	$node->safe_psql('postgres', 'ALTER INDEX big_e SET (rotate)');
	says($node, 'SET gpuvec.engine = gpu; SET max_parallel_maintenance_workers = 4; REINDEX INDEX big_e;', qr/^$/, 'rotated');
	is_whole($node, 'rotated', 'big', '<->', 8, exact => 0);
	cmp_ok((recall('big_e', 6, 200))[2], '>', $recall{0} - 0.03, "rotated: recall as with $recall{0}");
	is_tidy('more rows to train on');
}
test_disturbed('before rows are read', '1 build: begun', $_, "SET gpuvec.engine = gpu;
	SET gpuvec.request_timeout = '500ms'; SET max_parallel_maintenance_workers = 4; REINDEX INDEX big_e;",
	qr/NOTICE:  gpuvecd could not .* index "big_e": /, table => 'big') for 'KILL', 'STOP';

# -- workers who cannot join the build, which the leader has begun

{
	my $socket = $node->data_dir . '/pgsql_tmp.gpuvec.sock';

	soon_up($node, 'alone');
	my $holder = hold($node);
	my $job = background($node, "SET gpuvec.engine = gpu;
		SET max_parallel_maintenance_workers = 4; SET gpuvec.fault = 'wait 1 build: begun'; REINDEX INDEX big_e;");
	is_held($node, 'alone: there');
	rename($socket, "$socket.not") or die "$socket: $!";
	release($holder);
	is(end_of($job), 0, 'alone: the index is built');
	rename("$socket.not", $socket) or die "$socket: $!";
	# it trains, and places what the leader has
	like(errors_of($job), qr/^[^\n]*NOTICE:  gpuvecd could not build all of index "big_e": gpuvecd is not listening\nDETAIL:  The rest is done without a GPU, which takes longer\.$/,
		'alone: what others could not have it do');
	is_whole($node, 'alone', 'big', '<->', 8, exact => 0);
	is_tidy('alone');
}
# training in place
for my $engine ('gpu', 'cpu')
{
	$node->safe_psql('postgres', "
		CREATE TABLE late (LIKE big);
		CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (lists = 450, dims = 8);
		INSERT INTO late SELECT * FROM big;
		SET gpuvec.engine = $engine; SET max_parallel_maintenance_workers = 4; SELECT gpuvec_train('late_e');");
	is_whole($node, "$engine: trained in place", 'late', '<->', 8, exact => 0);
	$node->safe_psql('postgres', 'DROP TABLE late');
}

# -- all of it is in the log

build('cpu', 4);
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
	soon_up($node, 'no room to search');
	$node->safe_psql('postgres', 'CREATE TABLE wide AS SELECT g AS id, point(g, 22) AS e FROM generate_series(1, 10000) AS g');
	says(
		$node, 'SET gpuvec.engine = gpu; SET max_parallel_maintenance_workers = 3; SET gpuvec.on_gpu_error = error;
		CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 40)',
		qr/^[^\n]*NOTICE:  gpuvecd could not calibrate index "wide_e": request refused: no memory\nDETAIL:  The index is calibrated without a GPU, which takes longer\.$/,
		'no room to search: one notice');
	gives($node, "SELECT count(*) > 0 FROM gpuvec_calibration('wide_e')", 't', 'no room to search: calibrated');
	is_complete($node, 'wide', '<->', 22, 'no room to search');
}
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1MB'\n");
$node->restart;
soon_up($node, 'little memory');
my ($rc, $err) = build('gpu', 0);
is($rc, 0, 'no room: the index is built');
like($err, qr/NOTICE:  gpuvecd could not build index "t_e": request refused: no memory/, 'no room: a notice');
is_whole($node, 'no room');

# -- no gpuvecd

$node->append_conf('postgresql.conf', "gpuvec.server = off\n");
$node->restart;
is_built('off: nobody expects gpuvecd', 'gpu', 0);
($rc, $err) = build('gpu', 0, set => ['gpuvec.on_gpu_error = error']);
like($err, qr/ERROR:  gpuvecd could not build index "t_e": gpuvecd is not available\nHINT:  Set "gpuvec.engine" to "cpu", because/,
	'off: an error where that is wanted');
no_crash($node);

done_testing();
