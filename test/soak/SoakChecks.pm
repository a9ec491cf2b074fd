# Checks made when clients and faults of a round are over.  Each check returns
# problems.

package SoakChecks;

use strict;
use warnings;
use Exporter 'import';
use SoakClients;
use SoakFaults;
use SoakTables;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(check_round check_stopped);

# Every index that has pages.
my $INDEXES = q{SELECT i.indexrelid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
	JOIN pg_am AS m ON m.oid = c.relam WHERE m.amname = 'gpuivfpq' AND c.relkind = 'i' AND i.indisvalid};
# gpuvecd's greatest growth since the first round, beside its mirrors.
my $GROWTH_KB = 64 * 1024;
# Shared segments of a server with live queries.
my $SEGMENTS = 40;
# A minute passes before the supervisor starts a gpuvecd that is killed again
# and again.
my $REVIVED = 90;

# Ask, and count errors as problems; lines of the answer.
sub lines
{
	my ($problems, $server, $sql, %options) = @_;
	my ($out, $err) = ('', '');

	# VACUUM of the primary may end a standby's queries
	for (1 .. 10)
	{
		($out, $err) = $server->ask($sql, seconds => 300, %options);
		last if $err !~ /conflict with recovery/;
	}
	push @$problems, "SOAK check on $server->{name}: $err\n    of " . substr($sql, 0, 500) if $err;
	return split /\n/, $out;
}

# Wait until the query gives t.
sub wait_for
{
	my ($server, $sql, $seconds) = @_;
	my $end = time + $seconds;

	while (time < $end)
	{
		return 1 if ($server->ask($sql))[0] eq 't';
		usleep(200_000);
	}
	return 0;
}

# No session, no prepared transaction, no index in the making is left.
sub tidy
{
	my ($soak) = @_;
	my $server = $soak->{primary};
	my @problems;

	lines(\@problems, $server, q{SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts \gexec});
	wait_for($server, q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type IN ('client backend', 'parallel worker') AND pid <> pg_backend_pid()}, 60)
	  or push @problems, 'SOAK sessions are left: '
	  . join '; ', lines(\@problems, $server, q{SELECT pid, state, wait_event, left(query, 200)
		FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	wait_for($server, q{SELECT state = 'up' FROM gpuvec_stat}, $REVIVED)
	  or push @problems, 'SOAK gpuvecd is not up: '
	  . join '; ', lines(\@problems, $server, 'SELECT * FROM gpuvec_stat');
	lines(\@problems, $server, q{SELECT format('DROP INDEX %s', i.indexrelid::regclass)
		FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
		WHERE NOT indisvalid AND c.relkind = 'i' AND NOT c.relispartition \gexec});
	return @problems;
}

sub verify
{
	my ($server, $which, $what) = @_;
	my @problems;

	push @problems, map { "SOAK $what, $server->{name}: $_" } lines(\@problems, $server,
		"SELECT x.indexrelid::regclass, v FROM ($INDEXES) AS x,
			gpuvec_verify_index(x.indexrelid) AS v WHERE $which LIMIT 30");
	return @problems;
}

# All answers, and some, are those of a sort.
sub compare
{
	my ($soak, $server, @tables) = @_;
	my @problems;
	my $sql = '';

	for my $table (@tables)
	{
		for my $name ($table->{name}, map { "$table->{name}_$_" } 1 .. @{ $table->{parts} // [] })
		{
			for my $what ([ 'true', 100000 ], [ random_condition(), 10 ], [ random_condition(), 10 ], [ 'true', 10 ])
			{
				my $distance = ($table->{expression} // 'e') . " $table->{op} " . point($table, 1 + int rand 1e6);
				$sql .= "SELECT differs('$name', \$q\$$distance\$q\$, \$q\$$what->[0]\$q\$, $what->[1]);\n";
			}
		}
	}
	push @problems, grep { $_ ne '' } lines(\@problems, $server, $sql);
	return @problems;
}

# Mirrors are what their indexes are.  (Where gpuvecd has little memory, there
# is none for some.)
sub mirrors
{
	my ($server) = @_;
	my @problems;
	my @indexes = lines(\@problems, $server,
		"SELECT x.indexrelid::regclass FROM ($INDEXES) AS x, gpuvec_index_info(x.indexrelid) AS i WHERE i.lists > 0");
	my $mirrored = 0;

	for my $index (@indexes)
	{
		my ($out, $err) = $server->ask("SELECT gpuvec_prewarm('$index')", seconds => 200);

		if ($err =~ /does not have enough memory/ && ($server->ask('SHOW gpuvec.gpu_memory'))[0] ne '0')
		{
			next;
		}
		push @problems, "SOAK prewarm of $index: $err" if $err;
		next if $err;
		$mirrored++;
		push @problems, map { "SOAK mirror of $index: $_" }
		  lines(\@problems, $server, "SELECT v FROM gpuvec_verify_index('$index', true) AS v LIMIT 10");
	}
	push @problems, 'SOAK no index is mirrored' if @indexes && !$mirrored;
	return @problems;
}

# The standby has all, and answers the same.
sub standby
{
	my ($soak) = @_;
	my $standby = $soak->{standby};
	my @problems;
	my ($lsn) = lines(\@problems, $soak->{primary}, 'SELECT pg_current_wal_lsn()');

	return @problems if @problems;
	if (!wait_for($standby, "SELECT pg_last_wal_replay_lsn() >= '$lsn'", 120))
	{
		my @lines = $standby->log_lines;
		# it was away, or had no space, for too long
		return map { "SOAK no standby: $_" } grep { $_ } rebuild($soak)
		  if grep { /requested WAL segment .* has already been removed/ } @lines;
		return "SOAK $standby->{name} does not catch up: " . join '; ', grep { /FATAL|PANIC|ERROR/ } @lines;
	}
	my $logged = $INDEXES . q{ AND c.relpersistence = 'p'};
	push @problems, map { "SOAK standby: $_" } lines(\@problems, $standby,
		"SELECT x.indexrelid::regclass, v FROM ($logged OFFSET 0) AS x,
			gpuvec_verify_index(x.indexrelid) AS v WHERE severity = 'error' LIMIT 30");
	push @problems, compare($soak, $standby, grep { !$_->{kind} } @{ $soak->{tables} });
	return @problems;
}

# -- what is left over

# Files of relations that are not in the catalog.  PostgreSQL leaves those of a
# transaction that a crash ended; so these are known from then on.
sub files
{
	my ($soak, $crashed) = @_;
	my $server = $soak->{primary};
	my @problems;
	my ($oid) = lines(\@problems, $server, q{CHECKPOINT;
		SELECT oid FROM pg_database WHERE datname = 'postgres'});
	my %known = map { $_ => 1 } lines(\@problems, $server,
		q{SELECT pg_relation_filenode(oid) FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL});
	my %left;

	return @problems if @problems;
	for (glob "$server->{data}/base/$oid/*")
	{
		my ($name) = m{/([^/]+)$};
		next if $name =~ /^(PG_VERSION|pg_filenode\.map|pg_internal\.init.*)$/;
		next if $name =~ /^(\d+)/ && $known{$1};
		$left{$name} = 1;
	}
	if ($crashed || !$soak->{files})
	{
		$soak->{files} = \%left;
	}
	push @problems, "SOAK file $_ is left" for grep { !$soak->{files}{$_} } sort keys %left;
	push @problems, "SOAK temporary file $_ is left" for glob "$server->{data}/base/pgsql_tmp/*";
	my @ours = map { m{([^/]+)$} } glob "$server->{data}/*gpuvec*";
	push @problems, "SOAK in the data folder: @ours"
	  if "@ours" ne 'pgsql_tmp.gpuvec.lock pgsql_tmp.gpuvec.sock';
	return @problems;
}

# A process has about as many descriptors as when it was first seen, and as much
# memory, but for some kB that are accounted for.
sub usage
{
	my ($soak, $what, $pid, $known_kb) = @_;
	my $open = () = glob "/proc/$pid/fd/*";
	my @problems;

	open my $in, '<', "/proc/$pid/status" or return "SOAK $what is gone";
	my ($kb) = join('', readline $in) =~ /RssAnon:\s+(\d+)/;
	# what is known may not all have been touched yet
	my $more = $kb > $known_kb ? $kb - $known_kb : 0;
	my ($least, $first) = @{ $soak->{usage}{$pid} //= [ $open, $more ] };
	push @problems, "SOAK $what: $open descriptors, not $least" if $open > $least + 8;
	push @problems, "SOAK $what: $kb kB, of which $known_kb kB are known, not $first kB"
	  if $more > $first + $GROWTH_KB;
	# the primary's comes first
	my $most = \$soak->{most}{ $what =~ s/ .*//r };
	$$most = "$open/$kb" if !$$most || $$most =~ s{.*/}{}r < $kb;
	return @problems;
}

# Has nothing been written to a file?  PostgreSQL makes a shared segment first and
# notes afterwards that it is there.  If a process ends between the two, at a
# crash of another, nothing removes the segment, of zeros so far.
sub is_unwritten
{
	my ($path) = @_;
	open my $handle, '<:raw', $path or return 1;
	local $/;

	return <$handle> !~ /[^\0]/;
}

# Shared segments: System V's of which each server has one, and others.
sub segments
{
	my ($servers, $most) = @_;
	my @problems;
	my @posix = grep { !is_unwritten($_) } glob '/dev/shm/*';
	my $sysv = () = `ipcs -m` =~ /^0x/mg;

	push @problems, "SOAK $sysv System V segments for $servers servers" if $sysv > $servers;
	push @problems, "SOAK left in /dev/shm: " . @posix if @posix > $most;
	return @problems;
}

# With all servers stopped nothing is left.
sub check_stopped
{
	my ($soak) = @_;
	my @problems;

	for my $server ($soak->{standby}, $soak->{primary})
	{
		my $problem = $server->stop('fast');
		push @problems, "SOAK $server->{name} does not stop: $problem" if $problem;
		push @problems, "SOAK processes of $server->{name} are left" if processes($server, qr/./);
		push @problems, "SOAK in the data folder of $server->{name}: $_"
		  for grep { !/\.lock$/ } glob "$server->{data}/*gpuvec*";
	}
	push @problems, segments(0, 0) if $ENV{SOAK_PRIVATE};
	for my $server ($soak->{primary}, $soak->{standby})
	{
		my $problem = $server->start;
		push @problems, "SOAK $server->{name} does not start: $problem" if $problem;
	}
	return @problems;
}

# Processes, descriptors, memory, shared segments: as many as there were.
sub counts
{
	my ($soak) = @_;
	my @problems;
	my $servers = 0;

	$soak->{most} = {};

	for my $server ($soak->{primary}, $soak->{standby})
	{
		my @gpuvecds = gpuvecd_of($server);
		$servers++;
		if (@gpuvecds != 1)
		{
			push @problems, "SOAK $server->{name} has " . @gpuvecds . " gpuvecd";
			next;
		}
		my ($mirror_kb) = lines(\@problems, $server, 'SELECT coalesce(mirror_bytes, 0) / 1024 FROM gpuvec_stat');
		push @problems, usage($soak, "gpuvecd of $server->{name}", $gpuvecds[0], $mirror_kb);
		push @problems, usage($soak, "supervisor of $server->{name}", $_, 0)
		  for processes($server, qr/postgres: gpuvec supervisor/);
		push @problems, usage($soak, "postmaster of $server->{name}", $server->pid, 0);
	}
	if ($ENV{SOAK_PRIVATE})
	{
		my @all = glob '/proc/[0-9]*/exe';
		my $gpuvecds = grep { (readlink // '') =~ /gpuvecd/ } @all;
		push @problems, "SOAK $gpuvecds gpuvecd for $servers servers" if $gpuvecds != $servers;
		push @problems, segments($servers, $SEGMENTS * $servers);
	}
	return @problems;
}

# Problems that servers have written into their logs.
sub logs
{
	my ($soak, $short) = @_;
	my @problems;

	for my $server ($soak->{primary}, $soak->{standby})
	{
		my $before = '';
		my %full;

		for my $line ($server->log_lines)
		{
			# PostgreSQL ends a session in the midst of its abort, and asserts
			# that none does
			my $orphan = $before =~ /postmaster exited during a parallel transaction/ && $line =~ /^TRAP:.*IsTransaction/;

			$before = $line;
			# no space for WAL
			$full{$1} = 1 if $short && $line =~ /\[(\d+)\] .*PANIC:  .*No space left on device/;
			next if $orphan || ($line =~ /\(PID (\d+)\) was terminated by signal 6/ && $full{$1});
			if ($line =~ /TRAP:|terminated by signal (?!9\b|15\b|1\b)|stuck spinlock|runtime error/)
			{
				push @problems, "SOAK $server->{name}: $line";
			}
			elsif ($line =~ /^\S+ \S+ \S+ \[\d+\] (\w{5}) .*?(ERROR|FATAL|PANIC):  (.*)/)
			{
				my ($state, $level, $message) = ($1, $2, $3);
				# A TRUNCATE of an unlogged table, of which the rollback did not
				# reach the WAL before a crash: PostgreSQL's recovery finds the
				# file that it is to make anew, and the next one goes well.
				next if $level eq 'FATAL' && $message =~ /^could not create file "base\/.*": File exists/;
				# (what clients said wrongly, they have reported)
				next if is_expected("$state: $message", $short) || $state eq '42601';
				push @problems, "SOAK $server->{name}: $level: $state: $message";
			}
		}
	}
	return @problems;
}

# All of it.  $crashed: a server was killed or restarted; $short: of disk or
# memory.
sub check_round
{
	my ($soak, $crashed, $short) = @_;
	my $primary = $soak->{primary};
	my $problem = recover($primary);

	return "SOAK no recovery: $problem" if $problem;
	# (one that was made while the disk was full is none; why another does not
	# start is in its log)
	$problem = recover($soak->{standby}) && rebuild($soak);
	return "SOAK no standby: $problem" if $problem;
	my @problems = tidy($soak);
	push @problems, verify($primary, "severity = 'error'", 'before VACUUM');
	push @problems, compare($soak, $primary, @{ $soak->{tables} });
	lines(\@problems, $primary, 'VACUUM');
	push @problems, verify($primary, 'true', 'after VACUUM');
	push @problems, mirrors($primary);
	push @problems, compare($soak, $primary, @{ $soak->{tables} });
	push @problems, standby($soak);
	push @problems, files($soak, $crashed);
	push @problems, counts($soak);
	push @problems, logs($soak, $short);
	return @problems;
}

1;
