# Crashes.  A server killed during load, CREATE INDEX, REINDEX and VACUUM comes back by
# WAL alone: no index needs REINDEX, gpuvec_verify_index finds no error, every row is
# found once, and answers with all lists are those of exact search.
#
# Recovery may end at any one record of the WAL; an unlogged table's index is empty
# after a crash and works, and one on a standby, and temporary ones, are as PostgreSQL
# wants them.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('main', allows_streaming => 1,
	conf => "wal_keep_size = '2GB'\ncheckpoint_timeout = 1h\n");

# -- A crash after any one record: recovery that ends there leaves indexes with keys
# sound, complete, and right under conditions; rows then come and go, and VACUUM takes
# away what the crash left behind.  Records are those of inserts, updates, VACUUM,
# rewrites, slots that are used again, training in place and flushes of pending rows.
# In a long run recovery ends at each of a hundred of them, else at a few.

my $wanted = long_test() ? 100 : 6;
srand($ENV{SEED} // 1);

my @conditions = ('id < 90', 'k = 3', 'k IS NULL', q{name = 'n4'}, q{k > 1 AND name = ANY ('{n2,n7}')});
my @keyed = map { [ "${_}_e", $_, '<->', $_ eq 'wide' ? 1000 : 8, \@conditions ] }
  qw(once refined wide waiting);

# Rows of a table from number $1 to $2.
sub insert
{
	my ($table, $first, $last) = @_;
	my $dims = $table eq 'wide' ? 1000 : 8;

	return "INSERT INTO $table SELECT g, point(g, $dims), nullif(g % 6, 0), 'n' || g % 9
		FROM generate_series($first, $last) AS g;";
}

$node->safe_psql(
	'postgres', join '',
	(map { "CREATE TABLE $_ (id int, e real[], k bigint, name text);" } qw(once refined wide waiting)),
	(map { insert($_, 1, $_ eq 'wide' ? 60 : 300) } qw(once refined wide)),
	'CREATE INDEX once_e ON once USING gpuivfpq (e, k, name, id) WITH (lists = 4, spill = 0);',
	'CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, k, name) WITH (lists = 4, refine = sq8);',
	'CREATE INDEX wide_e ON wide USING gpuivfpq (e, id, name, k) WITH (lists = 2, pq_dim = 850);',
	'CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id, name, k) WITH (lists = 4, train_rows = 100000);');
$node->backup('backup');

# Statements that make records.
my $begin = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$node->safe_psql(
	'postgres', $_) for
  (map { insert($_, 1001, 1060) } qw(once refined wide)),
  insert('waiting', 1, 400),
  'UPDATE once SET k = k + 1 WHERE id % 5 = 0; UPDATE refined SET k = NULL WHERE id % 7 = 1',
  (map { "DELETE FROM $_ WHERE id % 9 = 2; VACUUM (INDEX_CLEANUP on) $_" } qw(once refined wide)),
  (map { "DELETE FROM $_ WHERE id % 3 <> 0; VACUUM (INDEX_CLEANUP on) $_" } qw(once refined wide)),
  (map { insert($_, 2001, 2120) } qw(once refined wide)),
  q{SELECT gpuvec_train('waiting_e')},
  insert('waiting', 401, 430),
  'DELETE FROM waiting WHERE id % 3 = 1; VACUUM (INDEX_CLEANUP on) waiting';
my $end = $node->safe_psql('postgres', 'SELECT pg_switch_wal()');
like(
	$node->safe_psql('postgres', "SET enable_seqscan = off;
		EXPLAIN SELECT id FROM $_ WHERE $conditions[-1] ORDER BY e <-> point(3, 8)"),
	qr/Index Cond: (?=.*k > 1)(?=.*name = ANY)/, "conditions on $_ are the index's") for map { $_->[1] } @keyed;

# The places of our records
my ($dump, $stderr) = run_command([ 'pg_waldump', '--path', $node->data_dir . '/pg_wal',
	'--rmgr', 'Generic', '--start', $begin, '--end', $end ]);
my @records = $dump =~ /lsn: ([0-9A-F]+\/[0-9A-F]+)/g;
cmp_ok(scalar @records, '>', 500, 'records are there') or diag($stderr);

# some in each part of the work
my @targets = map { $records[ int(($_ + rand) * @records / $wanted) ] } 0 .. $wanted - 1;
for my $n (0 .. $#targets)
{
	my $what = "record $n of $wanted, at $targets[$n]";
	my $crashed = PostgreSQL::Test::Cluster->new("crashed_$n");

	$crashed->init_from_backup($node, 'backup');
	$crashed->append_conf('postgresql.conf',
		"restore_command = 'cp \"" . $node->data_dir . "/pg_wal/%f\" \"%p\"'\n"
		  . "recovery_target_lsn = '$targets[$n]'\nrecovery_target_action = promote\n");
	$crashed->set_recovery_mode;
	$crashed->start;
	ok(wait_until($crashed, 'SELECT NOT pg_is_in_recovery()'), "$what: recovered");
	are_whole($crashed, $what, \@keyed, warnings => 1);

	$crashed->safe_psql('postgres', join '',
		(map { insert($_, 3001, 3050) . "DELETE FROM $_ WHERE id % 4 = 1;" } qw(once refined wide waiting)),
		"SELECT gpuvec_train('waiting_e');");
	$crashed->safe_psql('postgres', "VACUUM (INDEX_CLEANUP on) $_") for qw(once refined wide waiting);
	are_whole($crashed, "$what, and went on", \@keyed, warnings => 1);
	unlike(slurp_file($crashed->logfile), qr/PANIC|TRAP|damaged/, "$what: log");
	$crashed->stop;
	$crashed->clean_node;
}
$node->safe_psql('postgres', 'DROP TABLE once, refined, wide, waiting');

# -- unlogged tables
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE UNLOGGED TABLE trained (id int, e real[]);
	INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 1200) AS g;
	CREATE INDEX trained_e ON trained USING gpuivfpq (e real_cosine_ops) WITH (lists = 10);
	CREATE UNLOGGED TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id) WITH (dims = 8);
	INSERT INTO waiting SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE TABLE turned (id int, e real[]);
	INSERT INTO turned SELECT * FROM trained;
	CREATE INDEX turned_e ON turned USING gpuivfpq (e, id) WITH (lists = 10);
	ALTER TABLE turned SET UNLOGGED;
});
is_whole($node, 'unlogged', 'trained', '<=>', 8);

# a clean restart keeps everything
$node->restart;
is_complete($node, 'trained', '<=>', 8, 'restarted');
is_complete($node, 'waiting', '<->', 8, 'restarted');
is_complete($node, 'turned', '<->', 8, 'restarted');

# a crash empties it, down to its init fork
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
$node->start;
for my $table ([ 'trained', '<=>' ], [ 'waiting', '<->' ], [ 'turned', '<->' ])
{
	my ($name, $operator) = @$table;

	is($node->safe_psql('postgres', "SELECT count(*) FROM $name"), '0', "crashed: $name is empty");
	is_whole($node, 'crashed', $name, $operator, 8, exact => 0);
	is( $node->safe_psql('postgres', "SELECT lists, rows FROM gpuvec_index_info('${name}_e')"),
		'0|0', "crashed: ${name}_e has no training");
	$node->safe_psql('postgres',
		"INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g");
	is_whole($node, 'filled again', $name, $operator, 8);
	$node->safe_psql('postgres', "DELETE FROM $name WHERE id % 2 = 0; VACUUM $name;
		REINDEX INDEX ${name}_e; INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(3001, 3010) AS g");
	is_whole($node, 'reindexed', $name, $operator, 8, exact => 0);
}
# its declaration is not forgotten
my ($rc, undef, $err) = $node->psql('postgres', q{INSERT INTO waiting VALUES (1, '{1,2}')});
like($err, qr/expected 8 dimensions, not 2/, 'the index knows its dimension');

# crashed again, at once after it was made logged
$node->safe_psql('postgres', 'ALTER TABLE turned SET LOGGED');
$node->stop('immediate');
$node->start;
is_whole($node, 'logged again', 'turned', '<->', 8, exact => 0);
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM turned'), '0', 'logged again: rows are there');

# on a standby: not to be read, there and empty after promotion
my $standby = new_standby($node, 'standby');
$node->wait_for_catchup($standby);
(undef, undef, $err) = $standby->psql('postgres',
	'SET enable_seqscan = off; SELECT id FROM waiting ORDER BY e <-> point(1, 8) LIMIT 1');
like($err, qr/cannot access temporary or unlogged relations during recovery/, 'standby: refused');
(undef, undef, $err) = $standby->psql('postgres', q{SELECT FROM gpuvec_search('waiting_e', point(1, 8), 1)});
like($err, qr/ERROR:  cannot access unlogged index "waiting_e" during recovery/, 'standby: gpuvec_search is refused');
for my $function (q{exact_search('waiting', 'e', point(1, 8), 1)}, q{kmeans('waiting', 'e', 1)})
{
	(undef, undef, $err) = $standby->psql('postgres', "SELECT * FROM gpuvec_$function");
	like($err, qr/cannot access temporary or unlogged relations during recovery/,
		"standby: $function is refused");
}
$standby->promote;
is_whole($standby, 'promoted', 'waiting', '<->', 8, exact => 0);
$standby->safe_psql('postgres', 'INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 100) AS g');
is_exact($standby, 'trained', '<=>', 8, 'promoted');
$standby->stop;

# temporary tables: many, with local buffers too few for them
is( $node->safe_psql(
		'postgres', q{
		SET temp_buffers = '800kB';
		SET client_min_messages = warning;
		SET enable_seqscan = off;
		SET gpuvec.scan_order = relaxed;
		CREATE TEMPORARY TABLE temp (id int, e real[]);
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
		CREATE INDEX temp_e ON temp USING gpuivfpq (e) WITH (lists = 100, pq_dim = 8);
		CREATE INDEX temp_ip ON temp USING gpuivfpq (e real_ip_ops);
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(2001, 6000) AS g;
		DELETE FROM temp WHERE id % 3 > 0;
		VACUUM temp;
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(6001, 8000) AS g;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM temp ORDER BY e <-> point(1, 8)) AS q;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM temp ORDER BY e <#> point(1, 8)) AS q;
		SELECT * FROM gpuvec_verify_index('temp_e');
		SELECT * FROM gpuvec_verify_index('temp_ip')}),
	"4000|4000\n4000|4000",
	'temporary tables');
$node->safe_psql('postgres', 'DROP TABLE trained, waiting, turned');

# -- servers that are killed at work
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
is_whole($node, 'built', 'slow', '<->', 128);
$node->safe_psql('postgres',
	'SET wal_compression = on; CREATE TABLE copy AS SELECT * FROM slow LIMIT 1500;
	 CREATE INDEX copy_e ON copy USING gpuivfpq (e)');
crash(0);
is_whole($node, 'built compressed', 'copy', '<->', 128);

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
is_whole($node, 'built without WAL', 'quiet', '<->', 128);

done_testing();
