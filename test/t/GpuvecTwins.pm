# Tables with vectors of all kinds, each of them twice: in schema `ours` with
# indexes of gpuivfpq, in schema `bare` with the same rows and all other indexes.
# GpuvecQueries makes statements of them.

package GpuvecTwins;

use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(twins twins_sql twins_session_sql $DIMS);

our $DIMS = 6;

# The relations.  op: the operator of the distance; ours: indexes of gpuivfpq
# (column list and the rest); others: indexes that the twin has, too; parts: DDL of
# its partitions, {t} is the name; part_others: indexes of single partitions;
# null: some rows have no vector or, under cosine, one of zeros; ties: vectors are
# there three times; column: what is indexed, in place of v; child: has a child with
# a third of the rows; view: the relations that it unites.
my @TWINS = (
	{ name => 'l2', op => '<->', ours => ['(v real_l2_ops)'], others => ['(id)'], null => 1 },
	{ name => 'solid', op => '<->', ours => ['(v real_l2_ops)'], others => [ '(id)', '(tenant)' ] },
	{ name => 'keyed', op => '<=>', ours => ['(v real_cosine_ops, tenant)'], null => 1 },
	{ name => 'keyed_l2', op => '<->', ours => ['(v real_l2_ops, tenant, cat)'], others => ['(id)'], null => 1 },
	{ name => 'ip', op => '<#>', ours => ['(v real_ip_ops, cat)'], others => ['(tenant)'], null => 1 },
	{ name => 'two', op => '<->', ours => [ '(v real_cosine_ops, tenant)', '(v real_l2_ops)', '(v real_l2_ops, tenant) WHERE cat = 1' ],
		null => 1 },
	{ name => 'partial', op => '<=>', ours => ['(v real_cosine_ops) WHERE cat = 1'], others => ['(id)'], null => 1 },
	{ name => 'expression', op => '<->', column => '(v::float8[]::real[])',
		ours => ['((v::float8[]::real[]) real_l2_ops, tenant)'], null => 1 },
	{ name => 'ties', op => '<->', ours => ['(v real_l2_ops, tenant)'], others => ['(id)'], ties => 1, null => 1 },
	{ name => 'churned', op => '<=>', ours => ['(v real_cosine_ops, tenant)'], others => ['(id)'], null => 1, changed => 1 },
	{ name => 'ranged', op => '<=>', ours => ['(v real_cosine_ops, tenant)'], null => 1, by => 'RANGE (id)',
		parts => [ 'FROM (0) TO (1200)', 'FROM (1200) TO (6000)' ], part_others => ['ranged_0 (id)'] },
	{ name => 'hashed', op => '<->', ours => ['(v real_l2_ops, cat)'], null => 1, by => 'HASH (id)',
		parts => [ map { "WITH (MODULUS 3, REMAINDER $_)" } 0 .. 2 ],
		others => ['(tenant)'], part_others => [ 'hashed_1 (id)', 'hashed_2 (cat, tenant)' ] },
	{ name => 'listed', op => '<->', null => 1, by => 'LIST (cat)', part_ours => ['listed_0 USING gpuivfpq (v real_l2_ops)'],
		parts => [ 'IN (0, 1, 2)', 'IN (3, 4, NULL)' ], others => ['(id)'] },
	{ name => 'parent', op => '<->', ours => ['(v real_l2_ops, tenant)'], others => ['(id)'], null => 1, child => 1 },
	{ name => 'secret', op => '<->', ours => ['(v real_l2_ops, tenant)'], others => ['(id)'], null => 1, role => 'guest' },
	{ name => 'united', op => '<->', null => 1, ties => 1, view => [ 'l2', 'keyed_l2' ] },
	{ name => 'united_parts', op => '<=>', null => 1, ties => 1, view => [ 'keyed', 'ranged' ] });
my @VECTORS = (
	{ name => 'vec', op => '<->', type => 'vector', ours => ['(v vector_l2_ops, tenant)'], others => ['(id)'], null => 1, ties => 1 },
	{ name => 'half', op => '<=>', type => 'halfvec', ours => ['(v halfvec_cosine_ops)'], null => 1, ties => 1 });

my $SHARED = q{
CREATE FUNCTION hash(n int, seed int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT (hashint8extended(n, seed) & 1073741823)::int';
CREATE TABLE source AS
SELECT n AS id, n % 25 AS tenant, CASE WHEN hash(n, 1) % 20 > 0 THEN hash(n, 2) % 5 END AS cat,
	point(n, {dims}) AS v, repeat(chr(97 + n % 26), 300 + hash(n, 3) % 300) AS pad
FROM generate_series(1, {rows}) AS n;
-- what is asked for; of whom
CREATE TABLE asked AS SELECT n AS id, n % 7 AS a, point(n * 7919, {dims}) AS v FROM generate_series(1, 5) AS n;
CREATE TABLE asked_null AS SELECT id, a, CASE WHEN id <> 3 THEN v END AS v FROM asked;
CREATE TABLE few AS SELECT 7 + n * 75 AS id, n AS x FROM generate_series(0, 60) AS n;
CREATE TABLE partner AS SELECT 7 + n * 25 AS id, n AS x FROM generate_series(0, {rows} / 25 + 5) AS n;
CREATE TABLE tenants (tenant int PRIMARY KEY, name text);
INSERT INTO tenants SELECT n, 'tenant ' || n FROM generate_series(0, 29) AS n;
CREATE TABLE big AS SELECT n % {rows} AS id, n AS x, repeat('p', 40) AS pad FROM generate_series(1, {rows}) AS n;
CREATE INDEX ON partner (id);
ANALYZE;
CREATE ROLE guest;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest;
};

# All of them; those of pgvector's types where it is there.
sub twins { my ($pgvector) = @_; return (@TWINS, $pgvector ? @VECTORS : ()); }

# INSERT of a relation's rows, with whether they have a place in the index.
sub rows_sql
{
	my ($twin, $name, $which) = @_;
	my $v = $twin->{ties} ? "point(id - id % 3, $DIMS)" : 'v';
	my $type = $twin->{type} ? "$twin->{type}($DIMS)" : 'real[]';
	my $z = 'true';

	if ($twin->{null})
	{
		# some of those that `few` and `partner` name have none
		$z = 'NOT (id % 31 = 5 OR id % 150 = 7)';
		$v = "CASE WHEN $z THEN $v END";
		if ($twin->{op} eq '<=>')
		{
			$v = "CASE WHEN id % 37 = 3 THEN array_fill(0::real, '{$DIMS}') ELSE $v END";
			$z = "($z AND id % 37 <> 3)";
		}
	}
	return "INSERT INTO $name (id, tenant, cat, z, pad, v)
		SELECT id, tenant, cat, $z, pad, ($v)::$type FROM source WHERE $which ORDER BY hash(id, 9);\n";
}

sub table_sql
{
	my ($twin, $schema) = @_;
	my $name = $twin->{name};
	my $type = $twin->{type} ? "$twin->{type}($DIMS)" : 'real[]';
	my $sql = "CREATE TABLE $name (id int, tenant int, cat int, z bool, pad text, v $type)";
	my @others = ((map { "$name $_" } @{ $twin->{others} // [] }), @{ $twin->{part_others} // [] });

	$sql .= $twin->{by} ? " PARTITION BY $twin->{by};\n" : ";\n";
	my $n = 0;
	$sql .= "CREATE TABLE ${name}_@{[$n++]} PARTITION OF $name FOR VALUES $_;\n" for @{ $twin->{parts} // [] };
	$sql .= "CREATE TABLE ${name}_0 () INHERITS ($name);\n" . rows_sql($twin, "${name}_0", 'id % 3 = 0') if $twin->{child};
	$sql .= rows_sql($twin, $name, $twin->{child} ? 'id % 3 > 0' : 'true');
	$sql .= "CREATE INDEX ON $_;\n" for @others;
	if ($schema eq 'ours')
	{
		for (map({ my $i = $_; map { "$_ USING gpuivfpq $i" } $name, $twin->{child} ? "${name}_0" : () } @{ $twin->{ours} // [] }), @{ $twin->{part_ours} // [] })
		{
			my ($what, $where) = /^(.*?)( WHERE .*)?$/;
			$sql .= "CREATE INDEX ON $what WITH (train_rows = 300)" . ($where // '') . ";\n";
		}
	}
	$sql .= "DELETE FROM $name WHERE hash(id, 4) % 3 = 0;
		UPDATE $name SET pad = 'new' WHERE hash(id, 5) % 4 = 0;\n" if $twin->{changed};
	$sql .= "ALTER TABLE $name ENABLE ROW LEVEL SECURITY;
		CREATE POLICY p ON $name USING (cat < 3);\n" if $twin->{role};
	return $sql . ($twin->{changed} ? '' : "VACUUM $name;\n") . "ANALYZE $name;\n" . ($twin->{child} ? "ANALYZE ${name}_0;\n" : '');
}

# Everything but what each session makes for itself.
sub twins_sql
{
	my ($rows, $pgvector) = @_;
	my $sql = "SET client_min_messages = warning;\n" . $SHARED =~ s/\{rows\}/$rows/gr =~ s/\{dims\}/$DIMS/gr;

	for my $schema ('ours', 'bare')
	{
		$sql .= "CREATE SCHEMA $schema; SET search_path = $schema, public;\n";
		for my $twin (twins($pgvector))
		{
			$sql .= $twin->{view} ?
			  "CREATE VIEW $twin->{name} AS " . join(' UNION ALL ',
				map { "SELECT id, tenant, cat, z, pad, v, tableoid AS part FROM $_" } @{ $twin->{view} }) . ";\n" :
			  table_sql($twin, $schema);
		}
		$sql .= "GRANT USAGE ON SCHEMA $schema TO guest; GRANT ALL ON ALL TABLES IN SCHEMA $schema TO guest;\n";
	}
	return $sql;
}

# Objects that each session makes for itself: a function for no worker to run.
sub twins_session_sql
{
	return q{SET client_min_messages = warning;
CREATE TEMP TABLE own_asked AS TABLE asked;
GRANT SELECT ON own_asked TO guest;
CREATE FUNCTION pg_temp.own(n int) RETURNS real[] LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
AS 'BEGIN RETURN (SELECT q.v FROM pg_temp.own_asked AS q WHERE q.id = n); END';
GRANT ALL ON FUNCTION pg_temp.own(int) TO guest;
};
}

1;
