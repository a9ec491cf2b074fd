# Statements that order by distance under conditions give what a sort gives, with
# the custom scan and without:
#
# - random ones over all kinds of tables (GpuvecStatements, GpuvecTables), with
#   indexes on other columns and without, each time by a plan that is seen to be of
#   that kind;
# - random conjunctions of conditions on keys, at recall 1: all types, operators and
#   pairs of types (sql/keys_types.sql has the values), several conditions on a key,
#   NULLs, arrays, values that are known only when the statement runs; while rows
#   come, change and go.
#
# A statement that fails is printed with what to run.  SEED=N makes others; of the
# first kind STATEMENTS="NUMBER ..." runs just these.

use strict;
use warnings;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRandom;
use GpuvecRemote;
use GpuvecStatements;
use GpuvecTables;

my $seed = $ENV{SEED} // 1;
my $pgvector = $ENV{GPUVEC_PGVECTOR} ? 1 : 0;
my $node = new_node('main', conf => remote_conf() . "max_prepared_transactions = 4\n");
my $version = int $node->safe_psql('postgres', 'SHOW server_version_num') / 10_000;
note("seed $seed");

# -- forms of statements

# How a statement is run: a schema, and settings.  The reference is a sort, which
# uses no index on vectors; or the plain index scan, where a sort will not do.
my $FORCED = 'SET enable_seqscan = off; SET enable_sort = off';
my $PLAIN = 'SET gpuvec.enable_custom_scan = off';
my %WAYS = (
	sort => [ 'plain', "SET enable_indexscan = off; $PLAIN" ],
	index => [ 'plain', "$FORCED; $PLAIN; SET gpuvec.recall = 1" ],
	off => [ 'plain', "$FORCED; $PLAIN" ],
	on => [ 'plain', $FORCED ],
	off_indexed => [ 'indexed', "$FORCED; $PLAIN" ],
	on_indexed => [ 'indexed', $FORCED ]);
my @TRIED = qw(off on off_indexed on_indexed);
my %SEARCHES = (
	recall => 'SET gpuvec.recall = 1',
	lists => 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000',
	relaxed => 'SET gpuvec.recall = 0.9; SET gpuvec.scan_order = relaxed',
	approximate => 'SET gpuvec.recall = 0.9',
	radius => 'SET gpuvec.radius_recall = 0.9');

# psql's input for a statement run in one way.  A line "@ NUMBER WAY" comes before
# its output, "@ NUMBER WAY plan" before its plans.
sub script
{
	my ($n, $statement, $way) = @_;
	my ($schema, $settings) = @{ $WAYS{$way} };
	my $reference = $way eq $statement->{reference};
	my $sql = join '', map { "$_;\n" } 'RESET ROLE', 'RESET ALL', 'DEALLOCATE ALL', 'CLOSE ALL',
	  'SET statement_timeout = 60000', "SET search_path = $schema, public", $settings,
	  $reference ? () : $SEARCHES{ $statement->{search} },
	  grep { !$reference || !/parallel|engine/ } @{ $statement->{settings} };

	for my $command (@{ $statement->{commands} })
	{
		my $plan = $command->{plan} // $command->{query};

		$sql .= "\\echo \@ $n $way plan\nEXPLAIN (VERBOSE, COSTS OFF) $plan;\n\\echo \@ $n $way\n" if $plan;
		$sql .= "\\echo \@ $n $way analyzed\nEXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) $plan;\n\\echo \@ $n $way\n"
		  if $command->{analyze} && $way =~ /^on/;
		$sql .= ($command->{query} // $command->{run}) . ";\n";
	}
	my $z = $reference ? ' AND t.z' : '';
	$sql =~ s/\{z\}/$z/g;
	$sql =~ s/\{(LIMIT \d+)\}/$reference ? '' : $1/ge;
	$sql =~ s/\{schema\}/$schema/g;
	return "\\echo \@ $n $way\n$sql";
}

# Counts how many of the nearest rows an approximate answer has, and should have.
sub count_found
{
	my ($statement, $answer, $truth, $counts) = @_;
	my @nearest = split /^/, $truth;
	my ($limit) = map { ($_->{query} // '') =~ /\{LIMIT (\d+)\}/ } @{ $statement->{commands} };

	return if !$limit && $statement->{search} ne 'radius';
	splice @nearest, $limit if $limit && @nearest > $limit;
	my %found = map { $_ => 1 } split /^/, $answer;
	$counts->{found} += grep { $found{$_} } @nearest;
	$counts->{wanted} += @nearest;
	return;
}

# Returns '' if an answer is right, else what is wrong with it.
sub compare
{
	my ($statement, $answer, $truth) = @_;

	# a table's name in a message
	s/temporary_\w+/temporary/g for $answer, $truth;
	if ($statement->{search} =~ /approximate|radius/)
	{
		my (%left, $last);

		$left{$_}++ for split /^/, $truth;
		for (split /^/, $answer)
		{
			my ($d) = /\|(\S*)$/ or return "not a row: $_";
			return "a row too many: $_" if !$left{$_}--;
			next if $statement->{search} eq 'radius';
			return "out of order: $_" if defined $last && $d < $last;
			$last = $d;
		}
		return '';
	}
	# pgvector sums in single precision, and then distances of different rows
	# are equal now and then
	($answer, $truth) = map { join ' ', sort split /\s+/ } $answer, $truth
	  if $statement->{sorted} || ($statement->{inexact} && $answer ne $truth);
	return $answer eq $truth ? '' : 'another answer';
}

# Returns '' if plans are those that a way is to have, else what is wrong with them.
sub check_plans
{
	my ($statement, $plans, $way) = @_;
	my $custom = $plans =~ /Custom Scan \(GpuvecScan\)/;
	my $index = $plans =~ /Index Scan using \w*_e\w*_idx/;
	my $uses = $statement->{uses};

	return '' if $plans eq '' || $plans =~ /One-Time Filter/;
	return $custom || $index ? 'the reference uses the index' : '' if $way eq 'sort';
	return 'uses the custom scan' if $custom && ($way =~ /off|index$/ || $uses eq 'index');
	return '' if $uses eq 'any';
	return 'does not use the index' if !$index;
	return $custom || $way =~ /off|index$/ || $uses eq 'index' ? '' : 'does not use the custom scan';
}

# Fills in the properties of the whole statement that follow from its commands.
sub complete
{
	my ($statement) = @_;
	my ($reference, $sorted, $search) = ('sort', 0, rand() < 0.3 ? 'lists' : 'recall');

	for my $command (@{ $statement->{commands} })
	{
		$reference = $command->{reference} // $reference;
		$sorted ||= $command->{sorted};
		$search = $command->{search} // $search;
	}
	return { %$statement, reference => $reference, sorted => $sorted, search => $search };
}

# Returns the fault of an answer and its plans, '' for none.
sub fault_of
{
	my ($statement, $n, $way, $told) = @_;
	my ($answer, $plans) = map { $told->{$_} // '' } "$n $way", "$n $way plan";
	my $fault = check_plans($statement, $plans, $way);

	return $fault if $fault ne '';
	if ($way eq $statement->{reference})
	{
		# but a cursor may be at no row
		return $answer =~ /^ERROR: (?!.*(aborted|not positioned|simply updatable))/m ? 'the reference fails' : '';
	}
	return compare($statement, $answer, $told->{"$n $statement->{reference}"});
}

# How scans came to their end, and what approximate ones have found, by way.
my %counts;

# Runs statements of these numbers in one session; returns a text for each fault,
# with what it takes to run the statement.
sub run_statements
{
	my @of = @_;
	my %statements = map { $_ => complete(statement($seed, $_, $version, $pgvector)) } @of;
	my $input = session_sql();
	my @faults;

	for my $n (@of)
	{
		my $statement = $statements{$n};

		$input .= join '', map { script($n, $statement, $_) } $statement->{reference}, @TRIED;
	}
	my $told = split_marked(say_all($node, "$input\\echo \@ end\n"));
	for my $n (@of)
	{
		my $statement = $statements{$n};
		my $reference = $statement->{reference};

		for my $way ($reference, @TRIED)
		{
			my $ended = !exists $told->{ $n == $of[-1] && $way eq $TRIED[-1] ? 'end' : "$n $way" };
			count_found($statement, $told->{"$n $way"}, $told->{"$n $reference"}, $counts{"$statement->{search} $way"} //= {})
			  if $statement->{search} =~ /approximate|radius/ && $way ne $reference && exists $told->{"$n $way"};
			$counts{$_}++ for ($told->{"$n $way analyzed"} // '') =~ /Rows From: (\w+)/g;
			my $fault = $ended ? 'the session has ended' : fault_of($statement, $n, $way, $told);

			if ($fault ne '')
			{
				my @told = map { "-- $_\n" . ($told->{"$n $_"} // '') } "$way plan", $way, $reference;

				push @faults, "seed $seed, statement $n, $way: $fault\n" .
				  join '', script($n, $statement, $way), @told;
			}
			return @faults if $ended;
		}
	}
	return @faults;
}

$node->safe_psql('postgres', 'CREATE EXTENSION gpuvec_pgvector CASCADE') if $pgvector;
$node->safe_psql('postgres', tables_sql(1500, $pgvector));
my @numbers = split ' ', $ENV{STATEMENTS} // '';
@numbers = (1 .. (long_test() ? 10_000 : 300)) if !@numbers;
my $printed = 0;
while (my @some = splice @numbers, 0, 100)
{
	my @faults = run_statements(@some);

	is(scalar @faults, 0, "seed $seed, statements $some[0] to $some[-1]");
	# one fault may be all statements'
	diag($_) for grep { $printed++ < 20 } @faults;
}
if (defined $ENV{STATEMENTS})
{
	done_testing();
	exit;
}
cmp_ok($counts{$_} // 0, '>=', 5, "scans that ended by $_") for 'index', 'table', 'bitmap';
# .9 is asked
cmp_ok($counts{$_}->{found}, '>=', 0.9 * $counts{$_}->{wanted}, "$_: found of $counts{$_}->{wanted}")
  for map { ("$_ on", "$_ on_indexed") } 'approximate', 'radius';
cmp_ok(served($node), '>', 10, 'gpuvecd was asked, too');

# -- keys

my $rounds = long_test() ? 100 : 6;
my $statements = long_test() ? 100 : 60;
srand $seed;
# values are printed and read in one way; and it is the session that searches
$ENV{PGOPTIONS} = '-c timezone=Europe/Berlin -c datestyle=ISO,YMD -c gpuvec.engine=cpu';
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

# Values of a type, $most at the most; some are NULL.
sub values_of
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
	return "$type $operator ANY (ARRAY[" . join(', ', values_of(5, $right)) . "]::${right}[])" if $kind < .25 && !$is_array;
	return "$type IN (" . join(', ', values_of(4, $type)) . ')' if $kind < .4 && $operator =~ /=/ && !$is_array;
	return "$type BETWEEN " . join ' AND ', map { pick(@{ $values{$type} }) } 1, 2
	  if $kind < .5 && $operator =~ /[<>]=/;
	return "$type $operator (SELECT " . pick(values_of(1, $right)) . ')' if $kind < .65;
	return "$type $operator " . pick(values_of(1, $right));
}

my %KEYED_WAYS = (
	sort => 'SET enable_indexscan = off; SET gpuvec.enable_custom_scan = off',
	off => 'SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.enable_custom_scan = off',
	on => 'SET enable_seqscan = off; SET enable_sort = off');
# the last never reads the rest in a full pass, in which rows are asked all conditions
my $ALL_LISTS = 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000';
my @KEYED_SEARCHES = ('SET gpuvec.recall = 1', $ALL_LISTS, "$ALL_LISTS; SET gpuvec.max_probes = 16777216");

# psql's input for a statement in one way, between marks.
sub keyed_script
{
	my ($n, $way, $statement, $search) = @_;

	return "RESET ALL; $KEYED_WAYS{$way}; $search;\n\\echo \@ $n $way plan\nEXPLAIN (COSTS OFF) $statement;\n"
	  . "\\echo \@ $n $way\n$statement;\n";
}

$node->safe_psql('postgres', 'SELECT setseed(' . $seed / 1000 . ')');
my $columns = join ', ', map { "$_ $_" } @types;
my $randomly = join ', ', map {
	"CASE WHEN random() < .9 THEN (ARRAY[" . join(', ', @{ $values{$_} }) . "])[1 + floor(random() * " . @{ $values{$_} } . ")::int] END"
} grep { !/^_/ } @types;
my $arrays = join ', ', map {
	my $type = $_;
	'CASE floor(random() * ' . @{ $values{$type} } . ')::int ' .
	  join(' ', map { "WHEN $_ THEN $values{$type}->[$_]" } 0 .. $#{ $values{$type} }) . ' END'
} grep { /^_/ } @types;
my $names = join ', ', (grep { !/^_/ } @types), (grep { /^_/ } @types);
my $rows = "(id, v, $names) SELECT g, ARRAY[random(), random(), random(), random(), random()], $randomly, $arrays FROM generate_series";
$node->safe_psql('postgres', "CREATE TABLE keyed (id int, v real[], $columns) WITH (autovacuum_enabled = off);
	INSERT INTO keyed $rows(1, 1500) AS g");

my ($with_cond, $with_keys) = (0, 0);
$printed = 0;
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
	my $told = split_marked(say_all($node, join '', map {
		my $n = $_;
		my $search = pick(@KEYED_SEARCHES);
		map { keyed_script($n, $_, $asked[$n], $search) } qw(sort off on)
	} 0 .. $#asked));

	my @faults;
	for my $n (0 .. $#asked)
	{
		for my $way (qw(off on))
		{
			my ($answer, $truth) = map { $told->{"$n $_"} // 'nothing' } $way, 'sort';
			my $plan = $told->{"$n $way plan"} // '';

			push @faults, "$way: $asked[$n]" if $answer ne $truth || $truth =~ /ERROR|nothing/;
			$with_cond++ if $plan =~ /Index Cond/;
			$with_keys++ if $plan =~ /Index Scan using keyed_idx/;
		}
	}
	is(scalar @faults, 0, "seed $seed, round $round: keys @keys, $options");
	diag($_) for grep { $printed++ < 10 } @faults;
}
cmp_ok($with_cond, '>', $with_keys / 2, "conditions were the index's in $with_cond of $with_keys plans");
is($node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_verify_index('keyed_idx')}), 0, 'and the index is sound');

$node->stop;
done_testing();
