# A streaming standby gives the primary's answers, the same ids in the same
# order, through cycles of insert, delete, VACUUM and rewrites, for blocks of
# one, two and three pages and for pending rows; and goes on after promotion.
# Every replayed page is compared with the primary's
# (wal_consistency_checking).

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = long_test() ? 20_000 : 1500;
my $cycles = long_test() ? 10 : 2;
my @tables = (
	[ 'narrow', '<->', 8 ],
	[ 'wide', '<=>', 1400 ],
	[ 'wider', '<#>', 1400, [ 'id < 100', 'id BETWEEN 200 AND 400', 'id = 250' ] ],
	[ 'refined', '<->', 8, [ 'id < 900', 'id % 3 = 1', 'id >= 300 AND id % 3 = 2', 'id IS NULL' ] ],
	[ 'waiting', '<->', 4 ]);

my $primary = new_node(
	'primary',
	allows_streaming => 1,
	conf => "wal_consistency_checking = 'generic'\nwal_keep_size = '8GB'\n");
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

# The answers of a server for each table.
sub all_answers
{
	my ($node) = @_;

	return split /\n/, $node->safe_psql(
		'postgres',
		join '',
		map {
			my ($name, $operator, $dims) = @$_;
			my $n = $dims > 1000 ? 5 : 20;
			"SELECT translate(answers('$name', '$operator', $dims, 20, $n), E'\n', ' ');"
		} @tables);
}

# Both give the same answers now, by the index.
sub test_same
{
	my ($what) = @_;

	$primary->wait_for_catchup($standby);
	my @expected = all_answers($primary);
	my @found = all_answers($standby);
	for my $i (0 .. $#tables)
	{
		isnt($expected[$i], '', "$what: there are answers");
		is($found[$i], $expected[$i], "$what: standby answers for $tables[$i][0] as primary does");
	}
	# few rows pass, and hardly any
	for my $condition ('id % 7 = 3', "id % 400 = 3")
	{
		my $query = "SET enable_seqscan = off; SELECT string_agg(id::text, ' ') FROM
			(SELECT id FROM narrow WHERE $condition ORDER BY e <-> point(5, 8) LIMIT 20) AS x";

		is($standby->safe_psql('postgres', $query),
			$primary->safe_psql('postgres', $query),
			"$what: standby answers where $condition as primary does");
	}
	are_whole($standby, "$what: standby", [ map { [ "$_->[0]_e", @$_ ] } @tables ], exact => 0);
	return;
}

# Vectors of a wide table differ in their first elements only.
my $wide = 'point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])';
my $few = int($rows / 5);

$primary->safe_psql(
	'postgres', qq{
	SET client_min_messages = warning;
	CREATE TABLE narrow (id int, e real[]);
	INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX narrow_e ON narrow USING gpuivfpq (e) WITH (lists = 20, probes = 5);
	CREATE TABLE wide (id int, e real[]);
	INSERT INTO wide SELECT g, $wide FROM generate_series(1, $few) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e real_cosine_ops)
		WITH (lists = 5, pq_dim = 600);
	CREATE TABLE wider (id int, e real[]);
	INSERT INTO wider SELECT * FROM wide;
	CREATE INDEX wider_e ON wider USING gpuivfpq (e real_ip_ops, id)
		WITH (lists = 5, pq_dim = 900);
	CREATE TABLE refined (id int, e real[]);
	INSERT INTO refined SELECT * FROM narrow;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, (id % 3))
		WITH (lists = 20, probes = 5, refine = sq8, rotate);
	CREATE TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e);
	INSERT INTO waiting SELECT g, point(g, 4) FROM generate_series(1, $rows) AS g;
});
test_same('built');
like(
	$standby->safe_psql(
		'postgres',
		q{SET enable_seqscan = off;
		EXPLAIN SELECT id FROM narrow ORDER BY e <-> point(1, 8) LIMIT 1}),
	qr/Index Scan using narrow_e/,
	'standby uses the index');

my $next = $rows + 1;
for my $cycle (1 .. $cycles)
{
	my $last = $next + $few - 1;

	for my $table (qw(narrow wide wider refined waiting))
	{
		my ($dims) = map { $_->[2] } grep { $_->[0] eq $table } @tables;
		my $value = $dims > 1000 ? $wide : "point(g, $dims)";

		$primary->safe_psql('postgres',
			"INSERT INTO $table SELECT g, $value FROM generate_series($next, $last) AS g");
	}
	test_same("cycle $cycle, inserted");

	# some dead; the index learns of them by VACUUM only
	$primary->safe_psql('postgres', "DELETE FROM $_->[0] WHERE id % 10 = $cycle % 10")
	  for @tables;
	test_same("cycle $cycle, deleted");
	$primary->safe_psql('postgres', "VACUUM $_->[0]") for @tables;
	test_same("cycle $cycle, vacuumed");

	# most dead: lists are rewritten, blocks freed and used again
	$primary->safe_psql('postgres',
		"DELETE FROM $_->[0] WHERE id % 3 <> $cycle % 3; VACUUM $_->[0]")
	  for @tables;
	test_same("cycle $cycle, rewritten");
	$next = $last + 1;
}

# everything dead, and new
$primary->safe_psql(
	'postgres', q{
	DELETE FROM narrow; VACUUM narrow; DELETE FROM waiting; VACUUM waiting;
	DELETE FROM refined; VACUUM refined;
	INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(1, 500) AS g;
	INSERT INTO refined SELECT * FROM narrow;
	INSERT INTO waiting SELECT g, point(g, 4) FROM generate_series(1, 500) AS g;
});
test_same('filled again');

# another training
$primary->safe_psql('postgres', 'REINDEX INDEX narrow_e; REINDEX INDEX CONCURRENTLY wide_e');
test_same('reindexed');

# promotion
my $expected = answers($primary, 'narrow', '<->', 8, 20, 20);
$primary->wait_for_catchup($standby);
$primary->stop;
$standby->promote;
is(answers($standby, 'narrow', '<->', 8, 20, 20),
	$expected, 'promoted: the same answers');
$standby->safe_psql('postgres',
	'INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(90001, 90500) AS g;
	 DELETE FROM narrow WHERE id < 200; VACUUM narrow');
is_sound($standby, 'narrow_e', 'promoted');
is_complete($standby, 'narrow', '<->', 8, 'promoted');
is_exact($standby, 'narrow', '<->', 8, 'promoted');

done_testing();
