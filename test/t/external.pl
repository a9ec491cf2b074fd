# A gpuvecd that PostgreSQL does not start: either may end and come again without
# the other, in whatever order, and no mirror outlives an incarnation of the cluster.
# With several users and in namespaces of its own: test/external.sh.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use POSIX qw(_exit);
use Time::HiRes qw(usleep);

my $folder = PostgreSQL::Test::Utils::tempdir_short() . '/gpuvec';
my $log = "${PostgreSQL::Test::Utils::log_path}/gpuvecd.log";
my @started;

# Settings of a server whose gpuvecd has this folder.
sub conf { return "gpuvec.server = 'external'\ngpuvec.server_directory = '$_[0]'\n"; }

# Starts a gpuvecd for a folder; returns its pid.
sub start_gpuvecd
{
	my ($directory, @options) = @_;
	my $pid = fork // die;

	if ($pid == 0)
	{
		open STDERR, '>>', $log or die;
		open STDIN, '<', '/dev/null' or die;
		# the test's own ends are not ours to keep open
		exec 'gpuvecd', '--engine', $SERVER, '--socket', $directory, @options or _exit(127);
	}
	push @started, $pid;
	return $pid;
}

# The process that serves, a child of the one that was started.
sub child_of { return split ' ', slurp_file("/proc/$_[0]/task/$_[0]/children"); }

# Ends it; returns its status.
sub end_gpuvecd
{
	my ($pid, $signal) = @_;

	kill $signal, $pid;
	waitpid $pid, 0;
	@started = grep { $_ != $pid } @started;
	return $?;
}

END
{
	my $status = $?;

	kill 'KILL', @started;
	$? = $status;
}

# How often gpuvecds have begun anew, for another incarnation of a cluster.
sub count_anew { return scalar(() = slurp_file($log) =~ /restarting gpuvecd, because/g); }

# The processes of a server that are called so.
sub processes
{
	my ($on, $name) = @_;
	my $postmaster = (split /\n/, slurp_file($on->data_dir . '/postmaster.pid'))[0];

	return grep { (eval { slurp_file("/proc/$_/cmdline") } // '') =~ /$name/ } child_of($postmaster);
}

# The server's processes crash, as one of them does; returns when it is back.
sub crash
{
	my ($on, @stopped) = @_;

	$on->psql('postgres', 'SELECT pg_backend_pid() AS pid \gset
		\setenv PID :pid
		\! kill -9 $PID');
	kill 'CONT', @stopped;
	return wait_until($on, 'SELECT true');
}

# A text without white space at its end.
sub trimmed { return $_[0] =~ s{\s+\z}{}r; }

# What the doctor says of a subject.
sub advice
{
	my ($on, $subject) = @_;

	return $on->safe_psql('postgres',
		"SELECT string_agg(concat(state, ': ', coalesce(advice, '-')), ' ') FROM gpuvec_doctor() WHERE subject = '$subject'");
}

# Test: soon the doctor says so.
sub soon_advice
{
	my ($on, $subject, $pattern, $what) = @_;

	for (1 .. 300)
	{
		last if advice($on, $subject) =~ $pattern;
		usleep(100_000);
	}
	return like(advice($on, $subject), $pattern, $what);
}

# -- PostgreSQL comes first
my $node = new_remote_node('main',
	allows_streaming => 1,
	conf => conf($folder) . "gpuvec.engine = 'gpu'\nrestart_after_crash = on\nwal_writer_delay = '10s'\n"
	  . "autovacuum = off\ncheckpoint_timeout = '1h'\ngpuvec.server_timeout = '300ms'\ngpuvec.gpu_memory = '10GB'\n");
$node->safe_psql('postgres', qq{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 1, probes = 1, candidates = 10)});
my $right = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; SELECT answers('t', '<->', 8, 10, 20)");

# Test: the answers are right, and gpuvecd gave them, or did not.
sub is_right { return is_answered($node, $right, @_); }

# Test: gpuvecd gets a mirror when it is told to, or soon, by itself, and answers.
sub is_right_once_told
{
	my ($what) = @_;

	$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
	return is_right(1, $what);
}

sub is_mirrored_again
{
	my ($what) = @_;

	soon_ready($node, 1, "$what: mirrored");
	return is_right(1, $what);
}

soon($node, q{state = 'down' AND pid IS NULL}, 'before gpuvecd: down');
is_right(0, 'before gpuvecd');
soon_advice($node, 'gpuvecd', qr/^state is down: could not access the socket directory: No such file.*: Start gpuvecd with --socket \Q$folder\E/,
	'before gpuvecd: the doctor says why');
like(advice($node, 'settings'), qr/no effect because gpuvec.server is external: gpuvec.gpu_memory/, 'the doctor tells of a setting without effect');
my $gpuvecd = start_gpuvecd($folder, '--memory', 64);
soon($node, "state = 'up' AND pid = $gpuvecd AND restarts = 0 AND started IS NOT NULL AND memory = 64 << 20",
	'gpuvecd comes second');
is_right_once_told('gpuvecd comes second');
is(count_anew(), 0, 'nothing has begun anew');

# -- gpuvecd ends and comes again, under a session that has a connection to it
my $restarts = 0;
for my $signal ('KILL', 'TERM')
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $asks = sub {
		my ($when) = @_;
		return is(trimmed($session->query_safe(q{SET gpuvec.engine = gpu; SELECT answers('t', '<->', 8, 10, 20);})),
			trimmed($right), "$signal: right answers $when");
	};

	$asks->('before');
	is(end_gpuvecd($gpuvecd, $signal), $signal eq 'KILL' ? 9 : 0, "$signal: it ends");
	$asks->('by a session that goes on');
	soon($node, q{state = 'down' AND pid IS NULL}, "$signal: that is seen");
	soon_advice($node, 'gpuvecd', $signal eq 'KILL' ? qr/no process is listening/ : qr/no socket/, "$signal: the doctor says why");
	$asks->('without gpuvecd');
	$gpuvecd = start_gpuvecd($folder);
	$restarts++;
	soon($node, "state = 'up' AND pid = $gpuvecd AND restarts = $restarts", "$signal: it is there again");
	is_mirrored_again("$signal: again");
	my $served = served($node);
	$asks->('of the next one');
	is(served($node) - $served, 20, "$signal: ... and is answered");
	$session->quit;
}
is(count_anew(), 0, 'nothing has begun anew');

# -- the supervisor ends and comes again: the same incarnation, whose mirrors stay
my $searches = $node->safe_psql('postgres', 'SELECT searches FROM gpuvec_mirrors');
cmp_ok($searches, '>=', 40, 'it has answered');
my ($supervisor) = processes($node, 'gpuvec supervisor');
kill 'TERM', $supervisor;
ok(wait_until($node, q{SELECT state <> 'up' FROM gpuvec_stat}, 30), 'the supervisor ends');
soon($node, "state = 'up' AND pid = $gpuvecd AND restarts = $restarts", 'another supervisor: it is up');
isnt((processes($node, 'gpuvec supervisor'))[0], $supervisor, 'it is another one');
cmp_ok($node->safe_psql('postgres', 'SELECT searches FROM gpuvec_mirrors'), '>=', $searches, 'the mirror is the same');
is_right(1, 'another supervisor');
is(count_anew(), 0, 'nothing has begun anew');

# -- the cluster crashes, and loses a row that the mirror has: another one comes to
# its place, under the same numbers
my @writers = map { processes($node, $_) } 'walwriter', 'background writer', 'checkpointer';
$node->safe_psql('postgres', 'CHECKPOINT');
kill 'STOP', @writers;
my $postings = q{SELECT postings FROM gpuvec_mirrors};
my ($lost, $unwritten);
for (1 .. 10)
{
	my $had = $node->safe_psql('postgres', $postings);
	$lost = $node->background_psql('postgres', on_error_stop => 0);
	$lost->query_safe(q{BEGIN; INSERT INTO t VALUES (5000, array_fill(900::real, '{8}'))});
	$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
	$unwritten = $node->safe_psql('postgres',
		"SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() AND ($postings) > $had");
	last if $unwritten eq 't';
	# somebody has written it: once more
	$lost->quit;
	$node->safe_psql('postgres', 'VACUUM t');
	$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
}
is($unwritten, 't', 'the mirror has a row that is not committed, nor its WAL written');
ok(crash($node, @writers), 'crashed: the server is back');
eval { $lost->quit };
soon($node, "state = 'up' AND pid = $gpuvecd", 'crashed: the same process is up');
is(count_anew(), 1, 'crashed: it has begun anew');
$node->safe_psql('postgres', q{INSERT INTO t VALUES (6000, array_fill(-70::real, '{8}'))});
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
my $before = served($node);
gives($node, q{SET enable_seqscan = off; SELECT id FROM t ORDER BY e <-> array_fill(-70::real, '{8}') LIMIT 1},
	6000, 'crashed: the row in its place is found');
is(served($node) - $before, 1, 'crashed: ... by gpuvecd');
gives($node, q{SELECT count(*) FROM gpuvec_verify_index('t_e', true) WHERE severity = 'error'},
	0, 'crashed: the mirror is that of the index');
$node->safe_psql('postgres', 'DELETE FROM t WHERE id = 6000; VACUUM t');
is_right_once_told('crashed');

# -- PostgreSQL ends and comes again alone
my $anew = 1;
for my $mode ('fast', 'immediate', 'immediate')
{
	$node->stop($mode);
	$node->start;
	$anew++;
	soon($node, "state = 'up' AND pid = $gpuvecd AND restarts = 0", "stop $mode: the same process is up");
	is(count_anew(), $anew, "stop $mode: it has begun anew");
	gives($node, 'SELECT count(*) FROM gpuvec_mirrors', 0, "stop $mode: no mirror is left");
	is_right_once_told("stop $mode");
}

# -- the cluster crashes while gpuvecd is stopped
kill 'STOP', child_of($gpuvecd);
ok(crash($node), 'crashed while it is stopped: the server is back');
soon($node, q{state = 'down'}, 'crashed while it is stopped: down');
is_right(0, 'crashed while it is stopped');
usleep(2_500_000);
kill 'CONT', child_of($gpuvecd);
soon($node, "state = 'up' AND pid = $gpuvecd", 'crashed while it was stopped: up');
cmp_ok(count_anew(), '>', $anew, 'crashed while it was stopped: it has begun anew');
is_right_once_told('crashed while it was stopped');
$anew = count_anew();

# -- a folder is for one cluster
my $other = new_remote_node('other', conf => conf($folder) . "gpuvec.engine = 'gpu'\n");
$other->safe_psql('postgres', 'CREATE TABLE t (id int, e real[]); INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 1000) AS g;
	CREATE INDEX ON t USING gpuivfpq (e)');
soon($other, q{state = 'down'}, 'another cluster: it is not served');
soon_advice($other, 'gpuvecd', qr/^state is down: gpuvecd serves another cluster: .*a separate directory/, 'another cluster: the doctor says why');
log_has($other, qr/gpuvecd serves another cluster\n.*HINT:  Each cluster requires a separate gpuvecd and directory/, 0,
	'another cluster: so does its log');
is(scalar(() = slurp_file($log) =~ /refused another cluster/g), 1, q{another cluster: so does gpuvecd's, once});
$other->safe_psql('postgres', q{SELECT count(answers('t', '<->', 8, 10, 5))});
is_right(1, 'beside another cluster');
is(count_anew(), $anew, 'beside another cluster: the same incarnation');
# its supervisor is away for a while: a session says whose gpuvecd is
my $keeper = $node->background_psql('postgres');
$keeper->query_safe(q{SELECT answers('t', '<->', 8, 10, 1)});
kill 'TERM', processes($node, 'gpuvec supervisor');
ok(wait_until($node, q{SELECT state <> 'up' FROM gpuvec_stat}, 30), 'beside another cluster: the supervisor ends');
soon($node, "state = 'up' AND pid = $gpuvecd", 'beside another cluster: the next supervisor');
is(count_anew(), $anew, 'beside another cluster: the same incarnation, by its session');
$keeper->quit;
# the one that it serves goes: it is free for the other
$node->stop;
soon($other, "state = 'up' AND pid = $gpuvecd", 'another cluster: served at last');
is(count_anew(), ++$anew, 'another cluster: it has begun anew');
$node->start;
soon($node, q{state = 'down'}, 'and the first one is not served');
$other->stop;
soon($node, "state = 'up' AND pid = $gpuvecd", 'the first one again');
$anew = count_anew();

# -- another version, of one of the two
end_gpuvecd($gpuvecd, 'TERM');
soon($node, q{state = 'down'}, 'other version: gpuvecd has ended');
my $odd = pretend_gpuvecd(
	$folder,
	sub {
		sysread($_[0], my $heard, 65536);
		syswrite($_[0], refusal('HELLO', 2, 'other version'));
	});
soon($node, q{state = 'other version'}, 'other version: so it is called');
soon_advice($node, 'gpuvecd', qr/^state is other version: Start gpuvecd of version/, 'other version: the doctor says what to do');
end_pretended($odd);
$gpuvecd = start_gpuvecd($folder, '--memory', 1);
soon($node, "state = 'up' AND pid = $gpuvecd", 'the right version again');

# -- more than its memory: no setting of the server is of use
$node->safe_psql('postgres', 'CREATE TABLE wide AS SELECT g AS id, point(g, 300) AS e FROM generate_series(1, 4000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (refine = sq8)');
$node->psql('postgres', q{SELECT gpuvec_prewarm('wide_e')});
soon_advice($node, 'wide_e', qr/Start gpuvecd with a larger --memory/, 'too large: what the doctor advises');
gives($node, q{SELECT count(*) FROM gpuvec_doctor() WHERE advice LIKE '%gpuvec.gpu\_memory%'}, 0,
	'too large: ... and nothing that has no effect');
$node->safe_psql('postgres', 'DROP TABLE wide');
is(end_gpuvecd($gpuvecd, 'TERM'), 0, 'SIGTERM ends it, for one with more memory');
$gpuvecd = start_gpuvecd($folder);
soon($node, "state = 'up' AND pid = $gpuvecd", 'one with more memory');

# -- a standby is promoted: the incarnation and its mirrors go on
my $its = start_gpuvecd("$folder-standby");
my $standby = new_standby($node, 'standby', conf => conf("$folder-standby"));
soon($standby, "state = 'up' AND pid = $its", 'standby: up, with gpuvecd started before');
$anew = count_anew();
$standby->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
is(answers($standby, 't', '<->', 8, 10, 20), $right, 'standby: answers are right');
$standby->promote;
is(answers($standby, 't', '<->', 8, 10, 20), $right, 'promoted: answers are right');
cmp_ok($standby->safe_psql('postgres', 'SELECT searches FROM gpuvec_mirrors'), '>=', 40, 'promoted: by the same mirror');
is(count_anew(), $anew, 'promoted: the same incarnation');
$standby->stop;
is(end_gpuvecd($its, 'INT'), 0, 'SIGINT ends it');

# -- settings
my $pid = stat_of($node, 'pid');
$node->append_conf('postgresql.conf', "gpuvec.server_directory = '/elsewhere'");
$node->reload;
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
comes($node, q{SELECT pending_restart FROM pg_settings WHERE name = 'gpuvec.server_directory'}, 'the folder changes at a restart only');
is_mirrored_again('reloaded');
is(stat_of($node, 'pid, state'), "$pid|up", 'reloaded: the same gpuvecd');
for (
	["gpuvec.server_directory = ''", qr/"gpuvec\.server_directory" must be set if "gpuvec\.server" is "external"/],
	["gpuvec.server_directory = 'relative'", qr/invalid value for parameter "gpuvec.server_directory"/],
	[ "gpuvec.server_directory = '/" . 'x' x 85 . "'", qr/too long for a socket/ ])
{
	my ($setting, $error) = @$_;
	my $begin = -s $node->logfile;

	$node->stop if $node->{_pid};
	$node->append_conf('postgresql.conf', $setting);
	ok(!$node->start(fail_ok => 1), "$setting: it does not start");
	like(slurp_file($node->logfile, $begin), $error, "$setting: the log says why");
}
# an owner whom nobody knows
my $at = -s $node->logfile;
$node->append_conf('postgresql.conf', "gpuvec.server_directory = '$folder'\ngpuvec.server_owner = 'nobody of that name'\n");
$node->start;
like(slurp_file($node->logfile, $at), qr/invalid value for parameter "gpuvec.server_owner"/, 'the log tells of an unknown owner');
soon($node, "state = 'up' AND pid = $gpuvecd", 'an unknown owner is ourselves');
$node->stop;
# a gpuvecd of its own has no use for the folder
$node->append_conf('postgresql.conf', "gpuvec.server_owner = ''\ngpuvec.server = '$SERVER'\n");
$node->start;
soon($node, "state = 'up' AND pid <> $gpuvecd", 'started by PostgreSQL');
like(advice($node, 'settings'), qr/no effect because gpuvec.server is not external: gpuvec.server_directory/, 'the doctor tells of the folder');
$node->stop;
is(end_gpuvecd($gpuvecd, 'TERM'), 0, 'SIGTERM ends it');
ok(!-e "$folder/pgsql_tmp.gpuvec.sock", 'its socket is gone');

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|segfault|server process .* terminated by signal (?!9)/, 'no crash of our own')
  for $node, $other, $standby;
done_testing();
