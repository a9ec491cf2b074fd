# After a crash an unlogged table's index is empty and works; one on a
# standby, and temporary ones, are as PostgreSQL wants them.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', allows_streaming => 1);
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE UNLOGGED TABLE trained (id int, e real[]);
	INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 1200) AS g;
	CREATE INDEX trained_e ON trained USING gpuivfpq (e real_cosine_ops) WITH (lists = 10);
	CREATE UNLOGGED TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id) WITH (dims = 8);
	INSERT INTO waiting SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE TABLE turned (id int, e real[]);
	INSERT INTO turned SELECT * FROM trained;
	CREATE INDEX turned_e ON turned USING gpuivfpq (e, id) WITH (lists = 10);
	ALTER TABLE turned SET UNLOGGED;
});
is_sound($node, 'trained_e', 'before');
is_complete($node, 'trained', '<=>', 8, 'before');

# a clean restart keeps everything
$node->restart;
is_complete($node, 'trained', '<=>', 8, 'restarted');
is_complete($node, 'waiting', '<->', 8, 'restarted');
is_complete($node, 'turned', '<->', 8, 'restarted');

# a crash empties it, down to its init fork
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
$node->start;
for my $table ([ 'trained', '<=>' ], [ 'waiting', '<->' ], [ 'turned', '<->' ])
{
	my ($name, $operator) = @$table;

	is($node->safe_psql('postgres', "SELECT count(*) FROM $name"), '0', "crashed: $name is empty");
	is_complete($node, $name, $operator, 8, 'crashed');
	is_sound($node, "${name}_e", 'crashed');
	is( $node->safe_psql('postgres', "SELECT lists, rows FROM gpuvec_index_info('${name}_e')"),
		'0|0', "crashed: ${name}_e has no training");
	$node->safe_psql('postgres',
		"INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g");
	is_complete($node, $name, $operator, 8, 'filled again');
	is_exact($node, $name, $operator, 8, 'filled again');
	$node->safe_psql('postgres', "DELETE FROM $name WHERE id % 2 = 0; VACUUM $name;
		REINDEX INDEX ${name}_e; INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(3001, 3010) AS g");
	is_complete($node, $name, $operator, 8, 'reindexed');
	is_sound($node, "${name}_e", 'reindexed');
}
# its declaration is not forgotten
my ($rc, undef, $err) = $node->psql('postgres', q{INSERT INTO waiting VALUES (1, '{1,2}')});
like($err, qr/expected 8 dimensions, not 2/, 'the index knows its dimension');

# crashed again, at once after it was made logged
$node->safe_psql('postgres', 'ALTER TABLE turned SET LOGGED');
$node->stop('immediate');
$node->start;
is_complete($node, 'turned', '<->', 8, 'logged again');
is_sound($node, 'turned_e', 'logged again');
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM turned'), '0', 'logged again: rows are there');

# on a standby: not to be read, there and empty after promotion
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
(undef, undef, $err) = $standby->psql('postgres',
	'SET enable_seqscan = off; SELECT id FROM waiting ORDER BY e <-> point(1, 8) LIMIT 1');
like($err, qr/cannot access temporary or unlogged relations during recovery/, 'standby: refused');
for my $function (q{exact_search('waiting', 'e', point(1, 8), 1)}, q{kmeans('waiting', 'e', 1)})
{
	(undef, undef, $err) = $standby->psql('postgres', "SELECT * FROM gpuvec_$function");
	like($err, qr/cannot access temporary or unlogged relations during recovery/,
		"standby: $function is refused");
}
$standby->promote;
is_complete($standby, 'waiting', '<->', 8, 'promoted');
is_sound($standby, 'waiting_e', 'promoted');
$standby->safe_psql('postgres', 'INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 100) AS g');
is_exact($standby, 'trained', '<=>', 8, 'promoted');

# temporary tables: many, with local buffers too few for them
is( $node->safe_psql(
		'postgres', q{
		SET temp_buffers = '800kB';
		SET client_min_messages = warning;
		SET enable_seqscan = off;
		SET gpuvec.scan_order = relaxed;
		CREATE TEMPORARY TABLE temp (id int, e real[]);
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
		CREATE INDEX temp_e ON temp USING gpuivfpq (e) WITH (lists = 100, pq_dim = 8);
		CREATE INDEX temp_ip ON temp USING gpuivfpq (e real_ip_ops);
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(2001, 6000) AS g;
		DELETE FROM temp WHERE id % 3 > 0;
		VACUUM temp;
		INSERT INTO temp SELECT g, point(g, 8) FROM generate_series(6001, 8000) AS g;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM temp ORDER BY e <-> point(1, 8)) AS q;
		SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM temp ORDER BY e <#> point(1, 8)) AS q;
		SELECT * FROM gpuvec_verify_index('temp_e');
		SELECT * FROM gpuvec_verify_index('temp_ip')}),
	"4000|4000\n4000|4000",
	'temporary tables');

done_testing();
