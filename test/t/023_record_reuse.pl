# VACUUM frees the refine record of a dead row before it marks the row's copies.
# When it stops in between and a new row takes the slot, the mirror's copy of
# the dead row and the new row's own, which the mirror does not have yet, carry
# one address: the new row is found all the same.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $node = new_remote_node('main');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10, refine = sq8);
	ANALYZE t});
is_mirrored($node, 't_e', 'SELECT id FROM t ORDER BY e <-> point(1, 8) LIMIT 1', 'new');
pause_loaders($node);

for my $id (7, 1234, 2999)
{
	my $new = $id + 100000;
	my ($rc, $out, $err) = $node->psql('postgres', qq{
		DELETE FROM t WHERE id = $id;
		SET gpuvec.fault = 'error 1 refine: freed';
		VACUUM t}, on_error_stop => 1);

	like($err, qr/stopped at step "refine: freed"/, "row $id: VACUUM stops");
	$node->safe_psql('postgres', "INSERT INTO t VALUES ($new, point($id, 8))");
	for my $engine ('cpu', 'gpu')
	{
		is( $node->safe_psql('postgres', qq{
				SET enable_seqscan = off;
				SET gpuvec.engine = $engine;
				SELECT id FROM t ORDER BY e <-> point($id, 8) LIMIT 1;
				SELECT engine, tail_postings > 0 FROM gpuvec_last_scan()}),
			$engine eq 'cpu' ? "$new\nsession|" . 'f' : "$new\n$SERVER|t",
			"row $new is found, engine $engine");
	}
}

is( $node->safe_psql('postgres',
		q{SELECT * FROM gpuvec_verify_index('t_e', mirror => true) WHERE severity = 'error'}),
	'', 'nothing of this is a fault');
resume_loaders($node);
$node->safe_psql('postgres', 'VACUUM t');
is_sound($node, 't_e', 'vacuumed');
is_complete($node, 't', '<->', 8, 'vacuumed');

# Many dead rows' copies with addresses of new rows crowd a search: it has fewer
# rows than it asked for, and yet there are others.
$node->safe_psql('postgres', q{
	CREATE TABLE crowded (id int, e real[]);
	INSERT INTO crowded SELECT g, point(g, 8) FROM generate_series(1, 1700) AS g;
	CREATE INDEX crowded_e ON crowded USING gpuivfpq (e) WITH (lists = 10, refine = sq8)});
my (undef, undef, $stopped) = $node->psql('postgres', q{
	DELETE FROM crowded WHERE id % 3 = 0;
	SET gpuvec.fault = 'error 5 refine: freed';
	VACUUM crowded}, on_error_stop => 1);
like($stopped, qr/stopped at step "refine: freed"/, 'many rows: VACUUM stops');
$node->safe_psql('postgres',
	'INSERT INTO crowded SELECT g, point(g, 8) FROM generate_series(200001, 200500) AS g');
is_complete($node, 'crowded', '<->', 8, 'records of many rows used again');

done_testing();
