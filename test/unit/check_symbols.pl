#!/usr/bin/perl
#
# check_symbols.pl
#		The release has nothing of the test build (make TEST_BUILD=1).
#
# usage: check_symbols.pl RELEASE [TEST]		trees in which both were built
#
# For tests alone is what a source defines or declares where GV_TEST_BUILD is
# defined, and all of a file that the Makefile has for that build alone
# (for_tests), as it has test/oracle.  No symbol so called, static ones included, may be in the release's
# gpuvec.so and gpuvecd, nor one of the words by which tests ask for it.  Of the
# test build each has some: else nothing would be looked for.  That also holds of
# what gpu/ defines, where there is nvcc.
#
# Besides, a function that others may call but only tests do is for tests.
#
# Ends with "symbols: N passed, M failed".
use strict;
use warnings;
use FindBin;

my ($release, $test) = @ARGV;
die "usage: check_symbols.pl RELEASE [TEST]\n" unless @ARGV == 1 || @ARGV == 2;
chdir "$FindBin::RealBin/../.." or die;

# words in strings: a setting, options, variables of the environment
my @words = ('gpuvec.fault', 'set-fault', 'build-fault', 'memory-fault', 'GPUVEC_DIVIDE', 'injected fault',
	'below a node that reads all its rows');
# what these are called in a binary, be they C's or C++'s
my $name = qr/(?:gv|ivfpq)_\w+|Ivfpq\w+/;
my ($passed, $failed) = (0, 0);

sub slurp
{
	my ($path) = @_;
	local $/;
	open my $in, '<:raw', $path or die "$path: $!\n";
	return <$in>;
}

sub check
{
	my ($what, @bad) = @_;

	@bad ? $failed++ : $passed++;
	print "FAILED: $what\n", map { "    $_\n" } @bad if @bad;
	return;
}

sub sources
{
	my @found;
	for my $path (map { glob "$_/*" } @_)
	{
		push @found, -d $path ? sources($path) : $path =~ /\.(?:c|h|cu|cuh)$/ ? $path : ();
	}
	return @found;
}

# A source without comments, and the lines of it that only the test build has.
sub lines
{
	my ($path) = @_;
	my $text = slurp($path);
	my (@ours, @theirs, @if);

	$text =~ s{/\*.*?\*/}{}gs;
	for (split /\n/, $text)
	{
		if (/^\s*#\s*if/) { push @if, /GV_TEST_BUILD/ ? 1 : 0; next; }
		if (/^\s*#\s*else/) { $if[-1] = -1 if $if[-1] == 1; next; }
		if (/^\s*#\s*endif/) { pop @if; next; }
		push @{ (grep { $_ == 1 } @if) ? \@theirs : \@ours }, $_;
	}
	return (\@ours, \@theirs);
}

# Functions and variables that lines define or declare outside of functions.
sub defined_in
{
	my (%found, $depth);

	$depth = 0;
	for (@_)
	{
		my $line = s/"(?:[^"\\]|\\.)*"//gr;
		if ($depth == 0 && $line !~ /^\s*#|^typedef|^struct|^\s/)
		{
			# "name(" or, of a variable, "name;", "name =", "name["
			$found{$1} = 1 if $line =~ /^(\w+)\(/;
			$found{$2} = 1 if $line =~ /^(?:extern|static) (?:"C" )?(.*?)\b(\w+)\s*(?:[(;=[]|$)/;
		}
		$depth += ($line =~ tr/{//) - ($line =~ tr/}//) unless $line =~ /^extern "C"\s*\{?$/;
	}
	return keys %found;
}

my ($only) = slurp('Makefile') =~ /^for_tests := ((?:.*\\\n)*.*)/m or die "no for_tests in Makefile\n";
my %only = map { s/\.o$//r => 1 } grep { /\.o$/ } split /[\s\\]+/, $only;
my (%tests, %release, %mentions, %header);
for my $path (sources('src', 'gpu', 'test/oracle'))
{
	my ($ours, $theirs) = lines($path);
	my $alone = $path =~ m{^test/oracle/} || $only{ $path =~ s/\.\w+$//r };

	$tests{$_} = $path for defined_in(@$theirs, $alone ? @$ours : ());
	next if $alone;
	$release{$_} = 1 for defined_in(@$ours);
	if ($path =~ /\.c[u]?$/)
	{
		$mentions{$_}++ for join("\n", @$ours) =~ /\b($name)\b/g;
	}
	else
	{
		$mentions{$_} += 2 for grep { /\b$name\b/ } map { /\b($name)\b/g } grep { !/^extern/ } @$ours;
		$header{$_} = $path for map { /^extern .*?\b($name)\(/ } @$ours;
	}
}
# a static function or variable of the same name may be the release's elsewhere
delete @tests{ grep { $release{$_} } keys %tests };
check('the sources have some for tests', keys %tests > 20 ? () : 'they have ' . keys %tests);

# All symbols of a program, C++'s without their arguments.
sub symbols
{
	my ($path) = @_;
	my %found = map { /^(?:[0-9a-f]+| +) \w (?:.*::)?(\w+)/ ? ($1 => 1) : () } split /\n/, `nm -C '$path'`;

	die "$path: no symbols\n" unless %found;
	return \%found;
}

for my $program ('gpuvec.so', 'gpuvecd')
{
	my $symbols = symbols("$release/$program");
	my $text = slurp("$release/$program");

	check("$program of the release has no symbol for tests",
		map { "$_ ($tests{$_})" } grep { $symbols->{$_} } sort keys %tests);
	check("$program of the release has no word for tests", grep { index($text, $_) >= 0 } @words);
	next unless $test;
	my $others = symbols("$test/$program");
	$text = slurp("$test/$program");
	check("$program of the test build has symbols for tests",
		(grep { $others->{$_} } keys %tests) > 5 ? () : 'it has none');
	check("$program of the test build has a word for tests",
		(grep { index($text, $_) >= 0 } @words) ? () : 'it has none');
}

my $tests = join "\n", map { slurp($_) } grep { /\.[ch]$/ }
	map { glob "test/$_" } 'unit/*/*', 'unit/*/*/*', 'oracle/*';
check('what only tests call is for tests',
	map { "$_ ($header{$_})" } grep { ($mentions{$_} // 0) <= 1 && !$tests{$_} && $tests =~ /\b$_\b/ } sort keys %header);

print "symbols: $passed passed, $failed failed\n";
exit($failed != 0);
