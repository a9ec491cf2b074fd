# Statements lose no row, and crash nothing: random ones (GpuvecQueries), in which
# the order by a distance meets joins, groups, windows, sets, partitions, workers
# and cursors, give what they give on tables without our indexes (GpuvecTwins):
# at recall 1 all of them, but that where a level orders by the distance and wants
# few rows, rows without a place in the index are left out; and as users run them
# those in which no level does so.
#
# A statement that fails is printed with its plan and the rows that differ:
# SEED=N STATEMENTS="NUMBER ..." runs just these, COUNT=N as many from the first on.
# SERVED=1 has gpuvecd answer, for all lists and rows in place of recall 1.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecQueries;
use GpuvecRandom;
use GpuvecTwins;
require GpuvecRemote if $ENV{SERVED};

my $seed = $ENV{SEED} // 1;
my @numbers = split ' ', $ENV{STATEMENTS} // '';
@numbers = (1 .. ($ENV{COUNT} // (long_test() ? 10_000 : 200))) if !@numbers;
my $asked = @numbers;
my $whole = !grep { defined $ENV{$_} } qw(SEED STATEMENTS COUNT);
# one fault may be all statements'
my $MOST = 40;

my $pgvector = $ENV{GPUVEC_PGVECTOR} ? 1 : 0;
my $served = $ENV{SERVED} ? GpuvecRemote::remote_conf() . "gpuvec.engine = gpu\n" : '';
my $node = new_node('main', conf => $served . "max_worker_processes = 12\nlog_min_messages = error\nlog_statement = none\nrestart_after_crash = on\n");
my $version = int $node->safe_psql('postgres', 'SHOW server_version_num') / 10_000;
$node->safe_psql('postgres', 'CREATE EXTENSION gpuvec_pgvector CASCADE') if $pgvector;
$node->safe_psql('postgres', twins_sql(2500, $pgvector));
my %ours = map { $_ => 1 } split /\n/,
  $node->safe_psql('postgres', q{SELECT c.relname FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam WHERE a.amname = 'gpuivfpq'});

# what happened
my %counts;

# How a statement is run: all recalls 1, and as users run it.
my %WAYS = (
	exact => ($served ? 'SET gpuvec.probes = 100000; SET gpuvec.candidates = 1000000' : 'SET gpuvec.recall = 1')
	  . '; SET gpuvec.radius_recall = 1',
	usual => 'RESET gpuvec.recall');
# messages of a session that a crash ends
my $LOST = qr/connection to server was lost|server closed the connection|terminating connection/;

# psql's input: a statement run in one way (undef: in `bare`, where marks of
# aliases named in %$left_out become conditions).  A line "@ NUMBER WAY COMMAND" comes
# before the output of a command, "@ NUMBER WAY COMMAND plan" before its plan.
sub script
{
	my ($n, $statement, $way, $left_out) = @_;
	my $name = $way // 'bare ' . join '+', map { "$_=" . join ',', @{ $left_out->{$_} } } sort keys %$left_out;
	my $key = $name =~ tr/ /_/r;
	my $sql = join '', map { "$_;\n" } 'SET client_min_messages = error', 'ROLLBACK', 'RESET ROLE', 'RESET ALL',
	  'SET client_min_messages = error', 'DEALLOCATE ALL', 'SET statement_timeout = 5000',
	  'SET search_path = ' . (defined $way ? 'ours' : 'bare') . ', public', defined $way ? ($WAYS{$way}, @{ $statement->{settings} }) : (),
	  'SET client_min_messages = warning';

	for my $i (0 .. $#{ $statement->{commands} })
	{
		my $command = $statement->{commands}[$i];
		my $plan = $command->{move} ? undef : $command->{plan} // $command->{sql};

		$sql .= "\\echo \@ $n $key $i plan\nEXPLAIN (COSTS OFF) $plan;\n" if $plan && defined $way;
		$sql .= "\\echo \@ $n $key $i\n" . ($command->{sql} // $command->{run}) . ";\n";
	}
	$sql =~ s/\{z (\w+)\}/mark($statement, $1, $left_out)/ge;
	return ("\\echo \@ $n $key begun\n$sql\\echo \@ $n $key over\n", $key);
}

# The text in place of a mark: nothing, or a condition that rows have a place
# in the index of those leaves that it answers for.
sub mark
{
	my ($statement, $alias, $left_out) = @_;
	my $leaves = $left_out->{$alias} or return '';
	my $r = $statement->{relations}{$alias};

	return " AND ($alias.z OR $r->{part} <> ALL ('{" . join(',', map { "bare.$_" } @$leaves) . "}'::regclass[]::oid[])) IS NOT FALSE";
}

# Which leaves of which aliases with marks the plans of a statement ask the index
# for: alias => [ leaves ].
sub indexed
{
	my ($statement, $plans) = @_;
	my $text = join ' ', map { $_->{sql} // $_->{run} } @{ $statement->{commands} };
	my %marked = map { $_ => 1 } $text =~ /\{z (\w+)\}/g;
	my %found;

	while ($plans =~ /(?:Index Scan using (\S+)|Custom Scan \(GpuvecScan\)) on (\S+)(?: (\S+))?$/mg)
	{
		my ($index, $leaf, $alias) = ($1, $2, $3 // '');

		next if defined $index && !$ours{$index};
		my $of = $alias =~ /^(t\d+)(?:_\d+)?$/ && $statement->{relations}{$1} ? $1 : undef;
		# in a view aliases are others
		for my $a (defined $of ? $of : grep { my $r = $statement->{relations}{$_}; $r->{union} && grep { $leaf =~ /^$_(_\d+)?$/ } @{ $r->{leaves} } } keys %marked)
		{
			$found{$a}{$leaf} = 1 if $marked{$a};
		}
	}
	return { map { $_ => [ sort keys %{ $found{$_} } ] } keys %found };
}

# Rows by distance, which is the first column: [ distance, [ rows ] ].
sub groups
{
	my @groups;

	for (split /^/, $_[0])
	{
		my ($d) = /^([^|\n]*)/;
		push @groups, [ $d, [] ] if !@groups || $groups[-1][0] ne $d;
		push @{ $groups[-1][1] }, $_;
	}
	return @groups;
}

# Returns '' if an answer is right, else what is wrong with it.
sub difference
{
	my ($command, $answer, $truth) = @_;
	my $mode = $command->{mode} // 'exact';

	return '' if $answer eq $truth;
	return 'another answer' if $mode eq 'exact' || $answer =~ /^ERROR:/m || $truth =~ /^ERROR:/m;
	if ($mode eq 'ordered')
	{
		my @a = groups($answer);
		my @t = groups($truth);

		return 'distances differ' if "@{[map { qq($_->[0] ) x @{ $_->[1] } } @a]}" ne "@{[map { qq($_->[0] ) x @{ $_->[1] } } @t]}";
		# of equal ones where a limit or an offset cuts, any are right
		splice @$_, -1 for $command->{cut} ? (\@a, \@t) : ();
		splice @$_, 0, 1 for ($command->{sql} // '') =~ /OFFSET/ ? (\@a, \@t) : ();
		return join('', map { sort @{ $_->[1] } } @a) eq join('', map { sort @{ $_->[1] } } @t) ? '' : 'rows of equal distances differ';
	}
	return join('', sort split /^/, $answer) eq join('', sort split /^/, $truth) ? '' : 'another multiset';
}

# Counts rows of approximate answers, and those that are right.
sub count_rows
{
	my ($answer, $right) = @_;
	my %left;

	$left{$_}++ for split /^/, $right;
	$counts{'approximate: rows wanted'} += () = $right =~ /^/mg;
	$counts{'approximate: rows returned'} += () = $answer =~ /^/mg;
	$counts{'approximate: rows that are right'} += grep { $left{$_} && $left{$_}-- } split /^/, $answer;
	return;
}

# Counts plans and statements by kind.
sub count_plans
{
	my ($statement, $way, $plans) = @_;

	$counts{"$way: all"}++;
	$counts{"form $_"}++ for $way eq 'exact' ? @{ $statement->{forms} } : ();
	return if !grep { $ours{$_} } $plans =~ /Index Scan using (\S+)/g;
	$counts{"$way: uses the index"}++;
	$counts{"$way: ... $_"}++
	  for grep { $plans =~ /$_/ } 'GpuvecScan', 'Gather', 'Merge Append', 'Incremental Sort', 'Nested Loop', 'WindowAgg', 'LockRows';
	return;
}

# A few lines of what one has and the other has not.
sub rows_missing
{
	my ($of, $in) = @_;
	my %left;

	$left{$_}++ for split /^/, $in;
	my @missing = grep { !$left{$_} || !$left{$_}-- } split /^/, $of;
	my $n = @missing;
	splice @missing, 8 if $n > 8;
	return "($n)\n" . join '', map { "    $_" } @missing;
}

sub report
{
	my ($n, $statement, $way, $fault, %more) = @_;
	my ($sql) = script($n, $statement, $way, {});

	my @lines = grep { !/^(\\echo|ROLLBACK|DEALLOCATE|RESET (ALL|ROLE)|SET (statement_timeout|client_min))/ } split /\n/, $sql;
	my $text = "SEED=$seed STATEMENTS=$n, $way: $fault\n  forms: @{$statement->{forms}}\n";

	$text .= "    $_\n" for @lines;
	$text .= "  $_: $more{$_}\n" for grep { defined $more{$_} } 'plan', 'missing', 'extra', 'reference';
	return $text;
}

# Runs statements of these numbers on both twins; returns a text for each fault.  One
# that begins with CRASH is the last.
sub compare_statements
{
	my @of = @_;
	my %statements = map { $_ => query_of($seed, $_, $version, $pgvector) } @of;
	my (%keys, %key_of, %plans, %approximate, @runs, @faults, $crash);
	my $input = twins_session_sql();

	for my $n (@of)
	{
		$input .= (script($n, $statements{$n}, $_, {}))[0] for sort keys %WAYS;
	}
	my $told = split_marked(say_all($node, $input));
	my $reference = twins_session_sql();
	for my $run (map { my $n = $_; map { [ $n, $_ ] } sort keys %WAYS } @of)
	{
		my ($n, $way) = @$run;
		my $statement = $statements{$n};
		my $plans = join '', map { $told->{"$n $way $_ plan"} // '' } 0 .. $#{ $statement->{commands} };

		if (!exists $told->{"$n $way over"} || grep { /^$n $way / && $told->{$_} =~ /$LOST/ } keys %$told)
		{
			my @at = sort grep { /^$n $way / } keys %$told;

			$crash = 'CRASH ' . report($n, $statement, $way, 'the session has ended',
				plan => join('', map { $told->{$_} } grep { /plan$/ } @at),
				reference => substr(join('', map { $told->{$_} } grep { !/plan$/ } @at), -2000));
			# the server begins again
			for (1 .. 300) { last if say_all($node, 'SELECT 1;') eq "1\n"; sleep 1; }
			last;
		}
		my $left_out = indexed($statement, $plans);
		my ($sql, $key) = script($n, $statement, undef, $left_out);

		push @runs, $run;
		$key_of{"$n $way"} = $key;
		$plans{"$n $way"} = $plans;
		$approximate{"$n $way"} = 1
		  if $way eq 'usual' && (%$left_out || grep { $_->{approximate} } @{ $statement->{commands} });
		$reference .= $sql if !$keys{"$n $key"}++;
	}
	my $truth = split_marked(say_all($node, $reference));
	for my $run (@runs)
	{
		my ($n, $way) = @$run;
		my $statement = $statements{$n};
		my $key = $key_of{"$n $way"};

		count_plans($statement, $way, $plans{"$n $way"});
		for my $i (0 .. $#{ $statement->{commands} })
		{
			my $command = $statement->{commands}[$i];
			my ($answer, $right) = map { $_ // '' } $told->{"$n $way $i"}, $truth->{"$n $key $i"};
			my $fault = '';

			# nested loops are forced now and then
			if ("$answer$right" =~ /canceling statement due to statement timeout/)
			{
				$counts{"$way: too slow"}++;
				last;
			}
			if ($right =~ /^ERROR:/m || !exists $truth->{"$n $key over"}) { $fault = 'the reference fails'; }
			elsif (!$approximate{"$n $way"}) { $fault = difference($command, $answer, $right); }
			elsif ($answer =~ /^ERROR:/m) { $fault = 'an error'; }
			elsif ($command->{sql}) { count_rows($answer, $right); }
			next if $fault eq '';
			push @faults, report($n, $statement, $way, "command $i: $fault", plan => $plans{"$n $way"},
				missing => rows_missing($right, $answer), extra => rows_missing($answer, $right), reference => $key);
			$counts{"$way: faults"}++;
			last;
		}
	}
	return (@faults, $crash // ());
}

my @faults;
while (@numbers && @faults < $MOST)
{
	my @some = splice @numbers, 0, 100;
	my @new = compare_statements(@some);

	is(scalar @new, 0, "seed $seed, statements $some[0] to $some[-1]");
	push @faults, @new;
	last if grep { /^CRASH/ } @new;
}
splice @faults, $MOST if @faults > $MOST;
diag($_) for @faults;
note("$_: $counts{$_}") for sort keys %counts;
is(join('', grep { /TRAP: |was terminated by signal|PANIC: / } split /^/, slurp_file($node->logfile)), '', 'nothing has crashed');
if ($served)
{
	cmp_ok(GpuvecRemote::served($node), '>=', $asked / 10, 'gpuvecd was asked');
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM gpuvec_mirrors WHERE rows'), '>', 0, 'mirrors have rows');
}
if ($whole && !@faults)
{
	cmp_ok($counts{"$_: too slow"} // 0, '<', 0.02 * $counts{"$_: all"}, "$_: in time") for 'exact', 'usual';
	cmp_ok($counts{$_} // 0, '>=', $asked / 15, $_) for map { "$_: uses the index" } 'exact', 'usual';
	cmp_ok($counts{"approximate: rows $_"}, '>=', 0.93 * $counts{'approximate: rows wanted'}, "rows $_, as users ask")
	  for 'returned', 'that are right';
	cmp_ok($counts{"usual: ... $_"} // 0, '>=', 3, "usual: $_ with it") for 'GpuvecScan', 'Merge Append', 'Incremental Sort', 'Nested Loop';
}

done_testing();
