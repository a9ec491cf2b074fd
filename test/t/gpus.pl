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
use GpuvecRemote qw(:DEFAULT is_loaded is_same);
use Time::HiRes qw(sleep);

plan skip_all => 'this machine has one GPU'
  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 2;

need_test_build();
my $rows = $SERVER eq 'cuda' ? 20_000 : 9000;

my $node = new_node(
	'main',
	conf => remote_conf()
	  . "gpuvec.devices = '0,1'\ngpuvec.engine = 'gpu'\ngpuvec.auto_mirror = off\nmax_worker_processes = 16\n");

# A column of a table's mirror; '' = there is none that is ready.
sub mirror_of
{
	my ($table, $column) = @_;

	return $node->safe_psql('postgres', "SELECT $column FROM gpuvec_mirrors WHERE index = '${table}_e'::regclass AND state = 'ready'");
}

# Test: a table's index is loaded; returns on which device.
sub mirror
{
	my ($table, $what) = @_;

	is_loaded($node, "${table}_e", $what);
	return mirror_of($table, 'device');
}

# Test: gpuvecd finds the rows that the session finds, of these tables.
sub are_same
{
	my ($what, @tables) = @_;

	is_same($node, $_, 16, $what, least => 10) for @tables;
	return;
}

# Test: d's index is loaded, its mirror has so many shards and replicas, and rows are
# the session's.
sub is_placed
{
	my ($parts, $what) = @_;

	is_loaded($node, 'd_e', $what);
	is(mirror_of('d', 'shards, replicas'), $parts, "$what: shards and replicas");
	return are_same($what, 'd');
}

# Test: while so many rounds of searches of each of these tables run side by side, and
# something is done, all have the rows of the session.
sub searched_meanwhile
{
	my ($what, $rounds, $tables, $act) = @_;
	my @jobs = map {
		my $answers = "SELECT answers('$_', '<->', 16, 20, 10);\n";
		[ background($node, $answers x $rounds), $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers") . "\n" ]
	} @$tables;

	$act->() if $act;
	for (@jobs)
	{
		my ($job, $expected) = @$_;

		is(end_of($job), 0, "$what, many at once: done");
		is(slurp_file($job->{output}), $expected x $rounds, "$what, many at once: the same rows");
	}
	return;
}

# Restarts the server with more settings; returns where its log goes on from.
sub restart_with
{
	my ($what, $settings) = @_;

	$node->append_conf('postgresql.conf', $settings);
	$node->restart;
	soon_up($node, $what);
	return -s $node->logfile;
}

# Has gpuvecd end, and come again; returns its PID.
sub restart_gpuvecd
{
	my ($what) = @_;
	my $old = gpuvecd_pid($node);

	kill 'KILL', $old;
	soon($node, "state = 'up' AND pid <> $old", "$what: gpuvecd is up again");
	return gpuvecd_pid($node);
}

# Inserts rows after those before.
sub insert
{
	my ($n) = @_;

	return $node->safe_psql('postgres', "INSERT INTO d SELECT g, point(g, 16) FROM
		(SELECT max(id) AS last FROM d) AS m, generate_series(last + 1, last + $n) AS g");
}

soon_up($node, 'two GPUs');
like(slurp_file($node->logfile), qr/gpuvecd: ready: engine $SERVER on .*0.*1/, 'the log names both GPUs');

# -- two indexes, two GPUs
for my $table ('a', 'b', 'c')
{
	$node->safe_psql('postgres', qq{
		CREATE TABLE $table (id int, e real[]);
		INSERT INTO $table SELECT g, point(g, 16) FROM generate_series(1, $rows) AS g;
		CREATE INDEX ${table}_e ON $table USING gpuivfpq (e) WITH (lists = 30, pq_dim = 16, refine = sq8)});
}
my %on;
$on{$_} = mirror($_, 'fresh') for ('a', 'b');
is(join(' ', sort values %on), '0 1', 'each GPU has one');
are_same('fresh', 'a', 'b');

# -- searches of both at once, and a build beside them
searched_meanwhile(
	'beside a build',
	20, [ 'a', 'b', 'a', 'b' ],
	sub {
		says($node, q{DROP INDEX c_e;
			CREATE INDEX c_e ON c USING gpuivfpq (e) WITH (lists = 30, pq_dim = 16, refine = sq8)},
			qr/^$/, 'an index is built beside them, by gpuvecd');
	});

# -- gpuvecd ends: both come back
restart_gpuvecd('ended');
soon_ready($node, 2, 'both are mirrored again');
is(join(' ', sort map { mirror_of($_, 'device') } 'a', 'b'), '0 1', 'started again: each GPU has one');
are_same('started again', 'a', 'b');

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
are_same('little memory', 'b');
is(mirror('c', 'little memory'), $on{a}, 'little memory: c is where a was');
is(mirror_of('a', 'device'), '', 'little memory: a is gone');
is(mirror_of('b', 'device'), $on{b}, 'little memory: b is where it was');
are_same('little memory', 'b', 'c');

# gpuvecd as files say: which of its calls fails, which GPUs there are
my $wrapper = $node->basedir . '/gpuvecd';
chomp(my $program = `pg_config --bindir`);
append_to_file($wrapper, <<"SCRIPT");
#!/bin/sh
test ! -e $wrapper.fault || set -- "\$@" \$(cat $wrapper.fault)
test ! -e $wrapper.devices || set -- "\$@" --devices "\$(cat $wrapper.devices)"
rm -f $wrapper.fault
exec $program/gpuvecd "\$@"
SCRIPT
chmod 0755, $wrapper;

# -- work of one statement: by one GPU, as it is too little for two, then by
# both (GPUVEC_DIVIDE); what comes of it is the same
my $graph = q{SELECT count(*), md5(string_agg(g::text, ' ' ORDER BY g::text))
	FROM gpuvec_knn_graph('w', 'id', 'e', 5) AS g};
my $calibration = q{SELECT string_agg(c::text, ' ' ORDER BY c::text) FROM gpuvec_calibration('w_e') AS c};
my $create = q{SET max_parallel_maintenance_workers = 0;
	CREATE INDEX w_e ON w USING gpuivfpq (e) WITH (lists = 100, pq_dim = 16)};

my $begin = restart_with('by one GPU', "gpuvec.gpu_memory = 0\nlog_min_messages = debug1\n");
$node->safe_psql('postgres', q{
	CREATE TABLE w (id int, e real[]);
	INSERT INTO w SELECT g, point(g, 32) FROM generate_series(1, 20000) AS g});
$node->safe_psql('postgres', $create);
log_has($node, qr/encoded 20000 rows in [\d.]+ s; calibration/, $begin, 'one GPU encodes');
my $calibrated = $node->safe_psql('postgres', $calibration);
$node->safe_psql('postgres', 'DROP INDEX w_e');
{
	local $ENV{GPUVEC_DIVIDE} = 1;
	$begin = restart_with('by both GPUs', "gpuvec.server_path = '$wrapper'\n");
}
gives($node, $graph, $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $graph"), 'a graph by both GPUs is that of the session');
log_has($node, qr/job of kind 0: 20000 rows, finished .* devices (?:0, 1|1, 0)$/m, $begin, 'both had a part');
says($node, $create, qr/^$/, 'an index is built by both GPUs');
log_has($node, qr/encoded 20000 rows in [\d.]+ s, [1-9]\d* on device [01], [1-9]\d* on device [01]; /, $begin, 'both encoded');
gives($node, $calibration, $calibrated, 'calibration is that of one GPU');
my $kmeans = q{SELECT count(*), md5(string_agg(c::text, ' ' ORDER BY c::text)) FROM gpuvec_kmeans('w', 'e', 50, 5, 3) AS c};
my $balanced = $kmeans =~ s/5, 3/5, 3, true/r;
my $clusters = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $kmeans");
gives($node, $kmeans, $clusters, 'k-means by both GPUs is that of the session');
gives($node, $balanced, $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $balanced"), 'balanced k-means, too');
log_has($node, qr/job of kind 1: (?:2|12)0000 rows, finished .* in 6 passes; devices (?:0, 1|1, 0)$/m, $begin, 'both had a part of the rows');
is(stat_of($node, 'jobs_failed'), 0, 'no job failed');
says($node, "SET statement_timeout = '300ms'; SELECT count(*) FROM gpuvec_kmeans('w', 'e', 2000, 1000)",
	qr/canceling statement due to statement timeout/, 'k-means by both is canceled');
log_has($node, qr/job of kind 1: \d+ rows, given up .* devices (?:0, 1|1, 0)$/m, $begin, 'both give up');

# -- the second GPU has no room for its part; then a GPU fails in the midst of passes
append_to_file("$wrapper.fault", '--set-fault 3:3');
restart_gpuvecd('no room');
$begin = -s $node->logfile;
gives($node, $kmeans, $clusters, 'no room: the same k-means');
log_has($node, qr/job of kind 1: (?:2|12)0000 rows, finished .* in 6 passes; device [01]$/m, $begin, 'no room: by one GPU');
append_to_file("$wrapper.fault", '--set-fault 60:5');
my $failing = restart_gpuvecd('before a part fails');
gives($node, $kmeans, $clusters, 'a part fails: the same k-means');
soon($node, "state = 'up' AND pid <> $failing", 'a part fails: gpuvecd begins anew');
gives($node, $kmeans, $clusters, 'k-means by both again');
$node->safe_psql('postgres', 'DROP TABLE w');

# -- an index that no GPU has room for: shards
my $large = $SERVER eq 'cuda' ? 400_000 : 60_000;
restart_with('memory for all', "gpuvec.gpu_memory = '1GB'\n");
$node->safe_psql('postgres', qq{
	DROP TABLE a, b, c;
	CREATE TABLE d (id int, e real[]);
	INSERT INTO d SELECT g, point(g, 16) FROM generate_series(1, $large) AS g;
	CREATE INDEX d_e ON d USING gpuivfpq (e) WITH (lists = 200, pq_dim = 16, refine = sq8)});
is_placed('1|1', 'whole');
$bytes = $node->safe_psql('postgres', 'SELECT max(bytes) FROM gpuvec_mirrors');
# a GPU gives memory out in segments of 4 MB
$megabytes = int(($SERVER eq 'cuda' ? 0.85 : 0.75) * $bytes / 1048576) + 1;
cmp_ok($bytes, '>', $megabytes * 1048576, 'it does not fit into that');

restart_with('through a script', "gpuvec.gpu_memory = '${megabytes}MB'\ngpuvec.auto_mirror = on\n");
is_placed('2|1', 'divided');
like(slurp_file($node->logfile), qr/loaded index \d+ in shards on devices [01], [01]: /, 'the log says so');
searched_meanwhile('shards', 10, [ ('d') x 4 ]);

# -- it follows inserts and VACUUM
insert(2000);
are_same('divided, after inserts', 'd');
$node->safe_psql('postgres', 'DELETE FROM d WHERE id % 10 = 0 OR id < 3000; VACUUM d');
is_placed('2|1', 'divided, after VACUUM');

# -- loaded while it is searched
restart_gpuvecd('searched');
searched_meanwhile('while it is loaded', 30, [ 'd', 'd' ], sub { soon_ready($node, 1, 'loaded while it is searched'); });
is(mirror_of('d', 'shards, replicas'), '2|1', 'loaded again: two shards');

# -- a GPU of two fails in the midst of searches: the one that is left has no room
append_to_file("$wrapper.fault", '--fault 2500:5');
my $pid = restart_gpuvecd('before one fails');
gives($node, "SELECT gpuvec_prewarm('d_e') > 0", 't', 'before one fails: d is mirrored');
append_to_file("$wrapper.devices", '0');
my $answers = "SELECT answers('d', '<->', 16, 20, 10);" x 5;
my $expected = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $answers");
my $round = 0;
while ($round++ < 100 && stat_of($node, 'coalesce(pid, 0)') eq $pid)
{
	gives($node, $answers, $expected, 'until a GPU fails: the same rows');
}
cmp_ok($round, '<', 100, 'a GPU fails');
soon($node, "state = 'up' AND memory = $megabytes * 1048576", 'one GPU is left');
gives($node, $answers, $expected, 'one GPU is left: the same rows');
soon_ready($node, 0, 'one GPU has no room for it');

# -- it is back
unlink "$wrapper.devices";
restart_gpuvecd('the GPU is back');
is_placed('2|1', 'the GPU is back');

# -- replicas
restart_with('replicas', "gpuvec.gpu_memory = '1GB'\ngpuvec.replicas = 2\n");
is_placed('1|2', 'replicas');
cmp_ok(mirror_of('d', 'bytes'), '>', 1.5 * $bytes, 'replicas take twice the memory');
searched_meanwhile('replicas', 10, [ ('d') x 6 ]);
insert(1000);
are_same('replicas, after inserts', 'd');
searched_meanwhile('replicas, after inserts', 10, [ ('d') x 6 ]);

# -- two replicas of two shards each, on four GPUs
SKIP:
{
	skip 'this machine has fewer than four GPUs', 1
	  if $SERVER eq 'cuda' && (() = `nvidia-smi -L` =~ /^GPU/mg) < 4;

	restart_with('four GPUs', "gpuvec.devices = '0,1,2,3'\ngpuvec.gpu_memory = '${megabytes}MB'\n");
	is_placed('2|2', 'two by two');
	note($node->safe_psql('postgres', 'SELECT * FROM gpuvec_mirrors'));
	insert(1000);
	are_same('two by two, after inserts', 'd');
	searched_meanwhile('two by two', 10, [ ('d') x 6 ]);

	# one of the four fails in the midst of searches
	append_to_file("$wrapper.fault", '--fault 2500:5');
	$pid = restart_gpuvecd('two by two');
	gives($node, "SELECT gpuvec_prewarm('d_e') > 0", 't', 'before one of four fails: d is mirrored');
	append_to_file("$wrapper.devices", '0,1,2');
	searched_meanwhile('one of four fails', 100, [ ('d') x 4 ],
		sub { soon($node, "state = 'up' AND pid <> $pid", 'one of four fails'); });
	soon_ready($node, 1, 'three are left');
	is(mirror_of('d', 'shards, replicas'), '2|1', 'three are left: one replica');
	are_same('three are left', 'd');
	unlink "$wrapper.devices";
	restart_gpuvecd('four again');
	is_placed('2|2', 'four again');
}
$node->stop;

done_testing();
