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

my $node = new_remote_node('main', conf => "fsync = off\ngpuvec.auto_mirror = off\nautovacuum = off\n");
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
	SELECT engine, batch_size, given, fallback IS NULL FROM gpuvec_last_scan()"),
	"7000\n$SERVER|700|7000|t", 'the last scan tells of it');

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
my $pid = gpuvecd_pid($node);
kill 'STOP', $pid;
my $begun = time;
by_fallback("SET gpuvec.request_timeout = '200ms';", 'stopped', 'timed out');
cmp_ok(time - $begun, '<', 15, 'stopped: it was not waited for long');
kill 'CONT', $pid;
ok(wait_until($node, "SELECT state = 'up' FROM gpuvec_stat"), 'it goes on');
differs($node, many('plain'), 'it answers again', set => [ $all, "gpuvec.request_timeout = '9s'" ]);
kill 'STOP', $pid;
{
	my ($rc, $out, $err) = $node->psql('postgres', "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error;
		SET gpuvec.request_timeout = '150ms'; " . many('plain'));

	isnt($rc, 0, 'an error is wanted');
	like($err, qr/gpuvecd did not answer within 150 ms/, 'and it is the right one');
}
kill 'KILL', $pid;
by_fallback('', 'killed', 'down|broken|suspended|not mirrored|loading');
ok(revive($node), 'there is another');
is_mirrored($node, 'plain_e', 'SELECT FROM plain ORDER BY e <-> point(1, 8) LIMIT 1', 'the other one');
differs($node, many('plain'), 'and it answers', set => [$all]);

$node->stop;
done_testing();
