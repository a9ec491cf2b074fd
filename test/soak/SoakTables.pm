# The tables of a soak, of every kind that can have an index and with all of its
# options, and functions that ask index and table the same.

package SoakTables;

use strict;
use warnings;
use Exporter 'import';
use GpuvecRows;

our @EXPORT = qw(tables tables_sql vector point random_condition);

# op: the operator; dims; rows: about how many there are; indexes: name, with
# its class and options (cic: made and dropped beside clients); type: of the
# column, real[] if none; expression: what is indexed; kind; by: of partitions
my @TABLES = (
	{
		name => 'plain', op => '<->', dims => 16, rows => 3000,
		indexes => [
			[ 'plain_l2', '(e) WITH (lists = 20)' ],
			[ 'plain_half', '(e) WITH (lists = 6, spill = 1) WHERE a < 50', partial => 1 ]
		],
		more => 'CREATE INDEX ON plain (a)'
	},
	{
		name => 'product', op => '<#>', dims => 16, rows => 1500,
		indexes => [ [ 'product_ip', '(e real_ip_ops) WITH (lists = 8, spill = 0)' ] ]
	},
	{
		name => 'refined', op => '<=>', dims => 24, rows => 2000,
		indexes => [ [ 'refined_cosine', '(e real_cosine_ops) WITH (lists = 16, refine = sq8)' ] ]
	},
	{
		name => 'odd', op => '<->', dims => 8, rows => 1500,
		expression => '(e::float8[]::real[])',
		indexes => [ [ 'odd_l2', '((e::float8[]::real[])) WITH (refine = sq8, spill = 1)' ] ],
		more => 'CREATE INDEX ON odd (w)'
	},
	{
		name => 'quick', op => '<->', dims => 8, rows => 1500, kind => 'UNLOGGED',
		indexes => [ [ 'quick_l2', '(e) WITH (lists = 10, refine = sq8, train_rows = 1000)' ] ]
	},
	{
		name => 'hashed', op => '<=>', dims => 12, rows => 3600, by => 'HASH (id)',
		parts => [ map { "FOR VALUES WITH (MODULUS 3, REMAINDER $_)" } 0 .. 2 ],
		indexes => [ [ 'hashed_cosine', '(e real_cosine_ops) WITH (lists = 6)' ] ]
	},
	{
		name => 'ranged', op => '<->', dims => 10, rows => 3000, by => 'RANGE (a)',
		parts => [ 'FOR VALUES FROM (MINVALUE) TO (50)', 'DEFAULT' ],
		indexes => [ [ 'ranged_l2', '(e) WITH (refine = half, lists = 8)' ] ]
	},
	{
		name => 'waiting', op => '<->', dims => 12, rows => 2000, first => 100, emptied => 1,
		indexes => [ [ 'waiting_l2', '(e) WITH (train_rows = 1200, dims = 12)' ] ]
	},
	{
		name => 'wide', op => '<=>', dims => 700, rows => 300,
		indexes => [ [ 'wide_cosine', '(e real_cosine_ops) WITH (lists = 4, train_rows = 200, pq_dim = 100)' ] ]
	});
my @VECTORS = (
	{
		name => 'vec', op => '<->', dims => 12, rows => 2000, type => 'vector(12)',
		indexes => [ [ 'vec_l2', '(e vector_l2_ops) WITH (lists = 12)' ] ]
	},
	{
		name => 'half', op => '<=>', dims => 20, rows => 1500, type => 'halfvec(20)',
		indexes => [ [ 'half_cosine', '(e halfvec_cosine_ops) WITH (refine = sq8)' ] ]
	});

my $FUNCTIONS = $POINT . q{
-- Row `g` has its own vector, or none, or zeros, or one that others have, too.
CREATE FUNCTION vector_of(g int, dims int) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT CASE WHEN g % 97 = 0 THEN NULL WHEN g % 101 = 0 THEN array_fill(0::real, ARRAY[dims])
		WHEN g % 13 = 0 THEN point(g % 300, dims) ELSE point(g, dims) END
$$;

-- The distances of the k nearest rows as the index gives them, and how many
-- rows these are.
CREATE FUNCTION by_index(tab text, distance text, condition text, k int, OUT near float8[], OUT ids int)
LANGUAGE plpgsql STABLE SET gpuvec.recall = 1 SET gpuvec.scan_order = strict SET enable_seqscan = off SET enable_sort = off
SET enable_bitmapscan = off AS $$
BEGIN
	-- (a DISTINCT beside array_agg would have PostgreSQL 16 sort its rows)
	EXECUTE format('SELECT array_agg(d), (SELECT count(DISTINCT i) FROM unnest(array_agg(id)) AS i) FROM (SELECT %2$s AS d, id FROM %1$s
		WHERE %3$s ORDER BY %2$s LIMIT %4$s) AS x', tab, distance, condition, k)
		INTO near, ids;
END
$$;

-- The same distances as a sort gives them.
CREATE FUNCTION by_table(tab text, distance text, condition text, k int) RETURNS float8[]
LANGUAGE plpgsql STABLE SET enable_indexscan = off AS $$
DECLARE
	result float8[];
BEGIN
	EXECUTE format('SELECT array_agg(d) FROM (SELECT d FROM (SELECT (%2$s) + 0 AS d FROM %1$s
		WHERE (%3$s) OFFSET 0) AS x WHERE d <> ''NaN'' ORDER BY d LIMIT %4$s) AS y',
		tab, distance, condition, k) INTO result;
	RETURN result;
END
$$;

-- The rows of these distances, by a sort.
CREATE FUNCTION first_rows(tab text, distance text, condition text, k int) RETURNS text
LANGUAGE plpgsql STABLE SET enable_indexscan = off AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SELECT left(string_agg(x::text, '' ''), 300) FROM (SELECT ctid, xmin, xmax, id, (%2$s) + 0 AS d
		FROM %1$s WHERE (%3$s) ORDER BY 5 LIMIT %4$s) AS x', tab, distance, condition, k) INTO result;
	RETURN result;
END
$$;

-- Of one snapshot: '' or how they differ.
CREATE FUNCTION differs(tab text, distance text, condition text, k int) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
	there record;
	again record;
	here float8[];
	scan text;
BEGIN
	there = by_index(tab, distance, condition, k);
	here = by_table(tab, distance, condition, k);
	IF there.near IS DISTINCT FROM here THEN
		scan = gpuvec_last_scan()::text;
		again = by_index(tab, distance, condition, k);
		RETURN format('SOAK %s WHERE %s ORDER BY %s LIMIT %s: the index gives %s rows, %s not %s; scan %s, asked again %s, snapshot %s, rows %s',
			tab, condition, distance, k, coalesce(cardinality(there.near), 0), left(there.near::text, 300),
			left(here::text, 300), scan, again.near IS NOT DISTINCT FROM here, pg_current_snapshot(),
			first_rows(tab, distance, condition, k));
	ELSIF there.ids <> coalesce(cardinality(here), 0) THEN
		RETURN format('SOAK %s WHERE %s: %s rows are %s', tab, condition, cardinality(here), there.ids);
	END IF;
	RETURN '';
END
$$;
};

# Those that this server can have; $vectors: with pgvector.
sub tables
{
	my ($vectors) = @_;

	return (@TABLES, $vectors ? @VECTORS : ());
}

# A query's vector, for a table.
sub point
{
	my ($table, $g) = @_;
	my $cast = $table->{type} ? "::$table->{type}" : '';

	return "point($g, $table->{dims})$cast";
}

# The values of row `$g` of a table.
sub vector
{
	my ($table, $g) = @_;
	my $cast = $table->{type} ? "::$table->{type}" : '';

	return "vector_of($g, $table->{dims})$cast";
}

# Some condition on a table's rows.
sub random_condition
{
	my $n = int rand 100;
	my @all = (
		'true', "a = $n", "a < $n", "a BETWEEN $n AND $n + 3", "id % 7 = " . $n % 7,
		"w = 'w" . $n % 10 . "'", "w = 'w" . $n % 10 . "' AND a > $n", 'a = 1000');

	return $all[ rand @all ];
}

# Statements that make a table with its rows and indexes.
sub table_sql
{
	my ($table) = @_;
	my $name = $table->{name};
	my $type = $table->{type} // 'real[]';
	my $by = $table->{by} ? "PARTITION BY $table->{by}" : '';
	my $kind = $table->{kind} // '';
	my $first = $table->{first} // $table->{rows};
	my $number = 0;
	my $sql = "CREATE $kind TABLE $name (id bigserial, a int, w text, e $type) $by;\n";

	$sql .= "CREATE TABLE ${name}_" . ++$number . " PARTITION OF $name $_;\n"
	  for @{ $table->{parts} // [] };
	$sql .= "INSERT INTO $name (a, w, e) SELECT g % 100, 'w' || g % 10, "
	  . vector($table, 'g')
	  . " FROM generate_series(1, $first) AS g;\n";
	$sql .= "CREATE INDEX $_->[0] ON $name USING gpuivfpq $_->[1];\n" for @{ $table->{indexes} };
	$sql .= "$table->{more};\n" if $table->{more};
	return $sql . "ANALYZE $name;\n";
}

# Statements that make everything.
sub tables_sql
{
	return join '', "SET client_min_messages = warning;\n$FUNCTIONS", map { table_sql($_) } @_;
}

1;
