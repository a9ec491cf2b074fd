# pg_dump and restore of both extensions with tables and indexes; DROP
# EXTENSION leaves nothing; a catalog that was upgraded from any older version is
# the same as what the newest version's own script makes; and indexes of that
# version stay in use.
# test/upgrade.sh is about upgrades of PostgreSQL.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my $pgvector = $node->safe_psql('postgres',
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});

# Everything that an extension holds, and what that depends on, in words.
my $CONTENTS = q{
	WITH member AS (SELECT d.classid, d.objid FROM pg_depend AS d
		WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid =
			(SELECT oid FROM pg_extension WHERE extname = 'EXTENSION'))
	SELECT pg_describe_object(classid, objid, 0) AS object,
		obj_description(objid, classid::regclass::name) AS detail FROM member
	UNION ALL SELECT objid::regprocedure::text, pg_get_functiondef(objid)
	FROM member WHERE classid = 'pg_proc'::regclass
	UNION ALL SELECT objid::regprocedure::text, proacl::text
	FROM member JOIN pg_proc AS p ON p.oid = objid WHERE classid = 'pg_proc'::regclass
	UNION ALL SELECT objid::regclass::text, relacl::text || pg_get_viewdef(objid)
	FROM member JOIN pg_class AS c ON c.oid = objid WHERE classid = 'pg_class'::regclass
	UNION ALL SELECT objid::regclass || '.' || attname, col_description(objid, attnum)
	FROM member JOIN pg_attribute AS a ON attrelid = objid WHERE classid = 'pg_class'::regclass AND attnum > 0
	UNION ALL SELECT objid::regoperator::text,
		format('%s commutes with %s, %s %s', oprcode, oprcom::regoperator, oprrest, oprjoin)
	FROM member JOIN pg_operator AS o ON o.oid = objid WHERE classid = 'pg_operator'::regclass
	UNION ALL SELECT pg_describe_object(classid, objid, 0), format('%s %s', opcdefault, opcintype::regtype)
	FROM member JOIN pg_opclass AS c ON c.oid = objid WHERE classid = 'pg_opclass'::regclass
	UNION ALL SELECT pg_describe_object(classid, objid, 0), format('%s %s %s %s %s',
		amopstrategy, amopopr::regoperator, amopsortfamily::regclass, amoplefttype::regtype,
		amoprighttype::regtype)
	FROM member JOIN pg_amop AS o ON o.amopfamily = objid WHERE classid = 'pg_opfamily'::regclass
	UNION ALL SELECT pg_describe_object(classid, objid, 0), format('%s %s %s',
		amprocnum, amproc::regprocedure, amproclefttype::regtype)
	FROM member JOIN pg_amproc AS p ON p.amprocfamily = objid WHERE classid = 'pg_opfamily'::regclass
	UNION ALL SELECT pg_describe_object(d.classid, d.objid, d.objsubid),
		format('%s by %s', pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
	FROM pg_depend AS d JOIN (SELECT * FROM member
			UNION ALL SELECT 'pg_amop'::regclass, o.oid FROM member JOIN pg_amop AS o
			ON o.amopfamily = objid WHERE classid = 'pg_opfamily'::regclass
			UNION ALL SELECT 'pg_amproc'::regclass, p.oid FROM member JOIN pg_amproc AS p
			ON p.amprocfamily = objid WHERE classid = 'pg_opfamily'::regclass) AS o
		ON (o.classid, o.objid) = (d.classid, d.objid)
	ORDER BY 1, 2};
# a family is no regclass
$CONTENTS =~ s/amopsortfamily::regclass/amopsortfamily/;

sub contents_of
{
	my ($extension, $db) = @_;

	(my $query = $CONTENTS) =~ s/EXTENSION/$extension/;
	return $node->safe_psql($db, $query);
}

# -- dump and restore
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE dumped (id int, e real[]);
	INSERT INTO dumped SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g;
	CREATE INDEX dumped_e ON dumped USING gpuivfpq (e) WITH (lists = 15, probes = 15, candidates = 2000);
	CREATE INDEX dumped_ip ON dumped USING gpuivfpq (e real_ip_ops) WITH (dims = 8, targets_for = queries) WHERE id > 10;
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
$node->safe_psql(
	'postgres', q{
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

		is( $node->safe_psql($db, $query), $node->safe_psql('postgres', $query),
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
$node->command_ok([ 'pg_dumpall', '--no-sync', "--file=$folder/all" ], 'pg_dumpall');

# -- removal
my $count = 'SELECT (SELECT count(*) FROM pg_am) || $$ $$ || (SELECT count(*) FROM pg_proc)
	|| $$ $$ || (SELECT count(*) FROM pg_operator) || $$ $$ || (SELECT count(*) FROM pg_opfamily)
	|| $$ $$ || (SELECT count(*) FROM pg_amop) || $$ $$ || (SELECT count(*) FROM pg_description)';
$node->safe_psql('postgres', 'CREATE DATABASE clean');
my $before = $node->safe_psql('clean', $count);
$node->safe_psql('clean', 'CREATE EXTENSION gpuvec');
isnt($node->safe_psql('clean', $count), $before, 'installed');
$node->safe_psql('clean', 'DROP EXTENSION gpuvec');
is($node->safe_psql('clean', $count), $before, 'DROP EXTENSION leaves nothing');
my ($rc, undef, $err) = $node->psql('restored_plain', 'DROP EXTENSION gpuvec');
isnt($rc, 0, 'not while there are indexes');
like($err, qr/index dumped_e depends on/, '... and it says which');
$node->safe_psql('restored_plain',
	'SET client_min_messages = warning; DROP EXTENSION gpuvec CASCADE');
is($node->safe_psql('restored_plain', 'SELECT count(*) FROM dumped'),
	'1500', 'tables stay');
is( $node->safe_psql(
		'restored_plain', q{SELECT count(*) FROM pg_class WHERE relname LIKE 'dumped%\_e'}),
	$pgvector ? '0' : '0', 'indexes go');

# -- upgrades

# An index's answers; it must be asked.
sub answers_of_old
{
	my ($db) = @_;

	return $node->safe_psql(
		$db, q{
		SET enable_seqscan = off; SET gpuvec.recall = 1;
		CREATE TEMP TABLE plan AS SELECT ''::text AS line;
		DO $$ DECLARE line text; BEGIN
			FOR line IN EXECUTE $q$EXPLAIN SELECT id FROM old ORDER BY e <-> '{1,2,3,4,5,6,7,8}'::real[] LIMIT 20$q$ LOOP
				INSERT INTO plan VALUES (line);
			END LOOP; END $$;
		SELECT bool_or(line LIKE '%Index Scan using old_e on old%') FROM plan;
		SELECT string_agg(id::text, ' ') FROM
			(SELECT id FROM old ORDER BY e <-> '{1,2,3,4,5,6,7,8}'::real[] LIMIT 20) AS q});
}

# An index of before goes on answering, takes rows and is vacuumed, and there
# can be others with what is new.
sub test_old_index
{
	my ($db, $before, $what) = @_;

	like($before, qr/^t\n(\d+ ){19}\d+$/, "$what: the index answers");
	is(answers_of_old($db), $before, "$what: ... as before");
	$node->safe_psql($db, q{INSERT INTO old SELECT id + 2000, e FROM old; DELETE FROM old WHERE id % 3 = 0; VACUUM old});
	is($node->safe_psql($db, q{SELECT * FROM gpuvec_verify_index('old_e'); SELECT advice FROM gpuvec_index_info('old_e')}),
		'', "$what: it is sound, with rows that came and went");
	is($node->safe_psql($db, q{SELECT count(*) > 0 FROM gpuvec_calibrate('old_e')}), 't', "$what: calibrated");
	$node->safe_psql($db, q{SET client_min_messages = warning;
		REINDEX INDEX old_e; CREATE INDEX old_keys ON old USING gpuivfpq (e, id)});
	is($node->safe_psql($db, "SELECT * FROM gpuvec_verify_index('$_')"), '', "$what: $_ is sound")
	  for 'old_e', 'old_keys';
	return;
}

# rows for them; both extensions ask for the operator with real[] on the right
$node->safe_psql('postgres', 'CREATE DATABASE rows_array');
$node->safe_psql(
	'rows_array', q{
	CREATE TABLE old (id int, e real[]);
	INSERT INTO old SELECT g, (SELECT array_agg((10 * sin(g % 20 * 131 + i * 17) + sin(g * i))::real) FROM generate_series(1, 8) AS i)
		FROM generate_series(1, 1500) AS g});
if ($pgvector)
{
	$node->safe_psql('postgres', 'CREATE DATABASE rows_vector TEMPLATE rows_array');
	$node->safe_psql('rows_vector', 'CREATE EXTENSION vector; ALTER TABLE old ALTER e TYPE vector(8)');
}

for my $extension ('gpuvec', $pgvector ? 'gpuvec_pgvector' : ())
{
	my $newest = $node->safe_psql('postgres',
		"SELECT default_version FROM pg_available_extensions WHERE name = '$extension'");
	my @older = split /\n/, $node->safe_psql(
		'postgres', qq{
		SELECT source FROM pg_extension_update_paths('$extension')
		WHERE target = '$newest' AND path IS NOT NULL ORDER BY 1});
	my @scripts = glob("$FindBin::RealBin/../../sql/$extension--*--*.sql");

	$node->safe_psql('postgres', "CREATE DATABASE fresh_$extension");
	$node->safe_psql("fresh_$extension", "CREATE EXTENSION $extension CASCADE");
	my $fresh = contents_of($extension, "fresh_$extension");
	isnt($fresh, '', "$extension $newest has contents");
	ok(-e "$FindBin::RealBin/../../sql/$extension--$newest.sql", "$extension: one script makes $newest");
	if (!@scripts)
	{
		note("$extension: $newest is the only version, nothing to upgrade from");
		is("@older", '', "$extension: no update path without a script");
	}
	else
	{
		is(scalar(@older), @scripts, "$extension: each script is on a path to $newest");
	}
	for my $version (@older)
	{
		(my $db = "from_${extension}_$version") =~ tr/./_/;

		$node->safe_psql('postgres',
			"CREATE DATABASE $db TEMPLATE " . ($extension eq 'gpuvec' ? 'rows_array' : 'rows_vector'));
		$node->safe_psql($db, "SET client_min_messages = warning; CREATE EXTENSION $extension VERSION '$version' CASCADE;
			CREATE INDEX old_e ON old USING gpuivfpq (e) WITH (lists = 15)");
		my $before = answers_of_old($db);
		$node->safe_psql($db, "ALTER EXTENSION $extension UPDATE");
		is(contents_of($extension, $db), $fresh,
			"$extension: $version upgraded is as $newest installed");
		test_old_index($db, $before, "$extension $version");
	}
}

# Names that somebody gave to other objects, in the schema that the script fills,
# are not taken for pgvector's; by scripts that took them an update stops.
if ($pgvector)
{
	my $strange = q{
		SELECT count(*) FROM (SELECT amopfamily, 'pg_operator'::regclass, amopopr FROM pg_amop
				UNION ALL SELECT amprocfamily, 'pg_proc'::regclass, amproc FROM pg_amproc) AS t (family, classid, objid)
			JOIN pg_depend AS f ON f.classid = 'pg_opfamily'::regclass AND f.objid = family AND f.deptype = 'e'
			JOIN pg_extension AS x ON x.oid = f.refobjid
		WHERE extname = 'gpuvec_pgvector' AND NOT EXISTS (SELECT FROM pg_depend AS d
			WHERE d.classid = t.classid AND d.objid = t.objid AND d.deptype = 'e')};
	my $out;
	my $err;

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
	$node->safe_psql('taken', q{DROP EXTENSION gpuvec_pgvector; CREATE EXTENSION gpuvec_pgvector VERSION '0.1.0'});
	is($node->safe_psql('taken', $strange), '4', '... which those of 0.1.0 have not');
	$node->psql('taken', 'ALTER EXTENSION gpuvec_pgvector UPDATE', stdout => \$out, stderr => \$err);
	like($err, qr/use what belongs to no extension: function public.vector_to_float4\(.*operator public.<->/, '... and no update takes over');
	$node->safe_psql('taken', q{
		DROP EXTENSION gpuvec_pgvector;
		CREATE TYPE public.vector AS (x int);
		CREATE TYPE public.halfvec AS (x int);
		CREATE EXTENSION gpuvec_pgvector});
	is($node->safe_psql('taken', $strange), '0', 'types of these names change nothing');
}

done_testing();
