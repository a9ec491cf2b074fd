#!/usr/bin/perl
#
# apply.pl
#		Puts planted faults, rows of the table beside it, into sources.
#
# usage: apply.pl [-d TREE] NAME...				changes the files of TREE
#        apply.pl --check [-d TREE] [NAME...]	does each row apply by itself?
#        apply.pl --list [NAME...]				prints names and tests
#
# TREE is by default this file's.  Where no NAME is given, all rows are meant.
# A row that does not apply is named, and nothing of it is written.  --check
# writes nothing at all, and ends with "table: N passed, M failed".
use strict;
use warnings;
use FindBin;
use Getopt::Long;

my ($check, $list);
my $tree = "$FindBin::RealBin/../..";
GetOptions('check' => \$check, 'list' => \$list, 'd=s' => \$tree) && ($check || $list || @ARGV)
	or die "usage: apply.pl [--check | --list] [-d TREE] [NAME...]\n";

# The table's rows, in their order; its head says how they are written.
sub rows
{
	my ($path) = @_;
	my (@rows, $file);
	open my $in, '<', $path or die "$path: $!\n";
	while (<$in>)
	{
		next if /^#|^$/;
		my $edit = @rows ? $rows[-1]{edits}[-1] : undef;
		if (/^== (\S+)$/)
		{
			$file = $1;
		}
		elsif ($file && /^(\w+)(?:, (\w+))? \((\w+ \w+)\): .*\.$/)
		{
			push @rows, { name => $1, test => $3, edits => [ { file => $file, function => $2, old => '', new => '' } ] };
		}
		elsif (@rows && /^(\S+):(?: (\w+))?$/)
		{
			push @{ $rows[-1]{edits} }, { file => $1, function => $2, old => '', new => '' };
		}
		elsif ($edit && /^([-+ ])(.*\n)/)
		{
			$edit->{old} .= $2 unless $1 eq '+';
			$edit->{new} .= $2 unless $1 eq '-';
		}
		else
		{
			die "$path:$.: neither a file nor a row's head nor FILE: FUNCTION nor a line of an edit\n";
		}
	}
	for my $row (@rows)
	{
		die "$path: $row->{name} has an edit of no line\n"
			if grep { $_->{old} eq '' } @{ $row->{edits} };
	}
	return @rows;
}

sub slurp
{
	my ($path) = @_;
	local $/;
	open my $in, '<', $path or die "$path: $!\n";
	return <$in>;
}

# The files, by their paths, that a row changes, with the row applied.
sub applied
{
	my ($row) = @_;
	my %text;
	for my $edit (@{ $row->{edits} })
	{
		my ($file, $function, $old, $new) = @$edit{qw(file function old new)};
		my $where = defined $function ? "$file: $function" : $file;
		my $place = defined $function ? qr/^(?:sub $function\b|$function\()[^;{]*^\{\n.*?^\}\n/ms : qr/\A.*\z/s;
		my $found = 0;
		die "$row->{name}: there is no $file\n" unless -f "$tree/$file";
		$text{$file} //= slurp("$tree/$file");
		$text{$file} =~ s{$place}{ my $part = $&; $found += $part =~ s/^\Q$old\E/$new/mg; $part }ge
			or die "$row->{name}: there is no $where\n";
		die "$row->{name}: its lines are $found times in $where\n" if $found != 1;
	}
	return %text;
}

my @rows = rows("$FindBin::RealBin/table");
my %rows;
my $before = '';
for (@rows)
{
	my $key = "$_->{edits}[0]{file} $_->{name}";
	die "table: two rows $_->{name}\n" if $rows{ $_->{name} };
	die "table: $_->{name} is not in its place\n" if $key lt $before;
	$rows{ $_->{name} } = $_;
	$before = $key;
}
@rows = map { $rows{$_} // die "table: no row $_\n" } @ARGV if @ARGV;

if ($list)
{
	print map { "$_->{name} $_->{test}\n" } @rows;
}
elsif ($check)
{
	my $failed = grep { !eval { applied($_) } && print $@ } @rows;
	printf "table: %d passed, %d failed\n", @rows - $failed, $failed;
	exit($failed != 0);
}
else
{
	for my $row (@rows)
	{
		my %text = applied($row);
		for (sort keys %text)
		{
			open my $out, '>', "$tree/$_" or die "$_: $!\n";
			print $out $text{$_};
			close $out or die "$_: $!\n";
		}
	}
}
