# Clients of a soak: processes with a session each, which say random statements
# until the round's end, and connect again when their session is lost.

package SoakClients;

use strict;
use warnings;
use Exporter 'import';
use IO::Select;
use IPC::Open2;
use POSIX qw(_exit :sys_wait_h);
use SoakStatements;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(begin_client collect_client is_expected);

# No statement may take longer than statement_timeout, but for a loaded machine.
my $HANGS = 90;

# Errors that clients bring about themselves, or that faults have to bring.
my @EXPECTED = (
	qr/^(40001|40P01|57014|57P0[123]|08...|55P03|25P0[12]|53300|25006|42P01|42704|42P07|42710|55006|26000|3B001|2BP01)/,
	# PostgreSQL's own, of statements that meet
	qr/^XX000: (cache lookup failed for (index|relation)|could not open relation with OID|tuple concurrently (updated|deleted))/,
	qr/^23505: duplicate key value violates unique constraint "pg_/,
	# a session that has ended, and one of its workers
	qr/^(XX000|55000): (could not map dynamic shared memory segment|could not attach to (per-session DSM segment|a SharedFileSet that is already destroyed)|parallel worker failed to initialize|lost connection to parallel worker)/,
	# what the reference says of a function
	qr/^55000: index ".*" is not (trained|valid)/,
	qr/^55000: (index was changed while it was loaded into gpuvecd|could not load the index into gpuvecd:|could not start gpuvecd|gpuvecd is not running|prepared transaction with identifier .* is busy)/,
	qr/^55000: cannot train index ".*" in this transaction/,
	# children of a killed postmaster
	qr/^F0001: pre-existing shared memory block/,
	qr/^24000/,
	qr/^34000/);
my @SHORT = (qr/^53[0-9]{3}/, qr/^58030: .*No space left/, qr/No space left on device/,
	# the relation cache's, of a session that begins
	qr/^XX000: could not write init file/,
	# a library that another extension loads
	qr/^58P01: could not load library .*: failed to map segment from shared object/);

# Is this error, "SQLSTATE: message", to be had?  $short: of space or memory.
sub is_expected
{
	my ($error, $short) = @_;

	return 1 if grep { $error =~ $_ } @EXPECTED;
	return $short && grep { $error =~ $_ } @SHORT;
}

# Send statements, and return the lines that came; {lost} when the session was.
# Dies when nothing comes.
sub say_and_hear
{
	my ($session, $sql) = @_;
	my $text = '';
	my $end = time + $HANGS;

	# lines of a COPY may be more than a pipe holds, so psql reads a file
	open my $file, '>', $session->{file} or die;
	print $file $sql;
	close $file;
	print { $session->{in} } "\\i $session->{file}\n\\echo =said=\n";
	$session->{in}->flush;
	until ($text =~ /^=said=$/m || $session->{lost})
	{
		die "no answer in $HANGS s: $sql\n" if time > $end;
		next if !$session->{select}->can_read(1);
		$session->{lost} = !sysread($session->{out}, $text, 65536, length $text);
	}
	$text =~ s/^=said=$//m;
	return grep { $_ ne '' } split /\n/, $text;
}

sub open_session
{
	my ($file, $port) = @_;
	my $session = { file => $file };

	$session->{pid} = open2($session->{out}, $session->{in}, 'sh', '-c',
		"exec psql -XAtq -v VERBOSITY=verbose -p $port -d postgres 2>&1");
	$session->{select} = IO::Select->new($session->{out});
	return $session;
}

sub close_session
{
	my ($session) = @_;

	close $session->{in};
	close $session->{out};
	kill 'TERM', $session->{pid};
	waitpid $session->{pid}, 0;
	return;
}

# Where the primary, or its standby, listens now.
sub port
{
	my ($which) = @_;

	open my $file, '<', "$ENV{SOAK_LOGS}/$which" or die;
	return 0 + readline $file;
}

# Put what a client heard into its record.
sub hear
{
	my ($record, $sql, @lines) = @_;

	for (@lines)
	{
		if (/(ERROR|FATAL|PANIC):  (\w{5}: .*)/)
		{
			my $error = $2;
			my ($state) = $error =~ /^(\w+)/;
			my $known = is_expected($error, $record->{short});
			$record->{errors}{$state}++;
			# rows of a COPY in a transaction that has failed
			$known ||= $state eq '42601' && $sql =~ /\bCOPY\b/;
			push @{ $record->{problems} }, "$error\n    of $sql" if !$known;
		}
		elsif (/^SOAK/)
		{
			push @{ $record->{problems} }, "$_\n    of $sql";
		}
	}
	return;
}

sub session
{
	my ($record, $file, $end, @tables) = @_;
	my $standby = $record->{which} eq 'standby';
	my $session = open_session($file, port($record->{which}));
	my $settings = random_settings();
	my @lines;
	my $n = 5 + int rand 60;

	eval {
		for my $sql ($settings, map { $_ > $n ? () : random_statements($standby, @tables) } 1 .. 65)
		{
			last if time > $end;
			@lines = say_and_hear($session, $sql);
			$record->{statements}++;
			hear($record, "$sql\n    after $settings", @lines);
			last if $session->{lost};
		}
		1;
	} or push @{ $record->{problems} }, "SOAK $@";
	close_session($session);
	return;
}

# Begin client $n, of the primary or the standby, of a round whose end is at
# $end; returns a handle.  $short: disks or memory may be short.
sub begin_client
{
	my ($n, $which, $seed, $end, $short, @tables) = @_;
	my $file = "$ENV{SOAK_LOGS}/client$n";
	my $pid = fork // die;

	return { pid => $pid, file => $file } if $pid;
	$SIG{PIPE} = 'IGNORE';
	srand $seed;
	my %record = (which => $which, statements => 0, short => $short, problems => [], errors => {});
	while (time < $end)
	{
		session(\%record, "$file.sql", $end, @tables);
		usleep(100_000 + rand 300_000);
	}
	open my $out, '>', $file or _exit(1);
	print $out "statements $record{statements}\n";
	print $out "error $_ $record{errors}{$_}\n" for keys %{ $record{errors} };
	print $out 'problem ', s/\n/\x01/gr, "\n" for @{ $record{problems} };
	close $out;
	_exit(0);
}

# Is the client done?  Then what it has met is added to the round.
sub collect_client
{
	my ($client, $round) = @_;

	return 0 if waitpid($client->{pid}, WNOHANG) == 0;
	open my $in, '<', $client->{file} or do
	{
		push @{ $round->{problems} }, "SOAK client $client->{file} died";
		return 1;
	};
	while (<$in>)
	{
		chomp;
		$round->{statements} += $1 if /^statements (\d+)/;
		$round->{errors}{$1} += $2 if /^error (\S+) (\d+)/;
		push @{ $round->{problems} }, $1 =~ s/\x01/\n/gr if /^problem (.*)/;
	}
	close $in;
	unlink $client->{file};
	return 1;
}

1;
