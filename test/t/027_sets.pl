# Functions over sets of rows: each phase ends soon when it is canceled or
# times out, the view says how far they are, and a gpuvecd that dies in the
# middle changes no answer.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

need_gpuvecd();
my $rows = long_test() ? 30_000 : 12_000;
my $ncloud = long_test() ? 10_000 : 5000;
my @timeouts = long_test() ? (50, 1000) : 300;

# as slow as it can be
my $node = new_node('main',
	conf => "gpuvec.simd = portable\nshared_preload_libraries = 'gpuvec'\n"
	  . "gpuvec.server = $SERVER\n");
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE slow (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO slow SELECT g, p || p || p || p
	FROM generate_series(1, $rows) AS g, LATERAL (VALUES (point(g, 32))) AS v (p);
	SET gpuvec.simd = auto;
	CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (dims = 128, lists = 100);
	CREATE TABLE small AS SELECT * FROM slow WHERE id <= 2000;
	-- neighbors in many lists
	CREATE TABLE cloud AS
	SELECT g AS id, (SELECT array_agg((hashint4(g * 8 + i) & 1023)::real ORDER BY i)
		FROM generate_series(1, 8) AS i) AS e
	FROM generate_series(1, $ncloud) AS g;
	CREATE INDEX cloud_e ON cloud USING gpuivfpq (e) WITH (dims = 8, lists = 100);
	CREATE ROLE watcher;
});

my %statement = (
	'exact search' => q{SELECT count(*) FROM gpuvec_exact_search('slow', 'e',
		(SELECT array_agg(e) FROM slow WHERE id <= 5000), 10)},
	'k-NN graph' => q{SELECT count(*) FROM gpuvec_knn_graph('slow', 'id', 'e', 10)},
	'graph in arrays' => q{SELECT count(*) FROM gpuvec_knn_graph_arrays('slow', 'id', 'e', 10)},
	'k-NN join' => q{SELECT count(*) FROM gpuvec_knn_join('slow', 'id', 'e', 'slow', 'id', 'e', 10)},
	'through an index' => q{SELECT count(*) FROM gpuvec_knn_graph('slow', 'id', 'e', 100, 'l2', 'index')},
	'k-means' => q{SELECT count(*) FROM gpuvec_kmeans('slow', 'e', 500, 1000)});

# Test: the statement, begun after some settings, ends soon when canceled in
# that phase of a command, when so much of it is done.
sub cancel_set
{
	my ($what, $command, $phase, $settings, $done) = @_;

	$done //= 1;
	test_cancel(
		$node, "$what, $phase ($settings)",
		"SET client_min_messages = warning; $settings $statement{$what}",
		'gpuvec_progress', "command = '$command' AND phase = '$phase' AND done >= $done");
	return;
}

# Test: it ends soon after a timeout.
sub timeout_set
{
	my ($what, $timeout_ms, $settings) = @_;

	test_timeout($node, "$what ($settings)",
		"SET client_min_messages = warning; $settings $statement{$what}", $timeout_ms);
	return;
}

# -- canceled in the session, and while gpuvecd works; with a card that is over
# too soon (028_remote_sets has work for one)
for my $engine ('cpu', $SERVER eq 'cuda' ? () : 'gpu')
{
	my $settings = "SET gpuvec.engine = $engine;";

	# much is done before any of it is told; with little memory, below, little
	cancel_set('exact search', 'exact search', 'searching', $settings, 0);
	cancel_set('k-NN graph', 'k-NN graph', 'searching', $settings, 0);
	cancel_set('graph in arrays', 'k-NN graph', 'searching', $settings, 0);
	cancel_set('k-NN join', 'k-NN join', 'searching', $settings, 0);
	cancel_set('through an index', 'k-NN graph', $_, "$settings SET gpuvec.probes = 10;")
	  for ('measuring recall', 'searching');
	cancel_set('k-means', 'k-means', 'clustering', $settings);
	timeout_set('k-NN graph', $_, $settings) for @timeouts;
	timeout_set('k-means', $_, $settings) for @timeouts;
	timeout_set('through an index', 500, "$settings SET gpuvec.probes = 10;");
}
cancel_set('k-NN graph', 'k-NN graph', 'searching',
	"SET gpuvec.engine = cpu; SET maintenance_work_mem = '1MB';");
cancel_set('k-means', 'k-means', 'clustering',
	"SET gpuvec.engine = cpu; SET maintenance_work_mem = '1MB';");

# -- what the view shows, and to whom; one session asks, while the function runs
my $seen = "SELECT count(*), bool_and(datname = 'postgres'), max(relid::text),
	max(command), max(phase), bool_and(done BETWEEN 0 AND total) FROM gpuvec_progress;";
my $job = background($node,
	"SET gpuvec.engine = cpu; SET maintenance_work_mem = '1MB'; $statement{'k-NN graph'}");
ok( wait_until($node, q{SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = 'searching' AND done > 0}),
	'a running function is seen');
my @seen = split /\n/, $node->safe_psql('postgres', "$seen
	SET ROLE watcher;
	$seen
	RESET ROLE;
	SELECT count(*) FROM pg_stat_progress_create_index, pg_stat_progress_vacuum, pg_stat_progress_copy;
	GRANT pg_read_all_stats TO watcher;
	SET ROLE watcher;
	$seen
	RESET ROLE;
	SELECT pg_cancel_backend(pid) FROM gpuvec_progress");
is($seen[0], '1|t|slow|k-NN graph|searching|t', 'all of it');
is($seen[1], '1|t||||', 'by others only that it runs');
is($seen[2], '0', "PostgreSQL's own views pass over it");
is($seen[3], '1|t|slow|k-NN graph|searching|t', 'by pg_read_all_stats all of it');
end_of($job);
is($node->safe_psql('postgres', $seen), '0|||||', 'and nothing when it has ended');

# queries that memory holds all at once are told of as they are answered, too
$job = background($node, "SET gpuvec.engine = cpu; SET gpuvec.probes = 10;
	SET maintenance_work_mem = '16MB'; $statement{'through an index'}");
ok(wait_until($node, q{SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = 'searching' AND done > 0 AND done < total}),
	'searches are told of while others follow');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM gpuvec_progress');
end_of($job);

# -- each phase of a path: the function is called again and again until all of
# them were met, however rarely this session has its turn
$node->safe_psql(
	'postgres', q{
	CREATE TABLE edges AS SELECT g AS key, g + d AS neighbor, (g * 7919 % 10007 + d)::real AS distance
	FROM generate_series(1, 100000) AS g, generate_series(1, 2) AS d;
	-- what the view shows of others, until it has shown so many phases
	CREATE FUNCTION phases_seen(wanted int) RETURNS TABLE (relid text, command text, phase text, sane bool)
	LANGUAGE plpgsql AS $$
	DECLARE
		seen record;
		begun timestamptz = clock_timestamp();
	BEGIN
		CREATE TEMP TABLE met (relid text, command text, phase text, sane bool);
		WHILE (SELECT count(DISTINCT m.phase) FROM met AS m) < wanted
			AND clock_timestamp() < begun + '180 s' LOOP
			PERFORM pg_stat_clear_snapshot();
			INSERT INTO met SELECT p.relid::text, p.command, p.phase,
				p.done >= 0 AND (p.phase = 'reading rows') = (p.total IS NULL)
				AND coalesce(p.done <= p.total, true)
			FROM gpuvec_progress AS p WHERE p.phase IS NOT NULL;
			PERFORM pg_sleep(0.001);
		END LOOP;
		RETURN QUERY SELECT m.relid, m.command, m.phase, bool_and(m.sane)
		FROM met AS m GROUP BY 1, 2, 3;
	END
	$$;
});
$job = background($node, q{
	DO $$ BEGIN FOR i IN 1 .. 1000000 LOOP
		PERFORM count(*) FROM gpuvec_smoothest_path('edges', 1, 100000);
	END LOOP; END $$});
is( $node->safe_psql('postgres', 'SELECT * FROM phases_seen(4) ORDER BY phase'),
	join("\n",
		map { "edges|smoothest path|$_|t" } 'finding the path', 'joining edges', 'reading rows',
		'sorting edges'),
	'each phase of a path is seen');
$node->safe_psql('postgres',
	q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%FOR i IN 1 ..%' AND pid <> pg_backend_pid()});
end_of($job);

# an error that is caught leaves nothing there; COPY keeps its own progress
is( $node->safe_psql(
		'postgres', q{
		DO $$ BEGIN PERFORM gpuvec_kmeans('small', 'e', 3000);
		EXCEPTION WHEN OTHERS THEN NULL; END $$;
		SELECT count(*) FROM gpuvec_progress}),
	'0', 'an error that was caught is not shown');
my $copy = $node->safe_psql('postgres',
	q{COPY (SELECT command FROM pg_stat_progress_copy,
		(SELECT count(*) FROM gpuvec_knn_graph('small', 'id', 'e', 1)) AS g) TO STDOUT});
is($copy, 'COPY TO', "COPY's progress stays its own");

# -- a table does not run its owner's code, whatever cast he has made
$node->safe_psql(
	'postgres', q{
	CREATE ROLE mallory;
	CREATE SCHEMA lure AUTHORIZATION mallory;
	GRANT USAGE ON SCHEMA lure TO PUBLIC;
	SET ROLE mallory;
	SET search_path = lure;
	CREATE TYPE elements AS ENUM ('a');
	CREATE TABLE ran (as_whom text);
	GRANT ALL ON ran TO PUBLIC;
	CREATE FUNCTION lure(elements[], int, bool) RETURNS real[] LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO lure.ran VALUES (current_user);
		RETURN '{1,2}';
	END
	$$;
	CREATE CAST (elements[] AS real[]) WITH FUNCTION lure(elements[], int, bool);
	CREATE DOMAIN some_elements AS elements[];
	CREATE TABLE bait AS SELECT 1 AS id, '{a}'::elements[] AS e, '{a}'::some_elements AS d;
});
for my $column ('e', 'd')
{
	my (undef, undef, $err) = $node->psql('postgres',
		"SELECT * FROM gpuvec_exact_search('lure.bait', '$column', '{1,2}', 1)");

	like($err, qr/column "$column" has type lure\.elements\[\], which is no vector/,
		"arrays of a user's type are no vectors ($column)");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM lure.ran'), '0', 'nor is his cast used');

# -- through an index: as many lists as the recall takes, or as one says
sub said
{
	my ($settings, $table) = (@_, 'cloud');
	my ($rc, $out, $err) = $node->psql('postgres',
		"$settings SELECT count(*) FROM gpuvec_knn_graph('$table', 'id', 'e', 5, 'l2', 'index')",
		on_error_stop => 1);
	my ($recall, $compared, $near, $lists) = $err =~
	  /recall\@5 is about ([0-9.]+) \(([0-9]+) rows compared\)\nDETAIL:  Each row was compared with those of ([0-9]+) of ([0-9]+) lists/;

	is("$rc $out $compared", '0 ' . 5 * $ncloud . ' 200', "through an index: answers ($settings $table)");
	return ($recall, $near, $lists);
}
my @probes;
for my $wanted (0.5, 0.8, 0.95)
{
	my ($recall, $near, $lists) = said("SET gpuvec.recall = $wanted;");

	is($lists, $ncloud / 1000, 'lists of a thousand rows');
	cmp_ok($recall, '>=', $wanted, "recall $wanted: $recall with $near lists");
	push @probes, $near;
}
cmp_ok($probes[0], '<', $probes[2], "the more recall, the more lists: @probes");
my ($recall, $near, $lists) = said('SET gpuvec.recall = 0.995;');
cmp_ok($near, '>=', (said('SET gpuvec.recall = 0.99;'))[1], '.995 takes no fewer than .99');
cmp_ok($recall, '>=', 0.995, "and reaches it: $recall");
($recall, $near, $lists) = said('SET gpuvec.recall = 1;');
is("$recall $near", "1.000 $lists", 'at 1 all lists are near');
($recall, $near) = said('SET gpuvec.probes = 2;');
is($near, 2, 'as many lists as one says');
cmp_ok($recall, '<', 1, "which do not find all: $recall");
($recall, $near) = said('SET gpuvec.probes = 1000;');
is("$recall $near", "1.000 $lists", 'or all');

# whatever the size of numbers: of all distances here the squares are 0 as floats
$node->safe_psql(
	'postgres', q{
	CREATE TABLE faint AS
	SELECT id, (SELECT array_agg((x * 1e-30)::real ORDER BY o)
		FROM unnest(e) WITH ORDINALITY AS u (x, o)) AS e
	FROM cloud;
	CREATE INDEX faint_e ON faint USING gpuivfpq (e) WITH (dims = 8, lists = 100)});
($recall, $near, $lists) = said('SET gpuvec.probes = 2;', 'faint');
is("$near $lists", '2 ' . $ncloud / 1000, 'lists of faint vectors, too');

# -- a gpuvecd that dies in the middle
my %asked = (
	graph => [ q{SELECT md5(string_agg(g::text, '' ORDER BY key, rank))
		FROM gpuvec_knn_graph('small', 'id', 'e', 10) AS g}, 'searching' ],
	clusters => [ q{SELECT md5(string_agg(c::text, '' ORDER BY centroid_id))
		FROM gpuvec_kmeans('small', 'e', 100, 10) AS c}, 'clustering' ]);
for my $what (sort keys %asked)
{
	my ($sql, $phase) = @{ $asked{$what} };
	my $right = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $sql");
	my $failed = 'SELECT jobs_failed FROM gpuvec_stat';
	my ($before, $output);

	ok( wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), "$what: gpuvecd is there");
	is( $node->safe_psql('postgres', "SET gpuvec.engine = gpu; $sql"),
		$right, "$what: as gpuvecd gives it");
	$before = $node->safe_psql('postgres', $failed);
	my $pid = $node->safe_psql('postgres', 'SELECT pid FROM gpuvec_stat');

	# it stands still, so that there is time to kill it
	kill 'STOP', $pid;
	$job = background($node,
		"SET gpuvec.request_timeout = '60s'; SET client_min_messages = warning; SET gpuvec.engine = gpu; $sql");
	ok(wait_until($node, "SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = '$phase'"),
		"$what: gpuvecd is asked");
	usleep(100_000);
	kill 'KILL', $pid;
	is(end_of($job), 0, "$what: killed: the statement goes on");
	$output = slurp_file($job->{output});
	chomp $output;
	is($output, $right, "$what: killed: as the session gives it");
	is($node->safe_psql('postgres', $failed), $before + 1, "$what: killed: it was gpuvecd's");
}
done_testing();
