#!/usr/bin/perl
#
# coverage.pl
#		How many lines of src/ have the tests executed, and which error paths
#		have they not?
#
# usage: coverage.pl JSON SOURCE LIST
#
# JSON is what `gcovr --json` wrote, SOURCE the tree that it is about.  Writes a
# table of folders, and every statement that reports an error (ereport, elog, a
# return of an engine's error) and was never reached, to LIST.  Passes if at
# least so many percent of the lines were executed:
use strict;
use warnings;
use JSON::PP;

my $WANTED = 92;

die "usage: coverage.pl JSON SOURCE LIST\n" unless @ARGV == 3;
my ($json, $source, $list) = @ARGV;
my $REPORT = qr/\b(?:ereport|elog)\s*\(|\breturn\s+GV_(?:CANCELED|INVALID|NO_MEMORY|FAILED)\s*;/;

sub slurp
{
	my ($path) = @_;
	open my $file, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$file>;
}

# Statements of the lines @$text that report an error, none of whose lines was
# executed and one of which was counted: [line, text].
sub unreached
{
	my ($text, $count) = @_;
	my @found;
	for (my $at = 1; $at <= @$text; $at++)
	{
		next unless $text->[ $at - 1 ] =~ $REPORT;
		my ($first, $statement) = ($at, '');
		while ($at <= @$text)
		{
			$statement .= ' ' . $text->[ $at - 1 ] =~ s/^\s+|\s+$//gr;
			last if $statement =~ /;$/;
			$at++;
		}
		my @counts = grep { defined } @$count[ $first .. $at ];
		# what is only logged is no error path
		next if !@counts || grep({ $_ > 0 } @counts)
			|| $statement =~ /\((?:DEBUG\d|LOG|NOTICE|INFO)\b/;
		my ($message) = $statement =~ /("(?:[^"\\]|\\.)*")/;
		push @found, [ $first, $message // $statement =~ s/^ //r ];
	}
	return @found;
}

my (%lines, %reached, @paths);
for my $file (sort { $a->{file} cmp $b->{file} } @{ decode_json(slurp($json))->{files} })
{
	my $name = $file->{file};
	my $folder = $name =~ s{/[^/]*$}{}r;
	my @count;
	for my $line (@{ $file->{lines} })
	{
		next if $line->{'gcovr/noncode'};
		$count[ $line->{line_number} ] = $line->{count};
		$lines{$_}++ for $folder, 'all';
		$reached{$_} += $line->{count} > 0 for $folder, 'all';
	}
	my @text = split /\n/, slurp("$source/$name");
	push @paths, map { "$name:$_->[0]: $_->[1]" } unreached(\@text, \@count);
}
die "$json: no lines\n" unless $lines{all};

my $share = 100 * $reached{all} / $lines{all};
open my $out, '>', $list or die "$list: $!\n";
printf $out "%-28s %7s %9s %6s\n", 'folder', 'lines', 'executed', '%';
printf $out "%-28s %7d %9d %6.1f\n", $_, $lines{$_}, $reached{$_}, 100 * $reached{$_} / $lines{$_}
	for sort { ($a eq 'all') <=> ($b eq 'all') || $a cmp $b } keys %lines;
print $out "\nerrors that no test has reported:\n", map { "$_\n" } @paths;
close $out or die "$list: $!\n";

my $enough = $share >= $WANTED;
printf "%.1f %% of the lines, %d error paths not executed\n", $share, scalar @paths;
printf "coverage: %d passed, %d failed\n", $enough, !$enough;
exit !$enough;
