# Sessions of psql at a third of the price.  To start psql takes most of what a
# short session takes, and TAP tests have thousands: here one psql of each server
# and database stays, and connects anew for each of them.  Between them, since
# psql ends when it has no connection, it is connected to us.
#
# Nothing else differs: a session has a backend of its own and begins with psql's
# defaults, a failed statement ends psql and tells its status.  What a psql that
# stays could not do, or would remember, has one to itself as before: commands of
# psql's, and parameters of PostgreSQL::Test::Cluster::psql that are not
# safe_psql's.

package GpuvecPsql;

use strict;
use warnings;
use Errno;
use IO::Handle;
use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

my $END = 'end of the session';
my %SHARED = map { $_ => 1 } qw(stdout stderr on_error_die on_error_stop);
# by what they connect to: in, out (handles), file (their statements and messages)
my %running;
my $files = 0;
my $owner = $$;
# where psql waits; the folder is short enough for a socket's path
my $waiting = PostgreSQL::Test::Utils::tempdir_short();
my $server = IO::Socket::UNIX->new(Local => "$waiting/.s.PGSQL.1", Listen => 1) or die $!;

my $alone = \&PostgreSQL::Test::Cluster::psql;
{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::psql = \&psql;
}

# Begin a psql, which connects as its first session will.
sub start
{
	my ($node, $connstr) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/psql' . ++$files;
	pipe(my $stdin, my $in) or die $!;
	pipe(my $out, my $stdout) or die $!;
	my $pid = fork // die $!;

	if ($pid == 0)
	{
		%ENV = $node->_get_env();
		open STDIN, '<&', $stdin or die $!;
		open STDOUT, '>&', $stdout or die $!;
		open STDERR, '>', "$file.err" or die $!;
		exec $node->installed_command('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $connstr, '-f', '-'
		  or die $!;
	}
	$in->autoflush(1);
	return { pid => $pid, in => $in, out => $out, file => $file, told => 0 };
}

# A system call, again where a signal interrupts it: a child of others may end.
sub again
{
	my ($call) = @_;
	my $result;

	do { $result = $call->() } while !defined $result && $!{EINTR};
	return $result;
}

# What psql says until it says $END; the second value: did it?
sub hear
{
	my ($psql) = @_;
	my $output = '';

	while (again(sub { sysread $psql->{out}, $output, 65536, length $output }))
	{
		return ($output, 1) if $output =~ s/(?:^|(?<=\n))$END\n\z//;
	}
	return ($output, 0);
}

# What it said on standard error since the last session.
sub messages
{
	my ($psql) = @_;

	open my $err, '<', "$psql->{file}.err" or die $!;
	seek $err, $psql->{told}, 0;
	my $text = do { local $/; <$err> // '' };
	$text =~ s/psql:\Q$psql->{file}\E\.sql:/psql:<stdin>:/g;
	return $text;
}

# Have psql connect to us: we let anyone in, and answer nothing (PostgreSQL
# documentation, "Message Formats": AuthenticationOk, ReadyForQuery).
sub wait_here
{
	my ($psql) = @_;

	print { $psql->{in} } "\\c \"host=$waiting port=1 dbname=x user=x\"\n\\echo $END\n";
	$psql->{waiting} = again(sub { scalar $server->accept }) or die $!;
	again(sub { sysread $psql->{waiting}, my $startup, 65536 });
	syswrite $psql->{waiting}, pack('a N N a N a', 'R', 8, 0, 'Z', 5, 'I');
	hear($psql);
	$psql->{told} = -s "$psql->{file}.err";
	return;
}

# PostgreSQL::Test::Cluster::psql
sub psql
{
	my ($node, $dbname, $sql, %params) = @_;
	my $connstr = $node->connstr($dbname);
	my $key = join "\n", $connstr, map { "$_=$ENV{$_}" } grep { /^PG/ } sort keys %ENV;

	if ($sql =~ /\\[a-z\\]/ || !($params{on_error_stop} // 1) || grep { !$SHARED{$_} } keys %params)
	{
		return wantarray ? ($alone->(@_)) : scalar $alone->(@_);
	}
	my $psql = delete $running{$key};
	my $connect = $psql ? "\\c \"$connstr\"\n" : '';
	$psql //= start($node, $connstr);
	open my $statements, '>', "$psql->{file}.sql" or die $!;
	print $statements $sql;
	close $statements or die $!;
	# it may end before it has read all of this
	local $SIG{PIPE} = 'IGNORE';
	print { $psql->{in} } "$connect\\i $psql->{file}.sql\n\\echo $END\n";
	my ($output, $done) = hear($psql);
	my $messages = messages($psql);
	my $status = 0;

	if ($done)
	{
		wait_here($psql);
		$running{$key} = $psql;
	}
	else
	{
		1 while waitpid($psql->{pid}, 0) < 0 && $!{EINTR};
		$status = $? >> 8;
		die "psql exited with signal " . ($? & 127) . ": '$messages' while running '$sql'" if $? & 127;
		unlink "$psql->{file}.sql", "$psql->{file}.err";
	}
	chomp($output, $messages);
	${ $params{stdout} } = $output if $params{stdout};
	${ $params{stderr} } = $messages if $params{stderr};
	die "psql ended with status $status: '$messages'\nwhile running '$sql'"
	  if $status && $params{on_error_die};
	return wantarray ? ($status, $output, $messages) : $status;
}

# Those that still run see the end of what they read.
END
{
	my $status = $?;

	for my $psql ($$ == $owner ? values %running : ())
	{
		close $psql->{in};
		waitpid $psql->{pid}, 0;
	}
	$? = $status;
}

1;
