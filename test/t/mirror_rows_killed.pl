# Rows in a mirror when a session, a loader or gpuvecd is killed in any step of its
# work, while a TID gets one row after the other: answers are those of a sort, before
# and after the mirror is up to date again, and the mirror is as the pages are.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote qw(:DEFAULT is_loaded);

need_test_build();
my $node = new_remote_node('primary', conf => "restart_after_crash = on\nmax_worker_processes = 16\n");

# The rows near the two places where the row of our TID may be, by all lists and by a
# sort: '' if they are the same.
$node->safe_psql('postgres', q{
	CREATE FUNCTION wrong() RETURNS text LANGUAGE plpgsql
		SET enable_seqscan = off SET gpuvec.engine = gpu SET gpuvec.probes = 1000 SET gpuvec.candidates = 1000 AS $$
	DECLARE
		found record;
	BEGIN
		FOR place IN 1..2 LOOP
			EXECUTE format('SELECT (SELECT array_agg(id) FROM (SELECT id FROM r ORDER BY e <-> %1$L LIMIT 8) AS x) AS mine,
				(SELECT array_agg(id) FROM (SELECT id FROM r ORDER BY (e <-> %1$L) + 0 LIMIT 8) AS x) AS sorted',
				point(place * 500, 8)) INTO found;
			IF found.mine IS DISTINCT FROM found.sorted THEN
				RETURN found::text;
			END IF;
		END LOOP;
		RETURN '';
	END
	$$;
	CREATE FUNCTION caught_up() RETURNS bool LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM wrong();
		RETURN (SELECT stale_lists + tail_postings = 0 FROM gpuvec_last_scan())
			AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'gpuvec loader' AND state = 'active');
	END
	$$;
	-- pages are full, so that there is one place for a row
	CREATE TABLE r AS SELECT g AS id, point(CASE g WHEN 1000 THEN 3000 ELSE g END, 8) AS e FROM generate_series(1, 23 * 88) AS g;
	CREATE INDEX r_e ON r USING gpuivfpq (e) WITH (lists = 20)});
my $id = 500;
my $tid = $node->safe_psql('postgres', "SELECT ctid FROM r WHERE id = $id");
my $ask = q{SET enable_seqscan = off; SET gpuvec.engine = gpu;
	SELECT array_agg(id) FROM (SELECT id FROM r ORDER BY e <-> point(500, 8) LIMIT 8) AS x};

# Give the row's TID to another row, at the other place.
sub reuse
{
	my ($what) = @_;
	my $old = $id;

	$id = $id < 3000 ? 3000 : $id + 1;
	$node->safe_psql('postgres', $_)
	  for ("DELETE FROM r WHERE id = $old", 'VACUUM r', "INSERT INTO r SELECT $id, point(500 * ($id % 2 + 1), 8)");
	return gives($node, "SELECT ctid FROM r WHERE id = $id", $tid, "$what: the TID is another row's");
}

# Test: answers are right, then with the mirror up to date, and by its rows alone.
sub is_right
{
	my ($what) = @_;

	gives($node, 'SELECT wrong()', '', "$what: answers are right");
	soon_up($node, $what);
	is_loaded($node, 'r_e', $what);
	gives($node, 'SELECT wrong()', '', "$what: and by the mirror");
	return gives($node, "$ask; SELECT engine, refined > 0, reranked FROM gpuvec_last_scan()" =~ s/array_agg\(id\)/count(*)/r,
		"8\n$SERVER|t|0", "$what: with rows");
}

# The process that waits at its injection point.
sub held { return $node->safe_psql('postgres', q{SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}); }

# Kill a process of the server, whose other processes end with it, and the holder's psql.
sub kill_backend
{
	my ($holder, $pid, $what) = @_;

	kill 'KILL', $pid;
	eval { $holder->quit };
	return ok(wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), "$what: the server is back");
}

sub set_fault
{
	my ($fault) = @_;

	$node->append_conf('postgresql.conf', "gpuvec.fault = '$fault'\n");
	return $node->reload;
}

is_right('in the beginning');

# -- a session, or gpuvecd while the session stops
for my $victim ('session', 'gpuvecd')
{
	for my $step ('ask', 'answered', 'compared')
	{
		my $what = "$victim, $step";

		# a row that it saw would keep its TID
		$node->safe_psql('postgres', "DELETE FROM r WHERE id = $id");
		my $expected = $node->safe_psql('postgres', $ask);
		my $holder = hold($node);
		my $job = background($node, "SET gpuvec.fault = 'wait 1 remote: $step'; $ask");

		is_held($node, "$what: the session stops");
		reuse($what);
		if ($victim eq 'session')
		{
			kill_backend($holder, held(), $what);
			isnt(end_of($job), 0, "$what: the session is gone");
		}
		else
		{
			my @still = stand_still($node);

			# it is killed with the question, unread, or after it has answered
			if ($step eq 'ask')
			{
				release($holder);
				comes($node, q{SELECT wait_event_type = 'Extension' FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND query LIKE '%array_agg%' AND pid <> pg_backend_pid()},
					"$what: gpuvecd is asked");
			}
			kill 'KILL', $still[1];
			release($holder) if $step ne 'ask';
			kill 'CONT', $still[0];
			is(end_of($job), 0, "$what: the session goes on");
			is(slurp_file($job->{output}), "$expected\n", "$what: and finds what it sees");
			gives($node, 'SELECT wrong()', '', "$what: without gpuvecd");
			revive($node);
		}
		is_right($what);
	}
}

# -- a loader that catches up: before it looks at pages or rows, and before each of its
# messages but the first; it is killed, or ends while gpuvecd goes on, or gpuvecd is
# killed with its message
my %steps;
for my $victim ('loader', 'connection', 'gpuvecd')
{
	for (my $n = 1;; $n++)
	{
		my $what = "$victim, step $n";

		pause_loaders($node);
		reuse($what);
		# a row that its snapshot sees would keep its TID
		$node->safe_psql('postgres', "DELETE FROM r WHERE id = $id");
		set_fault("wait $n loader: step");
		my $holder = hold($node);
		resume_loaders($node);
		$node->safe_psql('postgres', 'SELECT wrong()');
		wait_until($node, q{SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted) OR caught_up()});
		my $pid = held();
		set_fault('');
		if ($pid eq '')
		{
			release($holder);
			$steps{$victim} = $n - 1;
			last;
		}
		gives($node, 'SELECT wrong()', '', "$what: answers are right");
		reuse("$what, once more");
		gives($node, 'SELECT wrong()', '', "$what: once more");
		if ($victim eq 'loader')
		{
			kill_backend($holder, $pid, $what);
		}
		elsif ($victim eq 'connection')
		{
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 10000)");
			release($holder);
		}
		else
		{
			my @still = stand_still($node);

			release($holder);
			select undef, undef, undef, 0.1;
			kill 'KILL', $still[1];
			kill 'CONT', $still[0];
		}
		revive($node) if $victim eq 'gpuvecd';
		is_right($what);
	}
}
cmp_ok($steps{$_}, '>=', 8, "$_: the steps of a loader") for sort keys %steps;

no_crash($node);
done_testing();
