# Functions over sets of rows: each phase ends soon when it is cancelled or
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
use Time::HiRes qw(time usleep);

# half a second is the promise; the rest is for machines that do other things
my $limit_ms = 500 + 1500;
my $rows = long_test() ? 30_000 : 20_000;

# as slow as it can be
my $node = new_node('main',
	conf => "gpuvec.simd = portable\nshared_preload_libraries = 'gpuvec'\n"
	  . "gpuvec.server = $SERVER\n");
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE slow (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO slow SELECT g, p || p || p || p
	FROM generate_series(1, $rows) AS g, LATERAL (VALUES (point(g, 32))) AS v (p);
	CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (dims = 128, lists = 100);
	CREATE TABLE small AS SELECT * FROM slow WHERE id <= 2000;
	-- neighbours in many lists
	CREATE TABLE cloud AS
	SELECT g AS id, (SELECT array_agg((hashint4(g * 8 + i) & 1023)::real ORDER BY i)
		FROM generate_series(1, 8) AS i) AS e
	FROM generate_series(1, 10000) AS g;
	CREATE INDEX cloud_e ON cloud USING gpuivfpq (e) WITH (dims = 8, lists = 100);
	CREATE ROLE watcher;

	-- Wait until another session has come to a phase of a command and has done
	-- something of it, cancel it, and wait for its end; how many ms that took.
	CREATE FUNCTION cancel_at(wanted_command text, wanted text) RETURNS int
	LANGUAGE plpgsql AS \$\$
	DECLARE
		victim int;
		begun timestamptz = clock_timestamp();
	BEGIN
		WHILE victim IS NULL AND clock_timestamp() < begun + '60 s' LOOP
			PERFORM pg_stat_clear_snapshot();
			SELECT pid INTO victim FROM gpuvec_progress
			WHERE command = wanted_command AND phase = wanted AND done > 0;
			PERFORM pg_sleep(0.001);
		END LOOP;
		begun = clock_timestamp();
		PERFORM pg_cancel_backend(victim);
		WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = victim AND state = 'active') LOOP
			PERFORM pg_stat_clear_snapshot();
			PERFORM pg_sleep(0.001);
		END LOOP;
		RETURN CASE WHEN victim IS NULL THEN NULL
			ELSE 1000 * extract(epoch FROM clock_timestamp() - begun) END;
	END
	\$\$;
});

my %statement = (
	'exact search' => q{SELECT count(*) FROM gpuvec_exact_search('slow', 'e',
		(SELECT array_agg(e) FROM slow WHERE id <= 5000), 10)},
	'k-NN graph' => q{SELECT count(*) FROM gpuvec_knn_graph('slow', 'id', 'e', 10)},
	'k-NN join' => q{SELECT count(*) FROM gpuvec_knn_join('slow', 'id', 'e', 'slow', 'id', 'e', 10)},
	'through an index' => q{SELECT count(*) FROM gpuvec_knn_graph('slow', 'id', 'e', 100, 'l2', 'index')},
	'k-means' => q{SELECT count(*) FROM gpuvec_kmeans('slow', 'e', 500, 1000)});

# Test: the statement, begun after some settings, ends soon when cancelled in
# that phase.
sub test_cancel
{
	my ($what, $command, $phase, $settings) = @_;
	my $job = background($node,
		"SET client_min_messages = warning; $settings $statement{$what}; SELECT pg_sleep(0.5)");
	my $ms = $node->safe_psql('postgres', "SELECT cancel_at('$command', '$phase')");

	if ($ms eq '')
	{
		# it went past unseen: do not wait for what it does now
		$ms = 1e9;
		$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	}
	cmp_ok($ms, '<=', $limit_ms, "$what, $phase: ended after $ms ms ($settings)");
	is(end_of($job) >> 8, 3, "$what, $phase: was cancelled ($settings)");
	return;
}

# Test: a statement with a timeout of its own ends soon after it.
sub test_timeout
{
	my ($what, $timeout_ms, $settings) = @_;
	my $begun = time;
	my ($rc, $out, $err) = $node->psql('postgres',
		"$settings SET client_min_messages = warning;
		 SET statement_timeout = $timeout_ms; $statement{$what}");
	my $ms = int(1000 * (time - $begun)) - $timeout_ms;

	like($err, qr/canceling statement due to statement timeout/,
		"$what: timed out after $timeout_ms ms");
	cmp_ok($ms, '<=', $limit_ms, "$what: ended $ms ms later");
	return;
}

# -- cancelled in the session, and while gpuvecd works
for my $engine ('cpu', 'gpu')
{
	my $settings = "SET gpuvec.engine = $engine;";

	test_cancel('exact search', 'exact search', 'searching', $settings);
	test_cancel('k-NN graph', 'k-NN graph', 'searching', $settings);
	test_cancel('k-NN join', 'k-NN join', 'searching', $settings);
	test_cancel('through an index', 'k-NN graph', $_, "$settings SET gpuvec.probes = 10;")
	  for ('measuring recall', 'searching');
	test_cancel('k-means', 'k-means', 'clustering', $settings);
	test_timeout('k-NN graph', $_, $settings) for (50, 1000);
	test_timeout('k-means', $_, $settings) for (50, 1000);
	test_timeout('through an index', 500, "$settings SET gpuvec.probes = 10;");
}
test_cancel('k-NN graph', 'k-NN graph', 'searching',
	"SET gpuvec.engine = cpu; SET maintenance_work_mem = '1MB';");
test_cancel('k-means', 'k-means', 'clustering',
	"SET gpuvec.engine = cpu; SET maintenance_work_mem = '1MB';");

# -- what the view shows, and to whom
sub seen
{
	my ($role) = @_;

	return $node->safe_psql('postgres',
		"SET ROLE $role; SELECT count(*), bool_and(datname = 'postgres'), max(relid::text),
			max(command), max(phase), bool_and(done BETWEEN 0 AND total) FROM gpuvec_progress");
}
my $job = background($node, "SET gpuvec.engine = cpu; $statement{'k-NN graph'}");
ok( wait_until($node, q{SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = 'searching' AND done > 0}),
	'a running function is seen');
is(seen('none'), '1|t|slow|k-NN graph|searching|t', 'all of it');
is(seen('watcher'), '1|t||||', 'by others only that it runs');
is( $node->safe_psql('postgres',
		'SELECT count(*) FROM pg_stat_progress_create_index, pg_stat_progress_vacuum, pg_stat_progress_copy'),
	'0', "PostgreSQL's own views pass over it");
$node->safe_psql('postgres', 'GRANT pg_read_all_stats TO watcher');
is(seen('watcher'), '1|t|slow|k-NN graph|searching|t', 'by pg_read_all_stats all of it');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM gpuvec_progress');
end_of($job);
is(seen('none'), '0|||||', 'and nothing when it has ended');

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

# -- through an index: as many lists as the recall takes, or as one says
sub said
{
	my ($settings) = @_;
	my ($rc, $out, $err) = $node->psql('postgres',
		"$settings SELECT count(*) FROM gpuvec_knn_graph('cloud', 'id', 'e', 5, 'l2', 'index')",
		on_error_stop => 1);
	my ($recall, $compared, $near, $lists) = $err =~
	  /recall\@5 is about ([0-9.]+) \(([0-9]+) rows compared\)\nDETAIL:  Each row was compared with those of ([0-9]+) of ([0-9]+) lists/;

	is("$rc $out $compared", '0 50000 200', "through an index: answers ($settings)");
	return ($recall, $near, $lists);
}
my @probes;
for my $wanted (0.5, 0.8, 0.95)
{
	my ($recall, $near, $lists) = said("SET gpuvec.recall = $wanted;");

	is($lists, 10, 'lists of a thousand rows');
	cmp_ok($recall, '>=', $wanted, "recall $wanted: $recall with $near lists");
	push @probes, $near;
}
cmp_ok($probes[0], '<', $probes[2], "the more recall, the more lists: @probes");
my ($recall, $near, $lists) = said('SET gpuvec.recall = 0.999;');
is("$recall $near", "1.000 $lists", 'above .99 all lists are near');
($recall, $near) = said('SET gpuvec.probes = 2;');
is($near, 2, 'as many lists as one says');
cmp_ok($recall, '<', 1, "which do not find all: $recall");
($recall, $near) = said('SET gpuvec.probes = 1000;');
is("$recall $near", "1.000 $lists", 'or all');

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
	my $failed = 'SELECT sets_failed FROM gpuvec_stat';
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
