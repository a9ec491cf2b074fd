# An index is trained and drained while inserts, deletes, queries,
# gpuvec_verify_index and VACUUM go on: no query misses a row that was always
# there or gives one twice, and nothing looks damaged meanwhile.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rounds = long_test() ? 30 : 2;
my $seconds = long_test() ? 10 : 3;
my $node = new_node('main', conf => "shared_buffers = 64MB\nfsync = off\n");
my $folder = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', 'CREATE FUNCTION noise() RETURNS real[] LANGUAGE sql AS
	$$ SELECT ARRAY[100 * random(), 100 * random(), 10 * random(), random()]::real[] $$');

my %scripts = (
	'change' => q{
		INSERT INTO t (e) SELECT noise() FROM generate_series(1, 30);
		DELETE FROM t WHERE id > 50 AND id IN
			(SELECT id FROM t WHERE id > 50 ORDER BY random() LIMIT 10);},
	# division by zero where rows 1 to 50 are not the nearest ones, each once
	'query' => q{
		SET enable_seqscan = off;
		SELECT 1 / (count(*) = 50 AND count(DISTINCT id) = 50 AND max(id) = 50)::int
		FROM (SELECT id FROM t ORDER BY e <-> '{-1500,1,0,0}' LIMIT 50) AS q;},
	'verify' => q{
		SELECT 1 / (count(*) = 0)::int FROM gpuvec_verify_index('t_e') WHERE severity = 'error';
		SELECT * FROM gpuvec_index_info('t_e');});
my @files;
for my $name (sort keys %scripts)
{
	append_to_file("$folder/$name", $scripts{$name});
	push @files, '-f', "$folder/$name" . ($name eq 'change' ? '@2' : '');
}

for my $round (1 .. $rounds)
{
	$node->safe_psql('postgres', q{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS t;
		CREATE TABLE t (id bigserial, e real[]);
		CREATE INDEX t_e ON t USING gpuivfpq (e, id, (id % 10)) WITH (dims = 4, candidates = 200, train_rows = 300);
		INSERT INTO t (e) SELECT ARRAY[-1000 - 10 * g, g, 0, 0] FROM generate_series(1, 50) AS g;
		INSERT INTO t (e) SELECT noise() FROM generate_series(1, 3000);});
	my $clients = IPC::Run::start(
		[
			'pgbench', '-n', '-c', '4', '-j', '2', '-T', $seconds, @files,
			$node->connstr('postgres')
		],
		'<' => \undef, '>' => "$folder/out", '2>' => "$folder/err");

	usleep(500_000);
	$node->safe_psql('postgres', $round % 2 ? "SELECT gpuvec_train('t_e')" : 'VACUUM t');
	for (1 .. 4 * $seconds - 8)
	{
		usleep(250_000);
		$node->safe_psql('postgres', 'SET client_min_messages = warning; ' .
			"SELECT gpuvec_train('t_e'); VACUUM t");
	}
	IPC::Run::finish($clients);
	is(IPC::Run::full_result($clients) || 0, 0, "round $round: clients succeed");
	unlike(slurp_file("$folder/err"), qr/ERROR|aborted/, '... and complain of nothing');
	$node->safe_psql('postgres', "SELECT gpuvec_train('t_e')");
	is($node->safe_psql('postgres', "SELECT lists > 0, pending FROM gpuvec_index_info('t_e')"),
		't|0', '... and the index is trained');
	is_sound($node, 't_e', "round $round");
	is_complete($node, 't', '<->', 4, "round $round");
}

done_testing();
