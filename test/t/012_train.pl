# Training in place, killed between any two of its records: afterwards every
# row is found exactly once, the next attempt succeeds, and VACUUM takes away
# what was left.  Then errors at the same places, and scans that begin before
# training publishes and end after it.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $rows = long_test() ? 30_000 : 5000;
my $node = new_node('main',
	# no worker, which VACUUM would ask for: here training comes when it is told
	conf => "max_prepared_transactions = 2\nfsync = off\ncheckpoint_timeout = 1h
		max_worker_processes = 0\n");
$node->safe_psql('postgres', "CREATE TABLE source AS
	SELECT g AS id, point(g, 6) AS e FROM generate_series(1, $rows) AS g");

# An untrained index with rows of every kind: live, dead (more than a pending
# page holds), and of a transaction that is neither.
sub make_index
{
	my ($options, $limit) = @_;

	$limit //= $rows;
	$node->psql('postgres', "ROLLBACK PREPARED 'some'");
	$node->safe_psql('postgres', "
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t;
		CREATE TABLE t (LIKE source);
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (dims = 6, $options);
		INSERT INTO t SELECT * FROM source LIMIT $limit;
		DELETE FROM t WHERE id % 3 = 0;
		BEGIN;
		INSERT INTO t SELECT id + 1000000, e FROM source LIMIT 40;
		PREPARE TRANSACTION 'some';");
	return;
}

# Let gpuvec_train stop in that way.
sub train_with
{
	my ($fault) = @_;
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET gpuvec.fault = '$fault'; SELECT gpuvec_train('t_e')");

	return $rc;
}

sub lists
{
	return $node->safe_psql('postgres', "SELECT lists FROM gpuvec_index_info('t_e')");
}

sub test_index
{
	my ($what, %options) = @_;

	are_whole($node, $what, [ [ 't_e', 't', '<->', 6 ] ], %options);
	return;
}

# The rest that happens to the index until nothing is left to do: the
# transaction ends, VACUUM cleans up, the pending rows are flushed.
sub test_end
{
	my ($what) = @_;

	$node->safe_psql('postgres', "COMMIT PREPARED 'some'");
	test_index("$what, committed", warnings => 1, exact => 0);
	$node->safe_psql('postgres',
		"INSERT INTO t SELECT id + 2000000, e FROM source LIMIT 40; SELECT gpuvec_train('t_e')");
	$node->safe_psql('postgres', 'VACUUM t');
	test_index("$what, done");
	is($node->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('t_e')"),
		'0', "$what, done: no row is pending");
	return;
}

# -- killed: step, how often it has come before that, and is it trained then?
my @steps = (
	[ 'train: sealed', 1, 0 ],
	[ 'train: page', 1, 0 ],
	[ 'train: page', 5, 0 ],
	[ 'train: page', 12, 0 ],
	[ 'train: written', 1, 0 ],
	[ 'train: kept', 1, 0 ],
	[ 'train: kept', 2, 0 ],
	[ 'sweep', 1, 0 ],
	[ 'sweep', 7, 0 ],
	[ 'train: published', 1, 1 ],
	[ 'pending: freed', 1, 1 ],
	[ 'pending: freed', 3, 1 ]);

make_index('refine = sq8');
for my $round (0 .. $#steps)
{
	my ($step, $n, $trained) = @{ $steps[$round] };
	my $what = "$step $n";

	# from the log alone, and with pages that the checkpoint wrote
	$node->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
	isnt(train_with("flush $n $step"), 0, "$what: killed");
	restart_after_crash($node);
	is(lists() > 0 ? 1 : 0, $trained, "$what: trained or not");
	test_index($what, warnings => 1, exact => $round % 3 == 0);
	if ($trained)
	{
		test_end($what);
		make_index($round % 2 ? 'spill = 0' : 'lists = 30, refine = sq8');
	}
	else
	{
		# a later attempt has to succeed beside what this one left
		$node->safe_psql('postgres',
			"INSERT INTO t SELECT id + 3000000 + 100 * $round, e FROM source WHERE id <= 30");
	}
}
is(train_with(''), 0, 'training after all these');
test_end('trained');

# -- every step there is, on a small index
for my $n (1 .. (long_test() ? 1000 : 0))
{
	make_index($n % 2 ? 'lists = 20' : 'lists = 20, refine = sq8', 1500);
	if (train_with("flush $n *") == 0)
	{
		cmp_ok($n, '>', 15, 'every step was tried');
		last;
	}
	restart_after_crash($node);
	test_index("step $n", warnings => 1, exact => 0);
	is(train_with(''), 0, "step $n: trained");
	test_end("step $n");
}
make_index('lists = 20');

# -- VACUUM takes away what training left in an untrained index
make_index('pq_dim = 4, refine = sq8');
isnt(train_with('flush 1 train: written'), 0, 'killed once more');
restart_after_crash($node);
like($node->safe_psql('postgres', "SELECT problem FROM gpuvec_verify_index('t_e') LIMIT 1"),
	qr/left over from training/, 'leftovers are told');
my $pages = $node->safe_psql('postgres', "SELECT pg_relation_size('t_e')");
$node->safe_psql('postgres', 'VACUUM t');
is_sound($node, 't_e', 'after VACUUM');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'some';
	INSERT INTO t SELECT * FROM source LIMIT 2000");
is($node->safe_psql('postgres', "SELECT pg_relation_size('t_e')"), $pages,
	'... and their space is used again');

# -- draining, killed between the two copies of a row, and at the end
my @drain = ([ 'drain: copy', 1 ], [ 'drain: copy', 2 ], [ 'drain: copy', 3 ], [ 'trim', 1 ]);
for my $case (@drain)
{
	my ($step, $n) = @$case;

	make_index('lists = 20');
	is(train_with(''), 0, "$step $n: trained");
	$node->safe_psql('postgres', "COMMIT PREPARED 'some'");
	my $from = -s $node->logfile;
	$node->safe_psql('postgres', 'VACUUM t');
	like(slurp_file($node->logfile, $from), qr/no background worker is free for index "t_e"/,
		"$step $n: VACUUM leaves pending rows to a worker");
	isnt(train_with("flush $n $step"), 0, "$step $n: killed");
	restart_after_crash($node);
	test_index("$step $n", warnings => 1);
	is(train_with(''), 0, "$step $n: drained");
	test_index("$step $n, drained", warnings => 1);
	is($node->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('t_e')"),
		'0', "$step $n: no row is pending");
}

# -- the same with blocks of two parts, where one record changes four pages
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE wide (id int, e real[]);
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (dims = 1400, lists = 5, pq_dim = 900);
	INSERT INTO wide SELECT g, point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 150) AS g;
	BEGIN;
	INSERT INTO wide SELECT g, point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(151, 300) AS g;
	PREPARE TRANSACTION 'wide';
	SELECT gpuvec_train('wide_e');
	COMMIT PREPARED 'wide';});
for my $n (1, 40)
{
	my ($rc) = $node->psql('postgres',
		"SET gpuvec.fault = 'flush $n drain: copy'; SELECT gpuvec_train('wide_e')");

	isnt($rc, 0, "wide, $n: killed");
	restart_after_crash($node);
	is_sound($node, 'wide_e', "wide, $n", warnings => 1);
	is_complete($node, 'wide', '<->', 1400, "wide, $n");
}
$node->safe_psql('postgres', "SELECT gpuvec_train('wide_e')");
is_sound($node, 'wide_e', 'wide, drained', warnings => 1);
is_exact($node, 'wide', '<->', 1400, 'wide, drained');
is($node->safe_psql('postgres', "SELECT rows, pending FROM gpuvec_index_info('wide_e')"),
	'300|0', 'wide: all rows are in lists');

# -- killed before its records are on disk: any number of them may be lost
for my $step ('train: page', 'train: published', 'pending: freed')
{
	make_index('lists = 20');
	isnt(train_with("kill 1 $step"), 0, "$step, not on disk: killed");
	restart_after_crash($node);
	test_index("$step, not on disk", warnings => 1);
	is(train_with(''), 0, "$step, not on disk: trained");
	test_end("$step, not on disk");
}

# -- an error at any step leaves an index that works, and is trained later
make_index('lists = 25');
for my $n (long_test() ? (1, 2, 3, 10, 30, 50, 60, 70) : (1, 3, 30, 60))
{
	my $rc = train_with("error $n *");

	test_index("error at step $n", warnings => 1, exact => 0);
	isnt($rc, 0, 'an error at the first step') if $n == 1;
	last if $rc == 0;
}
is(train_with(''), 0, 'trained after errors');
test_end('trained after errors');

# -- a scan reads a page of the pending list, then all is trained and freed
for my $page (1, long_test() ? 2 : (), 4)
{
	make_index('lists = 25');
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	my $scan = background($node, "SET gpuvec.fault = 'wait $page read: pending page';
		SELECT complete('t', '<->', 6);");
	ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}),
		"scan waits at page $page");
	is(train_with(''), 0, '... while the index is trained');
	$node->safe_psql('postgres',
		"INSERT INTO t SELECT id + 4000000, e FROM source LIMIT 3000");
	$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
	$holder->quit;
	is(end_of($scan), 0, '... and ends');
	my $live = $node->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id < 1000000');
	is(slurp_file($scan->{output}), "$live rows, $live distinct\n",
		'... with each row of its snapshot once');
	test_end("scan at page $page");
}

# -- verify reads the pending list, then half of it moves to lists: that is no
# fault, and is found out for all rows at once
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE moved (LIKE source);
	CREATE INDEX moved_e ON moved USING gpuivfpq (e) WITH (dims = 6, lists = 20);
	INSERT INTO moved SELECT * FROM source LIMIT 2000;
	BEGIN;
	INSERT INTO moved SELECT id + 1000000, e FROM source LIMIT 4000;
	PREPARE TRANSACTION 'moves';
	BEGIN;
	INSERT INTO moved SELECT id + 2000000, e FROM source LIMIT 4000;
	PREPARE TRANSACTION 'stays';
	SELECT gpuvec_train('moved_e');
	COMMIT PREPARED 'moves'");
my $verify = "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM gpuvec_verify_index('moved_e')";
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
my $racing = background($node, "SET gpuvec.fault = 'wait 1 verify: pending'; $verify;");
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}), 'verify has read the pending list');
is($node->safe_psql('postgres', "SELECT gpuvec_train('moved_e')"), '4000', '... of which half moves to lists');
$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
$holder->quit;
is(end_of($racing), 0, '... and it ends');
my ($problems, $blocks) = slurp_file($racing->{output}) =~ /"Actual Rows": (\d+).*?"Shared Hit Blocks": (\d+)/s;
my ($quiet) = $node->safe_psql('postgres', $verify) =~ /"Shared Hit Blocks": (\d+)/;
is($problems, 0, '... without a fault found');
cmp_ok($blocks, '<', $quiet + 100, '... nor more pages read than once again those of the pending list');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'stays'");

# -- a transaction that began before the rows came cannot train for them
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE older (id int, e real[]);
	CREATE INDEX older_e ON older USING gpuivfpq (e) WITH (train_rows = 1000)");
my $old = $node->background_psql('postgres', on_error_stop => 0);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM older');
$node->safe_psql('postgres', 'INSERT INTO older SELECT id, e FROM source LIMIT 2000');
$old->query("SELECT gpuvec_train('older_e')");
like($old->{stderr},
	qr/ERROR:  cannot train index "older_e", this transaction does not see most of its rows.*DETAIL:  It sees 0 of 2000\..*HINT:/s,
	'an old snapshot: it is said');
$old->quit;
is( $node->safe_psql('postgres', "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT gpuvec_train('older_e'); COMMIT"),
	'2000', 'a new snapshot: trained');

done_testing();
