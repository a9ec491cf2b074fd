# Runs random statements (GpuvecStatements) in all ways, and compares.

package GpuvecConditions;

use strict;
use warnings;
use Exporter 'import';
use GpuvecStatements;
use GpuvecTables;

our @EXPORT = qw(ask_statements);

# How a statement is run: a schema, and what is set.  The reference is a sort,
# which uses no index on vectors; or the plain index scan, where a sort will not
# do.
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
my %EFFORTS = (
	recall => 'SET gpuvec.recall = 1',
	lists => 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000',
	relaxed => 'SET gpuvec.recall = 0.9; SET gpuvec.scan_order = relaxed',
	approximate => 'SET gpuvec.recall = 0.9',
	radius => 'SET gpuvec.radius_recall = 0.9');

# psql's input: a statement run in one way.  Before a line "@ NUMBER WAY" its
# output ends, and "@ NUMBER WAY plan" begins that of plans.
sub script
{
	my ($n, $statement, $way) = @_;
	my ($schema, $settings) = @{ $WAYS{$way} };
	my $reference = $way eq $statement->{reference};
	my $sql = join '', map { "$_;\n" } 'RESET ROLE', 'RESET ALL', 'DEALLOCATE ALL', 'CLOSE ALL',
	  'SET statement_timeout = 60000', "SET search_path = $schema, public", $settings,
	  $reference ? () : $EFFORTS{ $statement->{effort} },
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

# The output of psql, by "NUMBER WAY" and "NUMBER WAY plan".
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

# How many of the nearest rows an approximate answer has, and should have.
sub count_found
{
	my ($statement, $answer, $truth, $counts) = @_;
	my @nearest = split /^/, $truth;
	my ($limit) = map { ($_->{query} // '') =~ /\{LIMIT (\d+)\}/ } @{ $statement->{commands} };

	return if !$limit && $statement->{effort} ne 'radius';
	splice @nearest, $limit if $limit && @nearest > $limit;
	my %found = map { $_ => 1 } split /^/, $answer;
	$counts->{found} += grep { $found{$_} } @nearest;
	$counts->{wanted} += @nearest;
	return;
}

# '' if an answer is right, else what is wrong with it.
sub compare
{
	my ($statement, $answer, $truth) = @_;

	# a table's name in a message
	s/temporary_\w+/temporary/g for $answer, $truth;
	if ($statement->{effort} =~ /approximate|radius/)
	{
		my (%left, $last);

		$left{$_}++ for split /^/, $truth;
		for (split /^/, $answer)
		{
			my ($d) = /\|(\S*)$/ or return "not a row: $_";
			return "a row too many: $_" if !$left{$_}--;
			next if $statement->{effort} eq 'radius';
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

# '' if plans are those that a way is to have, else what is wrong with them.
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
	my ($reference, $sorted, $effort) = ('sort', 0, rand() < 0.3 ? 'lists' : 'recall');

	for my $command (@{ $statement->{commands} })
	{
		$reference = $command->{reference} // $reference;
		$sorted ||= $command->{sorted};
		$effort = $command->{effort} // $effort;
	}
	return { %$statement, reference => $reference, sorted => $sorted, effort => $effort };
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

# Run statements in one session.  ask: gives its argument to psql and returns
# what that says; version and pgvector: of the server; numbers: which; counts:
# how scans came to their end, and what approximate ones have found, by way.
# Returns a text for each fault, with what it takes to run the statement.
sub ask_statements
{
	my ($ask, %o) = @_;
	my %statements = map { $_ => complete(statement($o{seed}, $_, @o{ 'version', 'pgvector' })) } @{ $o{numbers} };
	my $input = session_sql();
	my @faults;

	for my $n (@{ $o{numbers} })
	{
		my $statement = $statements{$n};

		$input .= join '', map { script($n, $statement, $_) } $statement->{reference}, @TRIED;
	}
	my $told = split_told($ask->("$input\\echo \@ end\n"));
	for my $n (@{ $o{numbers} })
	{
		my $statement = $statements{$n};
		my $reference = $statement->{reference};

		for my $way ($reference, @TRIED)
		{
			my $ended = !exists $told->{ $n == $o{numbers}[-1] && $way eq $TRIED[-1] ? 'end' : "$n $way" };
			count_found($statement, $told->{"$n $way"}, $told->{"$n $reference"}, $o{counts}->{"$statement->{effort} $way"} //= {})
			  if $statement->{effort} =~ /approximate|radius/ && $way ne $reference && exists $told->{"$n $way"};
			$o{counts}->{$_}++ for ($told->{"$n $way analyzed"} // '') =~ /Rows From: (\w+)/g;
			my $fault = $ended ? 'the session has ended' : fault_of($statement, $n, $way, $told);

			if ($fault ne '')
			{
				my @told = map { "-- $_\n" . ($told->{"$n $_"} // '') } "$way plan", $way, $reference;

				push @faults, "seed $o{seed}, statement $n, $way: $fault\n" .
				  join '', script($n, $statement, $way), @told;
			}
			return @faults if $ended;
		}
	}
	return @faults;
}

1;
