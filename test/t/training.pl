# Training in place and the pending list, whose rows it puts into lists, without a worker.
# A session is killed, or has an error, at any step of its own; scans and
# gpuvec_verify_index, on a standby too, are in its midst: every row is found exactly
# once, the next attempt succeeds, and VACUUM takes away what was left.  Of two first
# rows of different dimensions one is refused, unless the other is rolled back.

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
my $node = new_node('main', allows_streaming => 1,
	# no worker, which VACUUM would ask for: here training comes when it is told
	conf => "max_prepared_transactions = 2\ncheckpoint_timeout = 1h
		max_worker_processes = 0\nmax_logical_replication_workers = 0\n");
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

# -- a flush of pending rows, killed between the two postings of a row, and at the end
my @flush = ([ 'drain: copy', 1 ], [ 'drain: copy', 2 ], [ 'drain: copy', 3 ], [ 'trim', 1 ]);
for my $case (@flush)
{
	my ($step, $n) = @$case;

	make_index('lists = 20');
	is(train_with(''), 0, "$step $n: trained");
	$node->safe_psql('postgres', "COMMIT PREPARED 'some'");
	my $from = -s $node->logfile;
	$node->safe_psql('postgres', 'VACUUM t');
	like(slurp_file($node->logfile, $from), qr/could not start background worker to train index "t_e"/,
		"$step $n: VACUUM leaves pending rows to a worker");
	isnt(train_with("flush $n $step"), 0, "$step $n: killed");
	restart_after_crash($node);
	test_index("$step $n", warnings => 1);
	is(train_with(''), 0, "$step $n: flushed");
	test_index("$step $n, flushed", warnings => 1);
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
	is_whole($node, "wide, $n", 'wide', '<->', 1400, warnings => 1, exact => 0);
}
$node->safe_psql('postgres', "SELECT gpuvec_train('wide_e')");
is_whole($node, 'wide, flushed', 'wide', '<->', 1400, warnings => 1);
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
	my $holder = hold($node);
	my $scan = background($node, "SET gpuvec.fault = 'wait $page read: pending page';
		SELECT complete('t', '<->', 6);");
	is_held($node, "scan waits at page $page");
	is(train_with(''), 0, '... while the index is trained');
	$node->safe_psql('postgres',
		"INSERT INTO t SELECT id + 4000000, e FROM source LIMIT 3000");
	release($holder);
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
my $holder = hold($node);
my $racing = background($node, "SET gpuvec.fault = 'wait 1 verify: pending'; $verify;");
is_held($node, 'verify has read the pending list');
is($node->safe_psql('postgres', "SELECT gpuvec_train('moved_e')"), '4000', '... of which half moves to lists');
release($holder);
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
	qr/ERROR:  cannot train index "older_e" in this transaction.*DETAIL:  The snapshot sees 0 of 2000 rows\..*HINT:/s,
	'an old snapshot: it is said');
$old->quit;
is( $node->safe_psql('postgres', "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT gpuvec_train('older_e'); COMMIT"),
	'2000', 'a new snapshot: trained');
$node->safe_psql('postgres', 'DROP TABLE t, wide, moved, older, source');

# -- the pending list of an untrained index

# Pages of the index's file.
sub pages
{
	my ($index) = @_;
	return $node->safe_psql('postgres', "SELECT pg_relation_size('$index') / 8192");
}

# Twelve pages of pending rows, of which a tenth is alive.
sub make_sparse
{
	$node->safe_psql(
		'postgres', q{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t;
		CREATE TABLE t (id int, e real[]);
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (train_rows = 100000);
		INSERT INTO t SELECT g, ARRAY[g % 1000, g / 1000] FROM generate_series(1, 15000) AS g;
		DELETE FROM t WHERE id % 10 <> 1});
	return;
}

# -- one old row, and many that come and go
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE churned (id int, e real[]);
	CREATE INDEX churned_e ON churned USING gpuivfpq (e);
	INSERT INTO churned VALUES (0, '{1,2}')});
for my $round (1 .. 12)
{
	$node->safe_psql(
		'postgres', qq{
		INSERT INTO churned SELECT g, ARRAY[g, $round] FROM generate_series(1, 3000) AS g;
		DELETE FROM churned WHERE id > 0;
		VACUUM (INDEX_CLEANUP ON) churned});
}
cmp_ok(pages('churned_e'), '<=', 12, 'an index does not grow by rows that are gone');
is( $node->safe_psql('postgres', q{SET enable_seqscan = off; SELECT id FROM churned ORDER BY e <-> '{1,2}'}),
	'0', '... and has the row that stays');
$node->safe_psql('postgres', 'ANALYZE churned');
my $cost = $node->safe_psql('postgres',
	q{SET enable_seqscan = off; EXPLAIN (FORMAT json) SELECT id FROM churned ORDER BY e <-> '{1,2}' LIMIT 1});
$cost =~ /.*"Total Cost": ([\d.]+)/s;
cmp_ok($1, '<', 100, '... which is all that a search is said to cost');
is_sound($node, 'churned_e', 'churned');

# -- killed: step, and how often it has come before that
my @compact_steps = (
	[ 'compact: sealed', 1 ],
	[ 'compact: page', 1 ],
	[ 'compact: page', 2 ],
	[ 'compact: switched', 1 ],
	[ 'pending: freed', 1 ],
	[ 'pending: freed', 7 ]);
for my $round (0 .. $#compact_steps)
{
	my ($step, $n) = @{ $compact_steps[$round] };
	my $what = "$step $n";

	make_sparse();
	# from the log alone, and with pages that the checkpoint wrote
	$node->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
	my ($rc) = $node->psql('postgres', "SET gpuvec.fault = 'flush $n $step'; VACUUM (INDEX_CLEANUP ON) t");
	isnt($rc, 0, "$what: killed");
	restart_after_crash($node);
	is_whole($node, $what, 't', '<->', 2, warnings => 1);
	# beside what this one left
	$node->safe_psql('postgres',
		q{INSERT INTO t SELECT g, ARRAY[g % 1000, 1] FROM generate_series(20001, 22000) AS g;
		DELETE FROM t WHERE id % 100 = 11; VACUUM (INDEX_CLEANUP ON) t});
	is_whole($node, "$what, vacuumed", 't', '<->', 2);
	my $pages = pages('t_e');
	cmp_ok($pages, '<=', 24, "$what: the list, and what VACUUM needs beside it");
	$node->safe_psql('postgres',
		q{INSERT INTO t SELECT g, ARRAY[g % 1000, 2] FROM generate_series(30001, 33000) AS g});
	is(pages('t_e'), $pages, "$what: pages are used again");
}

# -- an error leaves a list that works
for my $step ('compact: sealed', 'compact: page', 'compact: switched')
{
	make_sparse();
	my ($rc) = $node->psql('postgres', "SET gpuvec.fault = 'error 1 $step'; VACUUM (INDEX_CLEANUP ON) t");
	isnt($rc, 0, "error at $step");
	$node->safe_psql('postgres', q{INSERT INTO t SELECT g, ARRAY[g, 1] FROM generate_series(20001, 20100) AS g});
	is_whole($node, "error at $step", 't', '<->', 2, warnings => 1);
}

# -- a scan reads a page of the list, then that is written anew and used again;
# also on a standby
my $standby = new_standby($node, 'standby');
for my $server ($node, $standby)
{
	my $where = $server == $node ? 'primary' : 'standby';

	for my $page (1, 3, 11)
	{
		make_sparse();
		$node->wait_for_catchup($standby);
		$holder = hold($server);
		my $scan = background($server, "SET gpuvec.fault = 'wait $page read: pending page';
			SELECT complete('t', '<->', 2);");
		is_held($server, "$where: a scan waits at page $page");
		# twice, so that pages are freed and come again
		$node->safe_psql(
			'postgres', q{
			VACUUM (INDEX_CLEANUP ON) t;
			BEGIN; INSERT INTO t SELECT g, ARRAY[g, 3] FROM generate_series(40001, 52000) AS g; ROLLBACK;
			VACUUM (INDEX_CLEANUP ON) t});
		cmp_ok(pages('t_e'), '<=', 28, '... while VACUUM writes the list anew');
		$node->wait_for_catchup($standby);
		release($holder);
		is(end_of($scan), 0, '... and ends');
		is(slurp_file($scan->{output}), "1500 rows, 1500 distinct\n", '... with each row once');
	}
}
is_sound($node, 't_e', 'in the end');
is_whole($standby, 'in the end, standby', 't', '<->', 2);
$standby->stop;

# -- rows come while it is written anew
make_sparse();
$holder = hold($node);
my $vacuum = background($node, "SET gpuvec.fault = 'wait 1 compact: page'; VACUUM (INDEX_CLEANUP ON) t;");
is_held($node, 'VACUUM waits');
$node->safe_psql('postgres', q{INSERT INTO t SELECT g, ARRAY[g, 1] FROM generate_series(20001, 23000) AS g});
is_whole($node, 'in the midst of VACUUM', 't', '<->', 2, warnings => 1);
# VACUUM takes no page that the new list leads to.
$node->safe_psql('postgres', 'CHECKPOINT');
is( $node->safe_psql(
		'postgres', q{
		WITH file AS MATERIALIZED (SELECT pg_read_binary_file(pg_relation_filepath('t_e')) AS f),
			page AS MATERIALIZED (SELECT p, get_byte(f, p * 8192 + 8184) AS kind,
				get_byte(f, p * 8192 + 40) + 256 * get_byte(f, p * 8192 + 41) AS next,
				get_byte(f, p * 8192 + 43) = 255 AS last
			FROM file, generate_series(0, length(f) / 8192 - 1) AS p)
		SELECT count(*) > 2, count(*) FILTER (WHERE b.kind <> 5)
		FROM page AS a JOIN page AS b ON b.p = a.next WHERE a.kind = 5 AND NOT a.last}),
	't|0', 'pending pages lead to such pages only');
release($holder);
is(end_of($vacuum), 0, '... and goes on');
is_whole($node, 'rows came meanwhile', 't', '<->', 2);

# -- two first rows of different dimensions at once: the one that comes second
# to the page is refused, though its session saw an empty index
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE firsts (id int, e real[]);
	CREATE INDEX firsts_e ON firsts USING gpuivfpq (e)});
$holder = hold($node);
my $late = background($node, "SET gpuvec.fault = 'wait 1 insert: pending'; INSERT INTO firsts VALUES (1, '{1,2,3}');");
is_held($node, 'a first row waits');
$node->safe_psql('postgres', q{INSERT INTO firsts VALUES (2, '{1,2}')});
release($holder);
isnt(end_of($late), 0, '... and is refused');
is($node->safe_psql('postgres', q{SELECT id FROM firsts}), '2', '... as another one was before it');
my (undef, undef, $err) = $node->psql('postgres', q{INSERT INTO firsts VALUES (1, '{1,2,3}')});
like($err, qr/expected 2 dimensions, not 3/, 'so are all that follow');

# nobody will see the row that decided, so the next one may: unless rows come
# while that is asked, also if VACUUM removes as many
$node->safe_psql(
	'postgres', q{
	TRUNCATE firsts;
	ALTER TABLE firsts ADD pad text;
	ALTER TABLE firsts ALTER pad SET STORAGE plain});
# on two pages: who asks holds the second
$node->safe_psql('postgres',
	q{INSERT INTO firsts VALUES (2, '{1,2}', repeat('x', 5000)), (3, '{1,2}', repeat('x', 5000)); DELETE FROM firsts});
$holder = hold($node);
$late = background($node, "SET gpuvec.fault = 'wait 1 dims: asked'; INSERT INTO firsts VALUES (1, '{1,2,3}');");
is_held($node, 'a row of another length asks');
$node->safe_psql('postgres', q{VACUUM (INDEX_CLEANUP ON) firsts});
$node->safe_psql('postgres', q{INSERT INTO firsts VALUES (5, '{5,6}')});
release($holder);
isnt(end_of($late), 0, '... and is refused');
is( $node->safe_psql('postgres', q{SET enable_seqscan = off; SELECT id FROM firsts ORDER BY e <-> '{1,2}'}),
	'5', '... so that rows have one length');

# a row of a transaction that has not ended is waited for, as it may commit
$node->safe_psql('postgres', 'TRUNCATE firsts');
my $first = $node->background_psql('postgres');
$first->query_safe(q{BEGIN; INSERT INTO firsts VALUES (1, '{1,2,3}')});
$late = background($node, q{INSERT INTO firsts VALUES (2, '{1,2}')});
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted}),
	'a row that is not committed is waited for');
$first->query_safe('ROLLBACK');
$first->quit;
is(end_of($late), 0, '... and does not decide when it is rolled back');
$node->stop('immediate');
$node->start;
(undef, undef, $err) = $node->psql('postgres', q{INSERT INTO firsts VALUES (1, '{1,2,3}')});
like($err, qr/expected 2 dimensions, not 3/, '... but the next one does; after a crash, too');
is_sound($node, 'firsts_e', 'firsts');

done_testing();
