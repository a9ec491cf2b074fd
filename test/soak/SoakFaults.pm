# Faults that a soak causes in its servers while clients are at work.

package SoakFaults;

use strict;
use warnings;
use Exporter 'import';
use Time::HiRes qw(time usleep);

our @EXPORT = qw(random_faults run_fault is_short processes gpuvecd_of recover rebuild);

# Each with how often it comes, and whether disks or memory are short then.
my %FAULTS = (
	backend => { often => 6, run => sub { kill_one(@_, qr/postgres: postgres postgres/) } },
	loader => { often => 4, run => sub { kill_one(@_, qr/postgres: gpuvec loader/) } },
	worker => { often => 3, run => sub { kill_one(@_, qr/postgres: (gpuvec (?!loader)|parallel worker|autovacuum worker)/) } },
	helper => { often => 1, run => sub { kill_one(@_, qr/postgres: (checkpointer|background writer|walwriter|autovacuum launcher|walsender)/) } },
	postmaster => { often => 4, run => sub { kill_server($_[0], $_[0]{primary}) } },
	immediate => { often => 2, run => sub { restart($_[0], 'immediate') } },
	restart => { often => 2, run => sub { restart($_[0], 'fast') } },
	gpuvecd => { often => 5, run => \&kill_gpuvecd },
	pause => { often => 4, run => sub { pause($_[0], qr{^\S*gpuvecd}) } },
	pause_one => { often => 2, run => sub { pause($_[0], qr/postgres: (gpuvec loader|postgres postgres)/) } },
	frozen => { often => 2, run => \&freeze },
	terminate => { often => 3, run => sub { signal_some($_[0], 'TERM') } },
	cancel => { often => 3, run => sub { signal_some($_[0], 'INT') } },
	disk => { often => 3, short => 1, run => \&fill_disk },
	memory => { often => 3, short => 1, run => \&short_memory },
	memory_gpuvecd => { often => 3, short => 1, run => \&short_gpuvecd },
	checkpoint => { often => 3, run => sub { $_[0]{primary}->ask('CHECKPOINT'); return } },
	standby => { often => 2, run => sub { kill_server($_[0], $_[0]{standby}) } },
	promote => { often => 2, run => \&promote });

# Draw the faults of a round of so many seconds: [ second, name ], ascending.
sub random_faults
{
	my ($seconds, $allowed) = @_;
	my @names = grep { !$allowed || " $allowed " =~ / $_ / } sort keys %FAULTS;

	@names = grep { $_ ne 'disk' } @names if !$ENV{SOAK_PRIVATE};
	my @bag = map { ($_) x $FAULTS{$_}{often} } @names;
	my $n = @bag ? $ENV{FAULTS_EACH} // int rand 7 : 0;
	return sort { $a->[0] <=> $b->[0] } map { [ rand($seconds), $bag[ rand @bag ] ] } 1 .. $n;
}

sub is_short
{
	return scalar grep { $FAULTS{ $_->[1] }{short} } @_;
}

# Returns what was done, which may be nothing.
sub run_fault
{
	my ($soak, $name) = @_;

	return $FAULTS{$name}{run}->($soak) // '';
}

# -- processes

# Processes of a server, by their titles.
sub processes
{
	my ($server, $title) = @_;
	my @found;

	for my $dir (glob '/proc/[0-9]*')
	{
		next if (readlink("$dir/cwd") // '') ne $server->{data};
		open my $in, '<', "$dir/cmdline" or next;
		my $line = readline($in) // '';
		push @found, $dir =~ /(\d+)$/ if $line =~ $title;
	}
	return @found;
}

sub gpuvecd_of
{
	my ($server) = @_;

	return processes($server, qr{^\S*gpuvecd});
}

sub one_of
{
	return $_[ rand @_ ];
}

sub kill_one
{
	my ($soak, $title) = @_;
	my $pid = one_of(processes($soak->{primary}, $title)) // return;

	$soak->{kills}++;
	kill 'KILL', $pid;
	return "killed $pid";
}

sub signal_some
{
	my ($soak, $signal) = @_;
	my @pids = processes($soak->{primary}, qr/postgres: (postgres postgres|gpuvec (loader|training))/);

	@pids = grep { rand() < 0.4 } @pids;
	kill $signal, @pids;
	return "$signal to " . @pids;
}

sub kill_server
{
	my ($soak, $server) = @_;

	$soak->{kills}++;
	$server->kill9;
	return 'killed; ' . $server->start;
}

sub restart
{
	my ($soak, $mode) = @_;
	my $server = $soak->{primary};

	# Not one without the other: redo for a relation that is dropped later may
	# meet pages of zeros, and has to; the check of pages does not bear them.
	my ($full, $check) = @{ one_of([ 'on', "'generic'" ], [ 'on', "''" ], [ 'off', "''" ]) };

	$server->stop($mode);
	$server->configure(
		"full_page_writes = $full",
		"wal_consistency_checking = $check",
		'wal_compression = ' . one_of('on', 'off'),
		"gpuvec.gpu_memory = '" . one_of(0, 1, 3) . "MB'",
		"shared_buffers = '" . one_of(2, 16, 64) . "MB'");
	return "$mode; " . $server->start;
}

sub kill_gpuvecd
{
	my ($soak) = @_;
	my @pids = gpuvecd_of($soak->{primary});

	$soak->{kills} += @pids;
	kill 'KILL', @pids;
	return "killed @pids";
}

sub pause
{
	my ($soak, $title) = @_;
	my $pid = one_of(processes($soak->{primary}, $title)) // return;
	my $ms = one_of(50, 300, 1500, 5000);

	kill 'STOP', $pid;
	usleep(1000 * $ms);
	kill 'CONT', $pid;
	return "$pid stood $ms ms";
}

# gpuvecd does not run when its server ends; it has to be gone all the same, at
# the latest when it runs again.
sub freeze
{
	my ($soak) = @_;
	my $server = $soak->{primary};
	my @pids = gpuvecd_of($server) or return;
	my $how = one_of('fast', 'immediate', 'killed');
	my $problem;

	kill 'STOP', @pids;
	if ($how eq 'killed')
	{
		$soak->{kills}++;
		$server->kill9;
	}
	else
	{
		$problem = $server->stop($how);
		return "SOAK does not stop beside a frozen gpuvecd: $problem" if $problem;
	}
	$problem = $server->start;
	usleep(1_000_000 * one_of(0, 2));
	kill 'CONT', @pids;
	for (1 .. 100)
	{
		last if !grep { kill 0, $_ } @pids;
		usleep(100_000);
	}
	return 'SOAK a gpuvecd outlives its server' if grep { kill 0, $_ } @pids;
	return "$how; $problem";
}

# -- space and memory

# All that the disk has left, for a while.
sub fill_disk
{
	my ($soak) = @_;
	my $seconds = one_of(0.3, 1, 3);
	my $filler = "$ENV{SOAK_DISK}/filler";
	my $end = time + $seconds;

	open my $out, '>', $filler or return;
	# what is freed meanwhile, too
	while (time < $end)
	{
		syswrite($out, "\0" x 65536) || syswrite($out, "\0" x 4096) || usleep(2000);
	}
	close $out;
	my $mb = int((-s $filler) / 1048576);
	unlink $filler;
	return "$mb MB for $seconds s";
}

# Some sessions cannot have more than a little memory from now on.
sub short_memory
{
	my ($soak) = @_;
	my @pids = grep { rand() < 0.3 }
	  processes($soak->{primary}, qr/postgres: (postgres postgres|gpuvec|parallel)/);

	limit_memory($_, one_of(0, 1, 4, 16)) for @pids;
	return scalar(@pids) . ' sessions';
}

sub short_gpuvecd
{
	my ($soak) = @_;
	my @pids = gpuvecd_of($soak->{primary}) or return;
	my $mb = one_of(0, 1, 8);

	limit_memory($_, $mb) for @pids;
	usleep(3_000_000);
	limit_memory($_) for @pids;
	return "$mb MB more";
}

# Let a process have no more than so much beyond what it has; undef: all.
sub limit_memory
{
	my ($pid, $mb) = @_;
	my $limit = 'unlimited';

	if (defined $mb)
	{
		open my $in, '<', "/proc/$pid/status" or return;
		my ($kb) = join('', readline $in) =~ /VmSize:\s+(\d+)/ or return;
		$limit = 1024 * ($kb + 1024 * $mb);
	}
	system "prlimit --pid $pid --as=$limit:unlimited 2>/dev/null";
	return;
}

# -- standby

# The standby becomes the primary, and is given a standby in place of the
# one that was.
sub promote
{
	my ($soak) = @_;
	my $old = $soak->{primary};
	my $new = $soak->{standby};

	return if $new->await(5);
	# (killed, it would leave shared memory that only its own restart removes)
	$old->stop('immediate');
	my $problem = $new->program('pg_ctl', '-D', $new->{data}, '-w', '-t', 60, 'promote');
	return "SOAK no promotion: $problem" if $problem;
	$soak->take(primary => $new);
	# children of the old one hold its port and sockets until they are gone
	my $end = time + 30;
	usleep(100_000) while time < $end && processes($old, qr/./);
	return "SOAK processes of the old primary are left" if processes($old, qr/./);
	$soak->take(standby => $old);
	$soak->{files} = undef;
	return 'promoted; ' . rebuild($soak);
}

# Make the standby anew; '' or why that failed.
sub rebuild
{
	my ($soak) = @_;
	my $standby = $soak->{standby};

	$standby->stop('immediate');
	system 'rm', '-rf', $standby->{data};
	return $standby->follow($soak->{primary}) || $standby->start;
}

# Have a server that answers, whatever has happened; '' or the problem.
sub recover
{
	my ($server) = @_;

	return '' if $server->await($server->pid ? 30 : 1) eq '';
	return $server->start || $server->await(60);
}

1;
