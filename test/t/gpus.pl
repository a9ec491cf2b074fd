# Several cards, or what gpuvecd pretends to have of them: indexes are spread
# over them, each card answers for its own, gives way for itself alone, builds
# go on beside searches, and a statement's work is divided among them.  An index
# that none has room for is divided among them, too, and goes and comes with them;
# replicas of one answer alike.

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

need_test_build();
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

# Shards and replicas of a table's mirror.
sub parts_of
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT shards, replicas FROM gpuvec_mirrors WHERE index = '${table}_e'::regclass AND state = 'ready'");
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
	FROM gpuvec_knn_graph('w', 'id', 'e', 5) AS g};
my $calibration = q{SELECT string_agg(c::text, ' ' ORDER BY c::text) FROM gpuvec_calibration('w_e') AS c};
my $create = q{SET max_parallel_maintenance_workers = 0;
	CREATE INDEX w_e ON w USING gpuivfpq (e) WITH (lists = 100, pq_dim = 16)};

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
	CREATE TABLE w (id int, e real[]);
	INSERT INTO w SELECT g, point(g, 32) FROM generate_series(1, 20000) AS g});
$node->safe_psql('postgres', $create);
is_logged($begin, qr/encoded 20000 rows in [\d.]+ s; trial/, 'one card encodes');
my $calibrated = $node->safe_psql('postgres', $calibration);
$node->safe_psql('postgres', 'DROP INDEX w_e');
{
	local $ENV{GPUVEC_DIVIDE} = 1;
	$begin = start_anew();
}
is( $node->safe_psql('postgres', $graph),
	$node->safe_psql('postgres', "SET gpuvec.engine = cpu; $graph"),
	'a graph by both cards is that of the session');
is_logged($begin, qr/set work of kind 0: 20000 rows, finished .* devices (?:0, 1|1, 0)$/m, 'both had a portion');
($rc, $out, $err) = $node->psql('postgres', $create);
is("$rc $err", '0 ', 'an index is built by both cards');
is_logged($begin, qr/encoded 20000 rows in [\d.]+ s, [1-9]\d* on device [01], [1-9]\d* on device [01]; /, 'both encoded');
is($node->safe_psql('postgres', $calibration), $calibrated, 'calibration is that of one card');
is($node->safe_psql('postgres', 'SELECT jobs_failed FROM gpuvec_stat'), 0, 'no set failed');
$node->safe_psql('postgres', 'DROP TABLE w');

# -- an index that no card has room for: shards
my $large = $SERVER eq 'cuda' ? 400_000 : 60_000;
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1GB'\n");
$node->restart;
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up, with memory for all');
$node->safe_psql(
	'postgres', qq{
	DROP TABLE a, b, c;
	CREATE TABLE d (id int, e real[]);
	INSERT INTO d SELECT g, point(g, 16) FROM generate_series(1, $large) AS g;
	CREATE INDEX d_e ON d USING gpuivfpq (e) WITH (lists = 200, pq_dim = 16, refine = sq8)});
mirror('d', 'whole');
is(parts_of('d'), '1|1', 'whole: on one card');
$bytes = $node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors');
# a card gives memory out in segments of 4 MB
$megabytes = int(($SERVER eq 'cuda' ? 0.85 : 0.75) * $bytes / 1048576) + 1;
cmp_ok($bytes, '>', $megabytes * 1048576, 'it does not fit into that');

# gpuvecd as files say: of its engine's calls one fails; which cards there are
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
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up, through a script');
mirror('d', 'divided');
is(parts_of('d'), '2|1', 'divided: two shards');
like(
	slurp_file($node->logfile),
	qr/is mirrored in shards on devices [01], [01]: /,
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

# gpuvecd ends, and comes again
sub begin_anew
{
	my ($what) = @_;
	my $old = $node->safe_psql('postgres', 'SELECT pid FROM gpuvec_stat');

	kill 'KILL', $old;
	ok(wait_until($node, "SELECT state = 'up' AND pid <> $old FROM gpuvec_stat"), "$what: gpuvecd is up again");
	return;
}

# -- loaded while it is searched
begin_anew('searched');
@jobs = map { begin_searches('d', 30) } (1, 2);
ok( wait_until(
		$node, q{SELECT count(*) = 1 FROM gpuvec_mirrors WHERE state = 'ready'}),
	'loaded while it is searched');
is_right($_, 'while it is loaded') for @jobs;
is(parts_of('d'), '2|1', 'loaded again: two shards');

# -- a card of two fails in the midst of searches: what is left has no room
append_to_file("$wrapper.fault", '2500:5');
begin_anew('before one fails');
cmp_ok($node->safe_psql('postgres', "SELECT gpuvec_prewarm('d_e')"),
	'>', 0, 'before a card fails: d is mirrored');
$pid = $node->safe_psql('postgres', 'SELECT pid FROM gpuvec_stat');
append_to_file("$wrapper.devices", '0');
my $answers = "SELECT answers('d', '<->', 16, 20, 10)";
my $expected = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers");
my $wrong = 0;
my $round = 0;
while ($round++ < 100
	&& $node->safe_psql('postgres', 'SELECT coalesce(pid, 0) FROM gpuvec_stat') eq $pid)
{
	$wrong++ if $node->safe_psql('postgres', "$answers;" x 5) ne join "\n", ($expected) x 5;
}
cmp_ok($round, '<', 100, 'a card fails');
is($wrong, 0, 'a card fails: the same rows');
ok( wait_until(
		$node, "SELECT state = 'up' AND memory = $megabytes * 1048576 FROM gpuvec_stat"),
	'one card is left');
is($node->safe_psql('postgres', $answers), $expected, 'one card is left: the same rows');
ok( wait_until(
		$node, q{SELECT count(*) = 0 FROM gpuvec_mirrors WHERE state = 'ready'}),
	'one card has no room for it');

# -- it is back
unlink "$wrapper.devices";
begin_anew('the card is back');
mirror('d', 'the card is back');
is(parts_of('d'), '2|1', 'the card is back: two shards');
is_same('d', 'the card is back');

# -- replicas
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '1GB'\ngpuvec.replicas = 2\n");
$node->restart;
ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up, for replicas');
mirror('d', 'replicas');
is(parts_of('d'), '1|2', 'each card has all of it');
cmp_ok($node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors'),
	'>', 1.5 * $bytes, 'which takes twice the memory');
@jobs = map { begin_searches('d', 10) } (1 .. 6);
is_right($_, 'replicas, many at once') for @jobs;
$node->safe_psql('postgres',
	"INSERT INTO d SELECT g, point(g, 16) FROM generate_series($large + 2001, $large + 3000) AS g");
is_same('d', 'replicas, after inserts');
@jobs = map { begin_searches('d', 10) } (1 .. 6);
is_right($_, 'replicas, many at once, after inserts') for @jobs;

# -- two replicas of two shards each, on four cards
SKIP:
{
	skip 'this machine has fewer than four cards', 1
	  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 4;

	$node->append_conf('postgresql.conf',
		"gpuvec.devices = '0,1,2,3'\ngpuvec.gpu_memory = '${megabytes}MB'\n");
	$node->restart;
	ok(wait_until($node, q{SELECT state = 'up' FROM gpuvec_stat}), 'gpuvecd is up, with four cards');
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
	begin_anew('two by two');
	$pid = $node->safe_psql('postgres', 'SELECT pid FROM gpuvec_stat');
	cmp_ok($node->safe_psql('postgres', "SELECT gpuvec_prewarm('d_e')"),
		'>', 0, 'before one of four fails: d is mirrored');
	append_to_file("$wrapper.devices", '0,1,2');
	@jobs = map { begin_searches('d', 100) } (1 .. 4);
	ok(wait_until($node, "SELECT state = 'up' AND pid <> $pid FROM gpuvec_stat"), 'one of four fails');
	is_right($_, 'one of four fails, many at once') for @jobs;
	ok( wait_until(
			$node, q{SELECT count(*) = 1 FROM gpuvec_mirrors WHERE state = 'ready'}),
		'three are left');
	is(parts_of('d'), '2|1', 'three are left: one replica');
	is_same('d', 'three are left');
	unlink "$wrapper.devices";
	begin_anew('four again');
	mirror('d', 'four again');
	is(parts_of('d'), '2|2', 'four again: shards and replicas');
	is_same('d', 'four again');
}
$node->stop;

done_testing();
