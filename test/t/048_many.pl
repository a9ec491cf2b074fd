# gpuvec_search through gpuvecd: the rows of the session's own search, whatever
# the mirror's age, and whatever becomes of gpuvecd meanwhile.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_remote_node('main', conf => "fsync = off\ngpuvec.auto_mirror = off\nautovacuum = off\ngpuvec.server_timeout = '60s'\n");
my %lists = (plain => 'lists = 30', once => 'lists = 30, spill = 0', refined => 'lists = 30, refine = sq8');

for my $name (sort keys %lists)
{
	$node->safe_psql('postgres', "
		CREATE TABLE $name AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 3000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e) WITH ($lists{$name});");
	is_mirrored($node, "${name}_e", "SELECT FROM $name ORDER BY e <-> point(1, 8) LIMIT 1", $name);
}
$node->safe_psql('postgres', 'CREATE TABLE asked AS SELECT point(7 * g, 8) AS v FROM generate_series(1, 700) AS g');

# The statement; with all lists, because gpuvecd chooses the last of the nearest
# in another way.
my $all = 'gpuvec.probes = 1000';
sub many
{
	my ($name, $k) = @_;

	return "SELECT * FROM gpuvec_search('${name}_e', (SELECT array_agg(v) FROM asked), " . ($k // 10) . ')';
}

for my $name (sort keys %lists)
{
	my $before = served($node);

	differs($node, many($name), "$name: the same rows", set => [$all]);
	differs($node, many($name, 1), "$name: of each the nearest", set => [$all]);
	differs($node, many($name, 60), "$name: of each many", set => [$all]);
	differs($node, many($name), "$name: in portions", set => [ $all, "maintenance_work_mem = '1MB'" ], stale => 1);
	cmp_ok(served($node), '<', $before + 60, "$name: by few messages");
}
is( $node->safe_psql('postgres', "SET gpuvec.engine = gpu; SELECT count(*) FROM (" . many('plain') . ") AS n;
	SELECT engine, batch_size, returned, fallback IS NULL FROM gpuvec_last_scan()"),
	"7000\n$SERVER|700|7000|t", 'the last scan tells of it');
# gpuvecd closes idle connections
is( $node->safe_psql('postgres', "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error; SELECT count(*) FROM (" . many('plain') . ") AS n;
	DO 'BEGIN PERFORM pg_sleep(2.5); END'; SELECT count(*) FROM (" . many('plain') . ') AS n; SELECT engine FROM gpuvec_last_scan()'),
	"7000\n7000\n$SERVER", 'again, after a while');

# -- mirrors that lack something: tails, lists that have changed, dead rows
pause_loaders($node);
$node->safe_psql('postgres', "
	INSERT INTO $_ SELECT g, point(g, 8) FROM generate_series(3001, 3300) AS g;") for sort keys %lists;
differs($node, many($_), "$_: rows that the mirror lacks", set => [$all], stale => 1) for sort keys %lists;
$node->safe_psql('postgres', "DELETE FROM $_ WHERE id % 3 = 0") for sort keys %lists;
differs($node, many($_), "$_: rows that are gone", set => [$all], stale => 1) for sort keys %lists;
$node->safe_psql('postgres', "DELETE FROM $_ WHERE id % 400 = 1; ") for sort keys %lists;
$node->safe_psql('postgres', "VACUUM $_") for sort keys %lists;
# so many lists are stale that the session searches itself, for some queries
# or for all
for my $name (sort keys %lists)
{
	my $query = "SELECT string_agg(n::text, ' ') FROM (" . many($name) . ') AS n';

	is( $node->safe_psql('postgres', "SET $all; SET gpuvec.engine = gpu; $query"),
		$node->safe_psql('postgres', "SET $all; SET gpuvec.engine = cpu; $query"),
		"$name: after VACUUM");
}
resume_loaders($node);
is_mirrored($node, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 1", "$_ again") for sort keys %lists;
differs($node, many($_), "$_: it has caught up", set => [$all]) for sort keys %lists;

# Half of the rows are gone: a second round, whose queries come in the order in which the
# first one measured them, and which answers all of them: where one needs a third,
# that would be a pass over all rows for each, and prove nothing of the second.
sub when_few_are_left
{
	my ($engine) = @_;

	return $node->safe_psql('postgres', "SET $all; SET gpuvec.engine = $engine; BEGIN; DELETE FROM plain WHERE id % 2 <> 1;
		SELECT string_agg(n::text, ' ') FROM (" . many('plain') . ") AS n;
		SELECT batches, full_pass FROM gpuvec_last_scan(); ROLLBACK");
}
my $few = when_few_are_left('gpu');
like($few, qr/\n2\|f$/, 'a second round, and no pass');
is($few, when_few_are_left('cpu'), 'a second round through gpuvecd');

# Of queries that gpuvecd answers and others, which the session searches for, a
# row is not left out for what records say of another query.  Lists are pieces of
# a line; the first of two queries has lost rows that its answer has, the second
# has not.
$node->safe_psql('postgres', '
	CREATE TABLE pairs AS SELECT g AS id, ARRAY[g, 0, 0, 0]::real[] AS e FROM generate_series(1, 3000) AS g;
	CREATE INDEX pairs_e ON pairs USING gpuivfpq (e) WITH (lists = 20, spill = 0, refine = sq8);');
is_mirrored($node, 'pairs_e', "SELECT FROM pairs ORDER BY e <-> '{1,0,0,0}' LIMIT 1", 'pairs');
pause_loaders($node);
$node->safe_psql('postgres', 'DELETE FROM pairs WHERE id BETWEEN 1000 AND 1100 AND id % 3 > 0; VACUUM pairs');
is( $node->safe_psql('postgres', q{
		SET gpuvec.engine = gpu; SET gpuvec.probes = 2; SET gpuvec.candidates = 300;
		SELECT count(*) FROM pairs AS a, unnest('{-80,-40,-15,15,40,80}'::int[]) AS far,
			LATERAL (SELECT min(distance) AS d FROM gpuvec_search('pairs_e', ARRAY[a.e, ARRAY[a.id + far, 0, 0, 0]::real[]], 1)
				WHERE query = 1) AS s
		WHERE a.id BETWEEN 800 AND 1600 AND d > 0}),
	0, 'each row is its own nearest');
resume_loaders($node);

# -- gpuvecd does not answer, is killed, is gone
my $own = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; SET $all; SELECT string_agg(n::text, ' ') FROM (" . many('plain') . ') AS n');
sub by_fallback
{
	my ($set, $what, $why) = @_;
	my $found = $node->safe_psql('postgres', "SET gpuvec.engine = gpu; SET $all; $set
		SELECT string_agg(n::text, ' ') FROM (" . many('plain') . ") AS n; SELECT fallback FROM gpuvec_last_scan()");

	like($found, qr/\n($why)$/, "$what: why");
	$found =~ s/\n[^\n]*$//;
	is($found, $own, "$what: the session's rows");
	return;
}
my ($supervisor, $pid) = stand_still($node);
my $begun = time;
by_fallback("SET gpuvec.request_timeout = '200ms';", 'stopped', 'timed out');
cmp_ok(time - $begun, '<', 15, 'stopped: it was not waited for long');
go_on($supervisor, $pid);
ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'it goes on');
differs($node, many('plain'), 'it answers again', set => [ $all, "gpuvec.request_timeout = '9s'" ]);
# who waits for it heeds canceling and time-outs, and has the right answer next
($supervisor, $pid) = stand_still($node);
my $patient = "SET gpuvec.engine = gpu; SET gpuvec.request_timeout = '60s'; SET $all;";
test_timeout($node, 'stopped', "$patient " . many('plain'), 300);
test_cancel($node, 'stopped', "$patient " . many('plain'), 'pg_stat_activity',
	q{wait_event_type = 'Extension' AND query LIKE '%gpuvec_search%' AND pid <> pg_backend_pid()});
{
	my ($rc, $out, $err) = $node->psql('postgres', qq{
		$patient
		\\set ON_ERROR_STOP off
		-- for its own message alone: SET might be canceled, too
		SET LOCAL statement_timeout = '200ms' \\;
		SELECT count(*) FROM gpuvec_search('plain_e', (SELECT array_agg(point(g, 8)) FROM generate_series(1, 900) AS g), 3);
		\\! kill -CONT $pid
		SELECT string_agg(n::text, ' ') FROM (} . many('plain') . ') AS n');

	like($err, qr/canceling statement due to statement timeout/, 'given up');
	is($out, $own, '... and the next answer is that of the next question');
}
kill 'CONT', $pid;
kill 'STOP', $pid;
{
	my ($rc, $out, $err) = $node->psql('postgres', "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error;
		SET gpuvec.request_timeout = '150ms'; " . many('plain'));

	isnt($rc, 0, 'an error is wanted');
	like($err, qr/gpuvecd did not answer within 150 ms/, 'and it is the right one');
}
# nobody starts another before the session has asked: the supervisor stands still
kill 'KILL', $pid;
by_fallback('', 'killed', 'down|broken|suspended');
kill 'CONT', $supervisor;
ok(revive($node), 'there is another');
is_mirrored($node, 'plain_e', 'SELECT FROM plain ORDER BY e <-> point(1, 8) LIMIT 1', 'the other one');
differs($node, many('plain'), 'and it answers', set => [$all]);


# -- killed while it answers: who has asked finds the rows itself
$node->safe_psql('postgres', q{
	CREATE FUNCTION again(query text, times int) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		answer text;
		answers text[] = '{}';
	BEGIN
		FOR i IN 1..times LOOP
			EXECUTE query INTO answer;
			IF answer <> ALL (answers) THEN
				answers = answers || answer;
			END IF;
		END LOOP;
		RETURN array_to_string(answers, E'\n');
	END
	$$});
for my $ms (0, 7, 40)
{
	my $query = 'SELECT string_agg(n::text, $x$ $x$) FROM (' . many('plain') . ') AS n';
	my $job = background($node, "SET gpuvec.engine = gpu; SET $all; SELECT again(\$q\$$query\$q\$, 30)");

	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%again%'
		AND pid <> pg_backend_pid()}, 10);
	usleep(1000 * $ms);
	kill 'KILL', gpuvecd_pid($node);
	is(end_of($job), 0, "killed after $ms ms");
	is(slurp_file($job->{output}), "$own\n", '... all answers were right');
	ok(revive($node), '... there is another');
	is_mirrored($node, 'plain_e', 'SELECT FROM plain ORDER BY e <-> point(1, 8) LIMIT 1', 'the other one');
}

$node->stop;
done_testing();
