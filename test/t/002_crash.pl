# A server killed during load, CREATE INDEX, REINDEX and VACUUM comes back by
# WAL alone: no index needs REINDEX, gpuvec_verify_index finds no error, every
# row is found once, and answers with all lists are those of exact search.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rows = long_test() ? 50_000 : 2000;
my $rounds = long_test() ? 20 : 2;
# so many that phases of a build are seldom over before they are seen
my $slow_rows = long_test() ? 2 * $rows : 6000;
my @indexes = (
	[ 'l2', 'loaded', '<->', 8 ],
	[ 'ip', 'loaded', '<#>', 8 ],
	[ 'cosine', 'loaded', '<=>', 8 ],
	[ 'wide_e', 'wide', '<->', 1400, [ 'id < 100', 'id BETWEEN 200 AND 400', 'id = 250' ] ],
	[ 'refined_e', 'refined', '<->', 8, [ 'id < 900', 'id % 3 = 1', 'id > 1200 AND id % 3 = 2' ] ],
	[ 'waiting_e', 'waiting', '<->', 8, [ 'id < 200' ] ]);

my $node = new_node('main', conf => "checkpoint_timeout = 1h\nwal_level = replica\n");
$node->safe_psql(
	'postgres', qq{
	SET client_min_messages = warning;
	CREATE TABLE loaded (id bigserial, e real[]);
	INSERT INTO loaded (e) SELECT point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX l2 ON loaded USING gpuivfpq (e) WITH (lists = 10);
	CREATE INDEX ip ON loaded USING gpuivfpq (e real_ip_ops) WITH (lists = 1);
	CREATE INDEX cosine ON loaded USING gpuivfpq (e real_cosine_ops)
		WITH (lists = 30, pq_dim = 8);
	CREATE TABLE wide (id bigserial, e real[]);
	INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 300) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e, id) WITH (lists = 5, pq_dim = 900);
	CREATE TABLE refined (id bigserial, e real[]);
	INSERT INTO refined (e) SELECT e FROM loaded LIMIT 1500;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, (id % 3))
		WITH (lists = 10, refine = sq8, rotate);
	CREATE TABLE waiting (id bigserial, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id);
});

# Tests that must pass after every recovery.
sub test_recovered
{
	my ($what) = @_;

	are_whole($node, $what, \@indexes, warnings => 1);
	return;
}

# Kill the server, in one of two ways, and start it again.
sub crash
{
	my ($round) = @_;

	if ($round % 2)
	{
		$node->kill9;
		restart_after_kill($node);
	}
	else
	{
		$node->stop('immediate');
		$node->start;
	}
	return;
}

# Statements for a session that goes on until the server dies.
my $load = q{
	INSERT INTO loaded (e) SELECT point((random() * 1e6)::int, 8)
	FROM generate_series(1, 20);
	DELETE FROM loaded WHERE id IN
		(SELECT id FROM loaded ORDER BY e <-> point((random() * 1e6)::int, 8) LIMIT 15);
	INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 2) AS g;
	INSERT INTO refined (e) SELECT point((random() * 1e6)::int, 8)
	FROM generate_series(1, 20);
	DELETE FROM refined WHERE id IN
		(SELECT id FROM refined ORDER BY e <-> point((random() * 1e6)::int, 8) LIMIT 15);
	INSERT INTO waiting (e) SELECT point((random() * 1e6)::int, 8)
	FROM generate_series(1, 50);
	UPDATE loaded SET e = point((random() * 1e6)::int, 8)
	WHERE id IN (SELECT id FROM loaded ORDER BY e <=> point((random() * 1e6)::int, 8) LIMIT 3);
} x 2000;
my $vacuums = "VACUUM loaded; VACUUM wide; VACUUM refined; DELETE FROM waiting WHERE id % 3 = 0;
	VACUUM waiting;\n" x 2000;

# -- under load, with VACUUM beside it, with and without full page images
for my $round (1 .. $rounds)
{
	my @jobs = map { background($node, $_) } ($load, $load, $vacuums);

	$node->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
	usleep(1_000_000 + 570_000 * ($round % 4));
	crash($round);
	end_of($_) for @jobs;
	test_recovered("load $round");
}

# -- VACUUM, at ever later points of its work
my @points = long_test() ? map { $_ * 40_000 } 1 .. 25 : (20_000, 250_000, 800_000);
for my $round (0 .. $#points)
{
	$node->safe_psql('postgres',
		"DELETE FROM loaded WHERE id % 3 = $round % 3; DELETE FROM wide WHERE id % 2 = $round % 2;
		DELETE FROM refined WHERE id % 3 = $round % 3; CHECKPOINT");
	# slow enough to be met at its indexes, on a busy machine too: so one round meets
	# one table, and the next another
	my $slow = long_test() ? 'SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 60' :
	  'SET vacuum_cost_delay = 10; SET vacuum_cost_limit = 10';
	my @vacuumed = qw(refined loaded wide);
	push @vacuumed, splice(@vacuumed, 0, long_test() ? 0 : $round);
	my $job = background($node, join '; ', $slow, map { "VACUUM $_" } @vacuumed);
	is( $node->safe_psql('postgres', q{SELECT await_true($$
			SELECT count(*) > 0 FROM pg_stat_progress_vacuum WHERE phase = 'vacuuming indexes'$$)}),
		't', "vacuum $round: is at its indexes");
	usleep($points[$round]);
	crash($round);
	end_of($job);
	test_recovered("vacuum $round");
	$node->safe_psql('postgres',
		"INSERT INTO loaded (e) SELECT point(g, 8) FROM generate_series(1, $rows / 3) AS g;
		INSERT INTO refined (e) SELECT point(g, 8) FROM generate_series(1, 500) AS g;
		INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
		FROM generate_series(1, 100) AS g");
	test_recovered("vacuum $round, filled");
}

# what crashes left behind, VACUUM takes away: the next fill needs no more room
# than the file has, if that is enough for it
my $pages = q{SELECT pg_relation_size('l2') / 8192};
$node->safe_psql('postgres', 'DELETE FROM loaded; VACUUM loaded');
my $before = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres',
	"INSERT INTO loaded (e) SELECT point(g, 8) FROM generate_series(1, $rows) AS g");
my $size = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres', 'REINDEX INDEX l2');
my $fresh = $node->safe_psql('postgres', $pages);
ok($size <= $before || $size <= 1.5 * $fresh,
	"space is used again: $before pages, $size when filled, $fresh when new");
test_recovered('emptied and filled');
is_sound($node, $_->[0], 'vacuumed') for @indexes[ 0 .. 2 ];

# -- CREATE INDEX and REINDEX
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE slow (id bigserial, e real[]);
	INSERT INTO slow (e) SELECT point(g, 8) || array_fill((g % 97)::real, ARRAY[120])
	FROM generate_series(1, $slow_rows) AS g});
for my $phase ('clustering', 'training codes', 'assigning', 'writing')
{
	my $job = background($node,
		'CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = 300)');

	# short phases may pass unseen: then the crash comes after the build
	wait_until($node,
		"SELECT to_regclass('slow_e') IS NOT NULL OR EXISTS (SELECT FROM
			pg_stat_progress_create_index WHERE phase = 'building index: $phase')");
	crash(length $phase);
	end_of($job);
	test_recovered("build, $phase");
	$node->safe_psql('postgres', 'DROP INDEX IF EXISTS slow_e');
}
my $job = background($node, 'REINDEX TABLE loaded; REINDEX TABLE loaded; REINDEX TABLE loaded');
usleep(150_000);
crash(1);
end_of($job);
test_recovered('reindex');

# a build that was committed is there after a crash, without a checkpoint
$node->safe_psql('postgres',
	'CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (lists = 20);
	 INSERT INTO slow (e) SELECT point(g, 128) FROM generate_series(1, 10) AS g');
crash(1);
is_sound($node, 'slow_e', 'built');
is_exact($node, 'slow', '<->', 128, 'built');
$node->safe_psql('postgres',
	'SET wal_compression = on; CREATE TABLE copy AS SELECT * FROM slow LIMIT 1500;
	 CREATE INDEX copy_e ON copy USING gpuivfpq (e)');
crash(0);
is_sound($node, 'copy_e', 'built compressed');
is_exact($node, 'copy', '<->', 128, 'built compressed');

# the same without any WAL of the build
$node->append_conf('postgresql.conf',
	"wal_level = minimal\nmax_wal_senders = 0\nwal_skip_threshold = 0\n");
$node->restart;
$node->safe_psql('postgres',
	'BEGIN; CREATE TABLE quiet AS SELECT * FROM slow LIMIT 1500;
	 CREATE INDEX quiet_e ON quiet USING gpuivfpq (e);
	 INSERT INTO quiet SELECT id + 1000000, e FROM slow LIMIT 10; COMMIT;
	 INSERT INTO quiet SELECT id + 2000000, e FROM slow LIMIT 10');
crash(1);
is_sound($node, 'quiet_e', 'built without WAL');
is_complete($node, 'quiet', '<->', 128, 'built without WAL');
is_exact($node, 'quiet', '<->', 128, 'built without WAL');

done_testing();
