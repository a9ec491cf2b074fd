# Code that tests of random statements share: choices at random, and a session
# whose output is told apart by marks.

package GpuvecRandom;

use strict;
use warnings;
use Exporter 'import';
use IPC::Run ();
use PostgreSQL::Test::Utils;

our @EXPORT = qw(chance number pick weighted say_all split_marked);

sub chance { return rand() < $_[0]; }
sub number { return int(rand($_[0])); }
sub pick { return $_[ rand @_ ]; }

# Picks one of several, each with the weight before it.
sub weighted
{
	my @pairs = @_;
	my $sum = 0;

	$sum += $pairs[ 2 * $_ ] for 0 .. $#pairs / 2;
	my $left = rand $sum;
	while (($left -= shift @pairs) >= 0) { shift @pairs; }
	return $pairs[0];
}

# Gives the input to a psql of its own; returns what that says, messages where they
# come.  The input is a file, since a pipe breaks where the server does.
sub say_all
{
	my ($node, $input) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/statements.sql';
	my $output;

	unlink $file;
	append_to_file($file, $input);
	IPC::Run::run([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', $file, '>&', \$output);
	return $output;
}

# Splits such an output at its lines "@ MARK"; returns the texts by their marks.
sub split_marked
{
	my ($output) = @_;
	my (%texts, $mark);

	for my $line (split /^/, $output)
	{
		if ($line =~ /^@ (.*)$/)
		{
			$mark = $1;
			$texts{$mark} //= '';
		}
		elsif (defined $mark) { $texts{$mark} .= $line; }
	}
	return \%texts;
}

1;
