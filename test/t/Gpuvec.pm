# What the TAP tests share: a server with gpuvec and the same rows everywhere,
# and the three questions asked of every index: is it sound, does it find
# every row, and is it exact when it reads all lists.

package Gpuvec;

use strict;
use warnings;
use Exporter 'import';
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw($SERVER long_test new_node load_gpuvec background wait_until
  end_of restart_after_crash restart_after_kill answers is_sound is_complete is_exact
  is_whole);

# What gpuvecd runs on.
our $SERVER = $ENV{GPUVEC_TEST_SERVER} // 'cpu';

# Row `g` of a table: one of 20 clusters, and what the checks below need.
my $FUNCTIONS = q{
CREATE FUNCTION point(g int, dims int) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT array_agg((10 * sin(g % 20 * 131 + i * 17) + n - floor(n))::real ORDER BY i)
	FROM generate_series(1, dims) AS i,
		LATERAL (VALUES (abs(sin(g * 12.9898 + i * 78.233)) * 43758.5453)) AS v (n)
$$;

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
LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec."order" = relaxed AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SELECT count(*) || '' rows, '' || count(DISTINCT id) || '' distinct''
		FROM (SELECT id FROM %s ORDER BY e %s %L) AS x',
		tab, operator, point(1, dims)) INTO result;
	RETURN result;
END
$$;

-- queries whose k nearest distances, with all lists, are not those of a sort
CREATE FUNCTION inexact(tab regclass, operator text, dims int, k int, n int)
RETURNS int
LANGUAGE plpgsql SET gpuvec.probes = 16777216 SET gpuvec.candidates = 1000000
SET enable_seqscan = off AS $$
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
};

# True in `make test-long`: full sizes.
sub long_test
{
	return $ENV{GPUVEC_TEST_LONG} ? 1 : 0;
}

# A started server named $name, with gpuvec; %options: conf (text), allows_streaming.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => $options{allows_streaming} // 0);
	$node->append_conf('postgresql.conf',
		"autovacuum = off\njit = off\n" . ($options{conf} // ''));
	$node->start;
	load_gpuvec($node);
	return $node;
}

# Create the extension and the functions above.
sub load_gpuvec
{
	my ($node) = @_;

	$node->safe_psql('postgres', "CREATE EXTENSION gpuvec; $FUNCTIONS");
	return;
}

# Begin psql with these statements; returns a handle for end_of.  Files, not
# pipes: IPC::Run would move nothing before end_of.
sub background
{
	my ($node, $sql) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/job';
	my %job = (output => "$file.out");

	append_to_file("$file.sql", $sql);
	$job{handle} = IPC::Run::start(
		[
			'psql', '-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1',
			'-d', $node->connstr('postgres'), '-f', "$file.sql"
		],
		'<' => \undef,
		'>' => $job{output},
		'2>' => "$file.err");
	return \%job;
}

# Wait for a background job; returns its exit status (0 = success).
sub end_of
{
	my ($job) = @_;

	IPC::Run::finish($job->{handle});
	return IPC::Run::full_result($job->{handle}) || 0;
}

# Poll until the query, run in a session of its own per try, gives 't'; false
# after so many seconds.  Long, since a busy machine may be slow.
sub wait_until
{
	my ($node, $query, $seconds) = @_;
	my $end = time + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while (time < $end)
	{
		my ($rc, $out) = $node->psql('postgres', $query);
		return 1 if $rc == 0 && $out eq 't';
		usleep(5_000);
	}
	return 0;
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

	return $node->safe_psql('postgres',
		"SELECT answers('$table', '$operator', $dims, $k, $n)");
}

# Test: gpuvec_verify_index finds no error, and no warning but after a crash.
sub is_sound
{
	my ($node, $index, $what, %options) = @_;
	my $which = $options{warnings} ? "WHERE severity = 'error'" : '';

	is( $node->safe_psql('postgres',
			"SELECT * FROM gpuvec_verify_index('$index') $which LIMIT 20"),
		'', "$what: $index is sound");
	return;
}

# Test: in relaxed order the index gives every row exactly once.
sub is_complete
{
	my ($node, $table, $operator, $dims, $what) = @_;
	my $rows = $node->safe_psql('postgres',
		"SELECT count(*) FROM $table WHERE e IS NOT NULL");

	is( $node->safe_psql('postgres',
			"SELECT complete('$table', '$operator', $dims)"),
		"$rows rows, $rows distinct",
		"$what: $operator finds each row of $table once");
	return;
}

# Test: with all lists and enough candidates answers are those of a sort.
sub is_exact
{
	my ($node, $table, $operator, $dims, $what) = @_;

	is( $node->safe_psql('postgres',
			"SELECT inexact('$table', '$operator', $dims, 10, 10)"),
		'0', "$what: $operator on $table with all lists is exact");
	return;
}

# Test: all three of t_e, the index on the 16 dimensions of t.
sub is_whole
{
	my ($node, $what) = @_;

	is_sound($node, 't_e', $what);
	is_complete($node, 't', '<->', 16, $what);
	is_exact($node, 't', '<->', 16, $what);
	return;
}

1;
