# Functions over whole tables.  Each phase ends soon when it is canceled or times out, and
# the view says how far they are.  Through gpuvecd they return the same rows as by the
# session, and whatever becomes of gpuvecd or of the client meanwhile, right rows or a
# prompt end.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;

# as slow as it can be, first
my $node = new_remote_node('main', conf => "gpuvec.auto_mirror = off\ngpuvec.simd = portable\n");

# -- cancellation and progress

my $slow_rows = long_test() ? 30_000 : 12_000;
my $ncloud = long_test() ? 10_000 : 5000;
my @timeouts = long_test() ? (50, 1000) : 300;

$node->safe_psql('postgres', qq{
	CREATE TABLE slow (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO slow SELECT g, p || p || p || p
	FROM generate_series(1, $slow_rows) AS g, LATERAL (VALUES (point(g, 32))) AS v (p);
	SET gpuvec.simd = auto;
	CREATE INDEX slow_e ON slow USING gpuivfpq (e) WITH (dims = 128, lists = 100);
	CREATE TABLE small AS SELECT * FROM slow WHERE id <= 2000;
	-- neighbors in many lists
	CREATE TABLE cloud AS
	SELECT g AS id, (SELECT array_agg((hashint4(g * 8 + i) & 1023)::real ORDER BY i)
		FROM generate_series(1, 8) AS i) AS e
	FROM generate_series(1, $ncloud) AS g;
	CREATE INDEX cloud_e ON cloud USING gpuivfpq (e) WITH (dims = 8, lists = 100);
	CREATE ROLE watcher});

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

	return test_cancel(
		$node, "$what, $phase ($settings)",
		"SET client_min_messages = warning; $settings $statement{$what}",
		'gpuvec_progress', "command = '$command' AND phase = '$phase' AND done >= " . ($done // 1));
}

# Test: it ends soon after a timeout.
sub timeout_set
{
	my ($what, $timeout_ms, $settings) = @_;

	return test_timeout($node, "$what ($settings)",
		"SET client_min_messages = warning; $settings $statement{$what}", $timeout_ms);
}

# canceled in the session, and while gpuvecd works (below more of that); with a card
# that is over too soon.  Much is done before any of it is told; with little memory,
# little.
my $alone = 'SET gpuvec.engine = cpu;';
my $little = "$alone SET maintenance_work_mem = '1MB';";
cancel_set($_, $_ =~ /graph/ ? 'k-NN graph' : $_, 'searching', $alone, 0) for 'exact search', 'graph in arrays', 'k-NN join';
for my $settings ($alone, $SERVER eq 'cuda' ? () : 'SET gpuvec.engine = gpu;')
{
	cancel_set('through an index', 'k-NN graph', $_, "$settings SET gpuvec.probes = 10;") for 'measuring recall', 'searching';
	timeout_set('through an index', 500, "$settings SET gpuvec.probes = 10;");
}
for my $what ('k-NN graph', 'k-means')
{
	timeout_set($what, $_, $alone) for @timeouts;
	cancel_set($what, $what, $what eq 'k-means' ? 'clustering' : 'searching', $little);
}

# what the view shows, and to whom; one session asks, while the function runs
my $seen = "SELECT count(*), bool_and(datname = 'postgres'), max(relid::text),
	max(command), max(phase), bool_and(done BETWEEN 0 AND total) FROM gpuvec_progress;";
my $job = background($node, "$little $statement{'k-NN graph'}");
comes($node, q{SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = 'searching' AND done > 0}, 'a running function is seen');
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
gives($node, $seen, '0|||||', 'and nothing when it has ended');

# queries that memory holds all at once are told of as they are answered, too
$job = background($node, "SET gpuvec.engine = cpu; SET gpuvec.probes = 10;
	SET maintenance_work_mem = '16MB'; $statement{'through an index'}");
comes($node, q{SELECT count(*) = 1 FROM gpuvec_progress WHERE phase = 'searching' AND done > 0 AND done < total}, 'searches are told of while others follow');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM gpuvec_progress');
end_of($job);

# a path, in each of its phases, which a statement has again and again
$node->safe_psql('postgres', q{
	CREATE TABLE edges AS SELECT g AS key, g + d AS neighbor, (g * 7919 % 10007 + d)::real AS distance
	FROM generate_series(1, 100000) AS g, generate_series(1, 2) AS d});
test_cancel(
	$node, "a path, $_", q{
	DO $$ BEGIN FOR i IN 1 .. 1000000 LOOP
		PERFORM count(*) FROM gpuvec_smoothest_path('edges', 1, 100000);
	END LOOP; END $$},
	'gpuvec_progress',
	"relid = 'edges'::regclass AND command = 'smoothest path' AND phase = '$_' AND "
	  . ($_ eq 'reading rows' ? 'done >= 0 AND total IS NULL' : 'done BETWEEN 0 AND total'))
  for 'reading rows', 'joining edges', 'finding the path';

# an error that is caught leaves nothing there; COPY keeps its own progress
gives($node, q{
	DO $$ BEGIN PERFORM gpuvec_kmeans('small', 'e', 3000);
	EXCEPTION WHEN OTHERS THEN NULL; END $$;
	SELECT count(*) FROM gpuvec_progress},
	'0', 'an error that was caught is not shown');
gives(
	$node, q{COPY (SELECT command FROM pg_stat_progress_copy,
		(SELECT count(*) FROM gpuvec_knn_graph('small', 'id', 'e', 1)) AS g) TO STDOUT},
	'COPY TO', "COPY's progress stays its own");

# -- a table does not run its owner's code, whatever cast he has made
$node->safe_psql('postgres', q{
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
	CREATE TABLE bait AS SELECT 1 AS id, '{a}'::elements[] AS e, '{a}'::some_elements AS d});
says($node, "SELECT * FROM gpuvec_exact_search('lure.bait', '$_', '{1,2}', 1)",
	qr/column "$_" of type lure\.elements\[\] cannot be used as a vector/, "arrays of a user's type are no vectors ($_)")
  for 'e', 'd';
gives($node, 'SELECT count(*) FROM lure.ran', '0', 'nor is his cast used');

# -- through an index: as many lists as the recall takes, or as one says.  Returns the
# recall, and how many lists each row was compared with.
sub said
{
	my ($settings, $table) = (@_, 'cloud');
	my ($rc, $out, $err) = $node->psql('postgres',
		"$settings SELECT count(*) FROM gpuvec_knn_graph('$table', 'id', 'e', 5, 'l2', 'index')");
	my ($recall, $compared, $near, $lists) = $err =~
	  /recall\@5 is about ([0-9.]+) \(([0-9]+) rows compared\)\nDETAIL:  Each row was compared with those of ([0-9]+) of ([0-9]+) lists/;

	is("$rc $out $compared $lists", join(' ', 0, 5 * $ncloud, 200, $ncloud / 1000), "through an index: answers ($settings $table)");
	return ($recall, $near);
}
my %near;
for my $wanted (0.5, 0.8, 0.95, 0.99, 0.995)
{
	my ($recall, $near) = said("SET gpuvec.recall = $wanted;");

	cmp_ok($recall, '>=', $wanted, "recall $wanted: $recall with $near lists");
	$near{$wanted} = $near;
}
cmp_ok($near{0.5}, '<', $near{0.95}, 'the more recall, the more lists');
cmp_ok($near{0.995}, '>=', $near{0.99}, '.995 takes no fewer than .99');
is(join(' ', said("SET $_;")), '1.000 ' . $ncloud / 1000, "$_: all lists are near") for 'gpuvec.recall = 1', 'gpuvec.probes = 1000';
my ($recall, $near) = said('SET gpuvec.probes = 2;');
is($near, 2, 'as many lists as one says');
cmp_ok($recall, '<', 1, "which do not find all: $recall");
# whatever the size of numbers: of all distances here the squares are 0 as floats
$node->safe_psql('postgres', q{
	CREATE TABLE faint AS
	SELECT id, (SELECT array_agg((x * 1e-30)::real ORDER BY o)
		FROM unnest(e) WITH ORDINALITY AS u (x, o)) AS e
	FROM cloud;
	CREATE INDEX faint_e ON faint USING gpuivfpq (e) WITH (dims = 8, lists = 100)});
is((said('SET gpuvec.probes = 2;', 'faint'))[1], 2, 'lists of faint vectors, too');
$node->safe_psql('postgres', 'DROP TABLE slow, small, cloud, edges, faint');
$node->append_conf('postgresql.conf', "gpuvec.simd = auto\n");
$node->restart;

# -- by gpuvecd

my $rows = long_test() ? 6000 : 1500;
# work that takes the session seconds and is not over at once on a card either
my $card = $SERVER eq 'cuda';
my $many = $card ? 120_000 : long_test() ? 40_000 : 20_000;
my $passes = $card ? 600 : 40;

$node->safe_psql('postgres', "
	CREATE TABLE t AS SELECT g AS id, point(g, 16) AS e FROM generate_series(1, $rows) AS g;
	INSERT INTO t SELECT g, NULL FROM generate_series(-20, -1) AS g;
	DELETE FROM t WHERE id % 97 = 0;
	CREATE TABLE doubles AS SELECT x / 3::double precision AS x FROM t, unnest(e) AS x;
	CREATE TABLE u AS SELECT g AS id, point(g * 7, 16) AS e FROM generate_series(1, 200) AS g;
	CREATE TABLE many AS SELECT g AS id, point(g, 8) || point(g, 8) || point(g, 8) || point(g, 8) AS e
		FROM generate_series(1, $many) AS g;
	CREATE TABLE wide AS SELECT g AS id, point(g, 1000) AS e FROM generate_series(1, 1100) AS g;
	CREATE TABLE listed AS SELECT * FROM many WHERE id <= 5000;
	CREATE INDEX ON listed USING gpuivfpq (e) WITH (dims = 32, lists = 40);
	-- stored out of line, but for the first
	CREATE TABLE tall (id int, e real[]);
	ALTER TABLE tall ALTER e SET STORAGE EXTERNAL;
	INSERT INTO tall SELECT g, CASE WHEN g % 50 = 0 THEN NULL ELSE point(g, 600) END
		FROM generate_series(1, 400) AS g;
	CREATE INDEX ON tall USING gpuivfpq (e real_cosine_ops) WITH (dims = 600, lists = 8);
	-- most of it is empty: fewer rows are announced than there is room for
	CREATE TABLE emptied (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO emptied SELECT * FROM many WHERE id <= 20000;
	CREATE INDEX ON emptied USING gpuivfpq (e) WITH (dims = 32, lists = 40);
	DELETE FROM emptied WHERE id % 8 <> 0;
	-- more rows than are announced, for neither VACUUM nor ANALYZE has seen them
	CREATE TABLE grown (id int, e real[]) WITH (autovacuum_enabled = off);
	CREATE INDEX ON grown USING gpuivfpq (e) WITH (dims = 32, lists = 40);
	INSERT INTO grown SELECT * FROM many WHERE id <= 3000;");
$node->safe_psql('postgres', 'VACUUM emptied');

my $queries = '(SELECT array_agg(e) FROM (SELECT e FROM u ORDER BY id LIMIT 30) AS x)';

# All rows of a query as one text, and what it said.
sub rows_of
{
	my ($query, @set) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', join('', map { "SET $_;" } @set)
		  . "SELECT string_agg(x::text, ' ' ORDER BY x::text COLLATE \"C\") FROM ($query) AS x");

	die "$query: $err" if $rc != 0;
	return ($out, $err);
}

# Test: by gpuvecd a query has the rows that it has by the session, and says the same;
# returns them.
sub is_same
{
	my ($what, $query, @set) = @_;
	my $before = stat_of($node, 'jobs_by_server');
	my ($own, $own_said) = rows_of($query, 'gpuvec.engine = cpu', @set);

	is(stat_of($node, 'jobs_by_server'), $before, "$what: the session alone");
	my ($remote, $said) = rows_of($query, 'gpuvec.engine = gpu', @set);

	ok($remote eq $own, "$what: the same rows");
	is($said, $own_said, "$what: and the same is said");
	cmp_ok(stat_of($node, 'jobs_by_server'), '>', $before, "$what: by gpuvecd");
	return $own;
}

# Enough bytes for memory to be shared, and enough neighbors to come in more
# parts than it has slots.
my $neighbors = "SELECT md5(g::text) FROM gpuvec_knn_graph_arrays('wide', 'id', 'e', 400) AS g";

my %works = (
	'exact search' => "SELECT * FROM gpuvec_exact_search('t', 'e', $queries, 9)",
	'by inner product' => "SELECT * FROM gpuvec_exact_search('t', 'e', $queries, 9, 'ip')",
	'by cosine' => "SELECT * FROM gpuvec_exact_search('t', 'e', $queries, 9, 'cosine')",
	'by Pearson' => "SELECT * FROM gpuvec_exact_search('t', 'e', $queries, 9, 'pearson')",
	'more than there is' => "SELECT * FROM gpuvec_exact_search('u', 'e', $queries, 1000)",
	'graph' => "SELECT * FROM gpuvec_knn_graph('t', 'id', 'e', 4)",
	'selection' => "SELECT s.* FROM (SELECT array_agg(x) AS a FROM t, unnest(e) AS x) AS v, gpuvec_select(a, 300) AS s",
	'quantiles' => "SELECT s.* FROM (SELECT array_agg(x) AS a FROM t, unnest(e) AS x) AS v, gpuvec_quantiles(a, (SELECT array_agg(i * 7) FROM generate_series(1, 99) AS i)) AS s",
	'selection of doubles' => "SELECT s.* FROM (SELECT array_agg(x / 3::double precision) AS a FROM t, unnest(e) AS x) AS v, gpuvec_select(a, 300) AS s",
	'percentiles' => "SELECT * FROM gpuvec_percentiles('doubles', 'x', (SELECT array_agg(i / 99.0) FROM generate_series(0, 99) AS i))",
	'join' => "SELECT * FROM gpuvec_knn_join('u', 'id', 'e', 't', 'id', 'e', 6, 'cosine')",
	'graph in arrays' => "SELECT * FROM gpuvec_knn_graph_arrays('t', 'id', 'e', 4)",
	'graph through an index' => "SELECT * FROM gpuvec_knn_graph('listed', 'id', 'e', 4, 'l2', 'index')",
	'... in arrays' => "SELECT * FROM gpuvec_knn_graph_arrays('listed', 'id', 'e', 4, 'l2', 'index')",
	'graph of long vectors' => "SELECT * FROM gpuvec_knn_graph('tall', 'id', 'e', 6, 'cosine', 'index')",
	'graph of what is left' => "SELECT * FROM gpuvec_knn_graph('emptied', 'id', 'e', 3, 'l2', 'index')",
	'graph of more than is known' => "SELECT * FROM gpuvec_knn_graph('grown', 'id', 'e', 3, 'l2', 'index')",
	'many neighbors' => $neighbors,
	'a large selection' => "SELECT x / 5000, sum(hash_record(s)::bigint) FROM
		(SELECT array_agg(sin(i)::real) AS a FROM generate_series(1, 2100000) AS i) AS v,
		gpuvec_select(a, 600000) WITH ORDINALITY AS s(p, v, x) GROUP BY 1",
	'k-means' => "SELECT * FROM gpuvec_kmeans('t', 'e', 25, 6, 3)",
	'k-means of many' => "SELECT * FROM gpuvec_kmeans('many', 'e', 300, 2)",
	'balanced k-means' => "SELECT * FROM gpuvec_kmeans('t', 'e', 40, 5, 1, true)");
soon_up($node, 'the same rows');
cmp_ok(length is_same($_, $works{$_}), '>', 1000, "$_: there are rows") for sort keys %works;

# where no index is nothing is sent, so a vector of another length is not met, beyond
# those that are kept
$node->safe_psql('postgres', q{CREATE TABLE uneven AS
	SELECT g AS id, array_fill(g::real, ARRAY[CASE g WHEN 60000 THEN 7 ELSE 8 END]) AS e
	FROM generate_series(1, 60000) AS g});
says(
	$node, q{SET gpuvec.engine = gpu; SET maintenance_work_mem = '1MB';
	SELECT count(*) FROM gpuvec_knn_graph('uneven', 'id', 'e', 4, 'l2', 'index')},
	qr/has no gpuivfpq index/, 'no index: that is what is said');

# a session keeps some of the vectors in its memory: here, of 5,000 in 2.5 MB, not all
# of either side
is_same('some vectors are kept', "SELECT * FROM gpuvec_knn_join('listed', 'id', 'e', 'listed', 'id', 'e', 4, 'l2', 'index')",
	'gpuvec.probes = 5', "maintenance_work_mem = '1MB'");
{
	my $before = stat_of($node, 'jobs_by_server');

	rows_of($works{graph}, 'gpuvec.engine = auto');
	is(stat_of($node, 'jobs_by_server'), $before, 'auto: little work, so nobody is asked');
	rows_of("SELECT count(*) FROM gpuvec_kmeans('many', 'e', 500, 1)", 'gpuvec.engine = auto');
	cmp_ok(stat_of($node, 'jobs_by_server'), $card ? '>' : '==', $before, 'auto: it is asked if it has a card');
}
is(stat_of($node, 'jobs_failed, mirror_bytes'), '0|0', 'nothing failed, and all memory is given back');

# several at a time
{
	my %own = map { $_ => (rows_of($works{$_}, 'gpuvec.engine = cpu'))[0] } 'graph', 'k-means';
	my @jobs = map {
		background($node, qq{SET gpuvec.engine = gpu;
			CREATE TABLE "graph $_" AS $works{graph};
			CREATE TABLE "k-means $_" AS $works{'k-means'};})
	} 1 .. 3;

	is(end_of($_), 0, 'a job among others') for @jobs;
	for my $what (sort keys %own)
	{
		ok((rows_of(qq{SELECT * FROM "$what $_"}))[0] eq $own{$what}, "$what among others") for 1 .. 3;
	}
}

# -- gpuvecd dies or stops in the middle

my %long = (
	'graph' => "SELECT * FROM gpuvec_knn_graph('many', 'id', 'e', 3)",
	'k-means' => "SELECT * FROM gpuvec_kmeans('many', 'e', 500, $passes)");

# Test: gpuvecd has such work at hand; then do what is to be done, in PL/pgSQL.  One
# statement looks and does it, as a card is done in less than a psql takes to end.
sub is_at_work
{
	my ($what, $then) = @_;

	# searches, or the second pass of k-means
	my ($rc, $out, $err) = $node->psql('postgres', "DO \$\$
		BEGIN
			FOR i IN 1..90000 LOOP
				IF (SELECT mirror_bytes > 0 FROM gpuvec_stat) AND EXISTS (
					SELECT FROM gpuvec_progress WHERE phase = 'searching' AND done > 0
					OR phase = 'clustering' AND done > $many)
				THEN
					$then;
					RETURN;
				END IF;
				PERFORM pg_sleep(0.002);
				PERFORM pg_stat_clear_snapshot();
			END LOOP;
			RAISE 'nobody is at work';
		END \$\$");
	is($rc, 0, "$what: in the middle") or diag($err);
	return;
}

# The action of $then: a signal to gpuvecd.
sub send_signal { my ($signal, $pid) = @_; return "COPY (SELECT WHERE false) TO PROGRAM 'kill -$signal $pid'"; }

for my $name (sort keys %long)
{
	my ($own) = rows_of($long{$name}, 'gpuvec.engine = cpu');

	for my $signal ('KILL', 'STOP')
	{
		my $what = "$name, $signal";

		soon_up($node, $what);
		my $before = stat_of($node, 'jobs_failed');
		my $pid = gpuvecd_pid($node);
		my $job = background($node, "SET gpuvec.engine = gpu; SET gpuvec.request_timeout = '300ms';
			DROP TABLE IF EXISTS answer;
			CREATE TABLE answer AS $long{$name};");
		is_at_work($what, send_signal($signal, $pid));
		is(end_of($job), 0, "$what: it is done");
		kill 'CONT', $pid if $signal eq 'STOP';
		ok((rows_of('SELECT * FROM answer'))[0] eq $own, "$what: right rows");
		cmp_ok(stat_of($node, 'jobs_failed'), '>', $before, "$what: by the session");
		ok(revive($node), "$what: there is another") if $signal eq 'KILL';
	}

	# for who wants an error instead
	soon_up($node, "$name, error");
	my $pid = gpuvecd_pid($node);
	my $job = background($node, "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error;
		CREATE TABLE no_answer AS $long{$name};");
	is_at_work("$name, error", send_signal('KILL', $pid));
	is(end_of($job) >> 8, 3, "$name: an error, if that is wanted");
	like(errors_of($job), qr/gpuvecd could not run the job: /, "$name: which says so");
	ok(revive($node), "$name, error: there is another");
}

# -- canceled in the middle

for my $name (sort keys %long)
{
	my $sql = "SET gpuvec.engine = gpu; $long{$name}";

	test_cancel($node, "$name by gpuvecd", $sql, 'gpuvec_progress',
		"phase = 'searching' AND done > 0 OR phase = 'clustering' AND done > $many");
	soon($node, 'mirror_bytes = 0', "$name: gpuvecd has given it up");
	test_timeout($node, "$name by gpuvecd", $sql, 100);

	# a client that is killed, too
	my $job = background($node, $sql);
	is_at_work("$name, terminated", 'PERFORM pg_terminate_backend(pid) FROM gpuvec_progress');
	isnt(end_of($job), 0, "$name: terminated");
	soon($node, 'mirror_bytes = 0', "$name: gpuvecd has given it up once more");
}

# a session goes on after all that, and has no descriptors left behind
{
	my $graph = "SELECT count(*) FROM gpuvec_knn_graph('u', 'id', 'e', 4);";
	my $open = "SELECT count(*) FROM pg_ls_dir('/proc/' || pg_backend_pid() || '/fd');";
	# of one message each: SET might be canceled, too
	my $cut = "SET LOCAL statement_timeout = '100ms' \\; $long{graph};";
	# the files of all tables are open from the first round on
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET gpuvec.engine = gpu; $graph $cut $open" . $cut x 9 . "$graph $open",
		on_error_stop => 0);
	my @counts = split /\n/, $out;

	is(scalar(() = $err =~ /canceling statement due to statement timeout/g), 10, 'ten canceled');
	is("@counts[0, 2]", '800 800', 'the session goes on');
	cmp_ok($counts[3], '<=', $counts[1], 'no descriptor is left behind');
}

# -- a gpuvecd out of its mind: what it says is not believed, and work with no end
# is done by the session

# Serves each client as gv_protocol.h has it: $run gives the answer's body to the n-th
# run, $items what each output consists of.  Outputs for shared memory are not written,
# so the client finds there what it has sent; with $answered they are the answer
# nevertheless.  A set for which $refuses is true there is no memory for.
sub serving
{
	my ($run, $items, $answered, $refuses) = @_;

	return sub {
		my $runs = 0;

		converse(
			$_[0],
			sub {
				my ($message, $asked) = @_;

				return greeting() if $message eq 'HELLO';
				return (undef, refusal('SET', 7, 'no room')) if $message eq 'SET' && $refuses && $refuses->($asked);
				return $run->(++$runs) if $message eq 'RUN';
				return '' if $message ne 'GET';
				my ($output, undef, undef, $n, $offset) = unpack('llqqq', $asked);
				return $offset == -1 || $answered ? $items->{$output} x $n : '';
			});
	};
}

# A run's answer: error, passes, found, finished, again.
sub ran { return pack('dllCCx6', @_); }

# Test: with such a server the rows are right, and it is found out.
sub test_odd
{
	my ($what, $query, @serving) = @_;
	my ($own) = rows_of($query, 'gpuvec.engine = cpu');
	my $before = stat_of($node, 'jobs_failed');
	my $pid = pretend_gpuvecd($node->data_dir, serving(@serving));
	my ($out) = rows_of($query, 'gpuvec.engine = gpu', "statement_timeout = '20s'");

	end_pretended($pid);
	ok($out eq $own, "$what: the right answer");
	return is(stat_of($node, 'jobs_failed'), $before + 1, "$what: by the session");
}

soon_up($node, 'before one out of its mind');
{
	my $clusters = "SELECT * FROM gpuvec_kmeans('u', 'e', 5, 3)";
	my $search = "SELECT * FROM gpuvec_exact_search('u', 'e', $queries, 9)";
	my ($POSITIONS, $DISTANCES, $CENTROIDS, $SIZES) = (0, 1, 4, 5);
	my $found = { $POSITIONS => pack('q', 0), $DISTANCES => pack('d', 0) };
	my $means = { $CENTROIDS => pack('f16', (1) x 16), $SIZES => pack('q', 40) };
	my $searched = sub { return ran(0, 1, 0, 1, 0) };
	# four passes
	my $clustered = sub {
		my ($passes, $clusters) = @_;
		return ran(1, $passes, $passes == 4 ? $clusters : 0, $passes == 4, $passes != 4);
	};

	test_odd('no pass is ever done', $clusters, sub { ran(1, 0, 0, 0, 0) }, $means);
	test_odd('passes without an end', $clusters, sub { ran(1, $_[0], 0, 0, 1) }, $means);
	test_odd('several passes at a time', $clusters, sub { ran(1, 4, 5, 1, 0) }, $means);
	test_odd('finished too soon', $clusters, sub { ran(1, 1, 5, 1, 0) }, $means);
	test_odd('too many clusters', $clusters, sub { $clustered->(@_, 6) }, $means);
	test_odd('no clusters', $clusters, sub { $clustered->(@_, 0) }, $means);
	test_odd('a centroid of NaN', $clusters, sub { $clustered->(@_, 5) },
		{ %$means, $CENTROIDS => pack('f15L', (1) x 15, 0x7fc00000) });
	test_odd('a cluster larger than the table', $clusters, sub { $clustered->(@_, 5) },
		{ %$means, $SIZES => pack('q', 201) });
	test_odd('an unfinished search', $search, sub { ran(0, 1, 0, 0, 0) }, $found);
	test_odd('a position too high', $search, $searched, { %$found, $POSITIONS => pack('q', 200) });
	test_odd('no positions in shared memory', $neighbors, $searched, $found);
	test_odd('positions that are not there', $neighbors, $searched, $found, 1);
	test_odd('a position too low', $search, $searched, { %$found, $POSITIONS => pack('q', -2) });
}

# -- one that has no room for rows that are kept gets them with their queries
{
	my $graph = $works{'graph through an index'};
	my ($own) = rows_of($graph, 'gpuvec.engine = cpu');
	my $log = $node->basedir . '/sets';
	my $refuses = sub {
		my ($kind, $kept, $nlists, $nqueries) = (unpack('l7C4l2q3', $_[0]))[ 0, 10, 11, 13 ];

		append_to_file($log, "kept $kept lists " . ($nlists > 0 ? 1 : 0) . " queries $nqueries\n") if $kind == 0;
		return $kept;
	};
	my $pid = pretend_gpuvecd($node->data_dir, serving(sub { ran(0, 1, 0, 0, 0) }, {}, 0, $refuses));
	my ($out) = rows_of($graph, 'gpuvec.engine = gpu', "statement_timeout = '20s'");

	end_pretended($pid);
	ok($out eq $own, 'no room for rows: the right ones');
	like(slurp_file($log), qr/^kept 1 lists 0 queries 0\n(kept 0 .*\n)*kept 0 lists 1 queries 5000\n\z/,
		'... after it was asked to keep them, and then to get them with their queries');
	soon_up($node, 'no room for rows');
}

# -- more queries than gpuvecd has memory for at a time (what a card takes in any
# case is more than that)
if (!$card)
{
	$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '16MB'");
	$node->restart;
	soon_up($node, 'little memory');
	is_same('little memory', q{SELECT count(*), sum(hash_record(x)::bigint) FROM gpuvec_exact_search('t', 'e',
		(SELECT array_agg(e) FROM t WHERE e IS NOT NULL), 1000) AS x});
	my $before = stat_of($node, 'jobs_by_server');
	cmp_ok($before, '>', 1, 'little memory: a portion at a time');

	# rows that are kept are asked more than once
	is_same('little memory, a graph', q{SELECT key, sum(hash_record(g)::bigint)
		FROM gpuvec_knn_graph('listed', 'id', 'e', 100, 'l2', 'index') AS g GROUP BY 1});
	# a sample, lists of its rows and neighbors, lists merged, and three portions at least
	cmp_ok(stat_of($node, 'jobs_by_server'), '>=', $before + 7, 'little memory: asked again and again');
	is(stat_of($node, 'jobs_failed'), 0, 'little memory: it refused nothing');
}

# -- nobody to ask

my ($own) = rows_of($works{graph}, 'gpuvec.engine = cpu');
$node->append_conf('postgresql.conf', 'gpuvec.server = off');
$node->restart;
ok((rows_of($works{graph}, 'gpuvec.engine = gpu'))[0] eq $own, 'off: right rows');
says($node, "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error; $works{graph}",
	qr/gpuvecd could not run the job: gpuvecd is not available\nHINT:  Set "gpuvec.engine" to "cpu", because/,
	'off: an error, if that is wanted');

$node->stop;
done_testing();
