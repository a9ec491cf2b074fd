# CREATE INDEX and its kin through gpuvecd: as good as the session's own, and
# whatever becomes of gpuvecd meanwhile, the index is built and sound.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

need_test_build();
my $node = new_remote_node('main', conf => "fsync = off\nmax_worker_processes = 8\n"
	  . "gpuvec.auto_mirror = off\n");
my $rows = long_test() ? 40_000 : 9000;
# of fewer queries recall is good to .05 only
my $queries = long_test() ? 1000 : 400;
# slots of gpuvecd's rows, 8,192 each, and the rest
my $slots = int(($rows + 8191) / 8192);

$node->safe_psql('postgres', "
	CREATE TABLE t AS SELECT g AS id, point(g, 16) AS e FROM generate_series(1, $rows) AS g;
	INSERT INTO t SELECT g, NULL FROM generate_series(1, 20) AS g;
	DELETE FROM t WHERE id % 97 = 0;");

# Build an index; what was said, and the status.
sub build
{
	my ($what, %options) = @_;
	my $set = join '', map { "SET $_;" } @{ $options{set} // [] };
	my $with = $options{with} // 'lists = 40';
	my $columns = $options{columns} // 'e';
	my ($rc, $out, $err) = $node->psql('postgres', "
		SET client_min_messages = warning;
		DROP INDEX IF EXISTS t_e;
		RESET client_min_messages;
		SET gpuvec.engine = gpu; $set
		CREATE INDEX t_e ON t USING gpuivfpq ($columns) WITH ($with);",
		on_error_stop => 1);

	return ($rc, $err);
}

# Bytes that gpuvecd got; the supervisor's pings are among them.
sub received
{
	return $node->safe_psql('postgres', 'SELECT bytes_sent FROM gpuvec_stat');
}

# Is it up, and not the one that was killed?
my $killed = 0;
sub is_up
{
	return wait_until($node, "SELECT state = 'up' FROM gpuvec_stat") if !$killed;
	$killed = 0;
	return revive($node);
}

# recall@10 of the index at a fixed effort: the ends of its 95 % interval
sub recall
{
	return split /\|/, $node->safe_psql('postgres', qq{
		SET gpuvec.engine = cpu; SET gpuvec.probes = 3; SET gpuvec.candidates = 40;
		SELECT low, high FROM gpuvec_recall('t_e', 10, $queries)});
}

# -- as good as the session's own

for my $with ('lists = 40', 'lists = 300, spill = 0', 'lists = 40, refine = sq8', 'lists = 1')
{
	my ($rc, $err) = build('session', with => $with, set => ['gpuvec.engine = cpu']);
	my ($own) = recall();
	my $before = received();

	is($err, '', "$with: the session builds");
	cmp_ok(received() - $before, '<', 10_000, '... alone');
	($rc, $err) = build('gpuvecd', with => $with);
	is($err, '', "$with: gpuvecd builds");
	cmp_ok(received() - $before, '>', ($rows - $rows / 90) * 64, '... and got all rows');
	# two samples of queries may differ more, once
	my @high = map { (recall())[1] } 1 .. 2;
	cmp_ok(max(@high), '>', $own, "$with: recall as with $own");
	is_whole($node, $with);
	is( $node->safe_psql('postgres',
			"SELECT (SELECT count(*) > 0 FROM gpuvec_calibration('t_e')) AND recall >= 0.9
			 FROM gpuvec_recall('t_e', 10, 100)"), 't', "$with: calibrated");
}
# more lists than the sample that stays here has rows
is( $node->safe_psql('postgres', q{
		SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error;
		CREATE TABLE crowded AS SELECT g AS id, point(g, 4) AS e FROM generate_series(1, 14000) AS g;
		CREATE INDEX crowded_e ON crowded USING gpuivfpq (e) WITH (lists = 12100);
		SELECT (SELECT count(*) > 0 FROM gpuvec_calibration('crowded_e')) AND recall >= 0.9
		FROM gpuvec_recall('crowded_e', 10, 100)}), 't', '12,100 lists: calibrated');
$node->safe_psql('postgres', 'DROP TABLE crowded');
# keys stay here, and meet their rows when these come back
for my $with ('lists = 40', 'lists = 40, refine = sq8')
{
	my ($rc, $err) = build('keys', with => $with, columns => 'e, id, (id % 7)');

	is($err, '', "keys, $with: gpuvecd builds");
	is_whole($node, "keys, $with");
}
{
	my $before = received();
	my ($rc, $err) = build('auto', set => ['gpuvec.engine = auto']);
	is($err, '', 'auto');
	cmp_ok(received() - $before, '<', 10_000, 'gpuvecd has no card, so it is not asked');
}
$node->safe_psql('postgres', q{
	SET gpuvec.engine = gpu;
	CREATE INDEX t_cos ON t USING gpuivfpq (e real_cosine_ops) WITH (lists = 30);
	CREATE INDEX t_ip ON t USING gpuivfpq (e real_ip_ops) WITH (lists = 30);});
is_sound($node, 't_cos', 'cosine');
is_exact($node, 't', '<=>', 16, 'cosine');
is_sound($node, 't_ip', 'inner product');
is_exact($node, 't', '<#>', 16, 'inner product');
$node->safe_psql('postgres', 'DROP INDEX t_cos, t_ip');

sub calibration
{
	return $node->safe_psql('postgres',
		"SELECT * FROM gpuvec_calibration('t_e') ORDER BY k, recall");
}

# -- gpuvecd dies or stops at every step

build('calibration');
my $calibration = calibration();

my @steps = ('1 build: begun', '1 build: sent', '1 build: trained',
	(map { "$_ build: encoded" } 1 .. $slots), '1 build: written');

# Build; at a step, do something to gpuvecd.  Options: columns, set (settings),
# cancel (the build, when it waits for gpuvecd).
sub disturb
{
	my ($step, $signal, %options) = @_;
	my $what = "$signal at $step";
	my $set = join '', map { "SET $_;" } @{ $options{set} // [] };
	my $columns = $options{columns} // 'e';

	ok(is_up(), "$what: gpuvecd is up");
	my $holder = $node->background_psql('postgres');
	my $pid = gpuvecd_pid($node);
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $job = background($node, "SET gpuvec.engine = gpu; $set
		DROP INDEX IF EXISTS t_e;
		SET gpuvec.fault = 'wait $step';
		CREATE INDEX t_e ON t USING gpuivfpq ($columns) WITH (lists = 40);");
	ok( wait_until($node, q{SELECT count(*) > 0 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted}), "$what: there");
	kill $signal, $pid;
	$killed = 1 if $signal eq 'KILL';
	usleep(100_000);
	$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
	$holder->quit;
	if ($options{cancel})
	{
		usleep(200_000);
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM pg_stat_progress_create_index');
	}
	my $status = end_of($job);
	kill 'CONT', $pid if $signal eq 'STOP';
	my $err = $job->{output};
	$err =~ s/out$/err/;
	return ($what, $status, slurp_file($err));
}

for my $signal ('KILL', 'STOP')
{
	for my $step (@steps)
	{
		# in a short run it stops at every other one
		next if !long_test() && $signal eq 'STOP' && $step !~ /sent|1 build: encoded|written/;
		my ($what, $status, $err) = disturb($step, $signal,
			set => ["gpuvec.request_timeout = '300ms'"]);

		is($status, 0, "$what: the index is built");
		my $not_done = not_done($step);
		like($err, qr/NOTICE:  gpuvecd could not $not_done index "t_e": (it (is gone|does not answer)|the connection ended)/,
			"$what: a notice");
		unlike($err, qr/NOTICE.*NOTICE/s, "$what: one");
		is_whole($node, $what);
		# whoever searches for it, calibration finds the same; of many rows
		# training has a random sample
		is(calibration(), $calibration, "$what: as calibrated by gpuvecd")
		  if $step eq '1 build: written' && !long_test();
	}
}

# keys of rows that it did not give back
for my $step ('1 build: trained', '1 build: encoded')
{
	my ($what, $status) = disturb($step, 'KILL', columns => 'e, id, (id % 7)');

	is($status, 0, "$what, with keys: the index is built");
	is_whole($node, "$what, with keys");
}

# -- who wants an error gets one

{
	my ($what, $status, $err) = disturb($steps[2], 'KILL',
		set => ['gpuvec.on_gpu_error = error']);

	isnt($status, 0, "$what: an error is wanted");
	like($err, qr/ERROR:  gpuvecd could not build index "t_e"/, "$what: and comes");
	is($node->safe_psql('postgres', "SELECT to_regclass('t_e') IS NULL"), 't',
		"$what: no index");
}

# No error for the work that is left when the index is there.
{
	my ($what, $status, $err) = disturb('1 build: written', 'KILL',
		set => ['gpuvec.on_gpu_error = error']);

	is($status, 0, "$what: no error, though one is wanted");
	like($err, qr/NOTICE:  gpuvecd could not calibrate index "t_e"/, "$what: a notice");
	is_whole($node, $what);
}

# -- canceling while gpuvecd is waited for

for my $step (@steps[0 .. 2])
{
	my ($what, $status, $err) = disturb($step, 'STOP',
		set => ["gpuvec.request_timeout = '60s'"], cancel => 1);

	isnt($status, 0, "$what: canceled");
	like($err, qr/canceling statement due to user request/, "$what: in time");
}
{
	my ($rc, $err) = build('afterwards');
	is($err, '', 'afterwards gpuvecd builds again');
	is_whole($node, 'afterwards');
}

# -- training in place, REINDEX

$node->safe_psql('postgres', '
	CREATE TABLE late (LIKE t);
	CREATE INDEX late_e ON late USING gpuivfpq (e, id) WITH (lists = 40, dims = 16, refine = sq8);
	INSERT INTO late SELECT * FROM t;');
{
	my $before = received();
	$node->safe_psql('postgres', "SET gpuvec.engine = gpu; SELECT gpuvec_train('late_e')");
	cmp_ok(received() - $before, '>', $rows * 60, 'gpuvec_train has gpuvecd train');
	is_sound($node, 'late_e', 'trained');
	is_complete($node, 'late', '<->', 16, 'trained');
	is_exact($node, 'late', '<->', 16, 'trained');
	$before = received();
	$node->safe_psql('postgres', 'SET gpuvec.engine = gpu; REINDEX INDEX CONCURRENTLY late_e');
	cmp_ok(received() - $before, '>', $rows * 60, 'so does REINDEX');
	is_sound($node, 'late_e', 'reindexed');
	is_exact($node, 'late', '<->', 16, 'reindexed');
}

# -- progress

{
	my $holder = $node->background_psql('postgres');
	my $phase = 'SELECT phase FROM pg_stat_progress_create_index';

	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $job = background($node, "SET gpuvec.engine = gpu; DROP INDEX t_e;
		SET gpuvec.fault = 'wait 1 build: encoded';
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 40);");
	ok(wait_until($node, "SELECT phase = 'building index: assigning' AND tuples_done > 0
		FROM pg_stat_progress_create_index"), 'progress shows rows as they are encoded');
	$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
	$holder->quit;
	is(end_of($job), 0, 'the build goes on');
}

# -- no room

$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1MB'\n");
$node->restart;
ok(is_up(), 'gpuvecd with little memory');
{
	my ($rc, $err) = build('no room');

	is($rc, 0, 'no room: the index is built');
	like($err, qr/NOTICE:  gpuvecd could not build index "t_e": it refused: no memory/,
		'no room: a notice');
	is_whole($node, 'no room');
}

# -- no gpuvecd

$node->append_conf('postgresql.conf', "gpuvec.server = off\n");
$node->restart;
{
	my ($rc, $err) = build('off');

	is($rc, 0, 'off: the index is built');
	is($err, '', 'off: nobody expects gpuvecd');
	($rc, $err) = build('off', set => ['gpuvec.on_gpu_error = error']);
	like($err, qr/ERROR:  gpuvecd could not build index "t_e": there is none\nHINT:  It is turned off/,
		'off: an error where that is wanted');
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal 11/, 'nothing crashed');

done_testing();
