# Random conjunctions of conditions on keys give what a sort gives, at recall 1:
# all types, operators and pairs of types (sql/keys_types.sql has the values),
# several conditions on a key, NULLs, arrays, values that are known late; with
# other conditions beside them, with the custom scan and without; while rows
# come, change and go.
#
# A statement that fails is printed.  GPUVEC_TEST_SEED=N makes others.

use strict;
use warnings;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{GPUVEC_TEST_SEED} // 1;
my $rounds = long_test() ? 100 : 6;
my $statements = long_test() ? 100 : 60;
srand $seed;
note("seed $seed");

my $node = new_node('main', conf => "timezone = 'Europe/Berlin'\ndatestyle = 'ISO, YMD'\n");
my $script = slurp_file(dirname(dirname($FindBin::RealBin)) . '/sql/keys_types.sql');
my ($sample) = $script =~ /^(CREATE TYPE mood .*?^INSERT INTO sample .*?\);)$/ms;
$node->safe_psql('postgres', $sample);

# values of types as they stand in a statement, and operators with what may be
# on their right
sub rows_of
{
	my ($query) = @_;

	return map { [ split /\t/ ] } split /\n/, $node->safe_psql('postgres', "SELECT concat_ws(E'\\t', $query");
}
my (%values, %operators);
push @{ $values{ $_->[0] } }, $_->[1]
  for rows_of(q{type, format('%L::%s', v, type)) FROM sample, unnest(vals) AS v ORDER BY 1});
push @{ $operators{ $_->[0] } }, [ @$_[ 1, 2 ] ]
  for rows_of(q{s.type, oprname, r.type) FROM sample AS s
		JOIN pg_opclass AS c ON c.opcmethod = (SELECT oid FROM pg_am WHERE amname = 'gpuivfpq') AND opcdefault
			AND opcintype = CASE s.type WHEN 'varchar' THEN 'text' WHEN 'mood' THEN 'anyenum' ELSE s.type END::regtype
		JOIN pg_amop AS m ON amopfamily = opcfamily AND amoplefttype IN (opcintype, 'anyarray'::regtype)
		JOIN pg_operator AS o ON o.oid = amopopr
		JOIN sample AS r ON r.type = CASE WHEN amoprighttype IN (opcintype, 'anyarray'::regtype) THEN s.type
			ELSE (SELECT typname FROM pg_type WHERE oid = amoprighttype) END
		ORDER BY 1});
my @types = sort keys %values;
is(scalar(keys %operators), scalar @types, 'every type has operators');

sub pick { return $_[ int rand @_ ]; }

sub some
{
	my ($most, $type) = @_;

	return map { rand() < .1 ? "NULL::$type" : pick(@{ $values{$type} }) } 0 .. rand $most;
}

# One condition on the column of that name, which is also its type.
sub condition
{
	my ($type) = @_;
	my ($operator, $right) = @{ pick(@{ $operators{$type} }) };
	my $is_array = $type =~ /^_/;
	my $kind = rand;

	return "$type IS NULL" if $kind < .05;
	return "$type IS NOT NULL" if $kind < .1;
	return pick('bool', 'NOT bool') if $kind < .3 && $type eq 'bool';
	return "$type $operator ANY (ARRAY[" . join(', ', some(5, $right)) . "]::${right}[])" if $kind < .25 && !$is_array;
	return "$type IN (" . join(', ', some(4, $type)) . ')' if $kind < .4 && $operator =~ /=/ && !$is_array;
	return "$type BETWEEN " . join ' AND ', map { pick(@{ $values{$type} }) } 1, 2
	  if $kind < .5 && $operator =~ /[<>]=/;
	return "$type $operator (SELECT " . pick(some(1, $right)) . ')' if $kind < .65;
	return "$type $operator " . pick(some(1, $right));
}

# psql's input for a statement in one way, after a line that names it.
my %WAYS = (
	sort => 'SET enable_indexscan = off; SET gpuvec.enable_custom_scan = off',
	off => 'SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.enable_custom_scan = off',
	on => 'SET enable_seqscan = off; SET enable_sort = off');
# the last never reads the rest in a pass, where rows are asked everything
my $ALL_LISTS = 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000';
my @EFFORTS = ('SET gpuvec.recall = 1', $ALL_LISTS, "$ALL_LISTS; SET gpuvec.max_probes = 16777216");

sub script
{
	my ($n, $way, $statement, $effort) = @_;

	return "RESET ALL; $WAYS{$way}; $effort;\n\\echo \@ $n $way plan\nEXPLAIN (COSTS OFF) $statement;\n"
	  . "\\echo \@ $n $way\n$statement;\n";
}

# The statements' answers and plans, by number and way.
sub ask
{
	my ($input) = @_;
	my (%told, $output, $at);

	IPC::Run::run([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', \$input, '>&', \$output);
	for my $line (split /^/, $output)
	{
		$at = $1, $told{$at} = '', next if $line =~ /^@ (.*)$/;
		$told{$at} .= $line if defined $at;
	}
	return \%told;
}

$node->safe_psql('postgres', 'SELECT setseed(' . $seed / 1000 . ')');
my $columns = join ', ', map { "$_ $_" } @types;
my $randomly = join ', ', map {
	"CASE WHEN random() < .9 THEN (ARRAY[" . join(', ', @{ $values{$_} }) . "])[1 + floor(random() * " . @{ $values{$_} } . ")::int] END"
} map { $_ } grep { !/^_/ } @types;
my $arrays = join ', ', map {
	my $type = $_;
	'CASE floor(random() * ' . @{ $values{$type} } . ')::int ' .
	  join(' ', map { "WHEN $_ THEN $values{$type}->[$_]" } 0 .. $#{ $values{$type} }) . ' END'
} grep { /^_/ } @types;
my $names = join ', ', (grep { !/^_/ } @types), (grep { /^_/ } @types);
my $rows = "(id, v, $names) SELECT g, ARRAY[random(), random(), random(), random(), random()], $randomly, $arrays FROM generate_series";
$node->safe_psql('postgres', "CREATE TABLE keyed (id int, v real[], $columns) WITH (autovacuum_enabled = off);
	INSERT INTO keyed $rows(1, 1500) AS g");

my ($told, $with_cond, $with_keys) = (0, 0, 0);
for my $round (1 .. $rounds)
{
	my @keys = (sort { rand() <=> .5 } @types)[ 0 .. rand 7 ];
	my $options = pick('lists = 20', 'lists = 20, spill = 0', 'lists = 20, refine = sq8', 'lists = 150', 'dims = 5, lists = 5000');
	my $next = 2000 * $round;
	my @asked;

	$node->safe_psql('postgres', "DROP INDEX IF EXISTS keyed_idx;
		CREATE INDEX keyed_idx ON keyed USING gpuivfpq (v, " . join(', ', @keys) . ") WITH ($options);
		DELETE FROM keyed WHERE random() < .1;
		INSERT INTO keyed $rows($next, $next + 200) AS g;
		UPDATE keyed SET " . join(', ', map { "$_ = NULL" } @keys) . ' WHERE random() < .05');
	$node->safe_psql('postgres', 'VACUUM keyed') if rand() < .5;
	$node->safe_psql('postgres', 'ANALYZE keyed') if rand() < .8;
	for my $n (1 .. $statements)
	{
		my @conditions = map { condition(rand() < .85 ? pick(@keys) : pick(@types)) } 0 .. rand 4;
		my $query = join ', ', map { sprintf '%.3f', rand } 1 .. 5;

		push @asked, 'SELECT id FROM keyed WHERE ' . join(' AND ', map { rand() < .05 ? "NOT ($_)" : $_ } @conditions)
		  . " ORDER BY v <-> '{$query}'" . pick('', ' LIMIT 1', ' LIMIT 10', ' LIMIT 100');
	}
	my $told_of = ask(join '', map {
		my $n = $_;
		my $effort = pick(@EFFORTS);
		map { script($n, $_, $asked[$n], $effort) } qw(sort off on)
	} 0 .. $#asked);

	my @faults;
	for my $n (0 .. $#asked)
	{
		for my $way (qw(off on))
		{
			my ($answer, $truth) = map { $told_of->{"$n $_"} // 'nothing' } $way, 'sort';
			my $plan = $told_of->{"$n $way plan"} // '';

			push @faults, "$way: $asked[$n]" if $answer ne $truth || $truth =~ /ERROR|nothing/;
			$with_cond++ if $plan =~ /Index Cond/;
			$with_keys++ if $plan =~ /Index Scan using keyed_idx/;
		}
	}
	is(scalar @faults, 0, "seed $seed, round $round: keys @keys, $options");
	diag($_) for grep { $told++ < 10 } @faults;
}
cmp_ok($with_cond, '>', $with_keys / 2, "conditions were the index's in $with_cond of $with_keys plans");
is($node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_verify_index('keyed_idx')}), 0, 'and the index is sound');

$node->stop;
done_testing();
