# Rounds of a soak (test/soak.sh has its arguments): clients and faults for a
# while, then every check.

use strict;
use warnings;
use Digest::MD5 'md5';
use SoakChecks;
use SoakClients;
use SoakFaults;
use SoakServer;
use SoakTables;
use Time::HiRes qw(time usleep);

# the first asks the standby
my $CLIENTS = 6;
my ($hours) = @ARGV;
my $seed = $ENV{SEED} // int(time) % 1_000_000;
my $end = time + 3600 * $hours;
my ($passed, $failed) = (0, 0);

$| = 1;
# psql may be gone before it is sent its statements
$SIG{PIPE} = 'IGNORE';

package Soak
{
	# Two servers with everything in them.
	sub new
	{
		my ($class) = @_;
		my $soak = bless { kills => 0, usage => {}, most => {} }, $class;
		my $primary = SoakServer->new('a' . (1 + $SoakServer::PORT % 1000));

		$primary->init([
			'shared_preload_libraries = gpuvec', 'gpuvec.server = cpu',
			'max_connections = 40', 'max_prepared_transactions = 20', 'max_worker_processes = 16',
			'fsync = off', 'autovacuum_naptime = 10s', 'autovacuum_vacuum_cost_delay = 0',
			"shared_buffers = '16MB'", 'jit = off', 'wal_level = replica', "wal_keep_size = '1GB'",
			"max_wal_size = '64MB'", "min_wal_size = '8MB'", "deadlock_timeout = '200ms'", 'max_wal_senders = 6',
			"wal_receiver_status_interval = '1s'", "wal_retrieve_retry_interval = '200ms'",
			"max_standby_streaming_delay = '2s'", "log_line_prefix = '%m [%p] %e %q%a '",
			'log_statement = all', 'gpuvec.max_training_workers = 2' ]);
		die $_ for grep { $_ } $primary->start;
		$soak->take(primary => $primary);
		my (undef, $err) = $primary->ask('CREATE EXTENSION gpuvec');
		die $err if $err;
		(undef, $err) = $primary->ask('CREATE EXTENSION gpuvec_pgvector CASCADE');
		$soak->{tables} = [
			grep { !$ENV{TABLES} || " $ENV{TABLES} " =~ / $_->{name} / }
			  SoakTables::tables($err =~ /ERROR/ ? 0 : 1)
		];
		(undef, $err) = $primary->ask(SoakTables::tables_sql(@{ $soak->{tables} }), seconds => 300);
		die $err if $err;
		$soak->take(standby => SoakServer->new('b' . (1 + $SoakServer::PORT % 1000)));
		$err = $soak->{standby}->follow($primary) || $soak->{standby}->start;
		die $err if $err;
		return $soak;
	}

	# This is the primary, or the standby, now; clients look where it listens.
	sub take
	{
		my ($soak, $which, $server) = @_;
		my $file = "$ENV{SOAK_LOGS}/$which";

		$soak->{$which} = $server;
		open my $out, '>', "$file.new" or die;
		print $out $server->{port};
		close $out;
		rename "$file.new", $file or die;
		return;
	}

	sub stop
	{
		my ($soak) = @_;

		$_->stop('immediate') for $soak->{standby}, $soak->{primary};
		return;
	}
}

# The seed of a round's faults, or of its client $n, for random numbers; seeds
# that are near each other would give similar ones.
sub seed_of
{
	my ($number, $n) = @_;

	return unpack 'L', md5("$seed $number $n");
}

# Clients and faults for so many seconds; what clients met.
sub work
{
	my ($soak, $number, $seconds, @faults) = @_;
	my %round = (statements => 0, errors => {}, problems => [], done => '');
	my $begun = time;
	my @clients = map {
		my $n = $_;
		begin_client($n, $n > 1 ? 'primary' : 'standby', seed_of($number, $n),
			$begun + $seconds, SoakFaults::is_short(@faults),
			grep { $n > 1 || !$_->{kind} } @{ $soak->{tables} })
	} 1 .. $CLIENTS;

	for (@faults)
	{
		my ($second, $name) = @$_;
		my $wait = $begun + $second - time;
		usleep(1e6 * $wait) if $wait > 0;
		my $did = run_fault($soak, $name);
		push @{ $round{problems} }, $did if $did =~ /^SOAK/;
		$round{done} .= sprintf ' %s@%d(%s)', $name, time - $begun, $did;
	}
	# a prepared transaction may be what they wait for
	while (@clients)
	{
		@clients = grep { !collect_client($_, \%round) } @clients;
		usleep(200_000);
		last if time > $begun + $seconds + 200;
		next if time < $begun + $seconds + 1;
		$soak->{primary}->ask(q{SELECT format('COMMIT PREPARED %L', gid) FROM pg_prepared_xacts \gexec}, seconds => 5);
	}
	for (@clients)
	{
		push @{ $round{problems} }, "SOAK client $_->{file} does not end";
		kill 'KILL', $_->{pid};
		waitpid $_->{pid}, 0;
	}
	return %round;
}

# Keep what a failed round has left.
sub keep
{
	my ($number, @problems) = @_;
	my $folder = "$ENV{SOAK_FAILED}/$seed-$number";

	mkdir $folder;
	system "cp $ENV{SOAK_LOGS}/*.log $folder/";
	open my $out, '>', "$folder/problems" or return;
	print $out map { "$_\n" } @problems;
	close $out;
	return;
}

my $soak = Soak->new;
my $first = $ENV{ROUND} // 1;
my $kills = 0;
print "soak: SEED=$seed, $hours hours\n";
for (my $number = $first; time < $end && (!$ENV{ROUNDS} || $number < $first + $ENV{ROUNDS}); $number++)
{
	srand(seed_of($number, 0));
	my $seconds = $ENV{SECONDS_EACH} // 15 + int rand 40;
	my @faults = random_faults($seconds, $ENV{FAULTS});
	my $begun = time;
	my $before = $soak->{kills};

	my %round = work($soak, $number, $seconds, @faults);
	my $worked = time - $begun;
	my @problems = (@{ $round{problems} },
		check_round($soak, scalar(grep { $_->[1] !~ /^(pause|checkpoint|cancel|terminate|gpuvecd)/ } @faults),
			SoakFaults::is_short(@faults)));
	push @problems, check_stopped($soak) if !@problems && $number % 8 == 7;
	my $errors = join ' ', map { "$_:$round{errors}{$_}" } sort keys %{ $round{errors} };
	printf "round %d: %d s + %d s, %d statements, errors %s, faults%s; descriptors/kB %s: %s\n",
	  $number, $worked, time - $begun - $worked, $round{statements}, $errors || 'none', $round{done} || ' none',
	  join(' ', map { "$_ $soak->{most}{$_}" } sort keys %{ $soak->{most} }), @problems ? 'FAILED' : 'passed';
	$kills += $soak->{kills} - $before;
	if (@problems)
	{
		print map { '    ' . substr(s/\n.*//sr, 0, 300) . "\n" } @problems[ 0 .. ($#problems < 19 ? $#problems : 19) ];
		$failed++;
		keep($number, @problems);
		# what is damaged would fail all further rounds
		$soak->stop;
		system "rm -rf $ENV{SOAK_DISK}/*";
		$soak = Soak->new;
	}
	else
	{
		$passed++;
		$_->forget_log for $soak->{primary}, $soak->{standby};
	}
}
$soak->stop;
print "$kills processes were killed\n";
print "$passed rounds passed, $failed failed\n";
exit($failed || !$passed ? 1 : 0);
