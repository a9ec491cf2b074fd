# A server whose disk fails when it is told to, or loses what was not synced
# (baddisk.c, which is preloaded into it).

package GpuvecDisk;

use strict;
use warnings;
use Exporter 'import';
use FindBin;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(start_on_bad_disk fail_call calls_seen lose_unsynced %CALLS);

# Kinds of calls that fail.
our %CALLS = (reads => 1, writes => 2, syncs => 4);

my $folder = PostgreSQL::Test::Utils::tempdir();
my ($library, $control, $undo) = map { "$folder/$_" } qw(baddisk.so control undo);

# Start the node with the library; it is initialized, and does not run.
sub start_on_bad_disk
{
	my ($node) = @_;

	system_or_bail('cc', '-O1', '-shared', '-fPIC', '-o', $library, "$FindBin::RealBin/baddisk.c")
	  unless -e $library;
	fail_call(0, 0, 0);
	unlink $undo;
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{BADDISK_CONTROL} = $control;
	local $ENV{BADDISK_UNDO} = $undo;
	local $ENV{BADDISK_DATA} = $node->data_dir;
	return $node->start;
}

# Have the n-th call of such kinds (their sum) fail with this errno from now on; 0:
# none does, and they are counted.  The control is written in place: servers have it
# mapped.
sub fail_call
{
	my ($kinds, $error, $n) = @_;

	open my $file, -e $control ? '+<' : '>', $control or die "$control: $!";
	syswrite $file, pack('l l q q', $kinds, $error, $n, 0);
	close $file;
	return;
}

# Calls since then.
sub calls_seen
{
	return (unpack 'l l q q', slurp_file($control))[3];
}

# The server was killed: have its files lose what was written since their last sync;
# returns the number of writes lost.
sub lose_unsynced
{
	my ($node) = @_;
	my (%writes, %path, $head);
	my $lost = 0;

	open my $log, '<:raw', $undo or die "$undo: $!";
	while (read($log, $head, 32) == 32)
	{
		my ($inode, $offset, $length, $size) = unpack 'Q q q q', $head;

		if ($length < 0)
		{
			delete $writes{$inode};
			next;
		}
		push @{ $writes{$inode} }, [ $offset, $length, $size, tell $log ];
		seek $log, $length, 1;
	}
	my @folders = ($node->data_dir);
	while (defined(my $dir = shift @folders))
	{
		for (glob "$dir/*")
		{
			push @folders, $_ if -d && !-l;
			$path{ (stat _)[1] } = $_ if -f;
		}
	}
	for my $inode (grep { $path{$_} } keys %writes)
	{
		open my $file, '+<:raw', $path{$inode} or die "$path{$inode}: $!";
		for (reverse @{ $writes{$inode} })
		{
			my ($offset, $length, $size, $at) = @$_;
			my $bytes = '';

			seek $log, $at, 0;
			read($log, $bytes, $length) == $length or die "$undo ends" if $length > 0;
			sysseek $file, $offset, 0;
			syswrite $file, $bytes if $length > 0;
			truncate $file, $size;
			$lost++;
		}
		close $file;
	}
	unlink $undo;
	return $lost;
}

1;
