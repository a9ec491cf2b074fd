# Faults of a card: a kernel that writes where it may not, memory that somebody
# else holds, a card that is not there.  Answers are right and come in time,
# and afterwards the card answers again.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../t";
use Gpuvec;
use GpuvecRemote qw(:DEFAULT stat_of soon);
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $timeout_ms = 1000;
my $node = new_remote_node('main',
	conf => "gpuvec.engine = 'gpu'\ngpuvec.request_timeout = '${timeout_ms}ms'\nmax_connections = 60\n");
my $nearest = q{SELECT id FROM t ORDER BY e <-> point(1, 8) LIMIT 10};
my $answers = "SELECT answers('t', '<->', 8, 10, 20)";

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 20000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 100, probes = 10, refine = sq8);
	ANALYZE t});

# The answers of the session's own engine, and their time.
my $begun = time;
my $right = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers");
my $own_ms = 1000 * (time - $begun);

# Test: right answers, in time: one time-out and the session's own.
sub is_right
{
	my ($what) = @_;
	my $began = time;
	my $got = $node->safe_psql('postgres', $answers);
	my $ms = int(1000 * (time - $began));

	is($got, $right, "$what: answers are right");
	cmp_ok($ms, '<', $timeout_ms + 3 * $own_ms + 500, "$what: ... after $ms ms");
	return;
}

# Test: the card answers, after a while maybe.
sub is_well
{
	my ($what) = @_;

	soon($node, "state = 'up' AND engine = '$SERVER'", "$what: gpuvecd is up");
	is_mirrored($node, 't_e', $nearest, $what);
	differs($node, $nearest, "$what: gpuvecd and the session agree");
	is_right($what);
	return;
}

# The next such operation finds the card broken.
sub break_card
{
	my ($operation) = @_;

	append_to_file($node->data_dir . "/break.$operation", '');
	return;
}

# Take the card's memory; give_back ends that.
sub take_memory
{
	my %hog = (out => '', in => '');

	$hog{handle} = IPC::Run::start([ $ENV{GPUVEC_TEST_HOG} ],
		'<' => \$hog{in}, '>' => \$hog{out}, IPC::Run::timeout(60));
	IPC::Run::pump($hog{handle}) until $hog{out} =~ /held/;
	note("the card's memory is taken: $hog{out}");
	return \%hog;
}

sub give_back
{
	my ($hog) = @_;

	IPC::Run::finish($hog->{handle});
	return;
}

is_well('at first');

# -- a kernel writes where it may not
my $pid = stat_of($node, 'pid');
my $restarts = stat_of($node, 'restarts');
break_card('search');
is_right('a broken search');
soon($node, "restarts = $restarts + 1 AND pid <> $pid", 'a broken search: another gpuvecd');
like(slurp_file($node->logfile), qr/engine failed, so a new process is needed/,
	'a broken search: the log says why');
is_well('after a broken search');

break_card('search');
my ($rc, $out, $err) = $node->psql('postgres',
	"SET enable_seqscan = off; SET gpuvec.on_gpu_error = error; $nearest");
like($err, qr/^psql:.*ERROR:  (gpuvecd refused a search|connection to gpuvecd was lost)/m,
	'a broken search: an error, if that is wanted');
is_well('after an error');

# -- while a mirror is loaded
$node->safe_psql('postgres', 'REINDEX INDEX t_e');
$right = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers");
break_card('put_list');
$node->psql('postgres', "SELECT gpuvec_prewarm('t_e')");
is_right('a broken load');
is_well('after a broken load');

# -- again and again, beside many sessions
$node->safe_psql('postgres', qq{
	CREATE TABLE expected AS $answers AS a;
	CREATE TABLE done (id int)});
is($node->safe_psql('postgres', 'SELECT a FROM expected'), $right, 'what to expect');
my $data = $node->data_dir;
my $job = background($node, qq{
	SELECT set_config('gpuvec.engine', 'cpu', false);
	\\! for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.7; touch "$data/break.search"; done
	INSERT INTO done VALUES (1)});
$node->pgbench(
	'--no-vacuum --client=16 --jobs=4 --time=8',
	0, [qr{actually processed}], [qr{^$}], 'broken again and again: right answers',
	{ 'card_faults' => q{SELECT 1 / (a = answers('t', '<->', 8, 10, 20))::int FROM expected} });
is(end_of($job), 0, 'broken again and again: it was');
unlink "$data/break.search";
is_well('after all that');

# -- somebody else has the card's memory: a query needs more than ever before
my $hog = take_memory();
is_right('no memory for anything more');
my $far = "SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> point(1, 8) LIMIT 15000) AS x";
is( $node->safe_psql('postgres',
		"SET enable_seqscan = off; SET gpuvec.probes = 100; SET gpuvec.candidates = 40000; $far"),
	15000, 'no memory for a large query: all rows');
is_right('after a query without memory');

# No memory for a mirror.
$node->safe_psql('postgres', 'CREATE TABLE u AS SELECT * FROM t;
	CREATE INDEX u_e ON u USING gpuivfpq (e) WITH (lists = 100, probes = 10, refine = sq8)');
($rc, $out, $err) = $node->psql('postgres', "SELECT gpuvec_prewarm('u_e')");
note("prewarm without memory: $out$err");
is( $node->safe_psql('postgres', $answers =~ s/'t'/'u'/r),
	$node->safe_psql('postgres', 'SET gpuvec.engine = cpu; ' . $answers =~ s/'t'/'u'/r),
	'no memory for a mirror: answers are right');
is_right('no memory for another mirror');
give_back($hog);
is_well('memory again');
is_mirrored($node, 'u_e', $nearest =~ s/ t / u /r, 'memory again');

# No memory for gpuvecd to start.
$hog = take_memory();
kill 'KILL', gpuvecd_pid($node);
usleep(2_000_000);
is_right('no memory to start');
give_back($hog);
is_well('started when there was memory');

# -- the card is hidden
{
	local $ENV{CUDA_VISIBLE_DEVICES} = '';

	$node->restart;
	usleep(1_500_000);
	is_right('no card');
	like(stat_of($node, 'state'), qr/down|starting/, 'no card: gpuvecd is not up');
	$node->append_conf('postgresql.conf', "gpuvec.server = 'auto'");
	$node->restart;
	soon($node, "state = 'no GPU'", 'no card: nobody looks for one any more');
	is_right('no card, server = auto');
}
$node->restart;
is_well('the card is back');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal 1[15]/,
	'no backend crashed');

done_testing();
