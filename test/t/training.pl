# Training in place and the pending list, without a worker.  What a killed session left
# is taken away by VACUUM (crash.pl has recovery end at any record of training, flushes
# and compaction); scans and gpuvec_verify_index, on a standby too, are in the midst of
# it: every row is found exactly once.  Of two first rows of different dimensions one is
# refused.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

need_test_build();
my $node = new_node('main', allows_streaming => 1,
	# no worker, which VACUUM would ask for: here training comes when it is told
	conf => "max_prepared_transactions = 2\ncheckpoint_timeout = 1h
		max_worker_processes = 0\nmax_logical_replication_workers = 0\n");
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE source AS SELECT g AS id, point(g, 6) AS e FROM generate_series(1, 5000) AS g;
	CREATE TABLE t (LIKE source);
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (dims = 6, pq_dim = 4, refine = sq8);
	INSERT INTO t SELECT * FROM source;
	DELETE FROM t WHERE id % 3 = 0;
	BEGIN;
	INSERT INTO t SELECT id + 1000000, e FROM source LIMIT 40;
	PREPARE TRANSACTION 'some'");

# -- VACUUM takes away what training left in an untrained index
my ($killed) = $node->psql('postgres', "SET gpuvec.fault = 'flush 1 train: written'; SELECT gpuvec_train('t_e')");
isnt($killed, 0, 'killed in training');
restart_after_crash($node);
is_whole($node, 'killed in training', 't', '<->', 6, warnings => 1);
like($node->safe_psql('postgres', "SELECT problem FROM gpuvec_verify_index('t_e') LIMIT 1"),
	qr/left over from training/, 'leftovers are told');
my $pages = $node->safe_psql('postgres', "SELECT pg_relation_size('t_e')");
$node->safe_psql('postgres', 'VACUUM t');
is_sound($node, 't_e', 'after VACUUM');
$node->safe_psql('postgres', 'INSERT INTO t SELECT id + 2000000, e FROM source LIMIT 2000');
is($node->safe_psql('postgres', "SELECT pg_relation_size('t_e')"), $pages, '... and their space is used again');

# -- what nobody saw while it was trained is left to a worker, which there is none, and
# flushed by the next training
$node->safe_psql('postgres', "SELECT gpuvec_train('t_e'); COMMIT PREPARED 'some'");
my $from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM t');
like(slurp_file($node->logfile, $from), qr/could not start background worker to train index "t_e"/,
	'VACUUM leaves pending rows to a worker');
is($node->safe_psql('postgres', "SELECT gpuvec_train('t_e'); SELECT pending FROM gpuvec_index_info('t_e')"),
	"40\n0", '... and training flushes them');
is_whole($node, 'flushed', 't', '<->', 6);

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
gives($node, "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT gpuvec_train('older_e'); COMMIT", '2000', 'a new snapshot: trained');
$node->safe_psql('postgres', 'DROP TABLE t, moved, older, source');

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
	$node->safe_psql('postgres', q{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t;
		CREATE TABLE t (id int, e real[]);
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (train_rows = 100000);
		INSERT INTO t SELECT g, ARRAY[g % 1000, g / 1000] FROM generate_series(1, 15000) AS g;
		DELETE FROM t WHERE id % 10 <> 1});
	return;
}

# -- one old row, and many that come and go
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE churned (id int, e real[]);
	CREATE INDEX churned_e ON churned USING gpuivfpq (e);
	INSERT INTO churned VALUES (0, '{1,2}')});
for my $round (1 .. 12)
{
	$node->safe_psql('postgres', qq{
		INSERT INTO churned SELECT g, ARRAY[g, $round] FROM generate_series(1, 3000) AS g;
		DELETE FROM churned WHERE id > 0;
		VACUUM (INDEX_CLEANUP ON) churned});
}
cmp_ok(pages('churned_e'), '<=', 12, 'an index does not grow by rows that are gone');
gives($node, q{SET enable_seqscan = off; SELECT id FROM churned ORDER BY e <-> '{1,2}'}, '0', '... and has the row that stays');
$node->safe_psql('postgres', 'ANALYZE churned');
my $cost = $node->safe_psql('postgres',
	q{SET enable_seqscan = off; EXPLAIN (FORMAT json) SELECT id FROM churned ORDER BY e <-> '{1,2}' LIMIT 1});
$cost =~ /.*"Total Cost": ([\d.]+)/s;
cmp_ok($1, '<', 100, '... which is all that a search is said to cost');
is_sound($node, 'churned_e', 'churned');

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
		$node->safe_psql('postgres', q{
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
is($node->safe_psql('postgres', q{
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
$node->safe_psql('postgres', q{
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
$node->safe_psql('postgres', q{
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
gives($node, q{SET enable_seqscan = off; SELECT id FROM firsts ORDER BY e <-> '{1,2}'}, '5', '... so that rows have one length');

is_sound($node, 'firsts_e', 'firsts');
$node->stop;
done_testing();
