#!/usr/bin/perl
#
# check_format.pl
#		Are C files laid out as pg_bsd_indent lays them out?
#
# usage: check_format.pl [--fix] [FILE...]			by default all C files below
#												src and test/oracle
#
# With --fix it lays them out.  Takes pg_bsd_indent (Debian: pg-bsd-indent) with
# the options of PostgreSQL's pgindent, and does before and after it what that
# does for constructs which we have.  Names of types come from src/typedefs.list,
# PostgreSQL's, and from our own typedefs.  Prints the files that differ and
# "format: N passed, M failed"; status 2: there is no pg_bsd_indent.
use strict;
use warnings;
use File::Spec;
use File::Temp qw(tempdir);
use FindBin;

my $fix = @ARGV && $ARGV[0] eq '--fix' && shift;
my ($indent) = grep { -x } map { "$_/pg_bsd_indent" } split(/:/, $ENV{PATH}), glob '/usr/lib/postgresql/*/bin';
if (!$indent)
{
	print "format: no pg_bsd_indent\n";
	exit 2;
}
my @files = map { File::Spec->rel2abs($_) } @ARGV;
chdir "$FindBin::RealBin/../.." or die;
my @ours = ('src', 'test/oracle');
@files = below(@ours) unless @files;

my $dir = tempdir(CLEANUP => 1);
my @options = (
	qw(-bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 -nfc1 -i4 -l79),
	qw(-lp -lpl -nip -npro -sac -tpg -ts4), '-U' . typedefs());
my ($passed, $failed) = (0, 0);

sub below
{
	return map { -d $_ ? below($_) : /\.[ch]$/ ? $_ : () } map { glob "$_/*" } @_;
}

sub slurp
{
	my ($path) = @_;
	local $/;
	open my $in, '<', $path or die "$path: $!\n";
	return <$in>;
}

sub spew
{
	my ($path, $text) = @_;
	open my $out, '>', $path or die "$path: $!\n";
	print $out $text;
	close $out or die "$path: $!\n";
}

sub typedefs
{
	my %names = map { $_ => 1 } split /\n/, slurp('src/typedefs.list');
	for (map { slurp($_) } below(@ours))
	{
		$names{$1} = 1 while /^typedef\s[^;{]*\{.*?^\}\s*(\w+);/gms;
		$names{$1} = 1 while /^typedef\s[^;{]*?(\w+);/gm;
		$names{$1} = 1 while /^typedef\s[^;{]*?\(\*(\w+)\)/gm;
	}
	spew("$dir/types", join '', map { "$_\n" } sort keys %names);
	return "$dir/types";
}

# The text as pg_bsd_indent has it.
sub laid_out
{
	my ($text) = @_;
	spew("$dir/file.c", $text);
	system("cd $dir && '$indent' @options file.c >log 2>&1") == 0
		or die slurp("$dir/log");
	$text = slurp("$dir/file.c");
	# one space before the star of what a function returns
	$text =~ s/^([A-Za-z_][\w ]*?)[ \t]+\*$/$1 */gm;
	# a space between designated initializers on a line
	$text =~ s/,\.(?=\w+ = )/, ./g;
	return $text;
}

# The lines that pg_bsd_indent misread: a variable has the name of a type, or a
# type is in no list.
sub misread
{
	return grep { /^[^"]*(?:\w\[\t|\w [-+]\w+[,;)]|const \w+ \* \w)/ && !/^ ?\*|\/\*|\breturn / }
		split /\n/, $_[0];
}

for my $file (@files)
{
	my $text = slurp($file);
	my $wanted = laid_out($text);
	if (my @misread = misread($wanted))
	{
		$failed++;
		print "$file: name it otherwise than a type, or add its type to",
			" src/typedefs.list: $_\n" for @misread;
	}
	elsif ($text eq $wanted)
	{
		$passed++;
	}
	elsif ($fix)
	{
		spew($file, $wanted);
		$passed++;
		print "laid out: $file\n";
	}
	else
	{
		$failed++;
		print "not laid out: $file (test/unit/check_format.pl --fix)\n";
	}
}
print "format: $passed passed, $failed failed\n";
exit($failed != 0);
