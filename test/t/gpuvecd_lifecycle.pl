# gpuvecd and those who depend on it: it is started with PostgreSQL and again when it
# dies, never outlives it, and whatever happens to it, sessions live on and their
# answers are right, after one time-out at most.  So they are where something else
# listens in its place, gpuvecd is of another version or says what cannot be, its program
# is not where it is looked for, or a GPU that it had is gone.

use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename;
use File::Copy;
use File::Path;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use Time::HiRes qw(time usleep);

# whose gpuvecd has the engine cpu, which stands in for a GPU that is gone
need_test_build();
my $rows = long_test() ? 50_000 : 2000;
my $node = new_node('main', conf => "include_if_exists = 'part.conf'\n");

# Begin a part of this file: start the server with these settings, and none of the
# part before.
sub begin_part
{
	my ($settings) = @_;

	$node->stop if $node->{_pid};
	unlink $node->data_dir . '/part.conf';
	$node->append_conf('part.conf', $settings);
	$node->start;
}

# with a gpuvecd of its own
my $own = "shared_preload_libraries = 'gpuvec'\ngpuvec.server = '$SERVER'\n";

# How much more often than in $before (timed_out, suspended) a request has timed out,
# and none was made.
sub more_than
{
	my ($timed_out, $suspended) = split /\|/, $_[0];

	return stat_of($node, "timed_out - $timed_out, suspended - $suspended");
}

# Test: the process ends soon.  A zombie that nobody waits for is gone, too.
sub is_gone
{
	my ($pid, $what) = @_;
	my $runs = sub { return (eval { slurp_file("/proc/$pid/cmdline") } // '') ne ''; };

	for (1 .. 18_000)
	{
		last unless $runs->();
		usleep(10_000);
	}
	return ok(!$runs->(), "$what: gpuvecd is gone");
}

begin_part($own . "gpuvec.engine = 'gpu'\nrestart_after_crash = on\ngpuvec.server_timeout = '300ms'\n");
$node->safe_psql('postgres', qq{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, probes = 5)});
my ($right, $right1) = map { $node->safe_psql('postgres', "SET gpuvec.engine = cpu; SELECT answers('t', '<->', 8, 10, $_)") } 20, 1;
# one query, of who wants an error rather than wait
my $strict = "SET gpuvec.on_gpu_error = error; SELECT answers('t', '<->', 8, 10, 1)";

# Test: the answers are right, and gpuvecd gave them, or did not.
sub is_right { return is_answered($node, $right, @_); }

# -- all is well
soon($node, "state = 'up' AND engine = '$SERVER' AND device <> '' AND memory > 0 AND restarts = 0", 'gpuvecd is up');
like(slurp_file('/proc/' . supervisor_pid($node) . '/cmdline'), qr/gpuvec supervisor/, 'its parent is the supervisor');
my $postings = $node->safe_psql('postgres', "SELECT gpuvec_prewarm('t_e')");
cmp_ok($postings, '>=', $rows, 'prewarm mirrors all rows');
gives($node, 'SELECT database, index, state, bytes > 0, lists, postings, behind, loading_percent, error FROM gpuvec_mirrors',
	"postgres|t_e|ready|t|20|$postings|0|100|", 'gpuvec_mirrors shows the mirror');
is_right(1, 'mirrored');
is(stat_of($node, 'latency_p50_us > 0 AND latency_p99_us >= latency_p50_us, mean_batch >= 1, bytes_sent > 0'),
	't|t|t', 'gpuvec_stat has latencies, batches and bytes');
$node->safe_psql('postgres', q{SET gpuvec.engine = auto; SELECT answers('t', '<->', 8, 10, 1)});
is(stat_of($node, 'fallbacks'), 0, 'engine = auto is no fall-back, GPU or not');

# -- killed, under a session that has a connection to it
my $pid = gpuvecd_pid($node);
gives($node, qq{
	SELECT answers('t', '<->', 8, 10, 20) AS before \\gset
	\\! kill -9 $pid
	SELECT answers('t', '<->', 8, 10, 20) AS after \\gset
	\\echo :after},
	$right, 'killed: the session goes on, and its answers are right');
soon($node, "state = 'up' AND restarts = 1 AND pid <> $pid", 'killed: it is started again');
soon_ready($node, 1, 'killed: the mirror is loaded again by itself');
is_right(1, 'started again');

# -- a session in a hurry gives up for itself alone; nor does the supervisor ask
# meanwhile, which on a slow machine may be long
my $log = -s $node->logfile;
my ($supervisor, $stopped) = (supervisor_pid($node), gpuvecd_pid($node));
my $before = stat_of($node, 'timed_out, suspended');
kill 'STOP', $supervisor, $stopped;
my $begun = time;
gives($node, "SET gpuvec.request_timeout = 1; SELECT answers('t', '<->', 8, 10, 20)", $right, 'in a hurry: answers are right');
# it does not ask again for a second, then for two, four ...
my $most = 1 + int(log(1 + time - $begun) / log(2));
kill 'CONT', $stopped, $supervisor;
is_right(1, 'beside one in a hurry');
my ($timed_out, $suspended) = split /\|/, more_than($before);
is($timed_out + $suspended, 20, 'in a hurry: 20 answers without gpuvecd');
ok($timed_out >= 1 && $timed_out <= $most, "in a hurry: it waited once ($timed_out, not $most)");
unlike(slurp_file($node->logfile, $log), qr/gpuvecd d(oes|id) not answer/, 'in a hurry: nobody else is concerned');

# -- stopped: two sessions wait, the others do not, without the supervisor
$before = stat_of($node, 'timed_out, suspended');
kill 'STOP', $supervisor, $stopped;
for ([ 'the first session', 400, 400 ], [ 'the second session', 400, 400 ], [ 'others', 20_000, 0 ])
{
	my ($who, $timeout, $least) = @$_;

	$begun = time;
	gives($node, "SET gpuvec.request_timeout = $timeout; SELECT answers('t', '<->', 8, 10, 1)", $right1, "stopped: right answers for $who");
	my $ms = 1000 * (time - $begun);
	ok($ms >= $least && $ms < 10_000, "stopped: waited for by $who, no longer than it should be ($ms ms)");
}
says($node, $strict, qr/ERROR:  gpuvecd is not responding\nHINT/, 'stopped: an error, if that is wanted');
is(stat_of($node, 'state'), 'suspended', 'stopped: so it is called');
is(more_than($before), '2|2', 'stopped: it is counted');
kill 'CONT', $supervisor;
gives($node, 'SELECT count(*) FROM gpuvec_mirrors', '1', 'stopped: gpuvec_mirrors knows of the mirror');
says($node, "SET statement_timeout = 300; SELECT gpuvec_prewarm('t_e')", qr/statement timeout/, 'stopped: prewarm waits, and can be canceled');
kill 'CONT', $stopped;
soon($node, "state = 'up' AND pid = $stopped", 'continued: it is back');
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
	soon($node, "state = 'up' AND pid = $stopped", 'continued soon');
	$took = time - $continued;
	last if $took < 7;
}
cmp_ok($took, '<', 7, 'it is back at once');
is_right(1, 'continued soon');

# -- a backend crashes: all restart, gpuvecd is another
my $crash = gpuvecd_pid($node);
$node->psql('postgres', 'SELECT pg_backend_pid() AS pid \gset
	\! sleep 0.1; true
	\setenv PID :pid
	\! kill -9 $PID');
is_gone($crash, 'a backend crashed');
soon_up($node, 'a backend crashed');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
is_right(1, 'after the crash');

# -- it ends with the server, be it stopped itself
for my $end ('fast', 'immediate', 'kill9', 'immediate, after SIGSTOP', 'fast, after SIGSTOP')
{
	soon_up($node, "before $end");
	$pid = gpuvecd_pid($node);
	kill 'STOP', $pid if $end =~ /SIGSTOP/;
	$end eq 'kill9' ? $node->kill9 : $node->stop($end =~ /^(\w+)/);
	is_gone($pid, $end);
	$end eq 'kill9' ? restart_after_kill($node) : $node->start unless $end =~ /^fast,/;
}

# -- there is none
$node->append_conf('part.conf', "gpuvec.server = 'off'\n");
$node->start;
is(stat_of($node, 'state, pid'), 'off|', 'server = off');
is_right(0, 'server = off');
says($node, "SELECT gpuvec_prewarm('t_e')", qr/ERROR:  gpuvecd is not running\n.*DETAIL:  "gpuvec.server" is set to "off"/s,
	'server = off: no prewarm');
$node->append_conf('part.conf', "gpuvec.server = 'auto'\ngpuvec.devices = '99'\n");
$node->restart;
soon($node, "state = 'no GPU' AND restarts = 0", 'server = auto, no GPU');
is_right(0, 'no GPU');
$node->append_conf('part.conf', "shared_preload_libraries = ''\n");
$node->restart;
my (undef, $rows1, $said) = $node->psql('postgres',
	"LOAD 'gpuvec'; SELECT * FROM gpuvec_stat; SELECT * FROM gpuvec_mirrors; SET gpuvec.engine = gpu; SELECT answers('t', '<->', 8, 10, 1)");
is($rows1, $right1, 'not preloaded: views are empty, answers right');
my $has_gpu = -e '/dev/nvidiactl';
my $without = $has_gpu ? qr/HINT:  Add "gpuvec" to "shared_preload/ : qr/DETAIL:  The machine has no usable GPU/;
like($said, qr/NOTICE:  gpuvecd is not available\n$without/, 'not preloaded: the views say so');
unlike($said, qr/invalid|WARNING/, 'not preloaded: its settings are known');
gives($node, "LOAD 'gpuvec'; SHOW gpuvec.server; SHOW gpuvec.devices; SHOW gpuvec.gpu_memory",
	"auto\n99\n0", 'not preloaded: ... and shown');
$without = $has_gpu ? qr/Add "gpuvec" to "shared_preload/ : qr/Set "gpuvec.engine" to "cpu"/;
says($node, "LOAD 'gpuvec'; SET gpuvec.engine = gpu; $strict", qr/ERROR:  gpuvecd is not running.*HINT:  $without/s,
	'not preloaded: an error, if that is wanted');
$node->append_conf('part.conf', "gpuvec.server = 'cpu'\n");
$node->reload;
says($node, "LOAD 'gpuvec'; $_", qr/^(?!.*(?:invalid|WARNING)).*HINT:  Add "gpuvec" to "shared_preload/s,
	"not preloaded, with gpuvec.server, which is known: $_")
  for 'SELECT * FROM gpuvec_stat', "SELECT gpuvec_prewarm('t_e')";

# -- somebody else listens in its place, and nothing that is said there is believed

begin_part($own . "gpuvec.engine = 'gpu'\ngpuvec.request_timeout = '500ms'\n");
$node->safe_psql('postgres', q{
	CREATE TABLE small AS SELECT * FROM t WHERE id <= 1000;
	CREATE INDEX small_e ON small USING gpuivfpq (e) WITH (lists = 20, probes = 5)});
my $nearest = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; SELECT answers('small', '<->', 8, 10, 2)");
soon_up($node, 'before others listen');

my $SET = 4;	# the role
my $welcome = message('OK', 'HELLO', greeting());

# A search's answer: head, probes, hits.
sub answer
{
	my ($nprobed, $nhits, $list, $probe, $more) = @_;

	return message('OK', 'SEARCH',
		pack('llqLLLLLlLldflqqddqq', $nprobed, $nhits, 100, 1, 0, 0, 0, 0, 0, 0, $nhits, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		  . pack('lfLLL', $list, 0, 1, 1, 1) x $nprobed
		  . pack('fLSSSS', 0, $probe, 0, 0, 1, 0) x $nhits
		  . $more);
}

# Be gpuvecd: say $hello to the greeting and $search to everything else; with undef
# for one of these end, with '' be silent.
sub pretend
{
	my ($hello, $search) = @_;
	my @clients;

	return pretend_gpuvecd(
		$node->data_dir,
		sub {
			my ($client) = @_;

			push @clients, $client;
			for my $said ($hello, $search)
			{
				last unless sysread($client, my $heard, 65536);
				close $client unless defined $said;
				last if ($said // '') eq '';
				syswrite($client, $said);
			}
		});
}

# Test: with such a server answers are right, and the cause is counted.
sub test_odd
{
	my ($hello, $search, $cause, $what) = @_;
	my $before = stat_of($node, $cause);
	my $pid = pretend($hello, $search);
	# whom a busy machine gives no turn for a while is not silent
	local $ENV{PGOPTIONS} =
	  '-c gpuvec.request_timeout=' . ($cause eq 'timed_out' ? '500ms' : '20s');
	my $begun = time;
	is(answers($node, 'small', '<->', 8, 10, 2), $nearest, "$what: answers are right");
	my $ms = int(1000 * (time - $begun));
	cmp_ok($ms, '<', 15_000, "$what: soon");
	cmp_ok(stat_of($node, $cause), '>', $before, "$what: counted as $cause");
	end_pretended($pid);
	soon_up($node, "$what: nobody is kept from it for long");
	return;
}

test_odd(@$_) for (
	# the greeting is wrong
	[ undef, undef, 'broken', 'closes at once' ],
	[ '', '', 'timed_out', 'silent' ],
	[ 'HTTP/1.1 400 Bad Request', undef, 'broken', 'speaks HTTP' ],
	[ refusal('HELLO', 2, 'other version'), undef, 'refused', 'another version' ],
	[ refusal('HELLO', 3, 'full'), undef, 'refused', 'too many connections' ],
	[ refusal('HELLO', 77, 'no idea'), undef, 'broken', 'an unknown refusal' ],
	[ message('OK', 'HELLO', 'x' x 20), undef, 'broken', 'a short greeting' ],
	[ message('OK', 'SEARCH', 'x' x 48), undef, 'broken', 'an answer to something else' ],
	[ pack('LSS', 0xFFFFFFFF, @MESSAGE{ 'OK', 'HELLO' }), undef, 'broken', 'a length beyond all' ],
	# the answer to a search is wrong
	[ $welcome, undef, 'broken', 'ends instead of an answer' ],
	[ $welcome, '', 'timed_out', 'does not answer' ],
	[ $welcome, substr(answer(2, 2, 0, 0, ''), 0, 50), 'timed_out', 'half an answer' ],
	[ $welcome, answer(2, 2, 0, 0, 'x'), 'broken', 'an answer with a rest' ],
	[ $welcome, answer(2, 2, 0, 0, '') . 'x', 'broken', 'more than an answer' ],
	[ $welcome, answer(2, 2, 20, 0, ''), 'broken', 'a list that there is not' ],
	[ $welcome, answer(2, 2, -1, 0, ''), 'broken', 'a negative list' ],
	[ $welcome, answer(2, 2, 0, 2, ''), 'broken', 'a hit of no probe' ],
	[ $welcome, answer(6, 2, 0, 0, ''), 'broken', 'more probes than asked for' ],
	[ $welcome, message('OK', 'SEARCH', pack('llqLLLL', -1, 0, 0, 1, 0, 0, 0)), 'broken', 'a negative count' ],
	[ $welcome, pack('LSS', 1 << 30, @MESSAGE{ 'OK', 'SEARCH' }), 'broken', 'an answer of a gigabyte' ],
	[ $welcome, refusal('SEARCH', 7, 'no memory'), 'refused', 'no memory' ],
	[ $welcome, refusal('SEARCH', 8, 'broken'), 'engine_failed', 'engine failed' ]);

# who may not share memory searches without
my $asked = stat_of($node, 'searches_by_server + stale');
my $failed = stat_of($node, 'refused, broken, timed_out');
my %said = (HELLO => $welcome, SEARCH => answer(2, 0, 0, 0, ''), ATTACH_SHM => refusal('ATTACH_SHM', 7, 'no memory'));
my %name = reverse %MESSAGE;
$pid = pretend_gpuvecd(
	$node->data_dir,
	sub {
		my ($client) = @_;

		return if fork // die;
		while ((sysread($client, my $header, 8) // 0) == 8)
		{
			my ($length, $type) = unpack('LS', $header);

			sysread($client, my $asked, $length) if $length > 0;
			syswrite($client, $said{ $name{$type} });
		}
		POSIX::_exit(0);
	});
$node->safe_psql('postgres', "SELECT answers('small', '<->', 8, 10, 30)");
end_pretended($pid);
is(stat_of($node, 'searches_by_server + stale'), $asked + 30, 'no mailbox: all searches are answered');
is(stat_of($node, 'refused, broken, timed_out'), $failed, 'no mailbox: nothing else has failed');
soon_up($node, 'no mailbox');

# A refusal is a sign of life: work that takes long is not given up while nobody
# else gets in, but when its connection ends; and neither do sessions search
# themselves, after the supervisor, too, was refused.
my (@at_work, $nrefused);
$pid = pretend_gpuvecd(
	$node->data_dir,
	sub {
		my ($client) = @_;

		sysread($client, my $heard, 65536);
		if ((unpack('x8LLL', $heard))[2] == $SET)
		{
			push @at_work, $client;
			syswrite($client, $welcome);
			return;
		}
		syswrite($client, refusal('HELLO', 3, 'full'));
		@at_work = () if ++$nrefused == 2;
	});
says($node, q{SET gpuvec.on_gpu_error = error;
	SELECT count(*) FROM gpuvec_exact_search('small', 'e', (SELECT array_agg(e) FROM small), 3)},
	qr/gpuvecd could not run the job: the connection was lost/, 'full: work goes on until it ends');
# the supervisor has a connection, until that does not answer
my $real = gpuvecd_pid($node);
kill 'STOP', $real;
soon($node, q{state = 'suspended'}, 'full: it is silent');
kill 'CONT', $real;
my $continued = time;
soon($node, q{state = 'up'}, 'full: it refuses');
cmp_ok(time - $continued, '<', 10, 'full: ... and lives');
is(gpuvecd_pid($node), $real, 'full: it is the same');
# its connection broke: from now on it would ask who is not gpuvecd, or nobody, every
# second, and have sessions not ask
$supervisor = supervisor_pid($node);
kill 'STOP', $supervisor;
end_pretended($pid);

# An answer may be of no use, because the mirror is of another time; but it is one: who
# is not answered meanwhile has not met a server that is silent for all.
$node->safe_psql('postgres', q{
	CREATE TABLE u AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 5000) AS g;
	CREATE INDEX u_e ON u USING gpuivfpq (e) WITH (lists = 4, probes = 4)});
$before = stat_of($node, 'timed_out, stale');
my $nclients;
$pid = pretend_gpuvecd(
	$node->data_dir,
	sub {
		my ($client) = @_;
		my $mute = ++$nclients % 2;

		push @at_work, $client;
		for my $said ($welcome, $mute ? '' : answer(4, 0, 0, 0, ''))
		{
			sysread($client, my $heard, 65536);
			syswrite($client, $said);
		}
	});
for (1 .. 2)
{
	local $ENV{PGOPTIONS} = '-c gpuvec.request_timeout=3s';
	my $waits = background($node, "SELECT answers('u', '<->', 8, 10, 1)");
	select(undef, undef, undef, .5);
	$node->safe_psql('postgres', "SELECT answers('u', '<->', 8, 10, 1)");
	end_of($waits);
}
# gpuvec_stat asks, too
end_pretended($pid);
is(stat_of($node, 'timed_out, stale'), join('|', map { $_ + 2 } split /\|/, $before),
	'useless answers: others were not answered meanwhile');
is(stat_of($node, 'state'), 'up', 'useless answers: it is not called silent');

# errors, for who wants them
$strict =~ s/'t'/'small'/;
$pid = pretend($welcome, refusal('SEARCH', 8, 'an illegal address'));
says($node, "SET gpuvec.request_timeout = '20s'; $strict",
	qr/ERROR:  gpuvecd refused a search\nDETAIL:  Reason: an illegal address\.\nHINT/, 'an error names the reason');
end_pretended($pid);
says($node, $strict, qr/ERROR:  gpuvecd is not running\nDETAIL:  The state is "up": gpuvecd is not listening\./,
	'an error when nobody listens');

# gpuvecd itself is well all the time, and listens again when it is started again
kill 'CONT', $supervisor;
$node->restart;
soon_up($node, 'restarted');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('small_e')});
is(answers($node, 'small', '<->', 8, 10, 2), $nearest, 'restarted: answers are right');
is(served($node), '2', 'restarted: by gpuvecd');

# -- an index that is damaged hides no other's mirror
$node->append_conf('part.conf', 'shared_buffers = 1MB');
$node->restart;
soon_up($node, 'few buffers');
$node->safe_psql('postgres', q{
	CREATE TABLE damaged AS SELECT * FROM small;
	CREATE INDEX damaged_e ON damaged USING gpuivfpq (e) WITH (lists = 20);
	CREATE TABLE large AS SELECT repeat('x', 1900) AS filler FROM generate_series(1, 1600);
	SELECT gpuvec_prewarm('small_e'), gpuvec_prewarm('damaged_e');
	CHECKPOINT});
my $mirrors = 'SELECT index, state, behind FROM gpuvec_mirrors ORDER BY 1';
gives($node, $mirrors, "small_e|ready|0\ndamaged_e|ready|0", 'two mirrors');
my $file = $node->data_dir . '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('damaged_e')});
open(my $handle, '+<', $file) or die "$file: $!";
syswrite($handle, "\0" x 8192);
close $handle;
# its pages leave the buffers when others are used more
$node->safe_psql('postgres', q{
	SELECT count(*) FROM generate_series(0, 399) AS block,
		LATERAL (SELECT FROM large WHERE ctid = format('(%s,1)', block)::tid) AS used}) for 1 .. 8;
my ($rc, $shown, $err) = $node->psql('postgres', $mirrors);
is("$shown$err", "small_e|ready|0\ndamaged_e|ready|", 'a damaged index: mirrors are shown, and no error');
says($node, q{SELECT FROM gpuvec_index_info('damaged_e')}, qr/damaged|not a gpuivfpq index|invalid/, 'a damaged index: it is');
$node->safe_psql('postgres', 'DROP TABLE damaged, large, u');

# -- where the supervisor finds its program: beside the library, be that in an image
# mounted read-only, beside postgres, in PATH, or where gpuvec.server_path says;
# nowhere: sessions search, and the log says what to do

my %config = map { $_ => (run_command([ 'pg_config', "--$_" ]))[0] } qw(bindir pkglibdir sharedir);
my $temp = abs_path(PostgreSQL::Test::Utils::tempdir());
my $system_path = '/usr/bin:/bin';

# Copy a program, or a library; returns where it is then.
sub copy_program
{
	my ($from, $to) = @_;

	mkpath(dirname($to));
	copy($from, $to) or die "$from to $to: $!";
	chmod 0755, $to;
	return $to;
}

# Another installation of this PostgreSQL, links to all that is not gpuvec's.  It finds
# its folders by where they are, seen from its programs, which are copied.
my ($prefix) = "$config{bindir}\n$config{pkglibdir}\n$config{sharedir}" =~ m{^(/.*/).*\n\1.*\n\1};
my %bare = map { $_ => "$temp/bare/" . substr($config{$_}, length $prefix) } keys %config;
for (sort keys %config)
{
	mkpath(dirname($bare{$_}));
	system_or_bail('cp', '-rs', $config{$_}, $bare{$_});
	unlink glob "$bare{$_}/gpuvec* $bare{$_}/extension/gpuvec*";
}
for my $program (map { "$bare{bindir}/$_" } qw(pg_ctl postgres))
{
	unlink $program;
	copy_program("$config{bindir}/" . basename($program), $program);
}

# Start the server again, as another installation, which PATH names; it has its log
# from here on.
sub start_as
{
	my ($path, $settings) = @_;

	$node->stop if $node->{_pid};
	$log = -s $node->logfile;
	local $ENV{PATH} = $path;
	begin_part($own . ($settings // ''));
}

# Test: this program runs as gpuvecd; returns its PID.
sub runs
{
	my ($program, $what) = @_;

	log_has($node, qr/started gpuvecd \(PID \d+\)(?s:.*)gpuvecd is ready/, $log, "$what: gpuvecd is started");
	my ($pid) = slurp_file($node->logfile, $log) =~ /.*started gpuvecd \(PID (\d+)\)/s;
	is($pid && readlink "/proc/$pid/exe", $program, $what);
	return $pid;
}

# as `make install` leaves it
start_as($ENV{PATH});
runs("$config{bindir}/gpuvecd", 'beside the library, or postgres');
gives($node, 'SHOW gpuvec.server_path', '', 'no path is set');

# nowhere: the library without its program
copy_program("$config{pkglibdir}/gpuvec.so", "$bare{pkglibdir}/gpuvec.so");
start_as("$bare{bindir}:$system_path");
log_has($node, qr/could not find program "gpuvecd"\n.*DETAIL:  Searched the .*\n.*HINT:  Install gpuvecd/, $log, 'nowhere: the log says so');
is(answers($node, 't', '<->', 8, 10, 20), $right, 'nowhere: sessions search');
is(stat_of($node, 'state'), 'down', 'nowhere: it is down');

# in PATH, behind what is not it: a folder, a file, the data directory
mkpath([ "$temp/folder/gpuvecd", "$temp/file" ]);
append_to_file("$temp/file/gpuvecd", 'no program');
my $packaged = copy_program("$config{bindir}/gpuvecd", "$temp/sbin/gpuvecd");
copy_program("$config{bindir}/gpuvecd", $node->data_dir . '/gpuvecd');
start_as("$bare{bindir}:.::$temp/folder:$temp/file:$temp/none:$temp/sbin:$config{bindir}:$system_path");
$pid = runs($packaged, 'PATH: the first program in it, not one in the data directory');
is(answers($node, 't', '<->', 8, 10, 20), $right, 'PATH: answers');

# named: from the next start on, and that one or none
sub name_program
{
	my ($path) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET gpuvec.server_path = '$path'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('gpuvec.server_path') = '$path'");
	$log = -s $node->logfile;
	kill 'KILL', $pid;
	return;
}
my $named = copy_program("$config{bindir}/gpuvecd", "$temp/named/server");
says($node, "ALTER SYSTEM SET gpuvec.server_path = 'named/server'",
	qr/ERROR:  invalid value for .*\nDETAIL:  The path must be absolute/, 'named: absolutely');
name_program($named);
$pid = runs($named, 'named: rather than that in PATH');
name_program("$temp/nothing");
log_has($node, qr{could not execute "$temp/nothing": No such file or directory\n.*HINT:  Check the setting "gpuvec.server_path"},
	$log, 'named: one that is not there');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET gpuvec.server_path');
$log = -s $node->logfile;
$node->reload;
runs($packaged, 'named no more: started at once');

# an image of the extension, read-only, in front of everything else
my $image = "$temp/extensions/gpuvec";
copy_program("$config{pkglibdir}/gpuvec.so", "$image/lib/gpuvec.so");
copy_program("$config{bindir}/gpuvecd", "$image/bin/gpuvecd");
mkpath("$image/share/extension");
copy($_, "$image/share/extension") for glob "$config{sharedir}/extension/gpuvec*";
unlink "$bare{pkglibdir}/gpuvec.so";
copy_program("$config{bindir}/gpuvecd", "$bare{bindir}/gpuvecd");
chmod 0555, "$image/$_" for qw(lib bin share/extension share), '';
my $whole = $node->pg_version >= 18;
start_as("$bare{bindir}:$temp/sbin:$system_path",
	"dynamic_library_path = '$image/lib:\$libdir'\n"
	  . ($whole ? "extension_control_path = '$image/share:\$system'\n" : ''));
runs("$image/bin/gpuvecd", 'image: beside its library');
SKIP:
{
	skip 'images of extensions need PostgreSQL 18', 3 unless $whole;
	is(answers($node, 't', '<->', 8, 10, 20), $right, 'image: answers');
	is(stat_of($node, 'state'), 'up', 'image: it is up');
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	is($node->safe_psql('other', 'CREATE EXTENSION gpuvec; SELECT count(*) FROM gpuvec_stat'), '1', 'image: CREATE EXTENSION');
}
chmod 0755, "$image/$_" for '', qw(lib bin share share/extension);

# -- its GPU is gone: what a join costs then is not what it costs with the GPU, which
# one of ours says that it has

my $folder = PostgreSQL::Test::Utils::tempdir_short();
# GvStatusReply: instance, all else 0
my $status = pack('Qx304', 12345);
$pid = pretend_gpuvecd(
	$folder,
	sub { converse($_[0], sub { return $_[0] eq 'HELLO' ? greeting('cuda') : $_[0] eq 'STATUS' ? $status : ''; }); });
begin_part("shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'external'\n"
	  . "gpuvec.server_directory = '$folder'\ngpuvec.auto_mirror = off\n");
$node->safe_psql('postgres', q{
	SET gpuvec.engine = cpu;
	CREATE FUNCTION vec(i int) RETURNS real[] LANGUAGE sql AS
		'SELECT array_agg(sin(i % 100 * 131 + j * 17) + (hashint4(i * 128 + j) & 1023) / 1024.0 ORDER BY j)
		FROM generate_series(1, 128) AS j';
	CREATE TABLE joined AS SELECT i AS id, vec(i) AS e FROM generate_series(1, 6000) AS i;
	CREATE INDEX joined_e ON joined USING gpuivfpq (e) WITH (lists = 100);
	CREATE TABLE asked AS SELECT * FROM joined WHERE id % 6 = 0});
soon($node, q{state = 'up' AND engine = 'cuda'}, 'there seems to be a GPU');

# The notice that each row was searched for, from a join.
sub notice
{
	my ($engine) = @_;
	my ($status, undef, $notice) = $node->psql('postgres', qq{
		SET gpuvec.engine = $engine; SET gpuvec.candidates = 10; SET gpuvec.recall = 0.5;
		SELECT count(*) FROM gpuvec_knn_join('asked', 'id', 'e', 'joined', 'id', 'e', 5, 'l2', 'index')});

	is($status, 0, "$engine: joined");
	return $notice;
}

my $searched = qr/searched for each row of table "asked"/;
end_pretended($pid);
soon($node, q{state = 'down'}, 'it is down');
like(notice('cpu'), $searched, 'the session alone searches for each row');
like(notice('auto'), $searched, 'and so it does where the GPU is gone');
$node->stop;

done_testing();
