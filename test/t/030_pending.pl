# The pending list of an untrained index: it does not grow with what comes and
# goes, VACUUM can be killed between any two records of writing it anew, and
# scans that are in its midst, on a standby too, find every row once.  Of two
# first rows of different dimensions one is refused, however they meet, unless the
# other is rolled back.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $node = new_node('main', allows_streaming => 1,
	# no worker, which VACUUM might ask for
	conf => "fsync = off\ncheckpoint_timeout = 1h\nmax_worker_processes = 0
		max_logical_replication_workers = 0\n");

# Pages of the index's file.
sub pages
{
	my ($index) = @_;
	return $node->safe_psql('postgres', "SELECT pg_relation_size('$index') / 8192");
}

sub test_index
{
	my ($what, %options) = @_;

	are_whole($node, $what, [ [ 't_e', 't', '<->', 2 ] ], %options);
	return;
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
my @steps = (
	[ 'compact: sealed', 1 ],
	[ 'compact: page', 1 ],
	[ 'compact: page', 2 ],
	[ 'compact: switched', 1 ],
	[ 'pending: freed', 1 ],
	[ 'pending: freed', 7 ]);
for my $round (0 .. $#steps)
{
	my ($step, $n) = @{ $steps[$round] };
	my $what = "$step $n";

	make_sparse();
	# from the log alone, and with pages that the checkpoint wrote
	$node->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
	my ($rc) = $node->psql('postgres', "SET gpuvec.fault = 'flush $n $step'; VACUUM (INDEX_CLEANUP ON) t");
	isnt($rc, 0, "$what: killed");
	restart_after_crash($node);
	test_index($what, warnings => 1);
	# beside what this one left
	$node->safe_psql('postgres',
		q{INSERT INTO t SELECT g, ARRAY[g % 1000, 1] FROM generate_series(20001, 22000) AS g;
		DELETE FROM t WHERE id % 100 = 11; VACUUM (INDEX_CLEANUP ON) t});
	test_index("$what, vacuumed");
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
	test_index("error at $step", warnings => 1);
}

# -- a scan reads a page of the list, then that is written anew and used again;
# also on a standby
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
for my $server ($node, $standby)
{
	my $where = $server == $node ? 'primary' : 'standby';

	for my $page (1, 3, 11)
	{
		make_sparse();
		$node->wait_for_catchup($standby);
		my $holder = $server->background_psql('postgres');
		$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
		my $scan = background($server, "SET gpuvec.fault = 'wait $page read: pending page';
			SELECT complete('t', '<->', 2);");
		ok(wait_until($server, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}),
			"$where: a scan waits at page $page");
		# twice, so that pages are freed and come again
		$node->safe_psql(
			'postgres', q{
			VACUUM (INDEX_CLEANUP ON) t;
			BEGIN; INSERT INTO t SELECT g, ARRAY[g, 3] FROM generate_series(40001, 52000) AS g; ROLLBACK;
			VACUUM (INDEX_CLEANUP ON) t});
		cmp_ok(pages('t_e'), '<=', 28, '... while VACUUM writes the list anew');
		$node->wait_for_catchup($standby);
		$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
		$holder->quit;
		is(end_of($scan), 0, '... and ends');
		is(slurp_file($scan->{output}), "1500 rows, 1500 distinct\n", '... with each row once');
	}
}
is_sound($node, 't_e', 'in the end');
is_sound($standby, 't_e', 'in the end, standby');
is_complete($standby, 't', '<->', 2, 'standby');
$standby->stop;

# -- rows come while it is written anew
make_sparse();
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
my $vacuum = background($node, "SET gpuvec.fault = 'wait 1 compact: page'; VACUUM (INDEX_CLEANUP ON) t;");
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}), 'VACUUM waits');
$node->safe_psql('postgres', q{INSERT INTO t SELECT g, ARRAY[g, 1] FROM generate_series(20001, 23000) AS g});
test_index('in the midst of VACUUM', warnings => 1);
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
$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
is(end_of($vacuum), 0, '... and goes on');
test_index('rows came meanwhile');

# -- two first rows of different dimensions at once: the one that comes second
# to the page is refused, though its session saw an empty index
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE firsts (id int, e real[]);
	CREATE INDEX firsts_e ON firsts USING gpuivfpq (e)});
$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
my $late = background($node, "SET gpuvec.fault = 'wait 1 insert: pending'; INSERT INTO firsts VALUES (1, '{1,2,3}');");
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}), 'a first row waits');
$node->safe_psql('postgres', q{INSERT INTO firsts VALUES (2, '{1,2}')});
$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
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
$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
$late = background($node, "SET gpuvec.fault = 'wait 1 dims: asked'; INSERT INTO firsts VALUES (1, '{1,2,3}');");
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}), 'a row of another length asks');
$node->safe_psql('postgres', q{VACUUM (INDEX_CLEANUP ON) firsts});
$node->safe_psql('postgres', q{INSERT INTO firsts VALUES (5, '{5,6}')});
$holder->query_safe('SELECT pg_advisory_unlock(0, 26486)');
isnt(end_of($late), 0, '... and is refused');
is( $node->safe_psql('postgres', q{SET enable_seqscan = off; SELECT id FROM firsts ORDER BY e <-> '{1,2}'}),
	'5', '... so that rows have one length');

# a row of a transaction that has not ended is waited for, as it may commit
$node->safe_psql('postgres', 'TRUNCATE firsts');
$holder->query_safe(q{BEGIN; INSERT INTO firsts VALUES (1, '{1,2,3}')});
$late = background($node, q{INSERT INTO firsts VALUES (2, '{1,2}')});
ok(wait_until($node, q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted}),
	'a row that is not committed is waited for');
$holder->query_safe('ROLLBACK');
$holder->quit;
is(end_of($late), 0, '... and does not decide when it is rolled back');
$node->stop('immediate');
$node->start;
(undef, undef, $err) = $node->psql('postgres', q{INSERT INTO firsts VALUES (1, '{1,2,3}')});
like($err, qr/expected 2 dimensions, not 3/, '... but the next one does; after a crash, too');
is_sound($node, 'firsts_e', 'firsts');

done_testing();
