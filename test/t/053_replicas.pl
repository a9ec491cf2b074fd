# Replicas that search.  A streaming standby and its primary each have a gpuvecd and
# mirrors of their own, which follow what is written, and neither needs the other's.
# A logical replica of a server without gpuvec, set up as sql/HOSTS.md prints it, is
# asked for what is written there.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecHosts;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = long_test() ? 50_000 : 3000;

# -- a standby with gpuvecd beside its primary with one
my $primary = new_remote_node('primary', allows_streaming => 1, conf => "fsync = off\nwal_keep_size = '1GB'\n");
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
my @both = ([ $primary, 'primary' ], [ $standby, 'standby' ]);
my $natural = 'SELECT id FROM t ORDER BY e <-> point(%d, 16) LIMIT 10';

$primary->safe_psql('postgres', "CREATE TABLE t AS SELECT g AS id, point(g, 16) AS e FROM generate_series(1, $rows) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 30)");
$primary->wait_for_catchup($standby);

# Test: both answer by gpuvecds of their own, and alike.
sub test_both
{
	my ($what) = @_;
	my @found;

	$primary->wait_for_catchup($standby);
	for (@both)
	{
		my ($node, $name) = @$_;

		is_mirrored($node, 't_e', sprintf($natural, 1), "$what: $name");
		my $before = served($node);
		push @found, join "\n", map { $node->safe_psql('postgres', 'SET enable_seqscan = off; SET gpuvec.engine = gpu; ' . sprintf($natural, $_)) } 1 .. 5;
		cmp_ok(served($node), '>=', $before + 5, "$what: the $name\'s gpuvecd has answered");
		differs($node, sprintf($natural, 77), "$what: $name: rows are those of a session", stale => 1);
	}
	is($found[1], $found[0], "$what: the same rows");
	return;
}

test_both('built');
isnt(gpuvecd_pid($primary), gpuvecd_pid($standby), 'each has a gpuvecd of its own');
$primary->safe_psql('postgres', "INSERT INTO t SELECT -g, point(g, 16) FROM generate_series(1, 300) AS g;
	DELETE FROM t WHERE id % 7 = 0; VACUUM t; INSERT INTO t VALUES (0, point(1, 16))");
test_both('written');
kill 'KILL', gpuvecd_pid($standby);
is( $standby->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; " . sprintf($natural, 1)),
	$primary->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; " . sprintf($natural, 1)),
	'the standby without its gpuvecd has the same rows');
is($primary->safe_psql('postgres', 'SELECT state FROM gpuvec_stat'), 'up', "the primary's gpuvecd does not mind");
ok(revive($standby), 'the standby has a gpuvecd again');
$primary->stop;
is_mirrored($standby, 't_e', sprintf($natural, 1), 'without a primary');
$standby->promote;
$standby->safe_psql('postgres', 'INSERT INTO t VALUES (-1000, point(5, 16))');
differs($standby, sprintf($natural, 5), 'promoted: rows are those of a session', stale => 1);
$standby->stop;

# -- a logical replica of a server without gpuvec
my ($on_service, $on_replica, $afterwards) = printed('sql/HOSTS.md', 'A replica beside a service without gpuvec');
my $service = PostgreSQL::Test::Cluster->new('service');
$service->init(allows_streaming => 'logical');
$service->append_conf('postgresql.conf', "fsync = off\nautovacuum = off\n");
$service->start;
my $replica = PostgreSQL::Test::Cluster->new('replica');
$replica->init;
$replica->append_conf('postgresql.conf', "fsync = off\nautovacuum = off\n");
$replica->start;
$_->safe_psql('postgres', 'CREATE DATABASE shop') for $service, $replica;
$service->safe_psql('shop', q{CREATE ROLE app LOGIN REPLICATION PASSWORD 'secret'});
my $pgvector = $service->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});
my ($type, $op) = $pgvector ? ('vector(16)', '<=>') : ('real[]', '<=>');

# A printed statement for these two; without pgvector its type is real[].
sub filled
{
	my ($statement) = @_;
	my ($host, $port) = ($service->host, $service->port);

	$statement =~ s/host=service\.example/host=$host port=$port/;
	$statement =~ s/vector\(384\)/$type/;
	if (!$pgvector)
	{
		$statement =~ s/gpuvec_pgvector CASCADE/gpuvec/;
		$statement =~ s/vector_cosine_ops\)/real_cosine_ops) WITH (dims = 16)/;
	}
	return $statement;
}

my $vector = "(SELECT array_agg(((g * (i + 3) * 2654435761) % 1009 + 1)::real ORDER BY i) FROM generate_series(1, 16) AS i)::$type";
$service->safe_psql('shop', 'CREATE EXTENSION vector') if $pgvector;
$service->safe_psql('shop', filled($_)) for @$on_service;
$service->safe_psql('shop', "GRANT SELECT ON docs TO app;
	INSERT INTO docs SELECT g, 'row ' || g, $vector FROM generate_series(1, $rows) AS g");
is($service->safe_psql('shop', q{SELECT count(*) FROM pg_extension WHERE extname LIKE 'gpuvec%'}), '0', 'the service has no gpuvec');
$replica->safe_psql('shop', filled($_)) for @$on_replica;
ok( $replica->poll_query_until('shop', q{SELECT coalesce(bool_and(srsubstate = 'r'), false) FROM pg_subscription_rel}),
	'all rows are copied');
$replica->safe_psql('shop', filled($_)) for @$afterwards;

# Test: the replica's index finds what a sort on the service finds.
sub test_replica
{
	my ($what) = @_;

	$service->wait_for_catchup('searched');
	for my $g (3, 500, 2 * $rows)
	{
		my $query = "SELECT string_agg(body, ', ') FROM (SELECT body FROM docs ORDER BY embedding $op
			(SELECT $vector FROM (VALUES (${g}::bigint)) AS q (g)), id LIMIT 10) AS n";
		my $expected = $service->safe_psql('shop',
			$pgvector ? $query : "SELECT string_agg(body, ', ') FROM (SELECT body FROM docs, (SELECT $vector AS q FROM (VALUES (${g}::bigint)) AS v (g)) AS a
				ORDER BY 1 - (SELECT sum(x * y) / sqrt(sum(x * x)) / sqrt(sum(y * y)) FROM unnest(embedding::float8[], q::float8[]) AS u (x, y)), id LIMIT 10) AS n");

		is($replica->safe_psql('shop', "SET enable_seqscan = off; SET gpuvec.recall = 1; $query"), $expected,
			"$what: the replica finds what is nearest on the service");
	}
	return;
}

like($replica->safe_psql('shop', "SET enable_seqscan = off; EXPLAIN SELECT id FROM docs ORDER BY embedding $op (SELECT embedding FROM docs WHERE id = 5) LIMIT 10"),
	qr/Index Scan using docs_embedding_idx/, 'by the index');
cmp_ok($replica->safe_psql('shop', q{SELECT lists FROM gpuvec_index_info('docs_embedding_idx')}), '>', 0, 'which is trained');
test_replica('copied');
$service->safe_psql('shop', "INSERT INTO docs SELECT g, 'new ' || g, $vector FROM generate_series($rows + 1, $rows + 200) AS g;
	UPDATE docs SET embedding = (SELECT embedding FROM docs WHERE id = 3), body = 'moved' WHERE id = 500;
	DELETE FROM docs WHERE id % 11 = 0; UPDATE docs SET body = 'renamed' WHERE id % 50 = 1");
test_replica('changed');
$replica->stop('immediate');
$service->safe_psql('shop', "INSERT INTO docs SELECT g, 'later ' || g, $vector FROM generate_series($rows + 201, $rows + 300) AS g");
$replica->start;
test_replica('after a crash of the replica');
is($replica->safe_psql('shop', q{SELECT * FROM gpuvec_verify_index('docs_embedding_idx')}), '', 'the index is sound');

$replica->stop;
$service->stop;
done_testing();
