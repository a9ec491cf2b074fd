# Something else listens where gpuvecd should, or gpuvecd is of another
# version, or out of its mind: answers are right, the connection is given up,
# and nothing that it says is believed.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $rows = 1000;
my $node = new_node(
	'main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = '$SERVER'\n"
	  . "gpuvec.engine = 'gpu'\ngpuvec.request_timeout = '500ms'\n");

$node->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, probes = 5);
});
my $right = $node->safe_psql('postgres',
	"SET gpuvec.engine = cpu; SELECT answers('t', '<->', 8, 10, 2)");
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up');

# As gv_protocol.h has it.
my ($OK, $REFUSED) = (64, 65);
my ($HELLO, $SEARCH) = (1, 4);
my $SET = 4;	# the role

sub message
{
	my ($type, $request, $body) = @_;

	return pack('LSS', length $body, $type, $request) . $body;
}

my $welcome = message($OK, $HELLO, greeting());

sub refusal
{
	my ($request, $code, $reason) = @_;

	return message($REFUSED, $request, pack('La252', $code, $reason));
}

# A search's answer: head, probes, hits.
sub answer
{
	my ($nprobed, $nhits, $list, $probe, $more) = @_;

	return message($OK, $SEARCH,
		pack('llqLLLLLlqqddqq', $nprobed, $nhits, 100, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		  . pack('lfLLL', $list, 0, 1, 1, 1) x $nprobed
		  . pack('fLSSSS', 0, $probe, 0, 0, 1, 0) x $nhits
		  . $more);
}

# Be gpuvecd: say $hello to the greeting and $search to everything else; with undef
# for one of these: end; with '': be silent.
sub pretend
{
	my ($hello, $search) = @_;
	my @clients;

	return pretend_gpuvecd(
		$node,
		sub {
			my ($client) = @_;

			$SIG{PIPE} = 'IGNORE';
			push @clients, $client;
			for my $said ($hello, $search)
			{
				my $length = sysread($client, my $heard, 65536);
				last unless $length;
				if (!defined $said)
				{
					close $client;
					last;
				}
				last if $said eq '';
				syswrite($client, $said);
			}
		});
}

# Test: with such a server answers are right, and the cause is counted.
sub test_odd
{
	my ($hello, $search, $cause, $what) = @_;
	my $before = $node->safe_psql('postgres', "SELECT $cause FROM gpuvec_stat()");
	my $pid = pretend($hello, $search);
	# whom a busy machine gives no turn for a while is not silent
	local $ENV{PGOPTIONS} =
	  '-c gpuvec.request_timeout=' . ($cause eq 'timed_out' ? '500ms' : '20s');
	my $begun = time;
	is(answers($node, 't', '<->', 8, 10, 2), $right, "$what: answers are right");
	my $ms = int(1000 * (time - $begun));
	cmp_ok($ms, '<', 15_000, "$what: soon");
	cmp_ok($node->safe_psql('postgres', "SELECT $cause FROM gpuvec_stat()"),
		'>', $before, "$what: counted as $cause");
	kill 'KILL', $pid;
	waitpid $pid, 0;
	ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat()}, 60),
		"$what: nobody is kept from gpuvecd for long");
	return;
}

# the greeting
test_odd(undef, undef, 'broken', 'closes at once');
test_odd('', '', 'timed_out', 'silent');
test_odd('HTTP/1.1 400 Bad Request', undef, 'broken', 'speaks HTTP');
test_odd(refusal($HELLO, 2, 'other version'), undef, 'refused', 'another version');
test_odd(refusal($HELLO, 3, 'full'), undef, 'refused', 'too many connections');
test_odd(refusal($HELLO, 77, 'no idea'), undef, 'broken', 'an unknown refusal');
test_odd(message($OK, $HELLO, 'x' x 20), undef, 'broken', 'a short greeting');
test_odd(message($OK, $SEARCH, 'x' x 48), undef, 'broken', 'an answer to something else');
test_odd(pack('LSS', 0xFFFFFFFF, $OK, $HELLO), undef, 'broken', 'a length beyond all');

# the answer to a search
test_odd($welcome, undef, 'broken', 'ends instead of an answer');
test_odd($welcome, '', 'timed_out', 'does not answer');
test_odd($welcome, substr(answer(2, 2, 0, 0, ''), 0, 50), 'timed_out', 'half an answer');
test_odd($welcome, answer(2, 2, 0, 0, 'x'), 'broken', 'an answer with a rest');
test_odd($welcome, answer(2, 2, 0, 0, '') . 'x', 'broken', 'more than an answer');
test_odd($welcome, answer(2, 2, 20, 0, ''), 'broken', 'a list that there is not');
test_odd($welcome, answer(2, 2, -1, 0, ''), 'broken', 'a negative list');
test_odd($welcome, answer(2, 2, 0, 2, ''), 'broken', 'a hit of no probe');
test_odd($welcome, answer(6, 2, 0, 0, ''), 'broken', 'more probes than asked for');
test_odd($welcome, pack('LSS', 32, $OK, $SEARCH) . pack('llqLLLL', -1, 0, 0, 1, 0, 0, 0),
	'broken', 'a negative count');
test_odd($welcome, pack('LSS', 1 << 30, $OK, $SEARCH), 'broken', 'an answer of a gigabyte');
test_odd($welcome, refusal($SEARCH, 7, 'no memory'), 'refused', 'no memory');
test_odd($welcome, refusal($SEARCH, 8, 'broken'), 'engine_failed', 'the engine failed');

# A refusal is a sign of life: work that takes long is not given up while nobody
# else gets in, but when its connection ends; and neither do sessions search
# themselves, after the supervisor, too, was refused.
my (@at_work, $nrefused);
my $pid = pretend_gpuvecd(
	$node,
	sub {
		my ($client) = @_;

		sysread($client, my $heard, 65536);
		if ((unpack('x8LLL', $heard))[2] == $SET)
		{
			push @at_work, $client;
			syswrite($client, $welcome);
			return;
		}
		syswrite($client, refusal($HELLO, 3, 'full'));
		@at_work = () if ++$nrefused == 2;
	});
my (undef, undef, $err) = $node->psql('postgres',
	"SET gpuvec.on_gpu_error = error; SELECT count(*) FROM gpuvec_exact_search('t', 'e', (SELECT array_agg(e) FROM t), 3)");
like($err, qr/gpuvecd could not do the work: the connection ended/, 'full: work goes on until it ends');
# the supervisor has a connection, until that does not answer
my $real = gpuvecd_pid($node);
kill 'STOP', $real;
ok(wait_until($node, q{SELECT state = 'suspended' FROM gpuvec_stat}), 'full: it is silent');
kill 'CONT', $real;
my $continued = time;
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'full: it refuses');
cmp_ok(time - $continued, '<', 10, 'full: ... and lives');
is(gpuvecd_pid($node), $real, 'full: it is the same');
# its connection broke: from now on it would ask who is not gpuvecd, or nobody, every
# second, and have sessions not ask
my $supervisor = supervisor_pid($node);
kill 'STOP', $supervisor;
kill 'KILL', $pid;
waitpid $pid, 0;

# An answer may be of no use, because the mirror is of another time; but it is one: who
# is not answered meanwhile has not met a server that is silent for all.
$node->safe_psql('postgres', q{
	CREATE TABLE u AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 5000) AS g;
	CREATE INDEX u_e ON u USING gpuivfpq (e) WITH (lists = 4, probes = 4)});
my $counts = 'SELECT timed_out, stale FROM gpuvec_stat';
my $before = $node->safe_psql('postgres', $counts);
my $nclients;
$pid = pretend_gpuvecd(
	$node,
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
kill 'KILL', $pid;
waitpid $pid, 0;
is($node->safe_psql('postgres', $counts), join('|', map { $_ + 2 } split /\|/, $before),
	'useless answers: others were not answered meanwhile');
is($node->safe_psql('postgres', 'SELECT state FROM gpuvec_stat'), 'up', 'useless answers: it is not called silent');

# errors, for who wants them
$pid = pretend($welcome, refusal($SEARCH, 8, 'an illegal address'));
(undef, undef, $err) = $node->psql('postgres',
	"SET gpuvec.request_timeout = '20s'; SET gpuvec.on_gpu_error = error; SELECT answers('t', '<->', 8, 10, 1)");
like($err, qr/ERROR:  gpuvecd refused a search\nDETAIL:  gpuvecd: an illegal address\.\nHINT/,
	'an error names the reason');
kill 'KILL', $pid;
waitpid $pid, 0;
(undef, undef, $err) = $node->psql('postgres',
	"SET gpuvec.on_gpu_error = error; SELECT answers('t', '<->', 8, 10, 1)");
like($err, qr/ERROR:  gpuvecd is not running\nDETAIL:  State is "up"; it does not listen\./,
	'an error when nobody listens');

# gpuvecd itself is well all the time, and listens again when started anew
kill 'CONT', $supervisor;
$node->restart;
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'restarted');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
is(answers($node, 't', '<->', 8, 10, 2), $right, 'restarted: answers are right');
is($node->safe_psql('postgres', 'SELECT searches_by_server FROM gpuvec_stat'),
	'2', 'restarted: by gpuvecd');

# -- an index that is damaged hides no other's mirror
$node->append_conf('postgresql.conf', 'shared_buffers = 1MB');
$node->restart;
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'restarted with few buffers');
$node->safe_psql('postgres', q{
	CREATE TABLE damaged AS SELECT * FROM t;
	CREATE INDEX damaged_e ON damaged USING gpuivfpq (e) WITH (lists = 20);
	CREATE TABLE large AS SELECT repeat('x', 1900) AS filler FROM generate_series(1, 1600);
	SELECT gpuvec_prewarm('t_e'), gpuvec_prewarm('damaged_e');
	CHECKPOINT});
my $mirrors = 'SELECT index, state, behind FROM gpuvec_mirrors ORDER BY 1';
is($node->safe_psql('postgres', $mirrors), "t_e|ready|0\ndamaged_e|ready|0", 'two mirrors');
my $file = $node->data_dir . '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('damaged_e')});
open(my $handle, '+<', $file) or die "$file: $!";
syswrite($handle, "\0" x 8192);
close $handle;
# its pages leave the buffers when others are used more
$node->safe_psql('postgres', q{
	SELECT count(*) FROM generate_series(0, 399) AS block,
		LATERAL (SELECT FROM large WHERE ctid = format('(%s,1)', block)::tid) AS used}) for 1 .. 8;
my ($rc, $out, $complaint) = $node->psql('postgres', $mirrors);
is($out, "t_e|ready|0\ndamaged_e|ready|", 'a damaged index: mirrors are shown');
is($complaint, '', 'a damaged index: no error');
(undef, undef, $complaint) = $node->psql('postgres', q{SELECT FROM gpuvec_index_info('damaged_e')});
like($complaint, qr/damaged|not a gpuivfpq index|invalid/, 'a damaged index: it is');
$node->stop;

done_testing();
