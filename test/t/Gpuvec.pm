# Code that TAP tests share: a server with gpuvec, the same rows everywhere,
# and the three questions asked of every index: is it sound, does it find
# every row, and is it exact when it reads all lists.

package Gpuvec;

use strict;
use warnings;
use Exporter 'import';
use GpuvecPsql;
use GpuvecRows;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock time usleep);

# What all TAP files want comes with it.
our @EXPORT = (qw($SERVER long_test need_test_build need_gpuvecd new_node new_standby load_gpuvec gives says comes background
  wait_until log_has no_crash end_of errors_of hold release is_held test_cancel test_timeout settle
  restart_after_crash restart_after_kill answers is_sound is_complete is_exact are_whole is_whole some_of),
  @PostgreSQL::Test::Utils::EXPORT, grep { !/\W/ } @Test::More::EXPORT);

# The engine that gpuvecd runs on.
our $SERVER = $ENV{GPUVEC_TEST_SERVER} // 'cpu';

# Half a second is the promise; the rest is for machines that do other things.
my $LIMIT_MS = 500 + 1500;

# Rows (point), and what the checks below need.
my $FUNCTIONS = $POINT . q{
-- ids of the k nearest rows for each of n queries, as the index gives them
CREATE FUNCTION answers(tab regclass, operator text, dims int, k int, n int)
RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	answer int[];
	result text = '';
BEGIN
	FOR q IN 1..n LOOP
		EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s
			ORDER BY e %s %L LIMIT %s) AS x', tab, operator, point(q * 7919, dims), k)
			INTO answer;
		result = result || coalesce(answer::text, '-') || E'\n';
	END LOOP;
	RETURN result;
END
$$;

-- rows that the index reaches, each once, and rows that it should
CREATE FUNCTION complete(tab regclass, operator text, dims int) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec.scan_order = relaxed AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SELECT count(*) || '' rows, '' || count(DISTINCT id) || '' distinct''
		FROM (SELECT id FROM %s ORDER BY e %s %L) AS x',
		tab, operator, point(1, dims)) INTO result;
	RETURN result;
END
$$;

-- queries, of n, whose k nearest distances are not those of a sort
CREATE FUNCTION unlike_sort(tab regclass, operator text, dims int, k int, n int) RETURNS int
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	wrong int = 0;
	same bool;
BEGIN
	FOR q IN 1..n LOOP
		EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s %2$L AS d
				FROM %3$s ORDER BY e %1$s %2$L LIMIT %4$s) AS x)
			IS NOT DISTINCT FROM (SELECT array_agg(d) FROM (SELECT (e %1$s %2$L) + 0 AS d
				FROM %3$s WHERE e IS NOT NULL ORDER BY 1 LIMIT %4$s) AS y)',
			operator, point(q * 7919, dims), tab, k) INTO same;
		wrong = wrong + (NOT same)::int;
	END LOOP;
	RETURN wrong;
END
$$;

-- ... with all lists, and at a recall of 1
CREATE FUNCTION inexact(tab regclass, operator text, dims int, k int, n int) RETURNS int
LANGUAGE sql SET gpuvec.probes = 16777216 SET gpuvec.candidates = 1000000
AS 'SELECT unlike_sort(tab, operator, dims, k, n)';
CREATE FUNCTION inexact_in_pass(tab regclass, operator text, dims int, k int, n int) RETURNS int
LANGUAGE sql SET gpuvec.recall = 1 AS 'SELECT unlike_sort(tab, operator, dims, k, n)';

-- conditions under which an index gives other rows than the table has
CREATE FUNCTION missing(tab text, operator text, dims int, conditions text[]) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	condition text;
	same bool;
	result text = '';
BEGIN
	FOREACH condition IN ARRAY conditions LOOP
		-- the second is nothing that an index answers
		EXECUTE format('SELECT (SELECT array_agg(id ORDER BY id) FROM (SELECT id FROM %1$s
				WHERE %2$s ORDER BY e %3$s %4$L) AS x)
			IS NOT DISTINCT FROM (SELECT array_agg(id ORDER BY id) FROM %1$s
				WHERE (e IS NOT NULL AND %2$s) IS TRUE)',
			tab, condition, operator, point(3, dims)) INTO same;
		result = result || CASE WHEN same THEN '' ELSE condition || '; ' END;
	END LOOP;
	RETURN result;
END
$$;

-- the same by abbreviated keys, without a pass that asks rows; and by that pass
CREATE FUNCTION missing_in_lists(tab text, operator text, dims int, conditions text[]) RETURNS text
LANGUAGE sql SET gpuvec.probes = 16777216 SET gpuvec.candidates = 1000000
SET gpuvec.max_probes = 16777216 AS 'SELECT missing(tab, operator, dims, conditions)';
CREATE FUNCTION missing_in_pass(tab text, operator text, dims int, conditions text[]) RETURNS text
LANGUAGE sql SET gpuvec.recall = 1 AS 'SELECT missing(tab, operator, dims, conditions)';

-- Wait until a query gives true, which may be so for less than a session takes to
-- begin; false after three minutes.
CREATE FUNCTION await_true(query text) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
	met bool;
	begun timestamptz = clock_timestamp();
BEGIN
	WHILE clock_timestamp() < begun + '180 s' LOOP
		EXECUTE query INTO met;
		IF met THEN
			RETURN true;
		END IF;
		PERFORM pg_stat_clear_snapshot();
		PERFORM pg_sleep(0.001);
	END LOOP;
	RETURN false;
END
$$;

-- Wait until a view of progress has such a row, cancel that session, and wait
-- for its end; how many ms that took, NULL if no row came.
CREATE FUNCTION cancel_at(view regclass, condition text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
	victim int;
	begun timestamptz = clock_timestamp();
BEGIN
	WHILE victim IS NULL AND clock_timestamp() < begun + '60 s' LOOP
		PERFORM pg_stat_clear_snapshot();
		EXECUTE format('SELECT pid FROM %s WHERE %s', view, condition) INTO victim;
		PERFORM pg_sleep(0.001);
	END LOOP;
	-- into the middle of it
	PERFORM pg_sleep(0.02);
	begun = clock_timestamp();
	PERFORM pg_cancel_backend(victim);
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = victim AND state = 'active') LOOP
		PERFORM pg_stat_clear_snapshot();
		PERFORM pg_sleep(0.001);
	END LOOP;
	RETURN CASE WHEN victim IS NULL THEN NULL
		ELSE 1000 * extract(epoch FROM clock_timestamp() - begun) END;
END
$$;
};

# From PostgreSQL 16 on `init` copies the cluster that INITDB_TEMPLATE names, if
# it is asked for nothing else; before, it has it copied here.  Without a
# template, as with prove by hand, initdb runs.
if ($ENV{INITDB_TEMPLATE})
{
	no warnings 'redefine';
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;

	*PostgreSQL::Test::Utils::system_or_bail = sub {
		my @command = @_;

		@command = ('cp', '-RPp', $ENV{INITDB_TEMPLATE}, $command[2])
		  if @command == 6 && "@command[0, 1, 3 .. 5]" eq 'initdb -D -A trust -N';
		return $run->(@command);
	};
}

# Numbers 1 to $n, or $most of them from all over.
sub some_of
{
	my ($n, $most) = @_;

	return 1 .. $n if $n <= $most;
	my %some = map { int(1 + $_ * ($n - 1) / ($most - 1)) => 1 } 0 .. $most - 1;
	return sort { $a <=> $b } keys %some;
}

# True in `make test-long`: full sizes.
sub long_test { return $ENV{GPUVEC_TEST_LONG} ? 1 : 0; }

# Skip the file unless the gpuvec that is installed was built for tests, and has
# points to stop at; the setting's name is in that library alone.
sub need_test_build
{
	chomp(my $folder = `pg_config --pkglibdir`);
	plan(skip_all => 'it needs a gpuvec built with make TEST_BUILD=1')
	  if index(slurp_file("$folder/gpuvec.so"), 'gpuvec.fault') < 0;
}

# Skip the file unless the gpuvecd that is installed has the engine $SERVER: a release
# has none without a card.
sub need_gpuvecd { return $SERVER eq 'cpu' && need_test_build(); }

# A started server named $name, with gpuvec; %options: conf (text), allows_streaming.
# No worker calibrates indexes beside a test, unless conf says so.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => $options{allows_streaming} // 0);
	$node->append_conf('postgresql.conf', "autovacuum = off\njit = off\ngpuvec.auto_calibrate = off\n" . ($options{conf} // ''));
	$node->start;
	load_gpuvec($node);
	return $node;
}

# A started standby named $name of a node that allows streaming; %options: conf
# (text).
sub new_standby
{
	my ($primary, $name, %options) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup($name);
	$standby->init_from_backup($primary, $name, has_streaming => 1);
	$standby->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	$standby->start;
	return $standby;
}

# Create the extension and the functions above.
sub load_gpuvec { return $_[0]->safe_psql('postgres', "CREATE EXTENSION gpuvec; $FUNCTIONS"); }

# Test: that is what statements print.
sub gives { my ($node, $sql, $printed, $what) = @_; return is($node->safe_psql('postgres', $sql), $printed, $what); }

# Test: statements have such a message, an error or not.
sub says { my ($node, $sql, $message, $what) = @_; return like(($node->psql('postgres', $sql))[2], $message, $what); }

# Begin psql with these statements in a database (postgres); returns a handle for end_of.
# Files, not pipes: IPC::Run would move nothing before end_of.
sub background
{
	my ($node, $sql, $database) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/job';
	my @psql = ('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database // 'postgres'), '-f',
		"$file.sql");

	append_to_file("$file.sql", $sql);
	my $handle = IPC::Run::start(\@psql, '<' => \undef, '>' => "$file.out", '2>' => "$file.err");
	return { handle => $handle, output => "$file.out", error => "$file.err" };
}

# Wait for a background job; returns its exit status (0 = success).
sub end_of
{
	my ($job) = @_;

	IPC::Run::finish($job->{handle});
	return IPC::Run::full_result($job->{handle}) || 0;
}

# The messages of a background job that has ended.
sub errors_of { return slurp_file($_[0]{error}); }

# A session of a database that holds the lock which sessions wait for at their
# injection points (gpuvec.fault = 'wait N STEP').
sub hold
{
	my ($node, $database) = @_;
	my $holder = $node->background_psql($database // 'postgres');

	$holder->query_safe('SELECT pg_advisory_lock(0, 26486)');
	return $holder;
}

# Let those that wait go on.
sub release { return $_[0]->quit; }

# Test: so many processes (1) come to their injection points.
sub is_held
{
	my ($node, $what, $n) = @_;

	$n //= 1;
	return ok(
		wait_until($node, "SELECT count(*) >= $n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
		$what);
}

# Poll until the query, run in a session of its own per try, gives 't'; false
# after so many seconds.  Long, since a busy machine may be slow.
sub wait_until
{
	my ($node, $query, $seconds) = @_;
	my $begun = time;
	my $end = $begun + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while (time < $end)
	{
		# a psql that cannot connect may be gone before it is sent the query,
		# and IPC::Run dies of the broken pipe
		my ($rc, $out) = eval { $node->psql('postgres', $query) };
		return 1 if defined $rc && $rc == 0 && $out eq 't';
		# each try is a session: the longer it takes, the rarer it asks, since
		# others need the processor
		my $pause = int(2e5 * (time - $begun));
		usleep($pause < 20_000 ? 20_000 : $pause > 250_000 ? 250_000 : $pause);
	}
	return 0;
}

# Test: soon a query gives true.
sub comes { my ($node, $query, $what) = @_; return ok(wait_until($node, $query), $what); }

# A test that the server's log has such a line after position $from, which it
# waits for.
sub log_has
{
	my ($node, $pattern, $from, $what) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $end)
	{
		return pass($what) if slurp_file($node->logfile, $from) =~ $pattern;
		usleep(50_000);
	}
	return fail("$what: no line like $pattern");
}

# Test: no process of the server has crashed.
sub no_crash
{
	return unlike(slurp_file($_[0]->logfile), qr/PANIC|TRAP:|terminated by signal (?:4|6|7|8|11)\b/, 'nothing crashed');
}

# The limit of what has just taken longer than $LIMIT_MS: that and no more where we
# have a processor to ourselves, else as many times that as what runs takes now.
sub limit_now
{
	my ($cpu, $wall) = (clock(), time);

	1 while clock() < $cpu + 0.1;
	my $times = (time - $wall) / (clock() - $cpu);
	return int($LIMIT_MS * ($times > 1 ? $times : 1));
}

# Test: the statements, begun in a session of their own, end soon when they are
# canceled once a view of progress has such a row.  Other programs may have kept
# them from the processor, or us from seeing the row: so the best of three tries
# counts, and the statements can be run again when they were not canceled.
sub test_cancel
{
	my ($node, $what, $sql, $view, $condition) = @_;
	my $limit = $LIMIT_MS;
	my ($ms, $status, $err);

	for (1 .. 3)
	{
		my $job = background($node, "$sql; SELECT pg_sleep(0.5)");

		$ms = $node->safe_psql('postgres', "SELECT cancel_at('$view', \$x\$$condition\$x\$)");
		if ($ms eq '')
		{
			# it went past unseen: do not wait for what it does now
			$ms = 1e9;
			$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
				WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
		}
		$status = end_of($job) >> 8;
		$err = slurp_file($job->{error});
		$limit = limit_now() if $ms > $LIMIT_MS;
		last if $ms <= $limit && $status == 3;
		note("$what: ended after $ms ms, not $limit, status $status");
	}
	cmp_ok($ms, '<=', $limit, "$what: ended after $ms ms");
	is($status, 3, "$what: was canceled");
	like($err, qr/canceling statement due to user request/, "$what: says so");
	return;
}

# Test: statements with a timeout of their own end soon after it.  Here, too, the
# best of three tries counts, with ever less time for a machine that is fast.
sub test_timeout
{
	my ($node, $what, $sql, $timeout_ms) = @_;
	my $limit = $LIMIT_MS;
	my ($err, $ms);

	for (1 .. 3)
	{
		my $begun = time;

		(undef, undef, $err) =
		  $node->psql('postgres', "SET statement_timeout = $timeout_ms; $sql");
		$ms = int(1000 * (time - $begun)) - $timeout_ms;
		$limit = limit_now() if $ms > $LIMIT_MS;
		last if $ms <= $limit && $err =~ /canceling statement/;
		note("$what: ended $ms ms, not $limit, after a timeout of $timeout_ms ms: $err");
		$timeout_ms = int($timeout_ms / 2) || 1;
	}
	like($err, qr/canceling statement due to statement timeout/, "$what: timed out after $timeout_ms ms");
	cmp_ok($ms, '<=', $limit, "$what: ended $ms ms later");
	return;
}

# Test: whoever was asked to train in the database has done so, and is gone.  A
# worker that was asked a moment ago may not be there yet; but it, or the one that
# is asked for another index here, goes through all.
sub settle
{
	my ($node, $what) = @_;

	$node->safe_psql('postgres', q{
		SET client_min_messages = warning;
		CREATE TABLE settled (e real[]);
		CREATE INDEX settled_e ON settled USING gpuivfpq (e) WITH (dims = 3, train_rows = 1000);
		INSERT INTO settled SELECT ARRAY[g % 10, g, g % 7] FROM generate_series(1, 1000) AS g;
		VACUUM settled});
	ok(wait_until($node, q{SELECT lists > 0 FROM gpuvec_index_info('settled_e')}),
		"$what: a worker goes through all indexes");
	ok( wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity
			WHERE backend_type = 'gpuvec training'}),
		"$what: and then there is none");
	$node->safe_psql('postgres', 'DROP TABLE settled');
	return;
}

# Start a server again one of whose backends was killed: the postmaster is
# about to end.
sub restart_after_crash
{
	my ($node) = @_;

	$node->stop('immediate', fail_ok => 1);
	return restart_after_kill($node);
}

# Start a server again whose postmaster was killed: its children may still be
# going down.
sub restart_after_kill
{
	my ($node) = @_;

	for (1 .. 300)
	{
		return 1 if $node->start(fail_ok => 1);
		usleep(100_000);
		# or the node thinks that the old postmaster runs
		$node->stop('fast', fail_ok => 1);
	}
	die "the server does not start again";
}

# Ids of the k nearest rows for each of n queries.
sub answers
{
	my ($node, $table, $operator, $dims, $k, $n) = @_;

	return $node->safe_psql('postgres', "SELECT answers('$table', '$operator', $dims, $k, $n)");
}

# What is asked of an index: what the answer shows, and a query, which gives NULL where
# that is so.
sub sound
{
	my ($index, %options) = @_;
	my $which = $options{warnings} ? "WHERE severity = 'error'" : '';

	return [ "$index is sound", "SELECT string_agg(v::text, ' ') FROM
		(SELECT * FROM gpuvec_verify_index('$index') $which LIMIT 20) AS v" ];
}

sub complete
{
	my ($table, $operator, $dims) = @_;

	return [ "$operator finds each row of $table once", "SELECT nullif(complete('$table', '$operator', $dims),
		format('%1\$s rows, %1\$s distinct', count(*))) FROM $table WHERE e IS NOT NULL" ];
}

sub exact
{
	my ($table, $operator, $dims) = @_;

	return [ "$operator on $table with all lists is exact", "SELECT nullif(inexact('$table', '$operator', $dims, 10, 10), 0)" ];
}

# Test: so it is.  All is asked in one session, since a session takes longer than most
# questions.
sub holds
{
	my ($node, $what, @questions) = @_;
	my @told = split /\n/, $node->safe_psql('postgres', join '', map { "SELECT concat('= ', ($_->[1]));" } @questions);

	is(shift @told, '= ', "$what: $_->[0]") for @questions;
	return;
}

# Test: gpuvec_verify_index finds no error, and no warning but after a crash (warnings:
# they are let pass).
sub is_sound { my ($node, $index, $what, %options) = @_; return holds($node, $what, sound($index, %options)); }

# Test: in relaxed order the index gives every row exactly once.
sub is_complete { my ($node, @table) = @_; return holds($node, pop @table, complete(@table)); }

# Test: with all lists and enough candidates answers are those of a sort.
sub is_exact { my ($node, @table) = @_; return holds($node, pop @table, exact(@table)); }

# Test: indexes, each of them [ index, table, operator, dimensions ], are sound,
# complete and exact; under conditions on keys, too, if these are a fifth.  Options:
# warnings (they are let pass), exact => 0.
sub are_whole
{
	my ($node, $what, $indexes, %options) = @_;
	my @questions;

	for (@$indexes)
	{
		my ($index, @table) = @$_[ 0 .. 3 ];
		my $conditions = join ', ', map { "\$\$$_\$\$" } @{ $_->[4] // [] };

		push @questions, sound($index, %options), complete(@table);
		push @questions, exact(@table) if $options{exact} // 1;
		push @questions, [ "$table[0] has the rows of conditions on keys",
			"SELECT missing_in_lists('$table[0]', '$table[1]', $table[2], ARRAY[$conditions])" ]
		  if $conditions;
	}
	return holds($node, $what, @questions);
}

# Test: all three of the index TABLE_e; by default t_e, on the 16 dimensions of t.
# %options are those of are_whole.
sub is_whole
{
	my ($node, $what, $table, $operator, $dims, %options) = @_;

	$table //= 't';
	return are_whole($node, $what, [ [ "${table}_e", $table, $operator // '<->', $dims // 16 ] ], %options);
}

1;
