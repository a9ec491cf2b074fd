# Readers beside writers.  A search stops between its look at a block and the scan of
# it, while others change the block or its list; VACUUM rewrites a list again and again
# while queries read it; a new row takes the refine record of a dead one.  Each search
# finds what a sort finds, each row once.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use Time::HiRes qw(usleep);

need_test_build();
my $node = new_node('main', conf => "shared_buffers = 128MB\n");

# -- A search stops between its look at a block and the scan of it, with the page
# pinned, while others append to the block, mark its postings dead, rewrite its list,
# have other rows take the slot, or make something else of the page.  It reads again
# what did not stand.  So do two searches for which a list is read at once, and one
# that stops when it has counted postings.

# A list that one page holds whole, so that no later block tells that it was
# rewritten; blocks with a page of their own; and a long list.  The query stops
# at the last of its tries, which is of so many rows, those that came first.  One
# index has an odd number of sub-quantizers, which leaves bits to spare.
my %tables = (
	narrow => {dims => 4, rows => 128, tries => 1, last => 128, options => 'pq_dim = 3'},
	wide => {dims => 400, rows => 64, tries => 2, last => 32, options => 'pq_dim = 400'},
	many => {dims => 4, rows => 640, tries => 5, last => 128, options => 'pq_dim = 4'});

# The first rows of a query, by a sort and by the index.
my $nearest = q{SELECT string_agg(id::text, ' ') FROM
	(SELECT id FROM t ORDER BY e <-> (SELECT e FROM asked) LIMIT 4) AS q};
my $twice = q{SELECT string_agg(id::text, ' ' ORDER BY distance)
	FROM gpuvec_search('t_e', (SELECT array_agg(e) FROM asked, generate_series(1, 2)), 4) AS s
	JOIN t ON t.ctid = s.tid GROUP BY query ORDER BY query};

# Test: a query that stops at an injection point, while statements run, finds that.
sub finds_meanwhile
{
	my ($what, $query, $meanwhile, $found) = @_;
	my $holder = hold($node);
	my $job = background($node, "SET enable_seqscan = off; $query;");

	is_held($node, "$what: the query stops");
	$node->safe_psql('postgres', $meanwhile);
	release($holder);
	is(end_of($job), 0, '... and goes on');
	return is(slurp_file($job->{output}), $found, '... and finds what a sort finds');
}

for my $name (sort keys %tables)
{
	my ($dims, $rows, $tries, $last, $options) = @{ $tables{$name} }{qw(dims rows tries last options)};
	my $counted = $rows - $last;
	my $few = 'id % 16 = 2';
	my $half = 'id % 2 = 0';
	my $fill = "INSERT INTO t SELECT 10000 + g, point(g, $dims) FROM generate_series(1, $rows) AS g";

	# what happens; rows deleted before; statements; postings that the query counts,
	# or none for two searches at once
	for (
		[ 'nothing', 'false', 'SELECT 1', $rows ],
		[ 'appended', $few, $fill, $rows ],
		[ 'marked dead', $few, 'VACUUM t', $rows - $last / 16 ],
		[ 'rewritten', $half, 'VACUUM t', $counted + $rows / 2 ],
		[ 'taken', $half, "VACUUM t; $fill", $counted + $rows / 2 + $rows ],
		[ 'twice, marked dead', $few, 'VACUUM t' ],
		[ 'twice, taken', $half, "VACUUM t; $fill" ])
	{
		my ($what, $before, $meanwhile, $postings) = @$_;

		$node->safe_psql('postgres', qq{
			SET client_min_messages = warning;
			DROP TABLE IF EXISTS t, asked, other;
			CREATE TABLE t AS SELECT g AS id, point(g, $dims) AS e FROM generate_series(1, $rows) AS g;
			CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 1, $options);
			CREATE TABLE asked AS SELECT e FROM t WHERE id = 3;
			CREATE TABLE other (e real[]);
			CREATE INDEX ON other USING gpuivfpq (e) WITH (dims = 4);
			DELETE FROM t WHERE $before});
		my $sorted = $node->safe_psql('postgres', "SET enable_indexscan = off; $nearest");
		my $query = $postings ? "$nearest; SELECT lists, postings FROM gpuvec_last_scan()" : $twice;
		finds_meanwhile("$name, $what", "SET gpuvec.fault = 'wait $tries list: tried'; $query", $meanwhile,
			$postings ? "$sorted\n1|$postings\n" : "$sorted\n$sorted\n");
		is_sound($node, 't_e', "$name, $what");
	}
}

# A search for all candidates makes room for as many postings as it has counted.  New
# ones take the places of some of the others, which come in order all the same.
for my $condition ('true', 'id > 0')
{
	my $query = "SELECT string_agg(id::text, ' ') FROM
		(SELECT id FROM t WHERE $condition ORDER BY e <-> (SELECT e FROM asked) LIMIT 5000) AS q";

	$node->safe_psql('postgres', q{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t, asked;
		CREATE TABLE t AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 600) AS g;
		CREATE INDEX t_e ON t USING gpuivfpq (e, id) WITH (lists = 4, pq_dim = 1, spill = 0);
		CREATE TABLE asked AS SELECT e FROM t WHERE id = 3});
	finds_meanwhile(
		"$condition: postings are counted", qq{
		SET gpuvec.enable_custom_scan = off;
		SET gpuvec.probes = 1000; SET gpuvec.candidates = 1000000; SET gpuvec.max_probes = 1000;
		SET gpuvec.fault = 'wait 1 scan: counted';
		$query},
		'INSERT INTO t SELECT 1000 + g, e FROM asked, generate_series(1, 100) AS g',
		$node->safe_psql('postgres', "SET gpuvec.use_index = never; $query") . "\n");
}
$node->safe_psql('postgres', 'DROP TABLE t, asked, other');

# -- VACUUM rewrites a long list, and frees its old blocks, again and again while
# queries read it: each notices and reads the list anew, so none misses a row that was
# always there, and none returns a row twice.  For blocks of one page and of three, and
# where conditions pass over blocks.

my $rounds = long_test() ? 240 : 10;

# Rows 1 to 50 lie apart, came first, and stay: they are the last that a
# reader, newest block first, comes to.
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE FUNCTION vec(g int) RETURNS real[] LANGUAGE sql IMMUTABLE AS $$
		SELECT CASE WHEN g <= 50 THEN ARRAY[-1000 - 10 * g, g, 0, 0]
			ELSE ARRAY[g % 100, g / 100 % 100, g % 7, g % 11] END::real[]
	$$;
	CREATE TABLE narrow AS SELECT g AS id, vec(g) AS e FROM generate_series(1, 20000) AS g;
	CREATE INDEX narrow_e ON narrow USING gpuivfpq (e, id) WITH (lists = 1, candidates = 200);
	CREATE TABLE wide AS SELECT g AS id, vec(g) || array_fill((g % 13)::real, ARRAY[1396]) AS e
	FROM generate_series(1, 2000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e, id) WITH (lists = 1, candidates = 200, pq_dim = 900)});

# Queries without an end, each in a transaction of its own: division by zero where
# the row at a query's place is not found.
$node->safe_psql('postgres', 'CREATE TABLE done (id int)');
my @queries = map {
	background($node, q{
		SET enable_seqscan = off;
		SET application_name = 'queries';
		DO $$
		DECLARE
			g int;
		BEGIN
			WHILE NOT EXISTS (SELECT FROM done) LOOP
				g = 1 + 49 * random();
				PERFORM 1 / (count(*) FILTER (WHERE id = g))::int
				FROM (SELECT id FROM narrow ORDER BY e <-> vec(g) LIMIT 1) AS q;
				COMMIT;
				PERFORM 1 / (count(*) = 50 AND count(DISTINCT id) = 50 AND max(id) = 50)::int
				FROM (SELECT id FROM narrow ORDER BY e <-> '{-1500,1,0,0}' LIMIT 50) AS q;
				COMMIT;
				PERFORM 1 / (count(*) FILTER (WHERE id = g))::int
				FROM (SELECT id FROM wide
					ORDER BY e <-> (vec(g) || array_fill((g % 13)::real, ARRAY[1396])) LIMIT 1) AS q;
				COMMIT;
				PERFORM 1 / (count(*) = 50 AND count(DISTINCT id) = 50)::int
				FROM (SELECT id FROM narrow WHERE id <= 50 ORDER BY e <-> '{9,9,9,9}') AS q;
				COMMIT;
				PERFORM 1 / (count(*) = 50 AND count(DISTINCT id) = 50)::int
				FROM (SELECT id FROM wide WHERE id <= 50
					ORDER BY e <-> (vec(g) || array_fill(9::real, ARRAY[1396]))) AS q;
				COMMIT;
			END LOOP;
		END $$})
} 1 .. 4;
comes($node, q{SELECT count(*) = 4 FROM pg_stat_activity WHERE application_name = 'queries'}, 'queries run');
my @pids = split /\n/, $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE application_name = 'queries'});

# How many times the list was rewritten.
sub generation { return $node->safe_psql('postgres', q{SELECT max(generation) FROM gpuvec_list_stats('narrow_e')}); }

# Stop the queries wherever they are, rewrite, use the freed blocks again, and
# let them go on.  One may be stopped with a page locked, for which VACUUM
# would wait for ever: so somebody lets them go on in any case.  A query that began
# before rows were deleted keeps VACUUM from them; where that is so often, on a
# busy machine, there are more rounds.
for (my $round = 1; $round <= $rounds || ($round <= 4 * $rounds && generation() <= 3); $round++)
{
	my $remainder = $round % 5;

	$node->safe_psql('postgres',
		"DELETE FROM narrow WHERE id > 50 AND id % 5 = $remainder;
		 DELETE FROM wide WHERE id > 50 AND id % 5 = $remainder");
	usleep(20_000);
	kill 'STOP', @pids;
	system("(sleep 1; kill -CONT @pids) 2>/dev/null &");
	$node->safe_psql('postgres', qq{
		VACUUM narrow;
		VACUUM wide;
		INSERT INTO narrow SELECT g, vec(g) FROM generate_series(51, 20000) AS g
		WHERE g % 5 = $remainder;
		INSERT INTO wide SELECT g, vec(g) || array_fill((g % 13)::real, ARRAY[1396])
		FROM generate_series(51, 2000) AS g WHERE g % 5 = $remainder});
	kill 'CONT', @pids;
}
$node->safe_psql('postgres', 'INSERT INTO done VALUES (1)');
is(end_of($_), 0, "queries stopped in $rounds rewrites") for @queries;

my $gen = generation();
cmp_ok($gen, '>', 3, "the list was rewritten $gen times meanwhile");
is_whole($node, 'afterwards', 'narrow', '<->', 4, exact => 0);
is_whole($node, 'afterwards', 'wide', '<->', 1400, exact => 0);

# -- VACUUM frees the refine record of a dead row before it marks the row's postings.
# When it stops in between and a new row takes the slot, the mirror's posting of the
# dead row and the new row's own, which the mirror does not have yet, carry one
# address: the new row is found all the same.

my $served = new_remote_node('served');
$served->safe_psql('postgres', q{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10, refine = sq8);
	ANALYZE t});
is_mirrored($served, 't_e', 'SELECT id FROM t ORDER BY e <-> point(1, 8) LIMIT 1', 'new');
pause_loaders($served);

for my $id (7, 1234, 2999)
{
	my $new = $id + 100000;
	says($served, "DELETE FROM t WHERE id = $id; SET gpuvec.fault = 'error 1 refine: freed'; VACUUM t",
		qr/stopped at step "refine: freed"/, "row $id: VACUUM stops");
	$served->safe_psql('postgres', "INSERT INTO t VALUES ($new, point($id, 8))");
	gives($served, qq{
		SET enable_seqscan = off;
		SET gpuvec.engine = $_->[0];
		SELECT id FROM t ORDER BY e <-> point($id, 8) LIMIT 1;
		SELECT engine, tail_postings > 0 FROM gpuvec_last_scan()},
		"$new\n$_->[1]", "row $new is found, engine $_->[0]")
	  for [ 'cpu', 'session|f' ], [ 'gpu', "$SERVER|t" ];
}

gives($served, q{SELECT * FROM gpuvec_verify_index('t_e', mirror => true) WHERE severity = 'error'}, '', 'nothing of this is a fault');
resume_loaders($served);
$served->safe_psql('postgres', 'VACUUM t');
is_whole($served, 'vacuumed', 't', '<->', 8, exact => 0);

# Many dead rows' postings with addresses of new rows crowd a search: it has fewer
# rows than it asked for, and yet there are others.
$served->safe_psql('postgres', q{
	CREATE TABLE crowded (id int, e real[]);
	INSERT INTO crowded SELECT g, point(g, 8) FROM generate_series(1, 1700) AS g;
	CREATE INDEX crowded_e ON crowded USING gpuivfpq (e) WITH (lists = 10, refine = sq8)});
says($served, q{DELETE FROM crowded WHERE id % 3 = 0; SET gpuvec.fault = 'error 5 refine: freed'; VACUUM crowded},
	qr/stopped at step "refine: freed"/, 'many rows: VACUUM stops');
$served->safe_psql('postgres', 'INSERT INTO crowded SELECT g, point(g, 8) FROM generate_series(200001, 200500) AS g');
is_complete($served, 'crowded', '<->', 8, 'records of many rows used again');
$served->stop;

done_testing();
