# Random statements that order rows by distance under conditions, as such, in cursors,
# and where the rows are changed (with joins, groups, sets and locks beside it:
# GpuvecQueries).  A statement's number gives the statement, whatever came before.
#
# In a text {schema} is the schema, {z} a condition that the reference alone
# has: that the row has a place in the index.

package GpuvecStatements;

use strict;
use warnings;
use Exporter 'import';
use GpuvecRandom;
use GpuvecTables;

our @EXPORT = qw(statement);

my %CAST = (vector => '::vector', halfvec => '::halfvec');
# of the statement that is being made
my ($table, $op, $cast);
# what its plan has to use: custom: the custom scan, where that is on; index:
# never that; any
my $uses;
# are rows where they were loaded?
our $still;
# the distance that orders its rows, if that is known
our $ordering;

# ---- what statements are made of

# A vector to search for, as a text for the type of the column.
sub literal
{
	my $n = number(20);

	return "point(@{[number(1e6)]}, $table->{dims})" if $table->{dims};
	my $list = join ',', map { sprintf '%.5g', 10 * sin($n * 131 + $_ * 17) + rand } 1 .. 8;
	return "'[$list]'$cast" if $cast;
	return weighted(
		6 => sub { "'{$list}'::real[]" },
		1 => sub { "'{$list}'::float8[]" },
		1 => sub { "ARRAY[$list]::real[]" })->();
}

# A query vector: a literal, or one not known when the statement is planned.
sub query
{
	return literal() if $table->{dims} || chance(0.8);
	return '(SELECT q.e' . $cast . ' FROM asked AS q WHERE q.id = ' . (1 + number(12)) . ')';
}

# A query vector as a column of a row beside.
sub outer
{
	return $table->{dims} ? "point(q.id, $table->{dims})" : "q.e$cast";
}

sub distance
{
	my ($q, $alias) = @_;

	return ($alias // 't') . '.' . "e $op $q" if !$table->{column};
	return $table->{column} =~ s/\be\b/($alias \/\/ 't') . '.e'/er . " $op $q";
}

my @WORDS = qw(c4ca eccb a87f c81e 1679 e4da 8f14);

# Conditions of columns: what an index may be for, and what none is.
sub plain_condition
{
	my $n = number(100);

	return pick(
		"t.a = $n", "t.a < $n", "t.a >= $n", "t.a <> $n",
		"t.a IN ($n, @{[100 - $n]}, 7)", "t.a BETWEEN $n AND $n + 10",
		"t.a = ANY ('{1,2,$n}')", "t.a = -1", "t.a >= 0",
		't.b = 1', 't.b IS NULL', 't.b IS NOT NULL', '(t.b = 1) IS NOT TRUE',
		't.c IS NOT NULL', 't.c = 1', 't.c IS NULL',
		't.flag', 'NOT t.flag', 't.flag AND t.b = 0',
		"t.id % 7 = @{[$n % 7]}", "mod(t.id, 100) = $n", "t.id < $n * 10", "t.id = $n",
		"t.w = '@{[pick(@WORDS)]}'", "t.w LIKE '@{[pick(0 .. 9)]}%'", "t.w IN ('c4ca', 'eccb')",
		"t.w = 'c4ca' AND t.a < $n", "(t.a, t.w) > ($n, '8')",
		"t.g = 2 * $n + 1", "t.g > $n",
		"t.made < '2021-01-01 UTC'", "t.made BETWEEN '2021-01-01 UTC' AND '2021-01-11 UTC'",
		"t.tags \@> '{@{[$n % 10]}}'", "t.tags && '{1,$n}'", "$n % 10 = ANY (t.tags)",
		't.tags IS NULL', 'cardinality(t.tags) > 10',
		"t.doc LIKE '%abc%'", 'length(t.doc) > 100', "substr(t.doc, 2000, 1) < '8'",
		't.e IS NOT NULL', 't::text IS NOT NULL', 't.late = 5', "t.late + t.a > $n");
}

# Those that take care of when they run, and of what.
sub odd_condition
{
	my $n = number(100);
	my $d = defined $ordering && chance(0.5) ? $ordering : distance(literal());

	return pick(
		'random() < 2', 'always(t.a)', 'clock_timestamp() > t.made',
		't.made < now()', 'is_past(t.made)', 'third(t.a)', 'third(t.a) OR t.b = 1',
		"t.a >= $n AND from_on(t.a, $n)", "from_on(t.a, $n) AND t.a >= $n",
		"a_from(t.a, $n) AND from_on(t.a, $n)",
		"$d < 20 AND within($d, 20, t.a)", "t.b = 1 AND (SELECT true FROM small AS s WHERE s.x = 1) AND t.c IS NULL",
		"nearest_is('{8,7,6,5,4,3,2,1}', 12) AND t.a < $n",
		'CASE WHEN t.a = 0 THEN false ELSE 100 / t.a > 2 END', 't.a <> 0 AND 100 / t.a > 2',
		't.a NOT IN (SELECT x FROM small)', 't.a IN (SELECT x FROM small)',
		"t.a > (SELECT max(x) FROM small WHERE x < $n)",
		"(SELECT count(*) FROM small AS s WHERE s.x < t.a) > 4",
		'EXISTS (SELECT FROM small AS s WHERE s.x = t.a)',
		'NOT EXISTS (SELECT FROM small AS s WHERE s.x = t.a)',
		'EXISTS (SELECT FROM small AS s WHERE s.x = t.a) OR t.b = 1',
		'false', 't.a < 10 AND t.a > 20',
		"t.a = ANY (ARRAY(SELECT x FROM small WHERE y < $n))",
		't IS NOT NULL', "t::text LIKE '%7%'", 'odd(t)', "row_to_json(t)->>'w' < '8'",
		"nearest_is('{1,2,3,4,5,6,7,8}', $n % 13)", 'false', 'NULL::bool', 't.a < NULL',
		"$d < @{[pick(0.5, 1, 2, 5, 30)]}", "$d < 30 AND t.a < $n", "$d > @{[pick(0.1, 1, 20)]}", "1 - ($d) > 0.5",
		$table->{type} || $table->{null} ? 'random() >= 0' : ('t.e[1] > 0', "cardinality(t.e) > $n % 8"),
		$table->{view} ? 't.z IS NOT NULL' :
		  ('t.ctid <> \'(0,1)\'', "t.tableoid <> 'small'::regclass", "t.xmin::text <> '3'"),
		$still ? ("t.ctid >= '(5,0)'", "(t.ctid::text::point)[1]::int % 2 = 0") : "t.id > $n");
}

# A bound of a distance: at a number, at that of a row, at what is known only
# when the statement runs, at none.
sub bound
{
	my ($d) = @_;
	my $row = $d =~ s/\bt\.e\b/b.e/r;
	my $r = pick(
		0.5, 1, 2, 5, 30, '0.003', "-@{[number(300)]}", "'Infinity'", "'NaN'", 'NULL', '3::real',
		"(SELECT y FROM small WHERE x = 4)", "(SELECT $row FROM $table->{name} AS b WHERE b.id = @{[5 + 4 * number(90)]} LIMIT 1)");
	my $c = pick('1', '100', '0', '-0.5', '(SELECT y FROM small WHERE x = 9)');

	return pick("$d < $r", "$d <= $r", "$r > $d", "$r >= $d", "$d < $r AND $d > 0.5", "$d < $r AND $d < 20",
		"$c - ($d) > $r", "$c - ($d) >= $r", "$r < $c - ($d)", "- ($d) > $r", "($d) * -1 >= $r",
		"$d > $r", "NOT $d >= $r", "$d < $r OR t.a = 3");
}

# A condition, of several as a rule; other => what it has to hold, too.
sub conditions
{
	my ($other) = @_;
	my @all = map { chance(0.6) ? plain_condition() : odd_condition() } 1 .. pick(1, 1, 1, 2, 2, 3);

	push @all, bound($ordering) if defined $ordering && chance(0.15);
	shift @all if @all > 1 && chance(0.3);
	# these may become joins
	$uses = 'any' if grep { /^(t.a IN \(SELECT|(NOT )?EXISTS)/ } @all;
	# what the index's predicate says is no condition any more
	$uses = 'any' if $table->{predicate} && !grep { !/t\.b/ } @all;
	push @all, 't.b = 1' if $table->{predicate};
	push @all, 'tells(t.a)' if ($table->{role} || $table->{barrier}) && chance(0.5);
	push @all, $other if $other;
	my $some = join ' AND ', map { "($_)" } @all;
	# an OR lets from_on() meet others' rows
	$some = "($some OR t.c = 2)" if $some !~ /from_on|within|tells|100 \// && !$table->{predicate} && chance(0.1);
	return $some;
}

sub where
{
	return 'WHERE ' . conditions(@_) . '{z}';
}

sub limit
{
	my $offset = chance(0.1) ? ' OFFSET ' . pick(1, 3, 20) : '';

	return weighted(
		1 => '', 0.3 => 'LIMIT 0', 2 => 'LIMIT 1', 4 => 'LIMIT 10', 2 => 'LIMIT 100',
		0.5 => 'FETCH FIRST 7 ROWS ONLY', 0.3 => 'LIMIT ALL', 0.5 => 'LIMIT (SELECT y FROM small WHERE x = 9)') . $offset;
}

# The column that distinguishes rows: not the id where vectors are there
# several times.
sub key { return $table->{ties} ? 't.rep' : 't.id'; }

sub columns
{
	my ($q) = @_;
	my $d = distance($q);
	my @all = ($d, $d, "($d) + 1 AS more", "1 - ($d)", 't.e ' . (grep { $_ ne $op } '<->', '<#>')[0] . " $q");

	@all = ($d, $d, "1 - ($d)") if $table->{column};
	push @all, 't.a', 't.w', 't.g', 'length(t.doc)', 't.tags[1]', 't.flag', 't.made', '1', 't.b + t.c',
	  '(SELECT count(*) FROM small AS s WHERE s.x < t.a)', 'substr(t.doc, 1, 5)'
	  if !$table->{ties};
	push @all, 't.tableoid::regclass' if !$table->{view} && $table->{name} !~ /temp/;
	push @all, 't.ctid' if $still;
	return join ', ', key(), map { pick(@all) } 1 .. number(4);
}

# The order; whether the index gives all of it.
sub order
{
	my ($q) = @_;
	my $d = distance($q);

	return "ORDER BY $d" if chance(0.85);
	return "ORDER BY $d ASC NULLS LAST" if chance(0.2);
	return "ORDER BY $d, " . distance(literal()) if chance(0.3);
	return "ORDER BY $d" if $table->{twice};
	return "ORDER BY $d, t.e <=> $q" if chance(0.3) && !$table->{column} && $op ne '<=>';
	return "ORDER BY $d, t.id";
}

sub from { return "FROM $table->{name} AS t"; }

# SELECT of some rows, nearest first.
sub nearest_sql
{
	my ($q, %o) = @_;
	my $columns = $o{columns} // columns($q);
	my $limit = $o{limit} // limit();

	local $ordering = distance($q);
	return "SELECT $columns @{[from()]} @{[where($o{and})]} " . ($o{order} // order($q)) . " $limit";
}

# No order, but a bound: exact where rows are changed, and as a rule.
sub radius
{
	my $d = distance(query());
	local $ordering = $d;
	my $where = 'WHERE ' . bound($d) . ' AND ' . conditions();
	my $to = $table->{name};
	my @changed = ('SET gpuvec.radius_recall = 0.1', 'BEGIN', { sorted => 1, query => pick("DELETE FROM $to AS t $where RETURNING @{[key()]}",
				"UPDATE $to AS t SET doc = 'near' $where RETURNING @{[key()]}",
				"WITH n AS MATERIALIZED (SELECT t.id @{[from()]} $where), g AS
				(DELETE FROM $to AS t USING n WHERE t.id = n.id RETURNING @{[key()]}) SELECT * FROM g") }, 'ROLLBACK');

	$uses = 'any';
	return @changed if !$table->{view} && chance(0.2);
	return { search => 'radius', query => "SELECT @{[key()]}, $d @{[from()]} $where" } if chance(0.4);
	return { sorted => 1, query => pick(
			"SELECT count(*), min($d) @{[from()]} $where", "SELECT @{[key()]} @{[from()]} $where",
			"SELECT q.id FROM asked AS q WHERE EXISTS (SELECT @{[from()]} $where AND t.a % 7 >= q.a)",
			"SELECT q.id, (SELECT count(*) @{[from()]} WHERE @{[distance(outer())]} < q.a) FROM asked AS q") };
}

# The selected columns of the relation depend on a row beside.
sub pulled_up
{
	my $e = $table->{column} // 'e';
	my $d = "$e $op @{[literal()]}" =~ s/\be\b/x.e/r;
	my $key = $table->{ties} ? 'rep' : 'id';
	my $a = $table->{ties} ? 1 : 't.a';
	my $how = pick('LEFT JOIN LATERAL', 'LEFT JOIN LATERAL', 'CROSS JOIN LATERAL');
	my $on = $how =~ /LEFT/ ? pick('ON true', 'ON x.s % 2 = 0') : '';

	$uses = 'any';
	return { sorted => 1, query => "SELECT q.id, x.id, x.s FROM asked AS q $how
		(SELECT t.$key AS id, coalesce($a + q.a, 1) AS s, t.e @{[from()]} @{[where('t.z')]}) AS x $on
		WHERE q.id @{[pick('= 3', '< 4')]} ORDER BY $d, x.id, q.id LIMIT @{[pick(6, 12)]}" };
}

# ---- forms: what to run; { query => sql } shows its plan, too

sub simple
{
	return { query => nearest_sql(query()), analyze => 1 };
}

# Whole rows, which are long.
sub whole_rows
{
	return simple() if $table->{ties};
	return { query => nearest_sql(query(), columns => pick('t', 't.*', '*', 't.id, t, t.a', 'row_to_json(t)'),
			limit => pick('LIMIT 1', 'LIMIT 4')) };
}

# No condition: nothing for the custom scan.
sub without_condition
{
	my $q = query();

	$uses = $table->{role} || $table->{view} ? 'any' : 'index';
	return { query => "SELECT @{[columns($q)]} @{[from()]} " .
		  ($table->{predicate} ? 'WHERE t.b = 1{z} ' : 'WHERE true{z} ') . order($q) . ' ' . limit() };
}

sub prepared
{
	my $q = '$1';
	my $type = $table->{type} // 'real[]';
	my $limit = pick('LIMIT $3', 'LIMIT 10', 'LIMIT $3 OFFSET 2');
	my $name = pick('auto', 'force_generic_plan', 'force_custom_plan');
	my $sql = nearest_sql($q, limit => $limit, and => pick('t.a < $2', 't.a = $2', 't.a % 5 = $2 % 5', 't.id > $2', distance($q) . ' < $2', '1 - (' . distance($q) . ') > 1 - $2 / 10.0::float8'));
	my @calls = map { [ literal(), number(100), pick(1, 10, 50, 'NULL') ] } 1 .. ($name eq 'auto' ? 7 : 3);

	$sql =~ s/\$3/least(\$3, 10)/ if chance(0.2);
	return (
		"SET plan_cache_mode = $name",
		"PREPARE p($type, int, int) AS $sql",
		(map { { query => "EXECUTE p($_->[0], $_->[1], $_->[2])" } } @calls),
		'DEALLOCATE p');
}

sub cursor
{
	my $sql = nearest_sql(query());
	my $kind = pick('', 'NO SCROLL', 'SCROLL', 'SCROLL');
	my $change = pick("DELETE FROM $table->{name} AS t WHERE a < 50", "UPDATE $table->{name} AS t SET flag = NOT flag",
		"UPDATE $table->{name} AS t SET a = a + 1 WHERE a < 90");
	my @moves = map { 'FETCH ' . pick('NEXT', 1, 3, 'FORWARD 5', 'RELATIVE 2') . ' FROM c' } 1 .. 3;

	push @moves, map { pick('FETCH', 'MOVE') . ' ' . pick('PRIOR', 'BACKWARD 2', 'FIRST', 'LAST', 'ABSOLUTE 2', 'RELATIVE -1', 1, 'BACKWARD ALL') . ' FROM c' } 1 .. 5
	  if $kind eq 'SCROLL';
	# what a transaction undoes is not undone in the cursor
	splice @moves, 1, 1, 'SAVEPOINT s', $moves[1], 'ROLLBACK TO s' if chance(0.3);
	splice @moves, 1, 0, $change if $kind ne 'SCROLL' && !$table->{view} && !$table->{role} && chance(0.5);
	return ('BEGIN', { run => "DECLARE c $kind CURSOR FOR $sql", plan => $sql }, @moves, 'FETCH 20 FROM c', 'CLOSE c', 'ROLLBACK')
	  if chance(0.7);
	return ('BEGIN', { run => "DECLARE c CURSOR WITH HOLD FOR $sql", plan => $sql }, 'FETCH 1 FROM c', 'COMMIT', 'FETCH 3 FROM c', 'CLOSE c');
}

# A sort is no scan that can be updated: the reference is the index scan.
sub current_of
{
	my $q = query();
	my $of = pick('', '', 'FOR UPDATE');
	my $to = $table->{name};
	my $sql = nearest_sql($q, columns => 't.id, t.a', order => 'ORDER BY ' . distance($q), limit => $of ? 'LIMIT 30' : '');

	return simple() if $table->{view} || $table->{parts} || $table->{ties} || $sql =~ /IN \(SELECT|EXISTS/;
	return ('BEGIN', { run => "DECLARE c CURSOR FOR $sql $of", plan => "$sql $of", reference => $of ? 'sort' : 'index' },
		'FETCH 2 FROM c', "UPDATE $to SET flag = NOT flag, c = 1000 WHERE CURRENT OF c RETURNING id, a",
		'FETCH 1 FROM c', "DELETE FROM $to WHERE CURRENT OF c RETURNING id",
		'FETCH 3 FROM c', "SELECT id, a, flag FROM $to WHERE c = 1000 ORDER BY id", 'ROLLBACK');
}

# Rows that are found so are changed.
sub change
{
	my $q = query();
	my $to = $table->{name};

	return simple() if $table->{twice} || $table->{ties};
	my $n = nearest_sql($q, columns => 't.id, t.a, ' . distance($q) . ' AS d', order => 'ORDER BY ' . distance($q),
		limit => pick('LIMIT 1', 'LIMIT 5', 'LIMIT 20'));
	my $sql = pick(
		"UPDATE $to AS t SET flag = NOT t.flag, w = 'new' FROM ($n) AS x WHERE t.id = x.id RETURNING t.id, t.flag, x.d",
		"UPDATE $to AS t SET e = t.e WHERE t.id IN (SELECT x.id FROM ($n) AS x) RETURNING t.id, t.w",
		"UPDATE $to AS t SET doc = 'new' WHERE t.id = (SELECT x.id FROM ($n) AS x ORDER BY x.d LIMIT 1) RETURNING t.id, t.doc",
		"DELETE FROM $to AS t USING ($n) AS x WHERE t.id = x.id RETURNING t.id, x.d",
		"DELETE FROM $to AS t WHERE t.id IN (SELECT x.id FROM ($n) AS x) AND t.a > 3 RETURNING t.id",
		"INSERT INTO taken SELECT * FROM ($n) AS x RETURNING *",
		"INSERT INTO $to (id, z, a, e) SELECT x.id + 100000, true, x.a, t.e FROM ($n) AS x JOIN $to AS t USING (id) RETURNING id, z",
		$table->{view} || $table->{role} ? "INSERT INTO taken SELECT x.id FROM ($n) AS x RETURNING *" :
		"MERGE INTO $to AS t USING ($n) AS x ON t.id = x.id WHEN MATCHED AND t.a < 50 THEN DELETE WHEN MATCHED THEN UPDATE SET w = 'merged'");
	my @after = $sql =~ /^MERGE/ ? "SELECT count(*) FROM $to WHERE w = 'merged'" : ();

	return ('BEGIN', { sorted => 1, query => $sql }, @after, 'ROLLBACK');
}

# The session sees its own changes.
sub own_changes
{
	my $q = query();
	local $still = 0;
	my $sql = nearest_sql($q, columns => 't.id, t.a, ' . distance($q));
	my $to = $table->{name};
	my $dims = $table->{dims} // 8;

	return simple() if $table->{view} || $table->{ties};
	return ('BEGIN', "DELETE FROM $to AS t WHERE t.id % 3 = @{[number(3)]} AND t.a < 60", 'SAVEPOINT s',
		"UPDATE $to AS t SET c = 1, flag = true WHERE t.id % 4 = 0",
		pick('ROLLBACK TO s', 'RELEASE s'),
		"INSERT INTO $to (id, rep, z, a, b, c, flag, w, doc, tags, made, e)
			SELECT id + 10000, id + 10000, true, a, 1, 1, true, w, doc, tags, made, point(id + 10000, $dims)$cast
			FROM $to WHERE id % 50 = 1",
		"UPDATE $to AS t SET a = 5 WHERE t.id > 10000",
		{ query => $sql }, 'ROLLBACK');
}

# A condition fails in the midst of a scan; what is asked then is answered.
sub failing
{
	my $d = distance(literal());
	my $order = "@{[where()]} ORDER BY $d LIMIT 5";

	return { run => "DO \$do\$
DECLARE
	r record;
	told text = '';
BEGIN
	FOR i IN 1 .. 3 LOOP
		BEGIN
			FOR r IN SELECT @{[key()]} AS id @{[from()]} WHERE from_on(t.a, 60 - 30 * i) ORDER BY $d LOOP
				EXIT WHEN r.id % 9 = 0;
			END LOOP;
		EXCEPTION WHEN raise_exception THEN
			told = told || 'failed ';
		END;
		FOR r IN SELECT @{[key()]} AS id @{[from()]} $order LOOP
			told = told || r.id || ' ';
		END LOOP;
	END LOOP;
	RAISE INFO '%', replace(told, 'failed ', '');
END \$do\$" };
}

# Answers without an order are compared whole.
sub relaxed
{
	my $q = query();

	return (pick('SET gpuvec.candidates = 40', 'SET gpuvec.probes = 0'),
		{ sorted => 1, search => 'relaxed', query => nearest_sql($q,
				columns => key() . ', ' . distance($q), order => 'ORDER BY ' . distance($q), limit => '') });
}

# Answers that are not exact are some of the exact ones: the reference has no
# limit.
sub approximate
{
	my $q = query();

	return { search => 'approximate', query => nearest_sql($q, columns => 't.id, ' . distance($q),
			order => 'ORDER BY ' . distance($q), limit => pick('{LIMIT 1}', '{LIMIT 10}', '{LIMIT 10}', '{LIMIT 100}', '')) };
}

# The statement, all of which is random but for its number: a list of texts
# and hashes, see above, and settings for all ways to run it.
sub statement
{
	my ($seed, $n, $version, $pgvector) = @_;
	my @tables = tables($pgvector);

	srand $seed * 1_000_003 + $n;
	$table = pick(@tables, $tables[0]);
	$op = $table->{op};
	$still = $table->{still};
	$uses = $table->{barrier} ? 'any' : 'custom';
	$cast = $CAST{ $table->{type} // '' } // '';
	my @commands = weighted(
		30 => \&simple, 3 => \&whole_rows, 3 => \&without_condition, 8 => \&prepared, 6 => \&cursor,
		5 => \&current_of, 8 => \&change, 4 => \&own_changes, 2 => \&failing, 4 => \&radius, 4 => \&pulled_up,
		4 => \&relaxed, 8 => \&approximate)->();
	my $parallel = $version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
	my @settings;

	push @settings, "SET $parallel = @{[pick('on', 'regress')]}" if chance(0.1);
	push @settings, "SET default_transaction_isolation = @{[pick('serializable', q('repeatable read'))]}" if chance(0.1);
	push @settings, 'SET gpuvec.engine = gpu' if chance(0.25);
	push @settings, 'SET work_mem = 64' if chance(0.1);
	push @settings, "SET ROLE $table->{role}" if $table->{role};
	@commands = map { ref $_ ? $_ : { run => $_ } } @commands;
	return { settings => \@settings, commands => \@commands, uses => $uses, inexact => $table->{type} };
}

1;
