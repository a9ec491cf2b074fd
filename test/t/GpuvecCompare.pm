# Runs random statements (GpuvecQueries) on both twins, and compares.

package GpuvecCompare;

use strict;
use warnings;
use Exporter 'import';
use GpuvecQueries;
use GpuvecTwins;

our @EXPORT = qw(compare_statements);

# How a statement is run: all recalls 1, and as users run it.
my %WAYS = (
	exact => 'SET gpuvec.recall = 1; SET gpuvec.radius_recall = 1',
	usual => 'RESET gpuvec.recall');

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

# What stands in place of a mark: nothing, or that rows have a place in the index of
# those leaves that it answers for.
sub mark
{
	my ($statement, $alias, $left_out) = @_;
	my $leaves = $left_out->{$alias} or return '';
	my $r = $statement->{relations}{$alias};

	return " AND ($alias.z OR $r->{part} <> ALL ('{" . join(',', map { "bare.$_" } @$leaves) . "}'::regclass[]::oid[]))";
}

# What psql told, by what is after "@".
sub split_told
{
	my ($told) = @_;
	my (%told, $at);

	for my $line (split /^/, $told)
	{
		if ($line =~ /^@ (.*)$/)
		{
			$at = $1;
			$told{$at} //= '';
		}
		elsif (defined $at) { $told{$at} .= $line; }
	}
	return \%told;
}

# Which leaves of which aliases with marks the plans of a statement ask the index
# for: alias => [ leaves ].
sub indexed
{
	my ($statement, $plans, $ours) = @_;
	my $text = join ' ', map { $_->{sql} // $_->{run} } @{ $statement->{commands} };
	my %marked = map { $_ => 1 } $text =~ /\{z (\w+)\}/g;
	my %found;

	while ($plans =~ /(?:Index Scan using (\S+)|Custom Scan \(GpuvecScan\)) on (\S+)(?: (\S+))?$/mg)
	{
		my ($index, $leaf, $alias) = ($1, $2, $3 // '');

		next if defined $index && !$ours->{$index};
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

# '' if an answer is right, else what is wrong with it.
sub difference
{
	my ($command, $answer, $truth) = @_;
	my $mode = $command->{mode} // 'exact';

	return '' if $answer eq $truth;
	return 'another answer' if $mode eq 'exact' || $answer =~ /^(psql:.*)?ERROR:/m || $truth =~ /^(psql:.*)?ERROR:/m;
	if ($mode eq 'ordered')
	{
		my @a = groups($answer);
		my @t = groups($truth);

		return 'distances differ' if "@{[map { qq($_->[0] ) x @{ $_->[1] } } @a]}" ne "@{[map { qq($_->[0] ) x @{ $_->[1] } } @t]}";
		# equal ones at the end are any
		if ($command->{cut}) { $_ = pop @$_ for 1 .. 0; pop @a; pop @t; }
		return join('', map { sort @{ $_->[1] } } @a) eq join('', map { sort @{ $_->[1] } } @t) ? '' : 'rows of equal distances differ';
	}
	return join('', sort split /^/, $answer) eq join('', sort split /^/, $truth) ? '' : 'another multiset';
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
	my ($o, $n, $statement, $way, $fault, %more) = @_;
	my ($sql) = script($n, $statement, $way, {});

	return "SEED=$o->{seed} STATEMENTS=$n, $way: $fault\n  forms: @{$statement->{forms}}\n"
	  . join('', map { "    $_\n" } grep { !/^\\echo|^(ROLLBACK|DEALLOCATE|RESET (ALL|ROLE)|SET (statement_timeout|client_min))/ } split /\n/, $sql)
	  . join '', map { defined $more{$_} ? "  $_ " . ($more{$_} =~ /^\(/ ? '' : "\n") . $more{$_} . ($more{$_} =~ /\n\z/ ? '' : "\n") : () } 'plan', 'missing', 'extra', 'reference';
}

# Run statements on both twins.  ask: gives its argument to psql and returns what
# that says; numbers: which; ours: names of the indexes; counts: what happened.
# Returns a text for each fault; one that begins with CRASH is the last.
sub compare_statements
{
	my ($ask, %o) = @_;
	my %statements = map { $_ => query_of($o{seed}, $_, @o{ 'version', 'pgvector' }) } @{ $o{numbers} };
	my (%keys, %left_out, @faults);
	my $input = twins_session_sql();

	for my $n (@{ $o{numbers} })
	{
		$input .= (script($n, $statements{$n}, $_, {}))[0] for sort keys %WAYS;
	}
	my $told = split_told($ask->("$input\\echo \@ end\n"));
	my $reference = twins_session_sql();
	for my $n (@{ $o{numbers} })
	{
		my $statement = $statements{$n};

		for my $way (sort keys %WAYS)
		{
			if (!exists $told->{"$n $way over"} || (grep { /connection to server was lost|server closed the connection|terminating connection/ } map { $told->{$_} } grep { /^$n $way / } keys %$told))
			{
				my @at = grep { /^$n $way / } keys %$told;
				my ($text) = join '', map { $told->{$_} } grep { !/plan/ } sort @at;

				push @faults, 'CRASH ' . report(\%o, $n, $statement, $way, 'the session has ended',
					plan => join('', map { $told->{$_} // '' } grep { /plan/ } sort @at), reference => substr($text, -2000));
				return @faults;
			}
			my $plans = join '', map { $told->{"$n $way $_ plan"} // '' } 0 .. $#{ $statement->{commands} };
			my $left_out = $way eq 'exact' ? indexed($statement, $plans, $o{ours}) : {};
			my ($sql, $key) = script($n, $statement, undef, $left_out);

			$left_out{"$n $way"} = $key;
			# an approximate answer is no other's
			$left_out{"$n $way"} = undef if $way eq 'usual' && (%{ indexed($statement, $plans, $o{ours}) } || grep { $_->{approximate} } @{ $statement->{commands} });
			next if !defined $left_out{"$n $way"} || $keys{"$n $key"}++;
			$reference .= $sql;
		}
	}
	my $truth = split_told($ask->("$reference\\echo \@ end\n"));
	for my $n (@{ $o{numbers} })
	{
		my $statement = $statements{$n};

		for my $way (sort keys %WAYS)
		{
			my $plans = join '', map { $told->{"$n $way $_ plan"} // '' } 0 .. $#{ $statement->{commands} };

			$o{counts}{$_}++ for map { "form $_" } $way eq 'exact' ? @{ $statement->{forms} } : ();
			$o{counts}{"$way: all"}++;
			if (grep { $plans =~ /\b$_\b/ } keys %{ $o{ours} } or $plans =~ /GpuvecScan/)
			{
				$o{counts}{"$way: uses the index"}++;
				$o{counts}{"$way: ... $_"}++ for grep { $plans =~ /$_/ } 'GpuvecScan', 'Gather', 'Merge Append', 'Incremental Sort', 'Nested Loop', 'WindowAgg', 'LockRows';
			}
			for my $i (0 .. $#{ $statement->{commands} })
			{
				my $command = $statement->{commands}[$i];
				my $answer = $told->{"$n $way $i"} // '';
				my $key = $left_out{"$n $way"};
				my $right = defined $key ? $truth->{"$n $key $i"} : undef;
				my $fault = '';

				# nested loops are forced now and then
				if ("$answer @{[$right // '']}" =~ /canceling statement due to statement timeout/)
				{
					$o{counts}{"$way: too slow"}++;
					last;
				}
				if (!defined $key)
				{
					$fault = 'an error' if $answer =~ /^(psql:.*)?(ERROR|FATAL|PANIC):/m;
				}
				elsif (!defined $right) { $fault = 'no reference'; }
				else
				{
					$fault = $right =~ /^(psql:.*)?ERROR:/m ? 'the reference fails' : difference($command, $answer, $right);
				}
				next if $fault eq '';
				$right //= '';
				push @faults, report(\%o, $n, $statement, $way, "command $i: $fault", plan => $plans,
					missing => rows_missing($right, $answer), extra => rows_missing($answer, $right), reference => $key);
				$o{counts}{"$way: faults"}++;
				last;
			}
		}
	}
	return @faults;
}

1;
