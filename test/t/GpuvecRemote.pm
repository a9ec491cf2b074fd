# Code that the tests of searches by gpuvecd share: a server that runs it, and
# SQL functions that ask gpuvecd and the session the same question.

package GpuvecRemote;

use strict;
use warnings;
use Exporter 'import';
use File::Basename;
use Gpuvec;
use IO::Socket::UNIX;
use POSIX qw(_exit);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(remote_conf new_remote_node is_mirrored differs stat_of soon soon_up soon_ready gpuvecd_pid supervisor_pid
  served is_answered pause_loaders resume_loaders stand_still go_on revive
  %MESSAGE message refusal greeting pretend_gpuvecd converse end_pretended);
our @EXPORT_OK = qw(is_verified is_loaded is_same);

# All that use this want it.
need_gpuvecd();

# Plans are of no interest here, only what the index gives.
my $FUNCTIONS = q{
-- Ask gpuvecd until it has all of the index (killed again and again, it may
-- be a minute before it is started once more); '' or what kept it from it.  A
-- scan of few lists may find these up to date, and others not.
CREATE FUNCTION await_mirror(query text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec.engine = gpu
SET gpuvec.probes = 16777216 AS $$
DECLARE
	s record;
BEGIN
	FOR i IN 1..1800 LOOP
		EXECUTE 'SELECT count(*) FROM (' || query || ') AS x';
		SELECT * INTO s FROM gpuvec_last_scan();
		IF s.engine = current_setting('test.server') AND s.stale_lists + s.tail_postings = 0 THEN
			RETURN '';
		END IF;
		PERFORM pg_sleep(0.05);
	END LOOP;
	RETURN s::text;
END
$$;

-- '' when a query, of one scan, gives the same rows in the same order by
-- gpuvecd and by the session; and, with the mirror up to date, for the same
-- work.  answered: who is to have answered in the end.
CREATE FUNCTION differs(query text, answered text = current_setting('test.server'),
	uptodate bool = true)
RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec.engine = gpu AS $$
DECLARE
	there text[];
	here text[];
	s record;
	t record;
BEGIN
	query = 'SELECT array_agg(x::text) FROM (' || query || ') AS x';
	EXECUTE query INTO there;
	SELECT * INTO s FROM gpuvec_last_scan();
	PERFORM set_config('gpuvec.engine', 'cpu', true);
	EXECUTE query INTO here;
	SELECT * INTO t FROM gpuvec_last_scan();
	IF s.engine <> answered THEN
		RETURN format('answered by %s: %s', s.engine, s.fallback);
	ELSIF t.engine <> 'session' OR t.fallback IS NOT NULL OR t.trip_us IS NOT NULL THEN
		RETURN format('answered by %s, not the session', t.engine);
	ELSIF here IS NULL OR here IS DISTINCT FROM there THEN
		RETURN format('%s, not %s', there, here);
	ELSIF uptodate AND ((s.index, s.recall, s.probes, s.candidates, s.batches, s.lists,
			s.postings, s.returned, s.out_of_order, s.full_pass,
			s.stale_lists, s.tail_postings) IS DISTINCT FROM
		(t.index, t.recall, t.probes, t.candidates, t.batches, t.lists,
			t.postings, t.returned, t.out_of_order, t.full_pass, 0, 0)
		-- rows in the mirror take the place of rows that are fetched
		OR (s.refined, s.reranked) IS DISTINCT FROM (t.refined, t.reranked)
			AND (t.refined > 0 OR s.refined = 0)) THEN
		RETURN format('%s, not %s', s, t);
	ELSIF answered <> 'session' AND (s.batch_size < 1 OR s.batch_size IS NULL OR
		s.queued_us IS NULL OR s.engine_us IS NULL OR s.trip_us IS NULL) THEN
		RETURN format('no times: %s', s);
	END IF;
	RETURN '';
END
$$;
};

# Settings of a server with gpuvecd.
sub remote_conf
{
	return "shared_preload_libraries = 'gpuvec'\ngpuvec.server = '$SERVER'\n"
	  . "test.server = '$SERVER'\ngpuvec.request_timeout = '10s'\n";
}

# A started server named $name, with gpuvec, gpuvecd and the functions above; %options
# are those of new_node.
sub new_remote_node
{
	my ($name, %options) = @_;

	$options{conf} = remote_conf() . ($options{conf} // '');
	my $node = new_node($name, %options);
	$node->safe_psql('postgres', $FUNCTIONS);
	return $node;
}

# Test: gpuvecd gets a mirror of the index, and all of it.
sub is_mirrored
{
	my ($node, $index, $query, $what) = @_;

	return gives($node, "SET gpuvec.auto_mirror = on; SELECT await_mirror(\$q\$$query\$q\$)", '', "$what: $index is mirrored");
}

# Test: the mirror holds what the pages hold, as far as it has them.
sub is_verified
{
	my ($node, $index, $what, $database) = @_;

	return is($node->safe_psql($database // 'postgres', "SELECT * FROM gpuvec_verify_index('$index', mirror => true)"),
		'', "$what: the mirror of $index is as the pages are");
}

# Test: gpuvecd has loaded all of the index, as the pages hold it.
sub is_loaded
{
	my ($node, $index, $what, $database) = @_;

	is( $node->safe_psql($database // 'postgres', "SELECT gpuvec_prewarm('$index') > 0;
			SELECT state, behind, loading_percent, error FROM gpuvec_mirrors WHERE index = '$index'::regclass"),
		"t\nready|0|100|", "$what: all of $index is mirrored");
	return is_verified($node, $index, $what, $database);
}

# Test: gpuvecd finds the rows of ten queries that the session finds.  Options: least:
# of so many (1) it is asked; none: of none; any: its mirror may be too far behind; set: a
# setting for its searches; database.
sub is_same
{
	my ($node, $table, $dims, $what, %options) = @_;
	my $database = $options{database} // 'postgres';
	my $answers = "SELECT answers('$table', '<->', $dims, 20, 10)";
	my $before = served($node);
	my $set = $options{set} ? "SET $options{set};" : '';

	is( $node->safe_psql($database, "$set $answers"),
		$node->safe_psql($database, "SET gpuvec.engine = cpu; $answers"),
		"$what: $table, the same rows");
	my $asked = served($node) - $before;
	ok($options{any} || ($options{none} ? $asked == 0 : $asked >= ($options{least} // 1)), "$what: $table, of $asked by gpuvecd");
	return;
}

# A column of a node's gpuvec_stat; the PID of its gpuvecd; how many searches that has
# answered.
sub stat_of { my ($node, $column) = @_; return $node->safe_psql('postgres', "SELECT $column FROM gpuvec_stat"); }
sub gpuvecd_pid { return stat_of($_[0], 'pid'); }
sub served { return stat_of($_[0], 'searches_by_server'); }

# Test: soon the condition on gpuvec_stat holds.
sub soon
{
	my ($node, $condition, $what) = @_;

	return ok(wait_until($node, "SELECT $condition FROM gpuvec_stat"), $what)
	  || diag($node->safe_psql('postgres', '\x \\\\ SELECT * FROM gpuvec_stat'));
}

# Test: soon gpuvecd is up.
sub soon_up { my ($node, $what) = @_; return soon($node, q{state = 'up'}, "$what: gpuvecd is up"); }

# Have gpuvecd again, which the test has killed: the supervisor waits longer each
# time before it starts another, up to a minute; a new supervisor does not.
sub revive
{
	my ($node) = @_;

	$node->restart;
	return wait_until($node, "SELECT state = 'up' FROM gpuvec_stat");
}

# Test: the first 20 answers of table t are right, and gpuvecd gave them all, or none.
sub is_answered
{
	my ($node, $right, $by_server, $what) = @_;
	my $before = served($node);

	is(answers($node, 't', '<->', 8, 10, 20), $right, "$what: answers are right");
	return is(served($node) - $before, $by_server ? 20 : 0, "$what: by gpuvecd are " . ($by_server ? 'all' : 'none'));
}

# Test: soon so many mirrors, of those for which a condition holds, are ready.
sub soon_ready
{
	my ($node, $n, $what, $condition) = @_;

	$condition //= 'true';
	return ok(wait_until($node, "SELECT count(*) = $n FROM gpuvec_mirrors WHERE state = 'ready' AND $condition"), $what)
	  || diag($node->safe_psql('postgres', 'SELECT * FROM gpuvec_mirrors'));
}

# Let mirrors get older: who would send loaders is stopped, and loaders are
# waited for, or ended where they only look around.  resume_loaders before the
# node is stopped.
sub pause_loaders
{
	my ($node) = @_;

	kill 'STOP', supervisor_pid($node);
	return ok(
		wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'gpuvec loader'
			AND (state IS DISTINCT FROM 'idle' OR pg_terminate_backend(pid))}),
		'no loader is at work');
}

sub resume_loaders { return kill 'CONT', supervisor_pid($_[0]); }

# The supervisor, which no view shows, is gpuvecd's parent.
sub supervisor_pid
{
	my ($node) = @_;
	my $pid = gpuvecd_pid($node);

	slurp_file("/proc/$pid/stat") =~ /^\d+ \(gpuvecd\) \S (\d+) / or die "no gpuvecd";
	return $1;
}

# gpuvecd stands still, and so does the supervisor: it would see that gpuvecd does
# not answer, and sessions would not ask it any more.  Returns both for go_on, which
# has to come before the node is stopped.
sub stand_still
{
	my ($node) = @_;
	my @both = (supervisor_pid($node), gpuvecd_pid($node));

	kill 'STOP', @both;
	return @both;
}

# gpuvecd first: then it answers the supervisor.
sub go_on { my ($supervisor, $gpuvecd) = @_; return kill 'CONT', $gpuvecd, $supervisor; }

# Test: gpuvecd and the session give the same rows.  %options: answered, stale
# (the mirror is not up to date), set (settings).
sub differs
{
	my ($node, $query, $what, %options) = @_;
	my $answered = $options{answered} // $SERVER;
	my $uptodate = $options{stale} ? 'false' : 'true';
	my $set = join '', map { "SET $_;" } @{ $options{set} // [] };

	return gives($node, "$set SELECT differs(\$q\$$query\$q\$, '$answered', $uptodate)", '', $what);
}

# Numbers of messages and of roles, by their names (GV_MSG_HELLO: HELLO).
sub numbers_of
{
	my ($enum, $prefix) = @_;
	my ($names) = slurp_file(dirname(__FILE__) . '/../../src/protocol/gv_protocol.h') =~
	  /^typedef enum $enum\n\{(.*?)^\} $enum;/ms;
	my ($next, %number) = (0);

	$names =~ s{/\*.*?\*/}{}sg;
	while ($names =~ /GV_${prefix}_(\w+)(?:\s*=\s*(\d+))?/g)
	{
		$next = $2 if defined $2;
		$number{$1} = $next++;
	}
	return %number;
}
our %MESSAGE = numbers_of('GvMessageType', 'MSG');

# A message, as gv_protocol.h has it; a refusal; gpuvecd's greeting.
sub message { my ($type, $request, $body) = @_; return pack('LSS', length $body, $MESSAGE{$type}, $MESSAGE{$request}) . $body; }
sub refusal { my ($request, $code, $reason) = @_; return message('REFUSED', $request, pack('La252', $code, $reason)); }
sub greeting { my ($engine) = @_; return pack('QLLa16a16', 12345, $$, 0, $engine // 'cpu', '0.4.0'); }

# Be gpuvecd with its socket in a folder, in a process of its own, which $serve gets
# each connection of; returns its PID, for end_pretended.
my @pretended;
sub pretend_gpuvecd
{
	my ($folder, $serve) = @_;
	pipe(my $told, my $tell) or die;
	my $pid = fork // die;

	if ($pid)
	{
		push @pretended, $pid;
		close $tell;
		readline $told;
		return $pid;
	}
	# those that it begins end with it
	setpgrp;
	$SIG{CHLD} = $SIG{PIPE} = 'IGNORE';
	chdir $folder or die;
	unlink 'pgsql_tmp.gpuvec.sock';
	my $server = IO::Socket::UNIX->new(Local => 'pgsql_tmp.gpuvec.sock', Listen => 20) or die;

	close $tell;
	while (my $client = $server->accept)
	{
		$serve->($client);
	}
	# the node is not ours to stop
	_exit(0);
}

# Goes on with a client in a process of its own until that goes: $answer gives the
# answer to a message (its name, its body), or its body; undef for none any more.
sub converse
{
	my ($client, $answer) = @_;
	my %name = reverse %MESSAGE;

	return if fork // die;
	while ((read($client, my $header, 8) // 0) == 8)
	{
		my ($length, $type) = unpack('LS', $header);
		my $asked = '';

		last if (read($client, $asked, $length) // 0) < $length;
		my ($body, $refused) = $answer->($name{$type}, $asked);
		syswrite($client, $refused // message('OK', $name{$type}, $body));
		last if $refused;
	}
	_exit(0);
}

sub end_pretended
{
	my ($pid) = @_;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	@pretended = grep { $_ != $pid } @pretended;
	return;
}

END
{
	my $status = $?;

	kill 'KILL', -$_ for @pretended;
	$? = $status;
}

1;
