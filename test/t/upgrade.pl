# pg_dump and restore of both extensions with tables and indexes; DROP
# EXTENSION leaves nothing; there is one script, and none from versions before 1.0.0.
# test/upgrade.sh is about upgrades of PostgreSQL.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $node = new_node('main');
my $pgvector = $node->safe_psql('postgres',
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});

# -- dump and restore
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE dumped (id int, e real[]);
	INSERT INTO dumped SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g;
	CREATE INDEX dumped_e ON dumped USING gpuivfpq (e) WITH (lists = 15, probes = 15, candidates = 2000);
	CREATE INDEX dumped_ip ON dumped USING gpuivfpq (e real_ip_ops) WITH (dims = 8, calibrated_for = queries) WHERE id > 10;
	CREATE TABLE parts (id int, e real[]) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
	CREATE INDEX ON parts USING gpuivfpq (e real_cosine_ops) WITH (dims = 4);
	CREATE TYPE mood AS ENUM ('bad', 'good');
	CREATE UNLOGGED TABLE dumped_keys (id int, e real[], tenant int, feeling mood, name text, tags int[]);
	INSERT INTO dumped_keys SELECT id, e, id % 9, CASE WHEN id % 4 > 0 THEN 'good'::mood END, 'N' || id % 30,
		ARRAY[id % 12] FROM dumped;
	CREATE INDEX dumped_keys_e ON dumped_keys USING gpuivfpq (e, tenant, feeling, lower(name), tags)
		WITH (lists = 15) WHERE id > 10;
});
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE EXTENSION gpuvec_pgvector CASCADE;
	CREATE TABLE dumped_vector (id int, e vector(8), h halfvec(8));
	INSERT INTO dumped_vector SELECT id, e::vector, e::vector::halfvec FROM dumped;
	CREATE INDEX dumped_vector_e ON dumped_vector USING gpuivfpq (e)
		WITH (lists = 15, probes = 15, candidates = 2000);
	CREATE INDEX dumped_vector_h ON dumped_vector USING gpuivfpq (h halfvec_cosine_ops);
}) if $pgvector;

my $folder = PostgreSQL::Test::Utils::tempdir();
for my $format ('plain', 'custom')
{
	my $file = "$folder/dump.$format";
	my $db = "restored_$format";

	$node->command_ok(
		[ 'pg_dump', "--format=$format", '--no-sync', "--file=$file", '--dbname=postgres' ],
		"pg_dump, $format");
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->command_ok(
		$format eq 'plain'
		? [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', "--dbname=$db", "--file=$file" ]
		: [ 'pg_restore', '--exit-on-error', '--jobs=2', "--dbname=$db", $file ],
		"restore, $format");
	for ([ 'dumped', 'true' ], $pgvector ? [ 'dumped_vector', 'true' ] : (),
		[ 'dumped_keys', q{id > 10 AND tenant IN (2, 3) AND feeling = 'good' AND lower(name) <> 'n2' AND tags && '{1,2,3}'} ])
	{
		my ($table, $condition) = @$_;
		my $query = qq{SET enable_seqscan = off; SET gpuvec.recall = 1; SELECT e FROM $table ORDER BY id LIMIT 1 \\gset
			SELECT string_agg(id::text, ' ') FROM (SELECT id FROM $table WHERE $condition ORDER BY e <-> :'e' LIMIT 20) AS q};

		is($node->safe_psql($db, $query), $node->safe_psql('postgres', $query),
			"$table answers as before, $format");
	}
	is($node->safe_psql($db, "SELECT * FROM gpuvec_verify_index('$_')"), '', "$_ is sound, $format")
	  for 'dumped_e', 'dumped_keys_e';
	$node->command_ok(
		[ 'pg_dump', '--no-sync', "--file=$file.again", "--dbname=$db" ], "pg_dump again, $format");
}
# newer pg_dump writes a random key with \restrict
s/^\\(un)?restrict .*$//mg for my ($first, $second) =
  map { slurp_file("$folder/dump.$_") } ('plain', 'plain.again');
is($second, $first, 'the dump of the restored database is the dump it came from');

# -- removal
my $count = join ';', map { "SELECT count(*) FROM $_" } qw(pg_am pg_proc pg_operator pg_opfamily pg_amop pg_description);
$node->safe_psql('postgres', 'CREATE DATABASE clean');
my $before = $node->safe_psql('clean', $count);
$node->safe_psql('clean', 'CREATE EXTENSION gpuvec');
isnt($node->safe_psql('clean', $count), $before, 'installed');
$node->safe_psql('clean', 'DROP EXTENSION gpuvec');
is($node->safe_psql('clean', $count), $before, 'DROP EXTENSION leaves nothing');
like(($node->psql('restored_plain', 'DROP EXTENSION gpuvec'))[2], qr/index dumped_e depends on/, 'not while there are indexes');
$node->safe_psql('restored_plain',
	'SET client_min_messages = warning; DROP EXTENSION gpuvec CASCADE');
is($node->safe_psql('restored_plain', q{SELECT count(*) FROM dumped; SELECT count(*) FROM pg_class WHERE relname LIKE 'dumped%\_e'}),
	"1500\n0", 'tables stay, indexes go');

# -- scripts
for my $extension ('gpuvec', $pgvector ? 'gpuvec_pgvector' : ())
{
	my $newest = $node->safe_psql('postgres',
		"SELECT default_version FROM pg_available_extensions WHERE name = '$extension'");

	ok(-e "$FindBin::RealBin/../../sql/$extension--$newest.sql", "$extension: one script makes $newest");
	is($node->safe_psql('postgres', "SELECT * FROM pg_extension_update_paths('$extension') WHERE path IS NOT NULL"),
		'', "$extension: there is no other version");
	$node->safe_psql('postgres', "UPDATE pg_extension SET extversion = '0.5.0' WHERE extname = '$extension'");
	says($node, "ALTER EXTENSION $extension UPDATE", qr/extension "$extension" has no update path from version "0\.5\.0" to version "$newest"/,
		"$extension: a version before 1.0.0 cannot be updated");
	$node->safe_psql('postgres', "UPDATE pg_extension SET extversion = '$newest' WHERE extname = '$extension'");
}

# Names that somebody gave to other objects, in the schema that the script fills,
# are not taken for pgvector's.
if ($pgvector)
{
	my $strange = q{
		SELECT count(*) FROM (SELECT amopfamily, 'pg_operator'::regclass, amopopr FROM pg_amop
				UNION ALL SELECT amprocfamily, 'pg_proc'::regclass, amproc FROM pg_amproc) AS t (family, classid, objid)
			JOIN pg_depend AS f ON f.classid = 'pg_opfamily'::regclass AND f.objid = family AND f.deptype = 'e'
			JOIN pg_extension AS x ON x.oid = f.refobjid
		WHERE extname = 'gpuvec_pgvector' AND NOT EXISTS (SELECT FROM pg_depend AS d
			WHERE d.classid = t.classid AND d.objid = t.objid AND d.deptype = 'e')};

	$node->safe_psql('postgres', 'CREATE DATABASE taken');
	$node->safe_psql(
		'taken', q{
		CREATE SCHEMA ext;
		CREATE EXTENSION vector SCHEMA ext;
		CREATE EXTENSION gpuvec;
		CREATE FUNCTION vector_to_float4(ext.vector, integer, boolean) RETURNS real[] LANGUAGE sql
			AS 'SELECT ext.vector_to_float4($1, $2, $3)';
		CREATE FUNCTION distance(ext.vector, ext.vector) RETURNS float8 LANGUAGE sql
			AS 'SELECT ext.l2_distance($1, $2)';
		CREATE OPERATOR <-> (FUNCTION = distance, LEFTARG = ext.vector, RIGHTARG = ext.vector);
		CREATE EXTENSION gpuvec_pgvector});
	is($node->safe_psql('taken', $strange), '0', 'classes have members of extensions only');
	$node->safe_psql('taken', q{
		DROP EXTENSION gpuvec_pgvector;
		CREATE TYPE public.vector AS (x int);
		CREATE TYPE public.halfvec AS (x int);
		CREATE EXTENSION gpuvec_pgvector});
	is($node->safe_psql('taken', $strange), '0', 'types of these names change nothing');
}

done_testing();
