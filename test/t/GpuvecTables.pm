# Tables with vectors and with columns to put conditions on, of every kind that
# can have an index; what GpuvecStatements asks.  All of them are there twice:
# in schema `plain`, where vectors alone are indexed, and in schema `indexed`,
# where the other columns are, too.

package GpuvecTables;

use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(tables tables_sql session_sql);

# How tables differ.  op: the operator of the index; null: some rows have no
# vector or, under cosine, one of zeros; ties: vectors are there three times,
# with the same rep; still: rows are where they were loaded, which ctid tells;
# some: the rows that it has; store: how; view: has no system columns; parts: is several
# tables; role: who asks.  {schema} is the schema.
my @TABLES = (
	{ name => 'l2', op => '<->', still => 1 },
	{ name => 'cosine', op => '<=>', null => 1, still => 1 },
	{ name => 'ip', op => '<#>', null => 1, still => 1 },
	{ name => 'refined', op => '<->', with => 'refine = sq8', still => 1 },
	{ name => 'refined_cosine', op => '<=>', with => 'refine = half', null => 1 },
	{ name => 'untrained', op => '<->', some => 'id % 4 = 1', with => 'train_rows = 100000', null => 1 },
	{ name => 'pending', op => '<->', null => 1 },
	{ name => 'partial', op => '<->', predicate => 'b = 1', still => 1 },
	{ name => 'expression', op => '<->', column => '(e::float8[]::real[])' },
	{ name => 'ties', op => '<->', ties => 1, null => 1 },
	{ name => 'churned', op => '<=>' },
	{ name => 'hot', op => '<->', store => 'WITH (fillfactor = 30)' },
	{ name => 'unlogged', op => '<->', kind => 'UNLOGGED' },
	{ name => 'wide', op => '<=>', dims => 560, some => 'id % 5 = 1' },
	{ name => 'hashed', op => '<->', parts => 3, by => 'HASH (id)', null => 1 },
	{ name => 'ranged', op => '<=>', parts => 4, by => 'RANGE (a)' },
	{ name => 'parent', op => '<->', parts => 2 },
	{ name => 'temporary_{schema}', op => '<->', kind => 'TEMP' },
	{ name => 'seen', op => '<->', view => 'l2' },
	{ name => 'guarded', op => '<->', view => 'l2', barrier => 1 },
	{ name => 'united', op => '<->', view => 'l2', parts => 2, twice => 1 },
	{ name => 'secret', op => '<->', role => 'guest', still => 1 },
	{ name => 'secret_parts', op => '<->', parts => 3, by => 'HASH (id)', role => 'guest' });
my @VECTORS = (
	{ name => 'vec', op => '<->', type => 'vector' },
	{ name => 'half', op => '<=>', type => 'halfvec', with => 'refine = sq8', null => 1 });

my %CLASSES = ('<->' => 'l2', '<#>' => 'ip', '<=>' => 'cosine');
my $COLUMNS = 'id int, rep int, z bool, a int, b int, c int, flag bool, w text, doc text,
	tags int[], made timestamptz, e {type}, g int GENERATED ALWAYS AS (a * 2 + 1) STORED';
my $OTHER = 'gone text, g int GENERATED ALWAYS AS (a * 2 + 1) STORED, e {type}, w text, id int,
	made timestamptz, tags int[], c int, z bool, rep int, doc text, b int, flag bool, a int';
my $LOADED = 'id, rep, z, a, b, c, flag, w, doc, tags, made, e';
my @BOUNDS = (
	'FOR VALUES FROM (MINVALUE) TO (25)',
	'FOR VALUES FROM (25) TO (50)',
	'FOR VALUES FROM (50) TO (100)', 'DEFAULT');

# Functions that conditions and statements call.
my $FUNCTIONS = q{
CREATE FUNCTION third(a int) RETURNS bool LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000
AS 'BEGIN RETURN a % 3 = 0; END';
CREATE FUNCTION is_past(t timestamptz) RETURNS bool LANGUAGE plpgsql STABLE PARALLEL SAFE
AS 'BEGIN RETURN t <= now(); END';
CREATE FUNCTION always(a int) RETURNS bool LANGUAGE plpgsql VOLATILE
AS 'BEGIN RETURN true; END';
-- of no row that another condition has left out
CREATE FUNCTION from_on(a int, bound int) RETURNS bool LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$ BEGIN
	IF a < bound THEN RAISE EXCEPTION 'a is %', a; END IF;
	RETURN true;
END $$;
-- which may be asked late: what it guards has to be later
CREATE FUNCTION a_from(a int, bound int) RETURNS bool LANGUAGE plpgsql VOLATILE COST 1
AS 'BEGIN RETURN a >= bound; END';
CREATE FUNCTION within(d float8, bound float8, a int) RETURNS bool LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$ BEGIN
	IF d >= bound THEN RAISE EXCEPTION 'a is % and the row far', a; END IF;
	RETURN true;
END $$;
-- so cheap that it comes first where it may
CREATE FUNCTION tells(a int) RETURNS bool LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 0.0001
AS $$ BEGIN
	IF a % 10 >= 7 THEN RAISE EXCEPTION 'a hidden row has %', a; END IF;
	RETURN true;
END $$;
-- searches itself
CREATE FUNCTION nearest_is(q real[], bound int) RETURNS bool LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$ BEGIN
	RETURN (SELECT id FROM public.asked WHERE a >= 1 ORDER BY e <-> q LIMIT 1) <= bound;
END $$;
-- of whole rows
CREATE FUNCTION odd(r record) RETURNS bool LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$ BEGIN RETURN (row_to_json(r)->>'id')::int % 2 = 1; END $$;
CREATE FUNCTION hash(n int, seed int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT (hashint8extended(n, seed) & 1073741823)::int';
};

# Tables that are the same in both schemas: rows, queries, and those joined.
my $SHARED = q{
CREATE TABLE source AS
SELECT n AS id, n AS rep, true AS z, hash(n, 1) % 100 AS a,
	CASE WHEN hash(n, 2) % 5 > 0 THEN hash(n, 3) % 2 END AS b,
	CASE WHEN hash(n, 4) % 150 = 0 THEN hash(n, 5) % 3 END AS c,
	hash(n, 6) % 10 < 3 AS flag,
	substr(md5((hash(n, 7) % 40)::text), 1, 4) AS w,
	CASE WHEN hash(n, 8) % 10 = 0
		THEN (SELECT string_agg(md5((n * 100 + i)::text), '') FROM generate_series(1, 80) AS i)
		ELSE md5(n::text) END AS doc,
	CASE hash(n, 9) % 20 WHEN 0 THEN NULL
		WHEN 1 THEN (SELECT array_agg(hash(n * 1000 + i, 1)) FROM generate_series(1, 700) AS i)
		ELSE ARRAY[hash(n, 10) % 10, hash(n, 11) % 10, hash(n, 12) % 50] END AS tags,
	'2020-01-01 UTC'::timestamptz + hash(n, 13) % 1000 * '1 day'::interval AS made,
	point(n, 8) AS e
FROM generate_series(1, {rows}) AS n;
CREATE TABLE asked AS SELECT n AS id, n % 7 AS a, point(n * 7919, 8) AS e
FROM generate_series(1, 12) AS n;
CREATE INDEX asked_e ON asked USING gpuivfpq (e);
CREATE TABLE small AS SELECT n * n AS x, n AS y FROM generate_series(1, 9) AS n;
CREATE TABLE names AS SELECT n AS a, 'name ' || n AS name FROM generate_series(0, 99) AS n;
-- or SubPlans would count as disabled where sequential scans are
CREATE INDEX ON small (x); CREATE INDEX ON small (y); CREATE INDEX ON names (a);
ANALYZE source, asked, small, names;
CREATE ROLE guest;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest;
};

# Views and rights.
my $VIEWS = q{
CREATE VIEW seen AS SELECT * FROM l2 WHERE a < 60;
CREATE VIEW guarded WITH (security_barrier) AS SELECT * FROM l2 WHERE a % 10 < 7;
CREATE VIEW united AS SELECT * FROM l2 UNION ALL SELECT * FROM refined;
CREATE TABLE taken (id int, a int, d float8);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
ALTER TABLE secret_parts ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secret USING (a % 10 < 7);
CREATE POLICY p ON secret_parts
USING (a % 10 < 7 AND (w <> 'x' OR a IN (SELECT n.a FROM public.names AS n)));
GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO guest;
GRANT USAGE ON SCHEMA {schema} TO guest;
};

# Some were changed since they were loaded.
my $CHANGES = q{
UPDATE hot SET doc = 'once';
UPDATE hot SET doc = 'twice' WHERE id % 3 > 0;
UPDATE churned SET flag = NOT flag WHERE id % 3 = 0;
DELETE FROM churned WHERE id % 5 = 0;
VACUUM churned;
UPDATE churned SET doc = 'new' WHERE id % 7 = 0;
UPDATE churned SET e = point(id + 20000, 8) WHERE id % 11 = 0;
DELETE FROM churned WHERE id % 13 = 0;
INSERT INTO churned ({loaded}) SELECT {loaded} FROM source WHERE id % 65 = 0;
};

# All of them; those of pgvector's types where it is there.
sub tables { my ($pgvector) = @_; return (@TABLES, $pgvector ? @VECTORS : ()); }

sub type_of
{
	my ($table) = @_;

	return $table->{type} ? $table->{type} . '(' . ($table->{dims} // 8) . ')' : 'real[]';
}

# SELECT of rows of the source: the vector, and whether it has a place in the
# index.
sub rows_sql
{
	my ($table, $which) = @_;
	my $dims = $table->{dims} // 8;
	my $e = $table->{ties} ? 'point(id - id % 3, 8)' : $dims == 8 ? 'e' : "point(id, $dims)";
	my $rep = $table->{ties} ? 'id - id % 3' : 'rep';
	my $z = 'true';

	if ($table->{null})
	{
		$z = 'id % 31 <> 5';
		$e = "CASE WHEN $z THEN $e END";
		if ($table->{op} eq '<=>')
		{
			$e = "CASE WHEN id % 37 = 3 THEN array_fill(0::real, '{$dims}') ELSE $e END";
			$z .= ' AND id % 37 <> 3';
		}
	}
	$which = "$table->{some} AND $which" if $table->{some};
	$e = "($e)::" . type_of($table);
	return "SELECT id, $rep, $z, a, b, c, flag, w, doc, tags, made, $e FROM source WHERE $which ORDER BY id";
}

sub insert_sql
{
	my ($table, $name, $which) = @_;

	return "INSERT INTO $name ($LOADED) " . rows_sql($table, $which) . ";\n";
}

# The index on vectors and, in the schema for it, those on other columns.
sub indexes_sql
{
	my ($table, $name, $schema) = @_;
	my $class = ($table->{type} // 'real') . "_$CLASSES{$table->{op}}_ops";
	my $column = $table->{column} // 'e';
	my $with = join ', ', $table->{with} // (), ($table->{with} // '') =~ /train_rows/ ? () : 'train_rows = 200';
	my $where = $table->{predicate} ? "WHERE $table->{predicate}" : '';

	return join '', map { "CREATE INDEX ON $name $_;\n" }
	  "USING gpuivfpq ($column $class) WITH ($with) $where",
	  $schema eq 'indexed' ? ('(id)', '(a)', '(b) WHERE flag', '(c)', '(w, a)', '(made)', 'USING gin (tags)') : ();
}

# A column that the rows on disk do not have.
sub late_sql
{
	my ($name) = @_;

	return "ALTER TABLE $name ADD late int DEFAULT 5; ANALYZE $name;\n";
}

# A table of its own.
sub single_sql
{
	my ($table, $schema) = @_;
	my $name = $table->{name} =~ s/\{schema\}/$schema/r;
	my $columns = $COLUMNS =~ s/\{type\}/type_of($table)/er;
	my $kind = $table->{kind} // '';
	my $store = $table->{store} // '';
	my $sql = "CREATE $kind TABLE $name ($columns) $store;\n";

	$sql .= "ALTER TABLE $name ALTER e SET STORAGE EXTERNAL;\n" if $table->{dims};
	if ($name eq 'pending')
	{
		# rows of another transaction, which training does not see
		$sql .= indexes_sql($table, $name, $schema) . insert_sql($table, $name, 'id % 3 > 0') . 'BEGIN;' .
		  insert_sql($table, $name, 'id % 3 = 0') . "PREPARE TRANSACTION 'others';
			SELECT gpuvec_train('pending_e_idx');
			COMMIT PREPARED 'others';\n";
	}
	else
	{
		$sql .= insert_sql($table, $name, 'true') . indexes_sql($table, $name, $schema);
	}
	return $sql . late_sql($name);
}

# One of several; parts have their columns in another order than the whole.
sub several_sql
{
	my ($table, $schema) = @_;
	my ($name, $by) = @$table{ 'name', 'by' };
	my $columns = $COLUMNS =~ s/\{type\}/type_of($table)/er;
	my $other = $OTHER =~ s/\{type\}/type_of($table)/er;
	my $sql = "CREATE TABLE $name ($columns)" . ($by ? " PARTITION BY $by;\n" : ";\n");

	for my $n (1 .. $table->{parts})
	{
		my $part = "$name$n";
		my $bound = ($by // '') =~ /RANGE/ ? $BOUNDS[ $n - 1 ] :
		  "FOR VALUES WITH (MODULUS $table->{parts}, REMAINDER @{[$n - 1]})";

		$sql .= "CREATE TABLE $part ($other); ALTER TABLE $part DROP gone;\n";
		$sql .= $by ? "ALTER TABLE $name ATTACH PARTITION $part $bound;\n" :
		  "ALTER TABLE $part INHERIT $name;\n" .
		  insert_sql($table, $part, "id % 3 = $n") . indexes_sql($table, $part, $schema);
	}
	return $sql . insert_sql($table, $name, $by ? 'true' : 'id % 3 = 0') . indexes_sql($table, $name, $schema) .
	  late_sql($name);
}

# Everything but what each session makes for itself.  Takes rows, of l2, and
# whether pgvector is there.
sub tables_sql
{
	my ($rows, $pgvector) = @_;
	my $sql = "SET client_min_messages = warning;\n$FUNCTIONS\n" . $SHARED =~ s/\{rows\}/$rows/r;

	for my $schema ('plain', 'indexed')
	{
		$sql .= "CREATE SCHEMA $schema; SET search_path = $schema, public;\n";
		for my $table (grep { !$_->{view} && ($_->{kind} // '') ne 'TEMP' } tables($pgvector))
		{
			$sql .= $table->{parts} ? several_sql($table, $schema) : single_sql($table, $schema);
		}
		$sql .= $CHANGES =~ s/\{loaded\}/$LOADED/gr . $VIEWS =~ s/\{schema\}/$schema/gr;
	}
	return $sql;
}

# Objects that each session makes for itself.
sub session_sql
{
	return join '', "SET client_min_messages = warning;\n",
	  map { single_sql($_->[0], $_->[1]) =~ s/\{schema\}/$_->[1]/gr }
	  map { my $table = $_; map { [ $table, $_ ] } 'plain', 'indexed' }
	  grep { ($_->{kind} // '') eq 'TEMP' } @TABLES;
}

1;
