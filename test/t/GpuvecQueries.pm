# Random statements in which the distance's order meets joins, groups, windows,
# sets, common table expressions, partitions and cursors.  A statement's number
# gives the statement, whatever came before.
#
# In a text {z ALIAS} stands where the index on vectors may answer for that
# relation, which is where it orders by the distance and wants few rows: there the
# reference leaves out rows that have no place in the index.  Everywhere else the
# answer has to have all rows.

package GpuvecQueries;

use strict;
use warnings;
use Exporter 'import';
use GpuvecRandom;
use GpuvecTwins;

our @EXPORT = qw(query_of);

my %CAST = (vector => '::vector', halfvec => '::halfvec');
# of the statement that is being made: relations by alias; which of them have a
# mark; how many aliases; what is set that lets the index be used without LIMIT;
# forms that it consists of
my (%relations, $aliases, $forced, %forms);
# may all distances be equal?
my $flat;
our @twins;

# ---- what statements are made of

# A relation of ours under a new alias: its columns and how FROM names it.
sub relation
{
	my (%o) = @_;
	my $twin = $o{twin} // pick(grep { !$_->{role} || $o{role} } @twins);
	my $alias = 't' . ++$aliases;
	my %r = (twin => $twin, alias => $alias, from => "$twin->{name} AS $alias", part => "$alias.tableoid",
		op => $twin->{op}, leaves => $twin->{view} // [ $twin->{name} ], ties => $twin->{ties}, cast => $CAST{ $twin->{type} // '' } // '',
		type => $twin->{type} // 'real[]');

	$r{part} = "$alias.part" if $twin->{view};
	if (!$twin->{view} && !$twin->{type} && !$twin->{column} && !$twin->{role} && chance(0.06))
	{
		# UNION ALL in FROM
		my $other = pick(grep { !$_->{view} && !$_->{type} && !$_->{column} && !$_->{role} && $_->{op} eq $twin->{op} } @twins);
		my @arms = map { "SELECT id, tenant, cat, z, pad, v, tableoid AS part FROM $_->{name}" } $twin, $other;

		$forms{'union all in from'} = 1;
		$r{from} = "($arms[0] UNION ALL $arms[1]) AS $alias";
		$r{part} = "$alias.part";
		$r{leaves} = [ $twin->{name}, $other->{name} ];
		$r{ties} = $r{union} = 1;
	}
	$r{union} = 1 if $twin->{view};
	return $relations{$alias} = \%r;
}

# A vector to search for, of the relation's type.
sub literal
{
	my ($r) = @_;
	my $n = number(20);
	my $list = join ',', map { sprintf '%.5g', 10 * sin($n * 131 + $_ * 17) + rand } 1 .. $DIMS;

	if (chance(0.02))
	{
		$flat = 1;
		$list = join ',', (0) x $DIMS;
	}
	return $r->{cast} ? "'[$list]'$r->{cast}" : "'{$list}'::real[]";
}

# A query vector, also one that is not known when the statement is planned.
sub question
{
	my ($r, $outer) = @_;
	my $n = 1 + number(5);

	return "$outer.v$r->{cast}" if defined $outer;
	if (chance(0.03))
	{
		$flat = 1;
		return "(SELECT q.v FROM asked_null AS q WHERE q.id = $n)$r->{cast}";
	}
	return weighted(
		7 => literal($r), 3 => "(SELECT q.v FROM asked AS q WHERE q.id = $n)$r->{cast}",
		0.7 => "own($n)$r->{cast}") =~ s/\bown\(/pg_temp.own(/r;
}

sub distance
{
	my ($r, $q, $op) = @_;
	my $column = ($r->{twin}->{column} // 'v') =~ s/\bv\b/$r->{alias}.v/r;

	return "$column " . ($op // $r->{op}) . " $q";
}

# A condition on a relation, true of no row of NULLs alone.
sub condition
{
	my ($r, $outer, $d) = @_;
	my $t = $r->{alias};
	my $n = number(5);
	my $tenant = pick(7, 7, 7, number(25));
	my @all = ("$t.tenant = $tenant", "$t.tenant = $tenant", "$t.tenant = $tenant AND $t.cat = $n",
		"$t.tenant IN ($tenant, 3, 12)", "$t.cat = 1", "$t.cat = $n", "$t.cat < $n", "$t.cat > $n", "$t.id % 3 = @{[number(3)]}",
		"$t.tenant = $tenant AND $t.id BETWEEN 10 AND @{[1000 + number(1000)]}", "$t.id < @{[20 + number(1500)]}",
		"$t.tenant < $tenant", "length($t.pad) > @{[number(500)]}", "$t.tenant = (SELECT tenant FROM tenants WHERE name = 'tenant $tenant')",
		"$t.id = ANY (ARRAY(SELECT id FROM few))", "$t.cat = 1 AND $t.tenant = $tenant");

	push @all, ("$t.tenant = $outer.a", "$t.id % 7 = $outer.a", "$t.cat < $outer.a") if defined $outer;
	push @all, ("$d < @{[pick(1, 5, 20)]}", "$d < @{[pick(0.01, 0.2)]}", "$d < (SELECT x FROM few WHERE x = 5)", "$d > @{[pick(0.1, 3)]}") if defined $d;
	return pick(@all);
}

sub conditions
{
	my ($r, $outer, $d) = @_;

	return map { condition($r, $outer, $d) } 1 .. pick(0, 1, 1, 1, 2);
}

sub limit
{
	my ($wanted) = @_;

	return weighted(30 => '', 1 => 'LIMIT ALL', 1 => 'LIMIT NULL', 1 => 'OFFSET 3') if !$wanted;
	return weighted(
		1 => 'LIMIT 1', 5 => 'LIMIT ' . (1 + number(30)), 3 => 'LIMIT ' . pick(50, 100, 150), 1 => 'LIMIT 3000',
		1 => "LIMIT 10 OFFSET @{[1 + number(40)]}", 1 => 'LIMIT (SELECT count(*) / 6 FROM few)',
		0.7 => "FETCH FIRST @{[1 + number(20)]} ROWS WITH TIES");
}

# FROM and what goes with it: a relation of ours, maybe joined.  Returns from,
# where => conditions, columns of the others, nullable => whether rows of ours may
# be NULL there.
sub joined
{
	my ($r, $outer, $d) = @_;
	my $t = $r->{alias};
	my @where = conditions($r, $outer, $d);
	my $strict = @where > 0;
	my %j = (from => $r->{from}, where => \@where, columns => [], nullable => 0);
	my $kind = weighted(
		8 => 'none', 3 => 'inner', 2 => 'comma', 2 => 'left', 4 => 'nullable', 1 => 'full', 3 => 'semi', 2 => 'anti', 1 => 'self', 1 => 'three');
	my $o = 'o' . ++$aliases;
	my $other = weighted(4 => 'partner', 3 => 'few', 2 => 'big');
	my $on = "$o.id = $t.id";

	$forms{"join $kind"} = 1 if $kind ne 'none';
	if ($kind eq 'inner') { $j{from} = pick("$r->{from} JOIN $other AS $o ON $on", "$other AS $o JOIN $r->{from} ON $on"); }
	elsif ($kind eq 'comma') { $j{from} = "$r->{from}, $other AS $o"; push @where, $on; }
	elsif ($kind eq 'left')
	{
		$on .= " AND $t.cat = $o.x % 5" if chance(0.3);
		$j{from} = pick("$r->{from} LEFT JOIN $other AS $o ON $on", "$other AS $o RIGHT JOIN $r->{from} ON $on");
	}
	elsif ($kind eq 'nullable' || $kind eq 'full')
	{
		my @on = $kind eq 'full' ? () : @where;

		# conditions of ours in ON, as a rule
		@where = () if $kind eq 'nullable' && chance(0.8);
		$strict = @where > 0;
		$on = join ' AND ', $on, @on;
		$j{nullable} = !$strict;
		$j{from} = $kind eq 'full' ? pick("$other AS $o FULL JOIN $r->{from} ON $on", "$r->{from} FULL JOIN $other AS $o ON $on") :
		  pick("$other AS $o LEFT JOIN $r->{from} ON $on", "$r->{from} RIGHT JOIN $other AS $o ON $on");
		if (!$strict && $kind eq 'nullable' && chance(0.25))
		{
			$forms{'anti of ours'} = 1;
			push @where, "$t.id IS NULL";
		}
	}
	elsif ($kind eq 'semi')
	{
		push @where, pick("EXISTS (SELECT FROM $other AS $o WHERE $on)", "$t.id IN (SELECT id FROM $other WHERE x % 2 = 0)",
			"$t.tenant IN (SELECT tenant FROM tenants WHERE name LIKE '%7')");
	}
	elsif ($kind eq 'anti')
	{
		push @where, pick("NOT EXISTS (SELECT FROM $other AS $o WHERE $on)", "$t.id NOT IN (SELECT id FROM $other WHERE id IS NOT NULL)");
	}
	elsif ($kind eq 'self')
	{
		my $s = relation(twin => $r->{twin});
		my $cond = join ' AND ', "$s->{alias}.id = $t.id", condition($s);

		$j{from} = "$r->{from} " . pick('JOIN', 'LEFT JOIN') . " $s->{from} ON $cond";
		$o = $s->{alias};
	}
	elsif ($kind eq 'three')
	{
		$j{from} = "$r->{from} JOIN $other AS $o ON $on " . pick('JOIN', 'LEFT JOIN') . " tenants AS n$o ON n$o.tenant = $t.tenant";
	}
	$j{columns} = ["$o.id"] if $kind !~ /none|semi|anti/;
	return \%j;
}

sub where_text
{
	my ($j, $mark) = @_;
	my @where = @{ $j->{where} };

	return @where || $mark ? 'WHERE ' . join(' AND ', @where ? (map { "($_)" } @where) : 'true') . ($mark // '') : '';
}

# A query level that orders rows of a relation by distance.  outer: an alias to
# ask for the vector of; limited: whether what is above wants few rows of it;
# limit: whether it has a limit of its own (undef: by chance); total: whether the
# choice among equal distances matters; plain: no windows and the like.  Returns
# sql, mode (how its rows are compared), cut (whether equal ones at the end may be
# others), names of columns.
sub level
{
	my (%o) = @_;
	my $r = relation(role => $o{role});
	my $t = $r->{alias};
	my $d = distance($r, $o{q} // question($r, $o{outer}));
	my $j = joined($r, $o{outer}, $d);
	my $limited = $o{limit} // chance(0.6);
	my ($order, @after);
	my $form = $o{plain} ? 'plain' : weighted(10 => 'plain', 3 => 'window', 2 => 'distinct', 0.7 => 'srf');
	my $limit = limit($limited);
	my $mode = 'ordered';

	$limit =~ s/FETCH FIRST (\d+) ROWS WITH TIES/LIMIT $1/ if $o{no_ties};
	# where the choice matters equal distances are ordered, or there are none
	my $total = $o{total} || $form eq 'window';
	push @after, "$t.id" if chance($total ? 0.5 : 0.2) && !$r->{union};
	my $solid = $total && !@after;
	if ($solid)
	{
		# rows without a vector have equal ones
		push @{ $j->{where} }, "$t.z";
		$j->{nullable} = 0;
	}
	push @after, "$t.id", $r->{part}, @{ $j->{columns} } if $solid && ($flat || $r->{ties} || @{ $j->{columns} } || $r->{union});
	push @after, @{ $j->{columns} } if $total && @after && !$solid;
	if (@after && !$solid && chance(0.1)) { @after = distance($r, literal($r)); push @after, "$t.id", @{ $j->{columns} } if $total; }
	my $asc = weighted(20 => '', 1 => ' DESC', 1 => ' NULLS FIRST', 0.5 => ' ASC NULLS LAST');
	$order = 'ORDER BY ' . join ', ', "$d$asc", @after;
	$asc = '' if $asc eq ' ASC NULLS LAST';

	my @columns = ("$d AS d", "$t.id AS id", map { "$_ AS " . s/\.id//r } @{ $j->{columns} });
	my $select = 'SELECT';
	# what is above a sub-select may leave no rows in which ours are NULL
	my $serves = $asc eq '' && (!$j->{nullable} || $total);
	if ($form eq 'window')
	{
		my $w = "ORDER BY " . join ', ', $d, @after;
		my ($serving, $call) = @{ pick(
			[ 1, "row_number() OVER ($w)" ], [ 1, "row_number() OVER ($w)" ], [ 1, "rank() OVER ($w)" ], [ 1, "count(*) OVER ($w)" ],
			[ 1, "lag($t.id) OVER ($w)" ], [ 1, "sum($t.id) OVER ($w ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)" ],
			[ 0, "count(*) OVER ()" ], [ 0, "count(*) OVER ()" ], [ 0, "row_number() OVER (PARTITION BY $t.tenant $w)" ], [ 0, "ntile(4) OVER ($w)" ],
			[ 0, "percent_rank() OVER ($w)" ], [ 0, "cume_dist() OVER ($w)" ], [ 0, "count($t.cat) OVER (PARTITION BY $t.cat)" ],
			[ 0, "max($t.id) OVER ($w ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)" ],
			[ 0, "count(*) OVER ($w ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)" ], [ 0, "lead($t.id, 2) OVER ($w)" ],
			[ 0, "row_number() OVER (ORDER BY $t.id, " . join(', ', $d, @after) . ')' ]) };

		$forms{ 'window ' . ($call =~ /^(\w+)/)[0] } = 1;
		# lead() looks ahead: either way is right
		$serves &&= $serving || $call =~ /lead|2 PRECEDING/;
		push @columns, "$call AS w";
	}
	elsif ($form eq 'distinct')
	{
		my ($serving, $how) = @{ pick([ 1, "DISTINCT ON ($d)" ], [ 1, 'DISTINCT' ], [ 0, "DISTINCT ON (($t.tenant + 0))" ]) };

		$forms{distinct} = 1;
		$select .= " $how";
		$serves &&= $serving;
		if ($how eq 'DISTINCT')
		{
			@columns = ("$d AS d", "$t.id AS id");
			$order = "ORDER BY $d$asc" . ($total ? ", $t.id" : '');
		}
		elsif ($serving)
		{
			# which of equal distances is shown is open
			$order = "ORDER BY $d$asc, $t.id" . join '', map { ", $_" } @{ $j->{columns} };
		}
		else
		{
			# of a tenant that a condition names it would be LIMIT 1
			$order = "ORDER BY $t.tenant + 0, $d$asc, $t.id" . join '', map { ", $_" } @{ $j->{columns} };
			$mode = 'exact';
		}
	}
	elsif ($form eq 'srf')
	{
		$forms{srf} = 1;
		push @columns, 'generate_series(1, 2) AS n';
		$order .= ', 2' if $total;
		$serves = 0;
	}
	my $few = $limited || $o{limited};
	my $mark = $serves && ($few || $forced) ? "{z $t}" : '';

	return { sql => join(' ', $select, join(', ', @columns), "FROM $j->{from}", where_text($j, $mark), $order, $limit),
		mode => $mode, cut => $limit =~ /LIMIT/ || !!$o{limited} && !$limited, marked => $mark ne '',
		lockable => $form eq 'plain' && $j->{from} eq "$r->{from}" && !$r->{union} };
}

# ---- forms of whole statements: hashes with sql, mode, cut

sub simple
{
	my (%o) = @_;
	return level(%o);
}

# No order: groups and aggregates of distances, and counts.
sub aggregate
{
	my (%o) = @_;
	my $r = relation(role => $o{role});
	my $t = $r->{alias};
	my $d = distance($r, question($r, $o{outer}));
	my $j = joined($r, $o{outer}, $d);
	my ($select, $tail) = @{ pick(
		[ "min($d)", '' ], [ "min($d), max($d)", '' ], [ 'count(*), count(' . $t . ".v), min($d)", '' ],
		[ "$t.tenant, count(*), min($d)", "GROUP BY $t.tenant" ], [ "$t.cat, count(*)", "GROUP BY $t.cat HAVING count(*) > 3" ],
		[ "$d, count(*)", "GROUP BY $d" . pick('', " ORDER BY $d", " ORDER BY $d") ],
		[ "$t.tenant, $t.cat, min($d)", "GROUP BY GROUPING SETS (($t.tenant), ($t.cat), ())" ],
		[ "$t.id, $d", "GROUP BY $t.id, $d ORDER BY $d" ],
		[ "array_agg($t.id ORDER BY $d, $t.id" . join('', map { ", $_" } @{ $j->{columns} }, $r->{part}) . ')', '' ],
		[ "count(DISTINCT $t.id)", '' ], [ "$t.id", '' ], [ "$d, $t.id", '' ]) };

	$forms{aggregate} = 1;
	return { sql => "SELECT $select FROM $j->{from} " . where_text($j) . " $tail", mode => 'bag' };
}

# A level with its columns d, id for what is above.
sub inner
{
	my (%o) = @_;

	return level(%o, total => 1, no_ties => chance(0.5));
}

sub above
{
	my (%o) = @_;
	my $l = inner(limit => $o{limit}, outer => $o{outer}, limited => 0, role => $o{role});

	my $join = "SELECT s.*, o.x FROM ($l->{sql}) AS s @{[pick('JOIN', 'LEFT JOIN', 'RIGHT JOIN', 'FULL JOIN')]} partner AS o ON o.id = s.id";

	$forms{'join above'} = 1;
	# a window that nobody reads is none
	return { mode => 'bag', sql => $join } if $l->{sql} =~ / AS w\b/;
	return { mode => 'bag', sql => pick(
		$join,
		"SELECT o.id FROM partner AS o WHERE NOT EXISTS (SELECT FROM ($l->{sql}) AS s WHERE s.id = o.id)",
		"SELECT count(*), min(s.d), max(s.id) FROM ($l->{sql}) AS s",
		"SELECT s.id % 5, count(*) FROM ($l->{sql}) AS s GROUP BY 1",
		"SELECT o.id FROM partner AS o WHERE o.id IN (SELECT s.id FROM ($l->{sql}) AS s)",
		"SELECT o.id FROM partner AS o WHERE o.id NOT IN (SELECT s.id FROM ($l->{sql}) AS s WHERE s.id IS NOT NULL)",
		"SELECT s.d, s.id, row_number() OVER (ORDER BY s.d DESC, s.id) FROM ($l->{sql}) AS s") };
}

# A limit above a sub-select that has none.
sub outer_limit
{
	my (%o) = @_;
	my $l = inner(limit => chance(0.2), limited => 1);

	$forms{'outer limit'} = 1;
	return { mode => 'ordered', cut => 1, sql => "SELECT s.* FROM ($l->{sql}) AS s" . pick('', ' WHERE s.id % 2 = 0') . ' ORDER BY s.d LIMIT ' . (1 + number(40)) }
	  if chance(0.3);
	return { mode => 'bag', sql => "SELECT s.* FROM ($l->{sql}) AS s" . pick('', ' WHERE s.id % 2 = 0') . ' LIMIT ' . (1 + number(40)) };
}

sub lateral
{
	my (%o) = @_;
	my $asked = pick('asked', 'asked', 'asked', 'asked_null');

	$flat = 1 if $asked eq 'asked_null';
	my $l = inner(outer => 'q', limit => $o{limit} // chance(0.75));
	my $join = pick(', LATERAL', ' CROSS JOIN LATERAL', ' LEFT JOIN LATERAL');

	$forms{lateral} = 1;
	return { mode => 'bag', sql => "SELECT q.id AS q, s.* FROM $asked AS q$join ($l->{sql}) AS s" . ($join =~ /LEFT/ ? ' ON true' : '') };
}

# Sub-selects that ask for what a row beside has.
sub correlated
{
	my $l = inner(outer => 'q', limit => chance(0.6), plain => chance(0.5));
	my $a = aggregate(outer => 'q');

	$forms{correlated} = 1;
	return { mode => 'bag', sql => pick(
		"SELECT q.id, ARRAY(SELECT s.id FROM ($l->{sql}) AS s) FROM asked AS q",
		"SELECT q.id, (SELECT min(s.d) FROM ($l->{sql}) AS s), (SELECT count(*) FROM ($a->{sql}) AS a) FROM asked AS q",
		"SELECT q.id, (SELECT max(s.id) FROM ($l->{sql}) AS s) FROM asked AS q",
		"SELECT q.id FROM asked AS q WHERE EXISTS (SELECT FROM ($l->{sql}) AS s WHERE s.id % 7 = q.a)",
		"SELECT q.id, x.x FROM asked AS q JOIN few AS x ON x.x % 7 = q.a WHERE x.id NOT IN (SELECT s.id FROM ($l->{sql}) AS s WHERE s.id IS NOT NULL)",
		"SELECT q.id, (SELECT count(*) FROM ($a->{sql}) AS a) FROM asked AS q") };
}

sub set_operation
{
	my $how = pick('UNION ALL', 'UNION ALL', 'UNION', 'INTERSECT', 'EXCEPT', 'INTERSECT ALL');
	my @levels = map { inner(plain => 1, limit => chance(0.6)) } 1 .. 2;
	my @arms = map { "SELECT s.id, s.d FROM ($_->{sql}) AS s" } @levels;

	$forms{"set $how"} = 1;
	return { mode => 'bag', sql => "($arms[0]) $how ($arms[1])" } if chance(0.6);
	# one order for all
	my @plain = map {
		my $r = relation();
		my $d = distance($r, question($r));
		my $j = { where => [ conditions($r) ] };
		my $mark = $how eq 'UNION ALL' ? "{z $r->{alias}}" : '';

		"SELECT $d AS d, $r->{alias}.id FROM $r->{from} " . where_text($j, $mark)
	} 1 .. 2;
	$forms{'set in one order'} = 1;
	return { mode => 'ordered', cut => 1, sql => "$plain[0] $how $plain[1] ORDER BY 1 LIMIT " . (1 + number(60)) };
}

sub cte
{
	my $how = pick('', 'MATERIALIZED', 'NOT MATERIALIZED');
	my $l = inner(limit => chance(0.6), plain => chance(0.6));

	$forms{cte} = 1;
	return { mode => 'bag', sql => "WITH x AS $how ($l->{sql}) " . pick(
		'SELECT * FROM x', 'SELECT x.id, y.d FROM x JOIN x AS y USING (id)', 'SELECT count(*), min(d) FROM x',
		'SELECT o.id, x.d FROM partner AS o LEFT JOIN x USING (id)', 'SELECT id FROM x WHERE d < (SELECT avg(y.d) + 1e-6 FROM x AS y WHERE false) OR id % 2 = 0',
		'SELECT o.id FROM few AS o WHERE o.id NOT IN (SELECT id FROM x WHERE id IS NOT NULL)') };
}

# A bound of a distance by its name.
sub by_name
{
	my $r = relation();
	my $t = $r->{alias};
	my $d = distance($r, question($r));
	my @where = conditions($r);
	my $limited = chance(0.7);
	my $mark = $limited || $forced ? "{z $t}" : '';
	my $bound = pick(0.05, 1, 4, 20, '(SELECT x FROM few WHERE x = 4)', '(SELECT avg(x) / 10 FROM few)');

	$forms{'bound by name'} = 1;
	return { mode => 'ordered', cut => $limited, sql => "SELECT s.d, s.id FROM (SELECT $d AS d, $t.id FROM $r->{from} " .
		  where_text({ where => \@where }, $mark) . ") AS s WHERE s.d " . pick('<', '<=') . " $bound ORDER BY s.d" . ($limited ? ' LIMIT ' . (1 + number(60)) : '') };
}

# Below a Gather: rows of ours that something beside the workers asks for.
sub beside_workers
{
	my @parted = grep { $_->{parts} || ($_->{view} // '') ne '' } @twins;
	my $r = relation(twin => chance(0.7) ? pick(@parted) : undef);
	my $t = $r->{alias};
	my $d = distance($r, pick("q.v$r->{cast}", "q.v$r->{cast}", question($r)));
	my $with = weighted(3 => ' JOIN big AS o USING (id)', 2 => ' JOIN partner AS o USING (id)', 2 => ' LEFT JOIN big AS o USING (id)', 2 => '');
	my $id = $with ? 'id' : "$t.id";
	my $limit = chance(0.6) ? 'LIMIT ' . pick(10, 20, 50) : '';
	my $mark = $limit || $forced ? "{z $t}" : '';

	$forms{'beside workers'} = 1;
	return { mode => 'bag', sql => "SELECT q.id, s.* FROM asked AS q, LATERAL (SELECT $d AS d, $id AS id" . ($with ? ', o.x' : '') . " FROM $r->{from}$with WHERE $t.z AND " .
		  pick("$t.tenant = 7", "$t.tenant = 7 AND $t.id % 3 = 1", "$t.tenant < 9") . "$mark ORDER BY " . join(', ', $d, $id, $r->{part}, $with ? 'o.x' : ()) . " $limit) AS s" };
}

# A function of SQL, which becomes a part of the statement.
sub function
{
	my $l = inner(limit => chance(0.7));
	my $n = ++$aliases;

	$forms{function} = 1;
	# a window that nobody reads is none
	my $read = $l->{sql} =~ / AS w\b/ ? ' WHERE s.w IS NOT DISTINCT FROM s.w' : '';

	return ("CREATE OR REPLACE FUNCTION pg_temp.f$n() RETURNS TABLE (d float8, id int) LANGUAGE sql STABLE AS \$f\$ SELECT s.d, s.id FROM ($l->{sql}) AS s$read \$f\$",
		{ mode => 'bag', sql => pick("SELECT * FROM pg_temp.f$n()", "SELECT count(*), min(d) FROM pg_temp.f$n()",
			"SELECT o.id, f.d FROM partner AS o LEFT JOIN pg_temp.f$n() AS f USING (id)") }, "DROP FUNCTION pg_temp.f$n()");
}

# Ours where nobody orders by its distance.
sub unordered
{
	my $r = relation();
	my $t = $r->{alias};
	my @where = map { condition($r) } 1 .. pick(1, 1, 2);
	my $where = join ' AND ', @where;
	# a sub-select's own affair, if that is wanted
	my $mark = $forced ? "{z $t}" : '';

	$forms{unordered} = 1;
	return { mode => 'bag', sql => pick(
		"SELECT o.id FROM partner AS o WHERE o.id IN (SELECT $t.id FROM $r->{from} WHERE $where)",
		"SELECT o.id FROM partner AS o WHERE o.id NOT IN (SELECT $t.id FROM $r->{from} WHERE $where$mark ORDER BY @{[distance($r, literal($r))]})",
		"SELECT o.id FROM partner AS o WHERE NOT EXISTS (SELECT FROM $r->{from} WHERE $where AND $t.id = o.id)",
		"SELECT o.id, $t.id FROM partner AS o LEFT JOIN $r->{from} ON $t.id = o.id AND $where ORDER BY o.id LIMIT 150",
		"SELECT $t.id, $t.cat FROM $r->{from} WHERE $where",
		"SELECT count(*) FROM $r->{from} WHERE $where") };
}

sub query_form
{
	my (%o) = @_;

	return weighted(
		30 => \&simple, 8 => \&aggregate, 8 => \&above, 4 => \&outer_limit, 10 => \&lateral, 10 => \&correlated,
		6 => \&set_operation, 6 => \&cte, 5 => \&unordered, 4 => \&by_name, 8 => \&beside_workers)->(%o);
}

# ---- what is done with them

# As it stands.
sub selected
{
	my $f = query_form();

	if (($f->{lockable} // 0) && chance(0.15) && $f->{sql} !~ /WITH TIES/)
	{
		$forms{locked} = 1;
		return ('BEGIN', { %$f, sql => "$f->{sql} " . pick('FOR UPDATE', 'FOR SHARE', 'FOR UPDATE SKIP LOCKED', 'FOR NO KEY UPDATE') }, 'ROLLBACK');
	}
	return $f;
}

# With parameters.
sub prepared
{
	my $how = pick('force_generic_plan', 'force_generic_plan', 'force_custom_plan', 'auto');
	my $r = relation();
	my $t = $r->{alias};
	my $d = distance($r, '$1');
	my $form = pick('limit', 'limit', 'none', 'join', 'literal');
	my $z = $form eq 'none' && !$forced ? '' : " AND $t.z";
	my $limit = $form eq 'none' ? '' : $form eq 'limit' ? 'LIMIT $3' : 'LIMIT 20';
	my $from = $form eq 'join' ? "$r->{from} JOIN partner AS o ON o.id = $t.id" : $r->{from};
	my $where = pick("$t.tenant = \$2", "$t.tenant = \$2", "$t.tenant < \$2", "$t.id % 25 >= \$2", "$t.cat = \$2 % 5");
	my @after = $r->{union} ? () : pick([], [], ["$t.id"])->@*;
	my $sql = "SELECT $d AS d, $t.id FROM $from WHERE $where$z ORDER BY " . join(', ', $d, @after) . " $limit";
	my @calls = map { [ question($r), pick(7, number(25)), pick(1, 10, 50, 1000) ] } 1 .. ($how eq 'auto' ? 7 : 3);

	$forms{"prepared $how"} = 1;
	return ("SET plan_cache_mode = $how", "PREPARE p($r->{type}, int, bigint) AS $sql",
		(map { { mode => 'ordered', cut => 1, approximate => $form ne 'none' || $forced, sql => 'EXECUTE p(' . (join ', ', map { s/^\(SELECT.*\)/"(" . literal($r) . ")"/er } @$_) . ')' } } @calls),
		'DEALLOCATE p');
}

sub cursor
{
	my $fraction = pick(0.1, 0.1, 0.01, 1);
	my $f = level(limited => $fraction < 1, limit => chance(0.2), total => 1, no_ties => 1);
	my $kind = pick('', '', 'SCROLL', 'WITH HOLD');
	my @moves = map { { move => 1, sql => $_, mode => 'exact' } } $kind eq 'SCROLL' ?
	  ('FETCH 3 FROM c', map { pick('FETCH', 'MOVE') . ' ' . pick('PRIOR', 'BACKWARD 2', 'FIRST', 'LAST', 'ABSOLUTE 2', 'RELATIVE -1', 1, 5, 'ALL') . ' FROM c' } 1 .. 5) :
	  ('FETCH ' . pick(1, 5) . ' FROM c', 'MOVE ' . pick(1, 7) . ' FROM c', 'FETCH ' . pick(20, 'ALL') . ' FROM c');
	my $scroll = $kind eq 'SCROLL' ? ' SCROLL' : '';
	my $hold = $kind eq 'WITH HOLD' ? ' WITH HOLD' : '';

	$forms{cursor} = 1;
	return ("SET cursor_tuple_fraction = $fraction", 'BEGIN', { run => "DECLARE c$scroll CURSOR$hold FOR $f->{sql}", plan => "DECLARE c$scroll CURSOR$hold FOR $f->{sql}" },
		@moves, 'CLOSE c', 'COMMIT');
}

# In functions: a loop asks for all rows, a cursor of plpgsql for few.
sub plpgsql
{
	my $f = level(limited => 0, limit => chance(0.3), total => 1, plain => chance(0.7));
	my $kind = pick('loop', 'loop', 'query', 'cursor');

	$forms{"plpgsql $kind"} = 1;
	# its plan is not shown: may it be approximate?
	my $marked = $f->{marked};
	my $sql = $f->{sql} =~ s/\{z (\w+)\}/ AND $1.z/gr;
	return { mode => 'exact', approximate => $marked, run => "DO \$do\$
DECLARE
	r record;
	told text = '';
BEGIN
	FOR r IN $sql LOOP
		told = told || r.id || ' ';
	END LOOP;
	RAISE INFO '%', told;
END \$do\$" } if $kind eq 'loop';
	if ($kind eq 'cursor')
	{
		my $z = $sql =~ / AND t\d+\.z|\bt\d+\.z\b/ ? $sql : return plpgsql();

		return { mode => 'exact', approximate => 1, run => "DO \$do\$
DECLARE
	c CURSOR FOR $z;
	r record;
	told text = '';
BEGIN
	OPEN c;
	FOR i IN 1 .. 8 LOOP
		FETCH c INTO r;
		EXIT WHEN NOT FOUND;
		told = told || r.id || ' ';
	END LOOP;
	CLOSE c;
	RAISE INFO '%', told;
END \$do\$" };
	}
	return ("CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS TABLE (d float8, id int) LANGUAGE plpgsql STABLE AS \$f\$
		#variable_conflict use_column
		BEGIN RETURN QUERY SELECT s.d, s.id FROM ($sql) AS s; END \$f\$",
		{ mode => 'bag', approximate => $marked, run => pick('SELECT * FROM pg_temp.f()', 'SELECT count(*) FROM pg_temp.f()',
			'SELECT o.id, f.d FROM partner AS o LEFT JOIN pg_temp.f() AS f USING (id)') }, 'DROP FUNCTION pg_temp.f()');
}

# Rows that are found so are kept or changed.
sub stored
{
	my $f = level(limit => chance(0.4), total => 1, no_ties => 1, plain => 1);
	my $to = pick('l2', 'keyed', 'keyed_l2', 'ranged', 'hashed');

	$forms{stored} = 1;
	return ('BEGIN', { mode => 'bag', sql => "CREATE TEMP TABLE made ON COMMIT DROP AS SELECT s.id, s.d FROM ($f->{sql}) AS s" },
		{ mode => 'bag', run => 'SELECT * FROM made' }, 'ROLLBACK') if chance(0.4);
	return ('BEGIN', { mode => 'bag', sql => pick(
			"UPDATE $to AS u SET pad = 'found' FROM ($f->{sql}) AS s WHERE s.id = u.id RETURNING u.id",
			"DELETE FROM $to AS u WHERE u.id IN (SELECT s.id FROM ($f->{sql}) AS s) RETURNING u.id",
			"DELETE FROM $to AS u USING partner AS o WHERE o.id = u.id AND u.tenant = 7 RETURNING u.id, o.x") }, 'ROLLBACK');
}

# A policy's condition beside ours.
sub guarded
{
	local @twins = (grep { $_->{role} } @twins)[0];
	my $f = level(role => 1);

	$forms{policy} = 1;
	return ("SET ROLE $twins[0]{role}", $f, 'RESET ROLE');
}

# Settings for the statement in `ours` alone: which plans are tried.
sub settings
{
	my ($version, $workers) = @_;
	my $debug = $version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
	my @settings;

	if ($workers)
	{
		push @settings, map { "SET $_" } 'parallel_setup_cost = 0', 'parallel_tuple_cost = 0', 'min_parallel_table_scan_size = 0',
		  'min_parallel_index_scan_size = 0', 'max_parallel_workers_per_gather = 2';
		push @settings, 'SET parallel_leader_participation = off' if chance(0.5);
	}
	push @settings, "SET $debug = " . pick('on', 'regress') if chance(0.12);
	push @settings, "SET $_ = off" for grep { chance(0.12) } map { "enable_$_" }
	  qw(hashjoin mergejoin nestloop memoize material incremental_sort hashagg bitmapscan parallel_append parallel_hash gathermerge);
	push @settings, 'SET enable_' . pick('hashjoin = off; SET enable_mergejoin', 'hashjoin = off; SET enable_nestloop', 'nestloop = off; SET enable_mergejoin') . ' = off' if chance(0.25);
	push @settings, "SET $_ = on" for grep { chance(0.25) } qw(enable_partitionwise_join enable_partitionwise_aggregate);
	# dear tables and sorts, without a word against either
	push @settings, 'SET ' . pick('seq_page_cost = 50', 'cpu_operator_cost = 0.3', 'cpu_tuple_cost = 3', 'random_page_cost = 0.1', 'cpu_index_tuple_cost = 0') if chance(0.5);
	push @settings, 'SET geqo_threshold = 2' if chance(0.15);
	push @settings, 'SET ' . pick('join_collapse_limit = 1', 'from_collapse_limit = 1') if chance(0.1);
	push @settings, 'SET work_mem = 64' if chance(0.1);
	push @settings, 'SET gpuvec.enable_custom_scan = off' if chance(0.15);
	push @settings, 'SET enable_' . pick('seqscan', 'seqscan', 'sort') . ' = off' if $forced;
	return @settings;
}

# The statement: commands, each of them a text or a hash with sql (whose plan can
# be shown; plan, if that is another) or run, and how its rows are compared; settings; relations by alias.
sub query_of
{
	my ($seed, $n, $version, $pgvector) = @_;

	srand $seed * 1_000_003 + $n;
	@twins = twins($pgvector);
	(%relations, %forms) = ();
	$aliases = $flat = 0;
	$forced = chance(0.2);
	my @commands = weighted(50 => \&selected, 6 => \&prepared, 6 => \&cursor, 4 => \&plpgsql, 4 => \&stored, 2 => \&guarded, 2 => \&function)->();

	my @settings = settings($version, $forms{'beside workers'} || chance(0.4));

	@commands = map { ref $_ ? $_ : { run => $_ } } @commands;
	return { settings => \@settings, commands => \@commands, relations => {%relations}, forms => [ sort keys %forms ] };
}

1;
