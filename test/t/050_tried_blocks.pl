# A search stops between its look at a block and the scan of it, with the page
# pinned, while others append to the block, mark its copies dead, rewrite its
# list, have other rows take the slot, or make something else of the page.  It
# finds what a sort finds, and reads again what did not stand.  So do two searches
# for which a list is read at once, and one that stops when it has counted copies.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $node = new_node('main', conf => "fsync = off\n");
my $held = q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted};

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

# Run the query, do something at its last try, and let it go on.  %change: before,
# which rows are deleted; meanwhile, statements; copies, that it counts, or twice,
# for two searches at once.
sub change_meanwhile
{
	my ($name, $table, %change) = @_;
	my $holder;
	my $query;
	my $sorted;
	my $found;

	$node->safe_psql(
		'postgres', qq{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t, asked, other;
		CREATE TABLE t AS SELECT g AS id, point(g, $table->{dims}) AS e
		FROM generate_series(1, $table->{rows}) AS g;
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 1, $table->{options});
		CREATE TABLE asked AS SELECT e FROM t WHERE id = 3;
		CREATE TABLE other (e real[]);
		CREATE INDEX ON other USING gpuivfpq (e) WITH (dims = 4);
		DELETE FROM t WHERE @{[$change{before} // 'false']};});
	$sorted = $node->safe_psql('postgres', "SET enable_indexscan = off; $nearest");
	$found = $change{twice} ? "$sorted\n$sorted\n" : "$sorted\n1|$change{copies}\n";
	$holder = $node->background_psql('postgres');
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	$query = background(
		$node, qq{
		SET enable_seqscan = off;
		SET gpuvec.fault = 'wait $table->{tries} list: tried';
		@{[$change{twice} ? $twice : "$nearest; SELECT lists, postings FROM gpuvec_last_scan()"]};});
	ok(wait_until($node, $held), "$name: the query has tried a block");
	$node->safe_psql('postgres', $change{meanwhile});
	$holder->quit;
	is(end_of($query), 0, '... and goes on');
	is(slurp_file($query->{output}), $found, '... and finds what a sort finds');
	is_sound($node, 't_e', $name);
	return;
}

for my $name (sort keys %tables)
{
	my $table = $tables{$name};
	my $rows = $table->{rows};
	my $counted = $rows - $table->{last};
	my $few = 'id % 16 = 2';
	my $half = 'id % 2 = 0';
	my $fill = "INSERT INTO t SELECT 10000 + g, point(g, $table->{dims})
		FROM generate_series(1, $rows) AS g";

	change_meanwhile("$name, nothing", $table, meanwhile => 'SELECT 1', copies => $rows);
	change_meanwhile("$name, appended", $table,
		before => $few, meanwhile => $fill, copies => $rows);
	change_meanwhile("$name, marked dead", $table,
		before => $few, meanwhile => 'VACUUM t',
		copies => $rows - $table->{last} / 16);
	change_meanwhile("$name, rewritten", $table,
		before => $half, meanwhile => 'VACUUM t', copies => $counted + $rows / 2);
	change_meanwhile("$name, taken", $table,
		before => $half, meanwhile => "VACUUM t; $fill",
		copies => $counted + $rows / 2 + $rows);
	change_meanwhile("$name, twice, marked dead", $table,
		before => $few, meanwhile => 'VACUUM t', twice => 1);
	change_meanwhile("$name, twice, taken", $table,
		before => $half, meanwhile => "VACUUM t; $fill", twice => 1);
}

# A search for all candidates makes room for as many copies as it has counted.  New
# ones take the places of some of the others, which come in order all the same.
for my $condition ('true', 'id > 0')
{
	my $query = "SELECT string_agg(id::text, ' ') FROM
		(SELECT id FROM t WHERE $condition ORDER BY e <-> (SELECT e FROM asked) LIMIT 5000) AS q";
	my $holder;
	my $job;
	my $sorted;

	$node->safe_psql(
		'postgres', q{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t, asked;
		CREATE TABLE t AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 600) AS g;
		CREATE INDEX t_e ON t USING gpuivfpq (e, id) WITH (lists = 4, pq_dim = 1, spill = 0);
		CREATE TABLE asked AS SELECT e FROM t WHERE id = 3});
	$sorted = $node->safe_psql('postgres', "SET gpuvec.use_index = never; $query");
	$holder = $node->background_psql('postgres');
	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	$job = background(
		$node, qq{
		SET enable_seqscan = off;
		SET gpuvec.enable_custom_scan = off;
		SET gpuvec.probes = 1000; SET gpuvec.candidates = 1000000; SET gpuvec.max_probes = 1000;
		SET gpuvec.fault = 'wait 1 scan: counted';
		$query});
	ok(wait_until($node, $held), "$condition: the query has counted copies");
	$node->safe_psql('postgres', 'INSERT INTO t SELECT 1000 + g, e FROM asked, generate_series(1, 100) AS g');
	$holder->quit;
	is(end_of($job), 0, '... and goes on');
	is(slurp_file($job->{output}), "$sorted\n", '... and finds what a sort finds');
}

done_testing();
