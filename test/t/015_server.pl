# gpuvecd and those who depend on it: it is started with PostgreSQL and again
# when it dies, never outlives it, and whatever happens to it, sessions live
# on and their answers are right, after one time-out at most.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

need_gpuvecd();
my $rows = long_test() ? 50_000 : 2000;
my $node = new_node(
	'main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = '$SERVER'\n"
	  . "gpuvec.engine = 'gpu'\nrestart_after_crash = on\n"
	  . "gpuvec.server_timeout = '300ms'\n");

# A column of gpuvec_stat.
sub stat_of
{
	my ($column) = @_;

	return $node->safe_psql('postgres', "SELECT $column FROM gpuvec_stat");
}

# Test: soon the condition on gpuvec_stat holds.
sub soon
{
	my ($condition, $what) = @_;
	my $ok = wait_until($node, "SELECT $condition FROM gpuvec_stat");

	ok($ok, $what);
	diag($node->safe_psql('postgres', '\x \\\\ SELECT * FROM gpuvec_stat')) unless $ok;
	return;
}

# Test: soon the mirror is there and ready.
sub soon_mirrored
{
	my ($what) = @_;

	ok( wait_until($node,
			q{SELECT count(*) = 1 FROM gpuvec_mirrors WHERE index = 't_e'::regclass AND state = 'ready'},
			3000),
		$what);
	return;
}

sub parent_of
{
	my ($pid) = @_;

	return (slurp_file("/proc/$pid/stat") =~ /.*\) \S (\d+)/)[0];
}

# How much more often than in that row a request timed out, and there was none.
sub more_than
{
	my @before = split /\|/, $_[0];
	my @now = split /\|/, stat_of('timed_out, suspended');

	return map { $now[$_] - $before[$_] } 0, 1;
}

# A zombie nobody waits for is gone, too.
sub is_running
{
	my ($pid) = @_;
	my $command = -e "/proc/$pid/cmdline" ? eval { slurp_file("/proc/$pid/cmdline") } : '';

	return ($command // '') ne '';
}

# Test: the process ends soon.
sub is_gone
{
	my ($pid, $what) = @_;

	for (1 .. 18_000)
	{
		last unless is_running($pid);
		usleep(10_000);
	}
	ok(!is_running($pid), "$what: gpuvecd is gone");
	return;
}

# The answers, with settings; the first line is how many ms they took.
sub timed_answers
{
	my ($settings) = @_;
	my $out = $node->safe_psql(
		'postgres', qq{
		$settings;
		SELECT clock_timestamp() AS begun \\gset
		SELECT answers('t', '<->', 8, 10, 1) AS answers \\gset
		SELECT (1000 * extract(epoch FROM clock_timestamp() - :'begun'::timestamptz))::int;
		\\echo :answers
	});

	return split /\n/, $out, 2;
}

$node->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, probes = 5);
});
my $right = $node->safe_psql('postgres',
	"SET gpuvec.engine = cpu; SELECT answers('t', '<->', 8, 10, 20)");
my $right1 = $node->safe_psql('postgres',
	"SET gpuvec.engine = cpu; SELECT answers('t', '<->', 8, 10, 1)");

# Test: the answers are right, and gpuvecd gave them, or did not.
sub is_right
{
	my ($by_server, $what) = @_;
	my $before = stat_of('searches_by_server');

	is(answers($node, 't', '<->', 8, 10, 20), $right, "$what: answers are right");
	is(stat_of('searches_by_server') - $before,
		$by_server ? 20 : 0, "$what: by gpuvecd are " . ($by_server ? 'all' : 'none'));
	return;
}

# -- all is well
soon("state = 'up' AND engine = '$SERVER' AND device <> '' AND memory > 0 AND restarts = 0",
	'gpuvecd is up');
like(slurp_file('/proc/' . parent_of(stat_of('pid')) . '/cmdline'),
	qr/gpuvec supervisor/, 'its parent is the supervisor');
my $postings = $node->safe_psql('postgres', "SELECT gpuvec_prewarm('t_e')");
cmp_ok($postings, '>=', $rows, 'prewarm mirrors all rows');
is( $node->safe_psql('postgres',
		q{SELECT database, index, state, bytes > 0, lists, postings, behind, loading_percent, error
		FROM gpuvec_mirrors}),
	"postgres|t_e|ready|t|20|$postings|0|100|", 'gpuvec_mirrors shows the mirror');
is_right(1, 'mirrored');
like(stat_of('latency_p50_us > 0 AND latency_p99_us >= latency_p50_us, mean_batch >= 1, bytes_sent > 0'),
	qr/^t\|t\|t$/, 'gpuvec_stat has latencies, batches and bytes');
$node->safe_psql('postgres', q{SET gpuvec.engine = auto; SELECT answers('t', '<->', 8, 10, 1)});
is(stat_of('fallbacks'), 0, 'engine = auto is no fall-back, card or not');

# -- killed, under a session that has a connection to it
my $pid = stat_of('pid');
my $kill = "kill -9 $pid";
is( $node->safe_psql(
		'postgres', qq{
		SELECT answers('t', '<->', 8, 10, 20) AS before \\gset
		\\! $kill
		SELECT answers('t', '<->', 8, 10, 20) AS after \\gset
		\\echo :after
	}),
	$right, 'killed: the session goes on, and its answers are right');
soon("state = 'up' AND restarts = 1 AND pid <> $pid", 'killed: it is started again');
soon_mirrored('killed: the mirror is loaded again by itself');
is_right(1, 'started again');

# -- a session in a hurry gives up for itself alone; nor does the supervisor ask
# meanwhile, which on a slow machine may be long
my ($ms, $out);
my $log = -s $node->logfile;
my $stopped = stat_of('pid');
my $supervisor = parent_of($stopped);
my $before = stat_of('timed_out, suspended');
kill 'STOP', $supervisor, $stopped;
my $begun = time;
is($node->safe_psql('postgres',
		"SET gpuvec.request_timeout = 1; SELECT answers('t', '<->', 8, 10, 20)"),
	$right, 'in a hurry: answers are right');
# it does not ask again for a second, then for two, four ...
my $most = 1 + int(log(1 + time - $begun) / log(2));
kill 'CONT', $stopped, $supervisor;
is_right(1, 'beside one in a hurry');
my ($timed_out, $suspended) = more_than($before);
is($timed_out + $suspended, 20, 'in a hurry: 20 answers without gpuvecd');
ok($timed_out >= 1 && $timed_out <= $most, "in a hurry: it waited once ($timed_out, not $most)");
unlike(slurp_file($node->logfile, $log), qr/gpuvecd d(oes|id) not answer/,
	'in a hurry: nobody else is concerned');

# -- stopped: two sessions wait, the others do not, without the supervisor
$before = stat_of('timed_out, suspended');
kill 'STOP', $supervisor, $stopped;
for my $session ('first', 'second')
{
	($ms, $out) = timed_answers('SET gpuvec.request_timeout = 400');
	is($out, $right1, "stopped: the $session session's answers are right");
	cmp_ok($ms, '>=', 400, "stopped: it waited ($ms ms)");
	cmp_ok($ms, '<', 10_000, 'stopped: ... no longer than it should');
}
($ms, $out) = timed_answers('SET gpuvec.request_timeout = 20000');
is($out, $right1, 'stopped: the answers of others are right');
cmp_ok($ms, '<', 10_000, "stopped: others do not wait ($ms ms)");
my ($rc, undef, $err) = $node->psql('postgres',
	"SET gpuvec.on_gpu_error = error; SELECT answers('t', '<->', 8, 10, 1)");
like($err, qr/ERROR:  gpuvecd does not answer\nHINT/, 'stopped: an error, if that is wanted');
is(stat_of('state'), 'suspended', 'stopped: so it is called');
is(join('|', more_than($before)), '2|2', 'stopped: it is counted');
kill 'CONT', $supervisor;
is($node->safe_psql('postgres', 'SELECT count(*) FROM gpuvec_mirrors'),
	'1', 'stopped: gpuvec_mirrors knows of the mirror');
($rc, undef, $err) = $node->psql('postgres',
	"SET statement_timeout = 300; SELECT gpuvec_prewarm('t_e')");
like($err, qr/statement timeout/, 'stopped: prewarm waits, and can be canceled');
kill 'CONT', $stopped;
soon("state = 'up' AND pid = $stopped", 'continued: it is back');
is_right(1, 'continued');

# -- the second session waits in vain while the supervisor waits for an answer
# that comes: others are not kept from gpuvecd until it asks again, which is long
# where no loader runs
my $took;
for (1 .. 3)
{
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'gpuvec loader'});
	sleep 3;
	kill 'STOP', $stopped;
	my @late = map { background($node, "SELECT pg_sleep($_); SET gpuvec.request_timeout = 400; SELECT answers('t', '<->', 8, 10, 1)") } 0, .4;
	is(end_of($_), 0, 'two sessions waited') for @late;
	kill 'CONT', $stopped;
	my $continued = time;
	soon("state = 'up' AND pid = $stopped", 'continued soon');
	$took = time - $continued;
	last if $took < 7;
}
cmp_ok($took, '<', 7, 'it is back at once');
is_right(1, 'continued soon');

# -- a canceled query leaves nothing behind
my $broken = stat_of('broken');
kill 'STOP', $supervisor, $stopped;
is( $node->safe_psql(
		'postgres', qq{
		SET gpuvec.request_timeout = 10000;
		\\set ON_ERROR_STOP off
		-- for its own message alone: SET might be canceled, too
		SET LOCAL statement_timeout = 200 \\; SELECT answers('t', '<->', 8, 10, 1);
		\\! kill -CONT $stopped
		SELECT answers('t', '<->', 8, 10, 20) AS after \\gset
		\\echo :after
	}),
	$right, 'canceled: the same session gets right answers');
kill 'CONT', $supervisor;
is(stat_of('broken'), $broken, 'canceled: nothing is out of step');
is_right(1, 'canceled');

# -- a backend crashes: all restart, gpuvecd is another
my $crash = stat_of('pid');
$node->psql('postgres', 'SELECT pg_backend_pid() AS pid \gset
	\! sleep 0.1; true
	\setenv PID :pid
	\! kill -9 $PID');
is_gone($crash, 'a backend crashed');
soon("state = 'up'", 'a backend crashed: gpuvecd is up again');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
is_right(1, 'after the crash');

# -- it ends with the server
$pid = stat_of('pid');
$node->stop('fast');
is_gone($pid, 'stop fast');
$node->start;
soon("state = 'up'", 'started');
$pid = stat_of('pid');
$node->stop('immediate');
is_gone($pid, 'stop immediate');
$node->start;
soon("state = 'up'", 'started');
$pid = stat_of('pid');
$node->kill9;
is_gone($pid, 'postmaster killed');
restart_after_kill($node);

# The same when it is stopped.
for my $mode ('immediate', 'fast')
{
	soon("state = 'up'", 'started');
	$pid = stat_of('pid');
	kill 'STOP', $pid;
	$node->stop($mode);
	is_gone($pid, "stop $mode, after SIGSTOP");
	$node->start if $mode eq 'immediate';
}

# -- there is none
$node->append_conf('postgresql.conf', "gpuvec.server = 'off'\n");
$node->start;
is(stat_of('state, pid'), 'off|', 'server = off');
is_right(0, 'server = off');
($rc, undef, $err) = $node->psql('postgres', "SELECT gpuvec_prewarm('t_e')");
like($err, qr/ERROR:  there is no gpuvecd\n.*HINT:  It is turned off/s, 'server = off: no prewarm');
$node->append_conf('postgresql.conf', "gpuvec.server = 'auto'\ngpuvec.devices = '99'\n");
$node->restart;
soon("state = 'no card' AND restarts = 0", 'server = auto, no card');
is_right(0, 'no card');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
(undef, $out, $err) = $node->psql('postgres',
	"LOAD 'gpuvec'; SELECT * FROM gpuvec_stat; SELECT * FROM gpuvec_mirrors; SET gpuvec.engine = gpu; SELECT answers('t', '<->', 8, 10, 1)");
is($out, $right1, 'not preloaded: views are empty, answers right');
my $gain = -e '/dev/nvidiactl';
my $without = $gain ? qr/HINT:  Add gpuvec to shared_preload/ : qr/DETAIL:  This machine shows no card/;
like($err, qr/NOTICE:  gpuvecd is not used\n$without/, 'not preloaded: the views say so');
unlike($err, qr/invalid|WARNING/, 'not preloaded: its settings are known');
is( $node->safe_psql('postgres',
		"LOAD 'gpuvec'; SHOW gpuvec.server; SHOW gpuvec.devices; SHOW gpuvec.gpu_memory"),
	"auto\n99\n0", 'not preloaded: ... and shown');
($rc, undef, $err) = $node->psql('postgres',
	"LOAD 'gpuvec'; SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error; SELECT answers('t', '<->', 8, 10, 1)");
$without = $gain ? qr/Add gpuvec to shared_preload/ : qr/Set gpuvec.engine to cpu/;
like($err, qr/ERROR:  gpuvecd is not running.*HINT:  $without/s,
	'not preloaded: an error, if that is wanted');
$node->append_conf('postgresql.conf', "gpuvec.server = 'cpu'\n");
$node->reload;
for my $ask ('SELECT * FROM gpuvec_stat', "SELECT gpuvec_prewarm('t_e')")
{
	(undef, undef, $err) = $node->psql('postgres', "LOAD 'gpuvec'; $ask");
	like($err, qr/HINT:  Add gpuvec to shared_preload/, "not preloaded, with gpuvec.server: $ask");
	unlike($err, qr/invalid|WARNING/, "not preloaded, with gpuvec.server: it is known");
}
$node->stop;

done_testing();
