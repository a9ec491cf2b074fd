# Several cards, or what gpuvecd pretends to have of them: indexes are spread
# over them, each card answers for its own, gives way for itself alone, builds
# go on beside searches, and a statement's work is divided among them.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'this machine has one card'
  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 2;

my $rows = $SERVER eq 'cuda' ? 20_000 : 9000;

my $node = new_node(
	'main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = '$SERVER'\n"
	  . "gpuvec.devices = '0,1'\ngpuvec.engine = 'gpu'\ngpuvec.request_timeout = '10s'\n"
	  . "gpuvec.auto_mirror = off\nmax_worker_processes = 16\n");

# The device of a table's mirror; '' = there is none that is ready.
sub device_of
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT device FROM gpuvec_mirrors WHERE index = '${table}_e'::regclass AND state = 'ready'");
}

# Test: all that is in the index is mirrored; returns on which device.
sub mirror
{
	my ($table, $what) = @_;

	cmp_ok($node->safe_psql('postgres', "SELECT gpuvec_prewarm('${table}_e')"),
		'>', 0, "$what: $table is mirrored");
	is( $node->safe_psql('postgres',
			"SELECT * FROM gpuvec_verify_index('${table}_e', mirror => true)"),
		'', "$what: $table is as the pages are");
	return device_of($table);
}

# Test: gpuvecd gives the rows that the session finds.
sub is_same
{
	my ($table, $what) = @_;
	my $answers = "SELECT answers('$table', '<->', 16, 20, 10)";
	my $before = $node->safe_psql('postgres', 'SELECT searches_by_server FROM gpuvec_stat');

	is( $node->safe_psql('postgres', $answers),
		$node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers"),
		"$what: $table, the same rows");
	cmp_ok($node->safe_psql('postgres', 'SELECT searches_by_server FROM gpuvec_stat'),
		'>=', $before + 10, "$what: $table, answered by gpuvecd");
	return;
}

# Searches of a table again and again in the background, and what each round
# should give.
sub begin_searches
{
	my ($table, $rounds) = @_;
	my $answers = "SELECT answers('$table', '<->', 16, 20, 10)";
	my %job = %{background($node, "$answers;\n" x $rounds)};

	$job{expected} = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers") . "\n";
	$job{rounds} = $rounds;
	return \%job;
}

# Test: they gave that.
sub is_right
{
	my ($job, $what) = @_;

	is(end_of($job), 0, "$what: done");
	is(slurp_file($job->{output}), $job->{expected} x $job->{rounds}, "$what: the same rows");
	return;
}

ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up');
like(slurp_file($node->logfile), qr/gpuvecd: ready: engine $SERVER on .*0.*1/, 'the log names both cards');

# -- two indexes, two cards
for my $table ('a', 'b', 'c')
{
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $table (id int, e real[]);
		INSERT INTO $table SELECT g, point(g, 16) FROM generate_series(1, $rows) AS g;
		CREATE INDEX ${table}_e ON $table USING gpuivfpq (e) WITH (lists = 30, pq_dim = 16, refine = sq8)});
}
my %on;
$on{$_} = mirror($_, 'fresh') for ('a', 'b');
is(join(' ', sort values %on), '0 1', 'each card has one');
is_same($_, 'fresh') for ('a', 'b');

# -- searches of both at once, and a build beside them
my @jobs = map { begin_searches($_, 20) } ('a', 'b', 'a', 'b');
my ($rc, $out, $err) = $node->psql(
	'postgres', q{
	DROP INDEX c_e;
	CREATE INDEX c_e ON c USING gpuivfpq (e) WITH (lists = 30, pq_dim = 16, refine = sq8)});
is("$rc $err", '0 ', 'an index is built beside them, by gpuvecd');
is_right($_, 'beside a build') for @jobs;

# -- gpuvecd ends: both come back
my $pid = $node->safe_psql('postgres', 'SELECT pid FROM gpuvec_stat');
kill 'KILL', $pid;
ok(wait_until($node, "SELECT state = 'up' AND pid <> $pid FROM gpuvec_stat"), 'gpuvecd is up again');
ok(wait_until($node, q{SELECT count(*) = 2 FROM gpuvec_mirrors WHERE state = 'ready'}),
	'both are mirrored again');
%on = map { $_ => device_of($_) } ('a', 'b');
is(join(' ', sort values %on), '0 1', 'started again: each card has one');
is_same($_, 'started again') for ('a', 'b');

# -- memory for one index a card: a third takes the place of the one idle
# longest, on its card, and the other stays
my $bytes = $node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors');
my $megabytes = int(1.25 * $bytes / 1048576) + 1;
cmp_ok(2 * $bytes, '>', $megabytes * 1048576, 'two do not fit into that');
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '${megabytes}MB'\n");
$node->restart;
ok(wait_until($node, "SELECT state = 'up' AND memory = $megabytes * 2 * 1048576 FROM gpuvec_stat"),
	'little memory, and as much again');
$on{$_} = mirror($_, 'little memory') for ('a', 'b');
is(join(' ', sort values %on), '0 1', 'little memory: each card has one');
sleep(11);    # what was used since is not evicted
is_same('b', 'little memory');
is(mirror('c', 'little memory'), $on{a}, 'little memory: c is where a was');
is(device_of('a'), '', 'little memory: a is gone');
is(device_of('b'), $on{b}, 'little memory: b is where it was');
is_same($_, 'little memory') for ('b', 'c');

# -- work of one statement: by one card, as it is too little for two, then by
# both (GPUVEC_DIVIDE); what comes of it is the same
my $graph = q{SELECT count(*), md5(string_agg(g::text, ' ' ORDER BY g::text))
	FROM gpuvec_knn_graph('d', 'id', 'e', 5) AS g};
my $calibration = q{SELECT string_agg(c::text, ' ' ORDER BY c::text) FROM gpuvec_calibration('d_e') AS c};
my $create = q{SET max_parallel_maintenance_workers = 0;
	CREATE INDEX d_e ON d USING gpuivfpq (e) WITH (lists = 100, pq_dim = 16)};

# The server starts anew, with its log from here on.
sub start_anew
{
	$node->restart;
	ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up once more');
	return -s $node->logfile;
}

# Test: the log, from there on, says so.
sub is_logged
{
	my ($begin, $line, $what) = @_;
	my $tries = 0;
	my $log;

	do
	{
		sleep(.1) if $tries > 0;
		$log = slurp_file($node->logfile, $begin);
	} until $log =~ $line || $tries++ == 100;
	like($log, $line, $what);
	return;
}

$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = 0\nlog_min_messages = debug1\n");
my $begin = start_anew();
$node->safe_psql(
	'postgres', q{
	CREATE TABLE d (id int, e real[]);
	INSERT INTO d SELECT g, point(g, 32) FROM generate_series(1, 30000) AS g});
$node->safe_psql('postgres', $create);
is_logged($begin, qr/encoded 30000 rows in [\d.]+ s; trial/, 'one card encodes');
my $calibrated = $node->safe_psql('postgres', $calibration);
$node->safe_psql('postgres', 'DROP INDEX d_e');
{
	local $ENV{GPUVEC_DIVIDE} = 1;
	$begin = start_anew();
}
is( $node->safe_psql('postgres', $graph),
	$node->safe_psql('postgres', "SET gpuvec.engine = cpu; $graph"),
	'a graph by both cards is that of the session');
is_logged($begin, qr/set work of kind 0: 30000 rows, finished .* devices (?:0, 1|1, 0)$/m, 'both had a portion');
($rc, $out, $err) = $node->psql('postgres', $create);
is("$rc $err", '0 ', 'an index is built by both cards');
is_logged($begin, qr/encoded 30000 rows in [\d.]+ s, [1-9]\d* on device [01], [1-9]\d* on device [01]; /, 'both encoded');
is($node->safe_psql('postgres', $calibration), $calibrated, 'calibration is that of one card');
is($node->safe_psql('postgres', 'SELECT sets_failed FROM gpuvec_stat'), 0, 'no set failed');
$node->stop;

done_testing();
