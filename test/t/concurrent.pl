# Inserts, deletes, updates, queries, VACUUM and training again at once, on trained and on
# untrained indexes, with and without refine records, on blocks of one page and
# of two, with keys and without: afterwards every index is sound, finds each row
# once, and is exact with all lists.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $seconds = long_test() ? 120 : 4;
my $node = new_node('main', conf => "max_connections = 40\n");

$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE busy (id bigserial PRIMARY KEY, e real[]);
	INSERT INTO busy (e) SELECT point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE INDEX busy_many ON busy USING gpuivfpq (e, id, (id % 5)) WITH (lists = 20, refine = sq8);
	CREATE INDEX busy_one ON busy USING gpuivfpq (e real_ip_ops) WITH (lists = 1);
	CREATE TABLE wide (id bigserial PRIMARY KEY, e real[]);
	INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 200) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e, id) WITH (lists = 4, pq_dim = 900);
	CREATE TABLE waiting (id bigserial PRIMARY KEY, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id)});
my $scans = "SELECT sum(idx_scan) > 0 FROM pg_stat_user_indexes WHERE indexrelname = 'busy_many'";
gives($node, $scans, 'f', 'no scan yet');

# Ids of a table's rows, by its index.
sub ordered { my ($table, $by, $limit) = @_; return "(SELECT id FROM $table ORDER BY e $by LIMIT $limit) AS q"; }

# An error where the index and the table disagree in one snapshot.
sub counted
{
	my ($table, $where, $q) = @_;

	return "SELECT 1 / (a.rows = b.rows AND a.ids = b.rows)::int
		FROM (SELECT count(*) AS rows, count(DISTINCT id) AS ids
				FROM (SELECT id FROM $table WHERE $where ORDER BY e <-> $q) AS x) AS a,
			(SELECT count(*) AS rows FROM $table WHERE $where) AS b;\n";
}
my $some = '(SELECT e FROM wide LIMIT 1)';
my %scripts = (
	'concurrent_insert@4' => q{
		\set g random(1, 1000000)
		INSERT INTO busy (e) SELECT point(:g + i, 8) FROM generate_series(1, 5) AS i;
		INSERT INTO waiting (e) SELECT point(:g + i, 8) FROM generate_series(1, 10) AS i;
		INSERT INTO wide (e) VALUES (point(:g, 8) || array_fill((:g % 13)::real, ARRAY[1392]));},
	'concurrent_delete@2' => q{
		\set g random(1, 1000000)
		DELETE FROM busy WHERE id IN
			(SELECT id FROM busy ORDER BY e <-> point(:g, 8) LIMIT 8);
		DELETE FROM waiting WHERE id IN
			(SELECT id FROM waiting ORDER BY id LIMIT 15);
		DELETE FROM wide WHERE id IN (SELECT id FROM wide ORDER BY id LIMIT 1);},
	'concurrent_update@2' => q{
		\set g random(1, 1000000)
		UPDATE busy SET e = point(:g, 8) WHERE id IN
			(SELECT id FROM busy ORDER BY e <#> point(:g, 8) LIMIT 3);},
	'concurrent_rollback@1' => q{
		\set g random(1, 1000000)
		BEGIN;
		INSERT INTO busy (e) SELECT point(:g + i, 8) FROM generate_series(1, 5) AS i;
		DELETE FROM wide WHERE id IN (SELECT id FROM wide ORDER BY id LIMIT 1);
		ROLLBACK;},
	# division by zero where an answer has a row twice or too few of them
	'concurrent_select@4' => "\\set g random(1, 1000000)\nSET enable_seqscan = off;
		SELECT 1 / (count(*) = 50 AND count(DISTINCT id) = 50)::int FROM " . ordered('busy', '<-> point(:g, 8)', 50) . ';'
	  . join('', map { "\nSELECT 1 / (count(*) = count(DISTINCT id))::int FROM " . ordered(@$_) . ';' }
		[ 'busy', '<#> point(:g, 8)', 500 ], [ 'wide', "<-> $some", 100 ], [ 'waiting', '<-> point(:g, 8)', 20 ]),
	# the whole index, then the lists of conditions
	'concurrent_count@1' => "SET enable_seqscan = off; SET gpuvec.scan_order = relaxed;\n"
	  . join('', map { counted(@$_, 'point(1, 8)') } [ 'busy', 'true' ], [ 'waiting', 'true' ], [ 'busy', 'id % 5 = 3 AND id > 50' ])
	  . "SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000; SET gpuvec.max_probes = 16777216;\n"
	  . counted('busy', 'id % 5 = 3', 'point(1, 8)') . counted('wide', 'id % 2 = 0 AND id > 100', $some) . 'RESET ALL;');

# VACUUM and its heavier sisters run beside pgbench until it ends.
my $vacuums = background($node, q{
	SELECT pg_sleep(0.1);
	VACUUM busy; VACUUM wide; VACUUM waiting;
	VACUUM (INDEX_CLEANUP on) busy;
	} x 2000);
my $reindexes = background($node, q{
	SET client_min_messages = warning;
	SELECT pg_sleep(1);
	REINDEX INDEX CONCURRENTLY busy_many;
	CREATE INDEX CONCURRENTLY busy_cosine ON busy USING gpuivfpq (e real_cosine_ops)
		WITH (lists = 10);
	SELECT pg_sleep(1);
	DROP INDEX CONCURRENTLY busy_cosine;
	REINDEX INDEX CONCURRENTLY busy_one;
	CREATE INDEX CONCURRENTLY busy_cosine ON busy USING gpuivfpq (e real_cosine_ops, (id % 5))
		WITH (lists = 10);});
my $trainings = background($node, "\\set ON_ERROR_STOP off\nSET lock_timeout = 500;\n" . q{
	SELECT gpuvec_train('busy_many', true);
	SELECT gpuvec_train('busy_one', true);
	SELECT gpuvec_train('wide_e', true);
	SELECT gpuvec_train('waiting_e', true);
	} x 2000);
# or there would be none to end, if its session begins later than pgbench ends
comes($node, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE query ~ 'VACUUM|pg_sleep.0.1'
		AND pid <> pg_backend_pid()}, 'VACUUM has begun');
$node->pgbench(
	"--no-vacuum --client=8 --jobs=2 --time=$seconds",
	0,
	[qr{actually processed}],
	[qr{^$}],
	'inserts, deletes, updates and queries at once',
	\%scripts);
is(end_of($reindexes), 0, 'REINDEX and CREATE INDEX CONCURRENTLY beside them');
$node->safe_psql('postgres',
	# not canceled: between two statements that would come to nothing
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~* 'vacuum|pg_sleep|gpuvec_train'
	AND pid <> pg_backend_pid()");
isnt(end_of($vacuums), 0, 'VACUUM went on to the end');
isnt(end_of($trainings), 0, '... and so did training');
my $times = () = slurp_file($trainings->{output}) =~ /^\d/mg;
cmp_ok($times, '>', 3, "... $times times");
# (a parallel worker of the VACUUM that has just ended finds no memory to share)
unlike(slurp_file($node->logfile),
	qr/ERROR:  (?!could not map dynamic shared memory segment).*(damaged|could not|unexpected)/,
	'no damage was met');

my @all = (
	[ 'busy_many', 'busy', '<->', 8, [ 'id % 5 = 3', 'id BETWEEN 500 AND 3000' ] ],
	[ 'busy_one', 'busy', '<#>', 8 ],
	[ 'busy_cosine', 'busy', '<=>', 8, [ 'id % 5 = 3' ] ],
	[ 'wide_e', 'wide', '<->', 1400, [ 'id % 5 = 3 AND id > 100' ] ],
	[ 'waiting_e', 'waiting', '<->', 8, [ 'id > 100' ] ]);
# the VACUUM that was ended in its midst left what the next one frees
for my $what ('afterwards', 'vacuumed')
{
	are_whole($node, $what, \@all, warnings => $what eq 'afterwards');
	$node->safe_psql('postgres', 'VACUUM busy; VACUUM wide; VACUUM waiting');
}
comes($node, $scans, 'scans are counted');

done_testing();
