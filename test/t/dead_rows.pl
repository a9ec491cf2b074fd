# Dead rows that are still there, in the table and in indexes, while their vectors in
# the TOAST table are gone already: VACUUM could not yet remove a row, and then one of
# the TOAST table alone (autovacuum does that) removed its vector.  Builds of all kinds,
# samples, training in place, calibration, functions over whole tables, verify and scans
# leave such rows alone: indexes are sound, return each row that a snapshot sees once,
# and what a sort returns; on a standby, too.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use Time::HiRes qw(usleep);

my $primary = new_node('primary', allows_streaming => 1,
	conf => "wal_keep_size = '1GB'\nmin_parallel_table_scan_size = 0\nmax_parallel_maintenance_workers = 2\n");
my $standby = new_standby($primary, 'standby');

my $long_rows = 600;
my $dims = 600;
my @toasted = (
	[ 'trained', 'o', '<->', $dims, [ 'id < 100', 'id BETWEEN 200 AND 400', 'e[1] > 0' ] ],
	[ 'refined', 'o', '<=>', $dims ],
	[ 'waiting_e', 'waiting', '<->', $dims ]);
my $round = 2;

# a page keeps room, so that no scan prunes it
$primary->safe_psql('postgres', qq{
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
	SELECT gpuvec_train('waiting_e')});
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
		gives($primary, "SELECT (SELECT count(DISTINCT chunk_id) FROM $toast) = count(*) FROM $table", 't', "$what: those of others are not");
	}
	return;
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
$standby->stop;
$primary->stop;
done_testing();
