# test/citus/run.sh's tests of a coordinator and its workers: set up as
# sql/docs/scaling.md prints it, plans of shards, rows, statements that Citus refuses,
# rows written, shards that move, and a worker that is lost.

use strict;
use warnings;
use GpuvecHosts;
use GpuvecServers;
use Test::More;

my $rows = $ENV{ROWS} // 20_000;
my $dims = 32;

my @servers = map { server($_, $_ ? "worker $_" : 'coordinator') } 0 .. $n;
my $asked = $servers[0];

# -- as printed; the third worker joins later
my ($everywhere, $cluster, $table, $queries) = printed('sql/docs/scaling.md', 'Citus');
for my $server (@servers)
{
	good($server, $_) for @$everywhere;
}
for my $statement (@$cluster)
{
	my $local = $statement =~ s/'db0\.example', 5432/'127.0.0.1', $port/r;

	good($asked, $local =~ s/'db1\.example', 5432/"'127.0.0.1', " . ($port + $_)/er)
	  for $statement =~ /db1/ ? (1 .. $n - 1) : 0;
}
good($asked, rows_sql($rows, $dims) . ";
	CREATE TABLE docs_all AS SELECT id, body, v::vector($dims) AS embedding FROM whole; ANALYZE docs_all");
for my $statement (@$table)
{
	good($asked, $statement =~ s/384/$dims/r);
	good($asked, 'INSERT INTO docs SELECT * FROM docs_all') if $statement =~ /create_distributed_table/;
}
for my $statement (@$queries)
{
	good($asked, $statement =~ s/384/$dims/r);
}
good($asked, "INSERT INTO asked_often SELECT n, v::vector($dims) FROM asked");
good($asked, 'VACUUM ANALYZE docs');

# A column of each shard's index, in order.
sub of_shards
{
	my ($column) = @_;

	return good($asked, "SELECT string_agg(result, ' ') FROM run_command_on_shards('docs',
		\$\$SELECT $column FROM gpuvec_index_info(replace('%s', 'docs', 'docs_embedding_idx')::regclass)\$\$)");
}
my @lists = split / /, of_shards('lists');
is(scalar(@lists), 2 * ($n - 1), 'two shards a worker');
is(scalar(grep { $_ == 0 } @lists), 0, 'each has an index that is trained');

# Test: every shard is asked for its nearest rows, which its index brings.
my $literal = good($asked, 'SELECT embedding FROM docs_all WHERE id = 7');
sub is_pushed
{
	my ($what, $sql, %options) = @_;
	my $plan = good($asked, ($options{before} // '') . "; SET citus.explain_all_tasks = on; EXPLAIN (COSTS OFF) $sql");
	my @tasks = split /-> +Task\n/, $plan;
	shift @tasks;

	is(scalar(@tasks), $options{tasks} // scalar(@lists), "$what: so many shards are asked");
	is(scalar(grep { !/Limit/ || !/Index Scan using docs_\w+_idx_\d+/ || /Sort Key/ } @tasks), 0,
		"$what: each by LIMIT and its index") or diag($plan);
	return;
}

my $by = 'SELECT id FROM docs ORDER BY embedding';
is_pushed('a constant', "$by <=> '$literal' LIMIT 10");
is_pushed('a list of numbers', "$by <=> '$literal'::vector::real[] LIMIT 10");
is_pushed('its distance', "SELECT id, embedding <=> '$literal' AS d FROM docs ORDER BY d LIMIT 10");
is_pushed('a parameter', "EXECUTE p ('$literal'::vector::real[])", before => "PREPARE p (real[]) AS $by <=> \$1 LIMIT 10");
is_pushed('a sub-select of a local table', "$by <=> (SELECT v::vector($dims) FROM asked WHERE n = 3) LIMIT 10");
is_pushed('a sub-select of a reference table', "$by <=> (SELECT v FROM asked_often WHERE n = 3) LIMIT 10");
is_pushed('a join with a reference table', "SELECT id, n FROM docs JOIN asked_often ON n = id % 10 ORDER BY embedding <=> '$literal' LIMIT 10");
my $one = good($asked, "SET citus.explain_all_tasks = on; EXPLAIN (COSTS OFF) SELECT id FROM docs WHERE id = 7 ORDER BY embedding <=> '$literal' LIMIT 10");
is(scalar(() = $one =~ /-> +Task$/mg), 1, 'a condition on the distribution column asks one shard');

# -- rows; settings go to workers within a transaction
my $exact = 'BEGIN; SET LOCAL citus.propagate_set_commands = local; SET LOCAL gpuvec.recall = 1';
sub test_rows
{
	my ($what) = @_;
	my @differ = grep {
		my $sql = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM %s ORDER BY embedding <=> (SELECT v FROM asked_often WHERE n = $_) LIMIT 10) AS x";
		my $found = good($asked, "$exact; " . sprintf($sql, 'docs') . '; COMMIT');

		$found ne good($asked, sprintf($sql =~ s/asked_often/asked/r =~ s/SELECT v FROM/SELECT v::vector FROM/r, 'docs_all'))
	} 1 .. 20;

	is("@differ", '', "$what: the rows of one big table");
	return;
}
test_rows('at recall 1');

# -- what Citus does not take, and what it takes without the index
fails($asked, "$by <=> (SELECT embedding FROM docs WHERE id = 7) LIMIT 10", qr/complex joins are only supported/,
	'a sub-select of the same table');
fails($asked, "SET plan_cache_mode = force_generic_plan; PREPARE p (real[]) AS $by <=> \$1 LIMIT 10; EXECUTE p ('$literal'::vector::real[])",
	qr/could not create distributed plan/, 'a generic plan');
fails($asked, "SELECT n, id FROM asked_often AS a, LATERAL (SELECT id FROM docs ORDER BY embedding <=> a.v LIMIT 3) AS x",
	qr/cannot push down this subquery/, 'LATERAL');
unlike(good($asked, 'EXPLAIN (COSTS OFF) SELECT id FROM docs, asked_often WHERE n = 3 ORDER BY embedding <=> v LIMIT 10'),
	qr/docs_embedding_idx/, 'a query that comes by a join is not by the index');
is(good($asked, "DO \$\$ DECLARE q vector; r bigint; BEGIN SELECT embedding INTO q FROM docs WHERE id = 7;
		SELECT id INTO r FROM docs ORDER BY embedding <=> q LIMIT 1; IF r <> 7 THEN RAISE 'it is %', r; END IF; END \$\$"),
	'', 'in PL/pgSQL the vector of a row is a parameter');

# -- rows written
test_writes($asked, { name => 'docs', column => 'embedding', type => 'vector' }, $dims);
good($asked, q{UPDATE docs SET body = body || '!' WHERE id % 3 = 0; VACUUM docs; REINDEX INDEX docs_embedding_idx});
is(scalar(grep { $_ == 0 } split / /, of_shards('lists')), 0, 'REINDEX goes to all shards');
test_rows('after changes');

# -- shards move to another worker, while it is locked and by logical replication
good($asked, "SELECT citus_add_node('127.0.0.1', $port + $n); SELECT replicate_reference_tables()");
for my $mode (qw(block_writes force_logical))
{
	my ($shard, $from) = split /\|/, good($asked, "SELECT shardid, nodeport FROM citus_shards
		WHERE table_name = 'docs'::regclass AND nodeport <> $port + $n ORDER BY 1 LIMIT 1");

	good($asked, "SELECT citus_move_shard_placement($shard, '127.0.0.1', $from, '127.0.0.1', $port + $n, shard_transfer_mode => '$mode')");
	like(good($servers[$n], "SELECT lists FROM gpuvec_index_info('docs_embedding_idx_$shard')"), qr/^[1-9]/, "moved, $mode: the index is trained there");
	is(good($servers[$n], "SELECT * FROM gpuvec_verify_index('docs_embedding_idx_$shard')"), '', '... and sound');
	test_rows("moved, $mode");
}
good($asked, 'SELECT rebalance_table_shards(shard_transfer_mode => \'block_writes\')');
is(good($asked, "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'docs'::regclass"), $n, 'rebalanced: every worker has shards');
is_pushed('rebalanced', "$by <=> '$literal' LIMIT 10");
test_rows('rebalanced');

# -- a worker that is lost
system($servers[1]{stop});
fails($asked, "$by <=> '$literal' LIMIT 10", qr/connection to the remote node .* failed|could not connect|server closed the connection/, 'a worker that is lost');
system($servers[1]{start});
test_rows('when it is back');

# -- what shards cost
for my $shards ($n, 4 * $n, 16 * $n)
{
	good($asked, "CREATE TABLE docs_$shards AS SELECT * FROM docs_all; SELECT create_distributed_table('docs_$shards', 'id', shard_count => $shards);
		CREATE INDEX ON docs_$shards USING gpuivfpq (embedding vector_cosine_ops); VACUUM ANALYZE docs_$shards");
	my $search = "SELECT id FROM docs_$shards ORDER BY embedding <=> '$literal' LIMIT 10;";
	my $times = good($asked, "SET client_min_messages = error; DO \$x\$ BEGIN FOR i IN 1 .. 5 LOOP PERFORM id FROM docs_$shards ORDER BY embedding <=> '$literal' LIMIT 10; END LOOP; END \$x\$;
		CREATE TEMP TABLE began AS SELECT clock_timestamp() AS at;
		DO \$x\$ BEGIN FOR i IN 1 .. 200 LOOP PERFORM id FROM docs_$shards ORDER BY embedding <=> '$literal' LIMIT 10; COMMIT; END LOOP; END \$x\$;
		SELECT extract(epoch FROM clock_timestamp() - at) * 5 FROM began");
	printf "# %d shards on %d workers: %.2f ms\n", $shards, $n, $times;
}
done_testing();
