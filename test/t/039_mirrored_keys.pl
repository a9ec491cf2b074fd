# Searches under conditions on keys by gpuvecd: its rows are the session's,
# whatever the condition, from mirrors that are up to date, that lack copies, and
# that are stale; and gpuvec_verify_index compares keys.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_remote_node('main');
my @tables = ('plain', 'refined');

# Conditions of all shares, with images that decide and others.
my @conditions = (
	'tenant = 3', 'tenant IN (1, 5, 77)', 'tenant < 2 AND day >= 50',
	'tenant IS NULL', 'day BETWEEN 10 AND 90 AND tenant IS NOT NULL',
	q{kind = 'k1'}, q{kind = ANY ('{k2,k3,none}') AND tenant = 6},
	'tenant >= 0', 'tenant = 3 AND day = 17');

sub statement
{
	my ($table, $condition, $at) = @_;

	return "SELECT id FROM $table WHERE $condition ORDER BY e <-> point($at, 8) LIMIT 10";
}

# Test: what gpuvecd gives is what the session gives.  Where mirrors are far
# behind the session may answer, too.
sub is_same
{
	my ($what, $who) = @_;

	for my $table (@tables)
	{
		for my $condition (@conditions)
		{
			my $query = statement($table, $condition, 40 + length $condition);
			my $got = $node->safe_psql('postgres', $who ? "SELECT differs(\$q\$$query\$q\$, uptodate => false)" :
				join(';', 'SET enable_seqscan = off', map { "SET gpuvec.engine = $_; SELECT array_agg(id) FROM ($query) AS x" } 'gpu', 'cpu'));
			my ($there, $here) = split /\n/, $got;
			is($who ? $got : $there, $who ? '' : $here, "$what: $table: $condition");
		}
	}
	return;
}

sub is_verified
{
	my ($what) = @_;

	is( $node->safe_psql('postgres',
			"SELECT problem FROM gpuvec_verify_index('${_}_e', mirror => true)"),
		'', "$what: verified: $_") for @tables;
	return;
}

$node->safe_psql(
	'postgres', q{
	CREATE TABLE plain (id int, e real[], tenant int, day int8, kind text);
	INSERT INTO plain SELECT g, point(g, 8), nullif(g * 7 % 12, 11), g % 100, 'k' || g % 9
		FROM generate_series(1, 6000) AS g;
	CREATE TABLE refined AS SELECT * FROM plain;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e, tenant, day, kind) WITH (lists = 30);
	CREATE INDEX refined_e ON refined USING gpuivfpq (e, tenant, day, kind)
		WITH (lists = 30, pq_dim = 7, refine = sq8);
	ANALYZE;
});
is_mirrored($node, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 10", 'new')
  for @tables;
is_same('as it was loaded', 1);
is_verified('as it was loaded');

my $before = served($node);
$node->safe_psql('postgres',
	"SET enable_seqscan = off; SET gpuvec.engine = gpu; " . statement('plain', 'tenant = 3', 9));
cmp_ok(served($node), '>', $before, 'gpuvecd is asked under a condition');

# copies that mirrors lack
pause_loaders($node);
$node->safe_psql('postgres', "INSERT INTO $_
	SELECT g, point(g, 8), g % 5, g % 100, 'k' || g % 4 FROM generate_series(6001, 6300) AS g")
  for @tables;
is_same('with copies that are missing', 1);
is_verified('with copies that are missing');

# and lists that are stale
$node->safe_psql('postgres', "DELETE FROM $_ WHERE id % 7 = 0; VACUUM $_") for @tables;
is_same('with lists that are stale');
is_verified('with lists that are stale');
resume_loaders($node);

is_mirrored($node, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 10", 'again')
  for @tables;
is_same('up to date again', 1);
is_verified('up to date again');

# gpuvecd is asked once to see the share, and once for what it takes; and the
# session does not search by itself
$node->safe_psql(
	'postgres', q{
	CREATE TABLE many AS SELECT g AS id, point(g, 8) AS e, abs(hashint4(g)) % 20 AS tenant
		FROM generate_series(1, 20000) AS g;
	CREATE INDEX many_e ON many USING gpuivfpq (e, tenant) WITH (lists = 200);
	ANALYZE many;
	CREATE FUNCTION engine_of(tenant int, at int) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM id FROM many WHERE many.tenant = engine_of.tenant ORDER BY e <-> point(at, 8) LIMIT 10;
		RETURN (SELECT engine FROM gpuvec_last_scan());
	END $$;
});
is_mirrored($node, 'many_e', 'SELECT FROM many ORDER BY e <-> point(1, 8) LIMIT 10', 'many');
$before = served($node);
is( $node->safe_psql(
		'postgres', q{SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.engine = gpu;
		SELECT count(*) FROM generate_series(1, 60) AS g
		WHERE engine_of(g % 20, 40 + 331 * g) IN ('session', 'mixed')}),
	'0', 'no session searches by itself');
cmp_ok(served($node) - $before, '<=', 135, 'gpuvecd is asked twice');

$node->stop;
done_testing();
