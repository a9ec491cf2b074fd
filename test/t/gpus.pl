# Several GPUs, or what gpuvecd pretends to have of them: indexes are placed on all of
# them, each GPU answers for its own and evicts its own alone, builds go on beside
# searches, and a statement's work is divided among them.  An index that none has
# room for is divided into shards, which go and come with the GPUs; replicas of a
# shard answer alike.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote qw(remote_conf served stat_of soon);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'this machine has one GPU'
  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 2;

need_test_build();
my $rows = $SERVER eq 'cuda' ? 20_000 : 9000;

my $node = new_node(
	'main',
	conf => remote_conf()
	  . "gpuvec.devices = '0,1'\ngpuvec.engine = 'gpu'\ngpuvec.auto_mirror = off\nmax_worker_processes = 16\n");

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

# Shards and replicas of a table's mirror.
sub parts_of
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT shards, replicas FROM gpuvec_mirrors WHERE index = '${table}_e'::regclass AND state = 'ready'");
}

# Test: soon so many mirrors are ready.
sub soon_ready
{
	my ($n, $what) = @_;

	ok(wait_until($node, "SELECT count(*) = $n FROM gpuvec_mirrors WHERE state = 'ready'"), $what)
	  or diag($node->safe_psql('postgres', 'SELECT * FROM gpuvec_mirrors'));
	return;
}

# Test: gpuvecd finds the rows that the session finds.
sub is_same
{
	my ($table, $what) = @_;
	my $answers = "SELECT answers('$table', '<->', 16, 20, 10)";
	my $before = served($node);

	is( $node->safe_psql('postgres', $answers),
		$node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers"),
		"$what: $table, the same rows");
	cmp_ok(served($node), '>=', $before + 10, "$what: $table, answered by gpuvecd");
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

soon($node, q{state = 'up'}, 'gpuvecd is up');
like(slurp_file($node->logfile), qr/gpuvecd: ready: engine $SERVER on .*0.*1/, 'the log names both GPUs');

# -- two indexes, two GPUs
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
is(join(' ', sort values %on), '0 1', 'each GPU has one');
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
my $pid = stat_of($node, 'pid');
kill 'KILL', $pid;
soon($node, "state = 'up' AND pid <> $pid", 'gpuvecd is up again');
soon_ready(2, 'both are mirrored again');
%on = map { $_ => device_of($_) } ('a', 'b');
is(join(' ', sort values %on), '0 1', 'started again: each GPU has one');
is_same($_, 'started again') for ('a', 'b');

# -- memory for one index a GPU: a third takes the place of the one idle
# longest, on its GPU, and the other stays
my $bytes = $node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors');
my $megabytes = int(1.25 * $bytes / 1048576) + 1;
cmp_ok(2 * $bytes, '>', $megabytes * 1048576, 'two do not fit into that');
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '${megabytes}MB'\n");
$node->restart;
soon($node, "state = 'up' AND memory = $megabytes * 2 * 1048576", 'little memory, and as much again');
$on{$_} = mirror($_, 'little memory') for ('a', 'b');
is(join(' ', sort values %on), '0 1', 'little memory: each GPU has one');
sleep(11);    # what was used since is not evicted
is_same('b', 'little memory');
is(mirror('c', 'little memory'), $on{a}, 'little memory: c is where a was');
is(device_of('a'), '', 'little memory: a is gone');
is(device_of('b'), $on{b}, 'little memory: b is where it was');
is_same($_, 'little memory') for ('b', 'c');

# -- work of one statement: by one GPU, as it is too little for two, then by
# both (GPUVEC_DIVIDE); what comes of it is the same
my $graph = q{SELECT count(*), md5(string_agg(g::text, ' ' ORDER BY g::text))
	FROM gpuvec_knn_graph('w', 'id', 'e', 5) AS g};
my $calibration = q{SELECT string_agg(c::text, ' ' ORDER BY c::text) FROM gpuvec_calibration('w_e') AS c};
my $create = q{SET max_parallel_maintenance_workers = 0;
	CREATE INDEX w_e ON w USING gpuivfpq (e) WITH (lists = 100, pq_dim = 16)};

# Restarts the server; returns where its log goes on from.
sub restart
{
	$node->restart;
	soon($node, q{state = 'up'}, 'gpuvecd is up again');
	return -s $node->logfile;
}

$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = 0\nlog_min_messages = debug1\n");
my $begin = restart();
$node->safe_psql(
	'postgres', q{
	CREATE TABLE w (id int, e real[]);
	INSERT INTO w SELECT g, point(g, 32) FROM generate_series(1, 20000) AS g});
$node->safe_psql('postgres', $create);
log_has($node, qr/encoded 20000 rows in [\d.]+ s; calibration/, $begin, 'one GPU encodes');
my $calibrated = $node->safe_psql('postgres', $calibration);
$node->safe_psql('postgres', 'DROP INDEX w_e');
{
	local $ENV{GPUVEC_DIVIDE} = 1;
	$begin = restart();
}
is( $node->safe_psql('postgres', $graph),
	$node->safe_psql('postgres', "SET gpuvec.engine = cpu; $graph"),
	'a graph by both GPUs is that of the session');
log_has($node, qr/job of kind 0: 20000 rows, finished .* devices (?:0, 1|1, 0)$/m, $begin, 'both had a part');
($rc, $out, $err) = $node->psql('postgres', $create);
is("$rc $err", '0 ', 'an index is built by both GPUs');
log_has($node, qr/encoded 20000 rows in [\d.]+ s, [1-9]\d* on device [01], [1-9]\d* on device [01]; /, $begin, 'both encoded');
is($node->safe_psql('postgres', $calibration), $calibrated, 'calibration is that of one GPU');
is(stat_of($node, 'jobs_failed'), 0, 'no job failed');
$node->safe_psql('postgres', 'DROP TABLE w');

# -- an index that no GPU has room for: shards
my $large = $SERVER eq 'cuda' ? 400_000 : 60_000;
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1GB'\n");
$node->restart;
soon($node, q{state = 'up'}, 'gpuvecd is up, with memory for all');
$node->safe_psql(
	'postgres', qq{
	DROP TABLE a, b, c;
	CREATE TABLE d (id int, e real[]);
	INSERT INTO d SELECT g, point(g, 16) FROM generate_series(1, $large) AS g;
	CREATE INDEX d_e ON d USING gpuivfpq (e) WITH (lists = 200, pq_dim = 16, refine = sq8)});
mirror('d', 'whole');
is(parts_of('d'), '1|1', 'whole: on one GPU');
$bytes = $node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors');
# a GPU gives memory out in segments of 4 MB
$megabytes = int(($SERVER eq 'cuda' ? 0.85 : 0.75) * $bytes / 1048576) + 1;
cmp_ok($bytes, '>', $megabytes * 1048576, 'it does not fit into that');

# gpuvecd as files say: which of its engine's calls fails, which GPUs there are
my $wrapper = $node->basedir . '/gpuvecd';
chomp(my $program = `pg_config --bindir`);
append_to_file($wrapper, <<"SCRIPT");
#!/bin/sh
test ! -e $wrapper.fault || set -- "\$@" --fault "\$(cat $wrapper.fault)"
test ! -e $wrapper.devices || set -- "\$@" --devices "\$(cat $wrapper.devices)"
rm -f $wrapper.fault
exec $program/gpuvecd "\$@"
SCRIPT
chmod 0755, $wrapper;
$node->append_conf('postgresql.conf',
	"gpuvec.gpu_memory = '${megabytes}MB'\ngpuvec.server_path = '$wrapper'\ngpuvec.auto_mirror = on\n");
$node->restart;
soon($node, q{state = 'up'}, 'gpuvecd is up, through a script');
mirror('d', 'divided');
is(parts_of('d'), '2|1', 'divided: two shards');
like(
	slurp_file($node->logfile),
	qr/loaded index \d+ in shards on devices [01], [01]: /,
	'the log says so');
is_same('d', 'divided');
@jobs = map { begin_searches('d', 10) } (1 .. 4);
is_right($_, 'shards, many at once') for @jobs;

# -- it follows inserts and VACUUM
$node->safe_psql('postgres',
	"INSERT INTO d SELECT g, point(g, 16) FROM generate_series($large + 1, $large + 2000) AS g");
is_same('d', 'divided, after inserts');
$node->safe_psql('postgres', 'DELETE FROM d WHERE id % 10 = 0 OR id < 3000');
$node->safe_psql('postgres', 'VACUUM d');
mirror('d', 'divided, after VACUUM');
is_same('d', 'divided, after VACUUM');
is(parts_of('d'), '2|1', 'divided, after VACUUM: still two shards');

# Has gpuvecd end, and come again.
sub restart_gpuvecd
{
	my ($what) = @_;
	my $old = stat_of($node, 'pid');

	kill 'KILL', $old;
	soon($node, "state = 'up' AND pid <> $old", "$what: gpuvecd is up again");
	return;
}

# -- loaded while it is searched
restart_gpuvecd('searched');
@jobs = map { begin_searches('d', 30) } (1, 2);
soon_ready(1, 'loaded while it is searched');
is_right($_, 'while it is loaded') for @jobs;
is(parts_of('d'), '2|1', 'loaded again: two shards');

# -- a GPU of two fails in the midst of searches: the one that is left has no room
append_to_file("$wrapper.fault", '2500:5');
restart_gpuvecd('before one fails');
cmp_ok($node->safe_psql('postgres', "SELECT gpuvec_prewarm('d_e')"),
	'>', 0, 'before a GPU fails: d is mirrored');
$pid = stat_of($node, 'pid');
append_to_file("$wrapper.devices", '0');
my $answers = "SELECT answers('d', '<->', 16, 20, 10)";
my $expected = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers");
my $wrong = 0;
my $round = 0;
while ($round++ < 100
	&& stat_of($node, 'coalesce(pid, 0)') eq $pid)
{
	$wrong++ if $node->safe_psql('postgres', "$answers;" x 5) ne join "\n", ($expected) x 5;
}
cmp_ok($round, '<', 100, 'a GPU fails');
is($wrong, 0, 'a GPU fails: the same rows');
soon($node, "state = 'up' AND memory = $megabytes * 1048576", 'one GPU is left');
is($node->safe_psql('postgres', $answers), $expected, 'one GPU is left: the same rows');
soon_ready(0, 'one GPU has no room for it');

# -- it is back
unlink "$wrapper.devices";
restart_gpuvecd('the GPU is back');
mirror('d', 'the GPU is back');
is(parts_of('d'), '2|1', 'the GPU is back: two shards');
is_same('d', 'the GPU is back');

# -- replicas
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1GB'\ngpuvec.replicas = 2\n");
$node->restart;
soon($node, q{state = 'up'}, 'gpuvecd is up, for replicas');
mirror('d', 'replicas');
is(parts_of('d'), '1|2', 'each GPU has all of it');
cmp_ok($node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors'),
	'>', 1.5 * $bytes, 'which takes twice the memory');
@jobs = map { begin_searches('d', 10) } (1 .. 6);
is_right($_, 'replicas, many at once') for @jobs;
$node->safe_psql('postgres',
	"INSERT INTO d SELECT g, point(g, 16) FROM generate_series($large + 2001, $large + 3000) AS g");
is_same('d', 'replicas, after inserts');
@jobs = map { begin_searches('d', 10) } (1 .. 6);
is_right($_, 'replicas, many at once, after inserts') for @jobs;

# -- two replicas of two shards each, on four GPUs
SKIP:
{
	skip 'this machine has fewer than four GPUs', 1
	  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 4;

	$node->append_conf('postgresql.conf',
		"gpuvec.devices = '0,1,2,3'\ngpuvec.gpu_memory = '${megabytes}MB'\n");
	$node->restart;
	soon($node, q{state = 'up'}, 'gpuvecd is up, with four GPUs');
	mirror('d', 'two by two');
	is(parts_of('d'), '2|2', 'two by two: shards and replicas');
	note($node->safe_psql('postgres', 'SELECT * FROM gpuvec_mirrors'));
	is_same('d', 'two by two');
	$node->safe_psql('postgres',
		"INSERT INTO d SELECT g, point(g, 16) FROM generate_series($large + 3001, $large + 4000) AS g");
	is_same('d', 'two by two, after inserts');
	@jobs = map { begin_searches('d', 10) } (1 .. 6);
	is_right($_, 'two by two, many at once') for @jobs;

	# one of the four fails in the midst of searches
	append_to_file("$wrapper.fault", '2500:5');
	restart_gpuvecd('two by two');
	$pid = stat_of($node, 'pid');
	cmp_ok($node->safe_psql('postgres', "SELECT gpuvec_prewarm('d_e')"),
		'>', 0, 'before one of four fails: d is mirrored');
	append_to_file("$wrapper.devices", '0,1,2');
	@jobs = map { begin_searches('d', 100) } (1 .. 4);
	soon($node, "state = 'up' AND pid <> $pid", 'one of four fails');
	is_right($_, 'one of four fails, many at once') for @jobs;
	soon_ready(1, 'three are left');
	is(parts_of('d'), '2|1', 'three are left: one replica');
	is_same('d', 'three are left');
	unlink "$wrapper.devices";
	restart_gpuvecd('four again');
	mirror('d', 'four again');
	is(parts_of('d'), '2|2', 'four again: shards and replicas');
	is_same('d', 'four again');
}
$node->stop;

done_testing();
