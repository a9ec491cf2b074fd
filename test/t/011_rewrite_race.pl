# VACUUM rewrites a long list, and frees its old blocks, again and again while
# queries read it: each notices and reads the list anew, so none misses a row
# that was always there, and none gives a row twice.  For blocks of one page
# and of three, and where conditions pass over blocks.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rounds = long_test() ? 240 : 10;
my $node = new_node('main', conf => "shared_buffers = 128MB\n");

# Rows 1 to 50 lie apart, came first, and stay: they are the last that a
# reader, newest block first, comes to.
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE FUNCTION vec(g int) RETURNS real[] LANGUAGE sql IMMUTABLE AS $$
		SELECT CASE WHEN g <= 50 THEN ARRAY[-1000 - 10 * g, g, 0, 0]
			ELSE ARRAY[g % 100, g / 100 % 100, g % 7, g % 11] END::real[]
	$$;
	CREATE TABLE narrow AS SELECT g AS id, vec(g) AS e FROM generate_series(1, 20000) AS g;
	CREATE INDEX narrow_e ON narrow USING gpuivfpq (e, id) WITH (lists = 1, candidates = 200);
	CREATE TABLE wide AS SELECT g AS id, vec(g) || array_fill((g % 13)::real, ARRAY[1396]) AS e
	FROM generate_series(1, 2000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e, id) WITH (lists = 1, candidates = 200, pq_dim = 900);
});

# Queries without an end, each in a transaction of its own: division by zero where
# the row at a query's place is not found.
$node->safe_psql('postgres', 'CREATE TABLE done (id int)');
my @queries = map {
	background(
		$node, q{
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
ok( wait_until($node,
		q{SELECT count(*) = 4 FROM pg_stat_activity WHERE application_name = 'queries'}),
	'queries run');
my @pids = split /\n/, $node->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE application_name = 'queries'});

# How many times the list was rewritten.
sub generation
{
	return $node->safe_psql('postgres',
		q{SELECT max(generation) FROM gpuvec_list_stats('narrow_e')});
}

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
	$node->safe_psql(
		'postgres', qq{
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
is_sound($node, 'narrow_e', 'afterwards');
is_sound($node, 'wide_e', 'afterwards');
is_complete($node, 'narrow', '<->', 4, 'afterwards');
is_complete($node, 'wide', '<->', 1400, 'afterwards');

done_testing();
