# One PostgreSQL server of a soak, which may be killed at any moment.
# (PostgreSQL::Test::Cluster keeps account of its servers and ends the program
# when one does not start or answer.)

package SoakServer;

use strict;
use warnings;
use IPC::Run ();
use Time::HiRes qw(time usleep);

our $PORT = 54400;

# A server that is not there yet.
sub new
{
	my ($class, $name) = @_;
	my $disk = $ENV{SOAK_DISK};

	return bless {
		name => $name,
		port => ++$PORT,
		data => "$disk/$name",
		log => "$ENV{SOAK_LOGS}/$name.log",
		read => 0
	}, $class;
}

# Run a program of PostgreSQL; its output if it fails, else ''.
sub program
{
	my ($self, @command) = @_;
	my $out = '';

	# not a pipe: a server would keep it open
	my $file = "$ENV{SOAK_LOGS}/$self->{name}.out";
	IPC::Run::run(\@command, '<', \undef, '>&', $file) and return '';
	open my $in, '<', $file or return "$command[0]: failed";
	$out = do { local $/; <$in> } // '';
	return "@command[0 .. 1]: failed: $out";
}

# Make its data folder.
sub init
{
	my ($self, $conf) = @_;
	my $problem = $self->program('initdb', '-D', $self->{data}, '-U', 'postgres', '-A', 'trust',
		'-N', '--locale=C', '--encoding=UTF8', '--wal-segsize=1');

	die $problem if $problem;
	$self->configure("listen_addresses = ''", "unix_socket_directories = '$ENV{PGHOST}'",
		"port = $self->{port}", @$conf);
	return;
}

# Make it a standby of another.
sub follow
{
	my ($self, $primary) = @_;
	my $problem = $self->program('pg_basebackup', '-D', $self->{data}, '-p', $primary->{port},
		'-X', 'stream', '-c', 'fast', '-R', '--no-sync');

	return $problem if $problem;
	$self->configure("port = $self->{port}");
	return '';
}

# Settings, which take effect with a reload or start; the last one counts.
sub configure
{
	my ($self, @lines) = @_;

	open my $conf, '>>', "$self->{data}/postgresql.conf" or die "$self->{data}: $!";
	print $conf map { "$_\n" } @lines;
	close $conf or die "$self->{data}: $!";
	return;
}

# The postmaster's process, 0 where there is none.
sub pid
{
	my ($self) = @_;

	open my $file, '<', "$self->{data}/postmaster.pid" or return 0;
	my $pid = readline($file) // '';
	return $pid =~ /^(\d+)/ && kill(0, $1) ? $1 : 0;
}

# Start it; '' or why it does not.  Children of a killed postmaster may still
# be there.
sub start
{
	my ($self, $seconds) = @_;
	my $end = time + ($seconds // 60);
	my $problem = '';

	while (time < $end)
	{
		$problem = $self->program('pg_ctl', '-D', $self->{data}, '-l', $self->{log},
			'-w', '-t', 60, 'start');
		return '' if $problem eq '' || $self->answers;
		usleep(200_000);
	}
	return $problem;
}

# Stop it; '' or why it does not.
sub stop
{
	my ($self, $mode) = @_;

	return '' if !$self->pid;
	return $self->program('pg_ctl', '-D', $self->{data}, '-w', '-t', 60, '-m', $mode, 'stop');
}

sub kill9
{
	my ($self) = @_;
	my $pid = $self->pid or return;

	kill 'KILL', $pid;
	usleep(50_000) while kill(0, $pid);
	return;
}

# Is there a session to be had?
sub answers
{
	my ($self) = @_;

	return ($self->ask('SELECT 1', seconds => 10))[0] eq '1';
}

# Wait until it lets sessions in; '' or what it says.
sub await
{
	my ($self, $seconds) = @_;
	my $end = time + $seconds;

	while (time < $end)
	{
		return '' if $self->answers;
		usleep(100_000);
	}
	return ($self->ask('SELECT 1'))[1] || 'no answer';
}

# Returns the statements' output, and errors.  %options: seconds.
sub ask
{
	my ($self, $sql, %options) = @_;
	my ($out, $err) = ('', '');
	my $timer = IPC::Run::timeout($options{seconds} // 120);

	eval {
		IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-p', $self->{port}, '-d', 'postgres' ],
			'<', \$sql, '>', \$out, '2>', \$err, $timer);
		1;
	} or $err .= "SOAK $self->{name}: no answer: " . substr($sql, 0, 200) . ": $@";
	chomp($out, $err);
	return ($out, $err);
}

# Lines of the log since it was last asked.
sub log_lines
{
	my ($self) = @_;

	open my $in, '<', $self->{log} or return;
	seek $in, $self->{read}, 0;
	my @lines = readline $in;
	$self->{read} = tell $in;
	return @lines;
}

# Forget what the log says so far.
sub forget_log
{
	my ($self) = @_;

	truncate $self->{log}, 0;
	$self->{read} = 0;
	return;
}

1;
