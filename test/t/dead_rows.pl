# Rows that are dead, or that nobody knows to be: indexes are sound, return each row
# that a snapshot sees once, and what a sort returns; on a standby, too.
#
# Dead rows are still there, in the table and in indexes, while their vectors in the
# TOAST table are gone already.  Prepared transactions insert, delete and change rows:
# while they are in doubt, and when they are committed or rolled back, beside VACUUM and
# training in place, through crashes and on a standby that is promoted.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $primary = new_node('primary', allows_streaming => 1,
	conf => "max_prepared_transactions = 60\ncheckpoint_timeout = 1h\nwal_keep_size = '1GB'
		min_parallel_table_scan_size = 0\nmax_parallel_maintenance_workers = 2
		max_logical_replication_workers = 0\n");
my $standby = new_standby($primary, 'standby');

# -- VACUUM could not yet remove a row, and then one of the TOAST table alone (autovacuum
# does that) removed its vector.  Builds of all kinds, samples, training in place,
# calibration, functions over whole tables, verify and scans leave such rows alone.

my $long_rows = 600;
my $dims = 600;
my @toasted = (
	[ 'trained', 'o', '<->', $dims, [ 'id < 100', 'id BETWEEN 200 AND 400', 'e[1] > 0' ] ],
	[ 'refined', 'o', '<=>', $dims ],
	[ 'waiting_e', 'waiting', '<->', $dims ]);
my $round = 2;

# a page keeps room, so that no scan prunes it
$primary->safe_psql(
	'postgres', qq{
	SET client_min_messages = warning;
	CREATE FUNCTION long_point(g int) RETURNS real[] LANGUAGE sql
		AS 'SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[$dims - 8])';
	CREATE TABLE o (id int, e real[]) WITH (fillfactor = 50);
	CREATE TABLE waiting (LIKE o) WITH (fillfactor = 50);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e) WITH (lists = 5, pq_dim = 100, train_rows = 100000);
	ALTER TABLE o ALTER e SET STORAGE EXTERNAL;
	ALTER TABLE waiting ALTER e SET STORAGE EXTERNAL;
	INSERT INTO o SELECT g, long_point(g) FROM generate_series(1, $long_rows) AS g;
	INSERT INTO waiting SELECT * FROM o;
	ALTER TABLE o SET (fillfactor = 100);
	ALTER TABLE waiting SET (fillfactor = 100);
	CREATE INDEX trained ON o USING gpuivfpq (e, id, (e[1] > 0)) WITH (lists = 5, pq_dim = 100);
	CREATE INDEX refined ON o USING gpuivfpq (e real_cosine_ops)
		WITH (lists = 5, pq_dim = 100, refine = sq8);
	CREATE TABLE other (a int)});
$primary->wait_for_catchup($standby);

# Rows of a table die: deleted, changed, rolled back.
sub kill_rows
{
	my ($table, $round) = @_;

	$primary->safe_psql('postgres', "DELETE FROM $table WHERE id % 23 = $round;
		UPDATE $table SET e = long_point(id + 7) WHERE id % 29 = $round;
		BEGIN; INSERT INTO $table SELECT g + 10000, long_point(g) FROM generate_series(1, 50) AS g; ROLLBACK");
	return;
}

# VACUUM of the TOAST tables alone: afterwards these have vectors of live rows only.
sub vacuum_vectors
{
	my ($what) = @_;

	for my $table (qw(o waiting))
	{
		my $toast = $primary->safe_psql('postgres',
			"SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$table'::regclass");
		my ($gone, $missed) = (qr/, 0 are dead but not yet removable/, qr/tuples missed/);
		my $said;

		# it leaves what somebody's snapshot may see, or a page that is just written out
		for (1 .. 100)
		{
			(undef, undef, $said) = $primary->psql('postgres', "VACUUM (VERBOSE) $toast");
			last if $said =~ $gone && $said !~ $missed;
			usleep(50_000);
		}
		like($said, $gone, "$what: vectors of dead rows of $table are gone");
		unlike($said, $missed, "$what: ... all of them");
		is($primary->safe_psql('postgres', "SELECT count(DISTINCT chunk_id) FROM $toast"),
			alive($table), "$what: those of others are not");
	}
	return;
}

sub alive
{
	my ($table) = @_;
	return $primary->safe_psql('postgres', "SELECT count(*) FROM $table");
}

# Test: indexes are whole, on the standby, too; in a short run only there where
# an index has changed by more than rows that came.
sub test_indexes
{
	my ($what) = @_;

	are_whole($primary, $what, \@toasted);
	return if !long_test() && $what =~ /^(calibration|recall|sets|ANALYZE|conditions)$/;
	$primary->wait_for_catchup($standby);
	are_whole($standby, "$what, standby", \@toasted);
	return;
}

# -- an old snapshot sees rows that are dead for all others: they get into indexes
# that are made now, and their vectors stay
my $seen = alive('o');
my $go_on = $primary->data_dir . '/go_on';
my $old = background(
	$primary, qq{
	BEGIN ISOLATION LEVEL REPEATABLE READ;
	SELECT count(*) FROM other;
	DO \$\$ BEGIN
		WHILE (pg_stat_file('go_on', true)).size IS NULL LOOP PERFORM pg_sleep(0.01); END LOOP;
	END \$\$;
	SELECT complete('o', '<->', $dims), inexact('o', '<->', $dims, 10, 3);
	SELECT complete('o', '<=>', $dims), inexact('o', '<=>', $dims, 10, 3);
	SELECT complete('waiting', '<->', $dims), inexact('waiting', '<->', $dims, 10, 3);
	COMMIT;});
ok( wait_until($primary, q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE backend_xmin IS NOT NULL AND query ~ '^DO' AND pid <> pg_backend_pid()}),
	'old snapshot: is there');
kill_rows($_, 1) for qw(o waiting);
$primary->safe_psql('postgres', 'VACUUM o; VACUUM waiting');
$primary->safe_psql('postgres', "REINDEX INDEX trained; SET max_parallel_maintenance_workers = 0;
	REINDEX INDEX refined; SELECT gpuvec_train('waiting_e')");
append_to_file($go_on, '');
is(end_of($old), 0, 'old snapshot: its session ends');
is(slurp_file($old->{output}), "0\n" . "$seen rows, $seen distinct|0\n" x 3,
	'old snapshot: indexes have the rows that it sees');
test_indexes('old snapshot');

# -- vectors are gone, rows and their entries are not
$primary->safe_psql('postgres', 'VACUUM o; VACUUM waiting');
for my $case (
	[ 'REINDEX', 'REINDEX INDEX trained; REINDEX INDEX refined; REINDEX INDEX waiting_e' ],
	[ 'REINDEX without workers', 'SET max_parallel_maintenance_workers = 0;
		REINDEX INDEX trained; REINDEX INDEX refined; REINDEX INDEX waiting_e' ],
	[ 'REINDEX CONCURRENTLY', 'REINDEX INDEX CONCURRENTLY trained',
		'REINDEX INDEX CONCURRENTLY refined', 'REINDEX INDEX CONCURRENTLY waiting_e' ],
	[ 'CREATE INDEX CONCURRENTLY', 'DROP INDEX trained',
		'CREATE INDEX CONCURRENTLY trained ON o USING gpuivfpq (e, id, (e[1] > 0))
			WITH (lists = 5, pq_dim = 100)' ],
	[ 'training', "TRUNCATE waiting; INSERT INTO waiting SELECT g, long_point(g) FROM generate_series(1, $long_rows) AS g",
		'KILL', "SELECT gpuvec_train('waiting_e')" ],
	[ 'calibration', "SELECT gpuvec_calibrate('trained'); SELECT gpuvec_calibrate('waiting_e')" ],
	[ 'recall', "SELECT gpuvec_recall('trained', 5, 20); SELECT gpuvec_recall('waiting_e', 5, 20)" ],
	[ 'sets', "SELECT count(*) FROM gpuvec_kmeans('o', 'e', 10, 2);
		SELECT count(*) FROM gpuvec_exact_search('o', 'e', long_point(5), 10, 'l2');
		SELECT count(*) FROM gpuvec_knn_join('o', 'id', 'e', 'waiting', 'id', 'e', 2, 'l2')" ],
	[ 'ANALYZE', 'ANALYZE o; ANALYZE waiting' ],
	[ 'conditions', "SET enable_seqscan = off; SET enable_sort = off;
		SELECT id FROM o WHERE id % 2 = 1 ORDER BY e <-> long_point(3) LIMIT 20;
		SELECT id FROM o WHERE id < 300 AND e[1] > 0 ORDER BY e <-> long_point(3) LIMIT 20" ],
	[ 'VACUUM', 'VACUUM o; VACUUM waiting' ])
{
	my ($what, @statements) = @$case;

	@statements = ('KILL', @statements) if !grep { $_ eq 'KILL' } @statements;
	for my $sql (@statements)
	{
		if ($sql eq 'KILL')
		{
			kill_rows($_, $round) for qw(o waiting);
			vacuum_vectors($what);
			$round++;
		}
		else
		{
			my ($rc, undef, $err) = $primary->psql('postgres', $sql);
			is($rc, 0, "$what: no error") or diag($err);
		}
	}
	test_indexes($what);
}

# it was dead rows that all of this met: they are there until VACUUM comes
kill_rows('o', 0);
vacuum_vectors('the end');
test_indexes('the end');
my (undef, undef, $said) = $primary->psql('postgres', 'VACUUM (VERBOSE) o');
my ($removed) = $said =~ /tuples: (\d+) removed/;
cmp_ok($removed, '>', 80, 'the end: VACUUM has found dead rows');
test_indexes('the end, vacuumed');
$primary->safe_psql('postgres', 'DROP TABLE o, waiting, other');

# -- prepared transactions

my $rows = long_test() ? 10_000 : 1000;
my $rounds = long_test() ? 10 : 2;
my @tables = (
	[ 't', '<->', 16 ],
	[ 'keyed', '<=>', 8, [ 'id < 300', 'id % 3 = 1', 'id >= 9000 AND id % 3 = 2' ] ],
	[ 'waiting', '<->', 4 ],
	[ 'outside', '<#>', 600 ]);
my @indexes = map { [ "$_->[0]_e", @$_ ] } @tables;

$primary->safe_psql(
	'postgres', q{
	-- rows of a table: a long vector differs in its first elements
	CREATE FUNCTION some_rows(tab text, first int, last int, OUT id int, OUT e real[])
	RETURNS SETOF record LANGUAGE sql AS $$
		SELECT g, CASE WHEN tab <> 'outside'
			THEN point(g, CASE tab WHEN 't' THEN 16 WHEN 'keyed' THEN 8 ELSE 4 END)
			ELSE point(g, 8) || array_fill((g % 13)::real, ARRAY[592]) END
		FROM generate_series(first, last) AS g
	$$});
$primary->safe_psql(
	'postgres', qq{
	SET client_min_messages = warning;
	CREATE TABLE t AS SELECT * FROM some_rows('t', 1, $rows);
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20);
	CREATE TABLE keyed AS SELECT * FROM some_rows('keyed', 1, $rows);
	CREATE INDEX keyed_e ON keyed USING gpuivfpq (e real_cosine_ops, id, (id % 3))
		WITH (lists = 10, refine = sq8);
	CREATE TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e) WITH (train_rows = 1000000);
	INSERT INTO waiting SELECT * FROM some_rows('waiting', 1, $rows);
	CREATE TABLE outside (id int, e real[]);
	ALTER TABLE outside ALTER e SET STORAGE EXTERNAL;
	INSERT INTO outside SELECT * FROM some_rows('outside', 1, $rows);
	CREATE INDEX outside_e ON outside USING gpuivfpq (e real_ip_ops) WITH (lists = 5, pq_dim = 100);
});

# A prepared transaction of this name that does the same to each table.
sub prepare
{
	my ($name, $sql) = @_;
	my $all = '';

	for my $table (map { $_->[0] } @tables)
	{
		$all .= $sql =~ s/TABLE/$table/gr . ";\n";
	}
	$primary->safe_psql('postgres', "BEGIN; $all PREPARE TRANSACTION '$name'");
	return;
}

# Each table of a server has the ids of 1 .. 60000 that satisfy a condition, and its
# index all of them.
sub test_rows
{
	my ($node, $ids, $what) = @_;

	$what .= ', ' . $node->name;
	is( $node->safe_psql(
			'postgres',
			join '', map { "SELECT (SELECT array_agg(id ORDER BY id) FROM $_->[0]) =
				(SELECT array_agg(id) FROM generate_series(1, 60000) AS id WHERE $ids);" } @tables),
		join("\n", ('t') x @tables),
		"$what: tables");
	are_whole($node, $what, \@indexes, warnings => 1);
	is( $node->safe_psql('postgres',
			join '', map { "SELECT inexact_in_pass('$_->[0]', '$_->[1]', $_->[2], 10, 5);" } @tables),
		join("\n", (0) x @tables),
		"$what: at a recall of 1 exact");
	return;
}

# The same on the standby, too.
sub test_both
{
	my ($ids, $what) = @_;

	test_rows($primary, $ids, $what);
	$primary->wait_for_catchup($standby);
	test_rows($standby, $ids, $what);
	return;
}

sub vacuum
{
	my ($node) = @_;

	$node->safe_psql('postgres', join '', map { "VACUUM $_->[0];" } @tables);
	return;
}

# Rows of the pending list go to lists, of others what is pending.
sub train
{
	my ($node) = @_;

	$node->safe_psql('postgres', join '', map { "SELECT gpuvec_train('$_->[0]');" } @indexes);
	return;
}

my $first = "id <= $rows";

# -- in doubt
prepare('come', "INSERT INTO TABLE SELECT * FROM some_rows('TABLE', 10001, 10060)");
prepare('back', "INSERT INTO TABLE SELECT * FROM some_rows('TABLE', 20001, 20060)");
prepare('go', "DELETE FROM TABLE WHERE $first AND id % 10 = 1");
prepare('stay', "DELETE FROM TABLE WHERE $first AND id % 10 = 2");
prepare('change', "UPDATE TABLE SET id = id + 30000,
	e = (SELECT r.e FROM some_rows('TABLE', id + 7, id + 7) AS r) WHERE $first AND id % 10 = 3");
prepare('parts', "SAVEPOINT a; INSERT INTO TABLE SELECT * FROM some_rows('TABLE', 40001, 40020);
	ROLLBACK TO a; INSERT INTO TABLE SELECT * FROM some_rows('TABLE', 50001, 50020);
	SAVEPOINT b; DELETE FROM TABLE WHERE $first AND id % 10 = 4;
	ROLLBACK TO b; DELETE FROM TABLE WHERE $first AND id % 10 = 5");
test_both($first, 'in doubt');
vacuum($primary);
test_both($first, 'in doubt, vacuumed');
train($primary);
is( $primary->safe_psql('postgres', "SELECT lists > 0, pending FROM gpuvec_index_info('waiting_e')"),
	't|' . (60 + 60 + $rows / 10 + 20),
	'in doubt, trained: rows that nobody sees stay pending');
test_both($first, 'in doubt, trained');
$primary->kill9;
restart_after_kill($primary);
test_both($first, 'in doubt, crashed');

# -- some of them end
my $second = "($first AND id % 10 <> 1 OR id BETWEEN 10001 AND 10060)";
$primary->safe_psql('postgres',
	"COMMIT PREPARED 'come'; ROLLBACK PREPARED 'back'; COMMIT PREPARED 'go'");
test_both($second, 'ended');
$primary->kill9;
restart_after_kill($primary);
test_both($second, 'ended, crashed');
vacuum($primary);
test_both($second, 'ended, vacuumed');
train($primary);
is( $primary->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('waiting_e')"),
	$rows / 10 + 20, 'ended, flushed: what is in doubt stays pending');
test_both($second, 'ended, flushed');

# -- they come and end beside VACUUM and training, until the server dies
for my $round (1 .. $rounds)
{
	my @jobs;

	for my $n (1 .. 2)
	{
		my $sql = join '', map {
			my $k = $_;
			my $table = $tables[ $k % @tables ][0];
			my $from = 1_000_000 * $round + 1000 * $k + 500 * ($n - 1);
			"BEGIN; INSERT INTO $table SELECT * FROM some_rows('$table', $from, $from + 19);
				DELETE FROM $table WHERE id > 60000 AND id % 7 = $k % 7 AND id % 1000 / 500 = $n - 1;
				PREPARE TRANSACTION 'round${round}_${n}_$k';\n"
			  . ($k > 3 ? ($k % 3 ? 'COMMIT' : 'ROLLBACK') . " PREPARED 'round${round}_${n}_" . ($k - 3) . "';\n" : '')
		} 1 .. 300;
		push @jobs, background($primary, $sql);
	}
	push @jobs, background($primary,
		join '', map { "VACUUM $_->[1]; SELECT gpuvec_train('$_->[0]');" } (@indexes) x 100);
	ok( wait_until($primary,
			"SELECT count(*) > 3 FROM pg_prepared_xacts WHERE gid ~ '^round${round}_._[0-9]{2}'"),
		"round $round: they come and end");
	usleep(300_000 * $round);
	$primary->kill9;
	end_of($_) for @jobs;
	restart_after_kill($primary);
	cmp_ok($primary->safe_psql('postgres', "SELECT count(*) FROM pg_prepared_xacts WHERE gid ~ '^round'"),
		'>', 0, "round $round: some are in doubt");
	are_whole($primary, "round $round, crashed", \@indexes, warnings => 1);
	$primary->safe_psql('postgres', q{SELECT format('%s PREPARED %L',
		CASE WHEN gid ~ '[1-5]$' THEN 'COMMIT' ELSE 'ROLLBACK' END, gid)
		FROM pg_prepared_xacts WHERE gid ~ '^round' \gexec});
	are_whole($primary, "round $round, ended", \@indexes, warnings => 1);
}
$primary->safe_psql('postgres', join '', map { "DELETE FROM $_->[0] WHERE id > 60000;" } @tables);
test_both($second, 'rounds');

# -- the standby goes on with those that are in doubt
$primary->stop;
$standby->promote;
test_rows($standby, $second, 'promoted');
vacuum($standby);
train($standby);
$standby->safe_psql('postgres',
	"COMMIT PREPARED 'change'; ROLLBACK PREPARED 'stay'; COMMIT PREPARED 'parts'");
my $third = "($first AND id % 10 NOT IN (1, 3, 5) OR id BETWEEN 10001 AND 10060
	OR id BETWEEN 30001 AND 30000 + $rows AND id % 10 = 3 OR id BETWEEN 50001 AND 50020)";
test_rows($standby, $third, 'promoted, ended');
vacuum($standby);
train($standby);
is( $standby->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('waiting_e')"),
	'0', 'promoted, flushed: no row is pending');
test_rows($standby, $third, 'promoted, flushed');
$standby->kill9;
restart_after_kill($standby);
test_rows($standby, $third, 'promoted, crashed');
$standby->safe_psql('postgres', "REINDEX INDEX CONCURRENTLY $_->[0]") for @indexes;
test_rows($standby, $third, 'promoted, reindexed');

done_testing();
