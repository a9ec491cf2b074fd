# No room: for temporary files of a build or a scan, and for the index itself
# (a limit on the size of files, which the server meets as it would a full
# disk).  The statement fails, nothing else does.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $limit_kb = 4096;
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => ['--wal-segsize=1']);
$node->append_conf('postgresql.conf',
	"autovacuum = off\njit = off\nmin_wal_size = 2MB\nmax_wal_size = 64MB\n");
$node->start;
load_gpuvec($node);

# Test: the statement fails with such a message.
sub test_fails
{
	my ($what, $sql, $message) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql);

	isnt($rc, 0, "$what: fails");
	like($err, $message, "$what: says why");
	return;
}

# -- temporary files
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT g AS id, ARRAY[g % 100, g / 100, g % 7, g % 11]::real[] AS e
	FROM generate_series(1, 30000) AS g});
my $few = "SET temp_file_limit = '64kB'; SET maintenance_work_mem = '1MB'; SET work_mem = '64kB';";
test_fails('build', "$few CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10)",
	qr/temporary file size exceeds "?temp_file_limit/);
$node->safe_psql('postgres', 'CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 10, dims = 4)');
test_fails('scan', "$few SET enable_seqscan = off; SET gpuvec.scan_order = relaxed;
	SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> '{1,2,3,4}') AS q",
	qr/temporary file size exceeds "?temp_file_limit/);
is_sound($node, 't_e', 'temporary files');
is_complete($node, 't', '<->', 4, 'temporary files');

# -- the index: its codes are larger than rows that compress well
$node->safe_psql(
	'postgres', q{
	CREATE TABLE wide (id serial, e real[]);
	INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 3000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 10, pq_dim = 900, spill = 0)});
cmp_ok($node->safe_psql('postgres', q{SELECT pg_relation_size('wide')}),
	'<', $limit_kb * 512, 'the table is small');
$node->stop;
my @limited = (
	'bash', '-c', 'ulimit -f "$1" && shift && exec "$@"', 'limited', $limit_kb,
	'pg_ctl', '--wait', '--pgdata', $node->data_dir, '--log', $node->logfile, 'start');
system_or_bail(@limited);
$node->_update_pid(1);

my $insert = 'INSERT INTO wide (e) SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])
	FROM generate_series(1, 6000) AS g';
test_fails('insert', $insert, qr/could not extend file.*File too large/s);
is_sound($node, 'wide_e', 'insert failed');
is_complete($node, 'wide', '<->', 1400, 'insert failed');
is_exact($node, 'wide', '<->', 1400, 'insert failed');
test_fails('insert again', $insert, qr/could not extend file.*File too large/s);
is_sound($node, 'wide_e', 'insert failed again');

# VACUUM writes lists anew before it frees the old ones, so it may fail, too
for my $try (1 .. 2)
{
	my ($rc, undef, $err) = $node->psql('postgres', 'VACUUM wide');

	like($err, qr/^$|could not extend file/, "VACUUM $try: done, or no room");
	is_sound($node, 'wide_e', "VACUUM $try");
	is_complete($node, 'wide', '<->', 1400, "VACUUM $try");
}

# with room again it takes everything that failed, and nothing is lost
$node->stop;
$node->start;
$node->safe_psql('postgres', 'VACUUM wide');
is_sound($node, 'wide_e', 'room again');
is_exact($node, 'wide', '<->', 1400, 'room again');
my $pages = q{SELECT pg_relation_size('wide_e') / 8192};
my $before = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres', 'INSERT INTO wide (e) SELECT e FROM wide WHERE id <= 500');
is($node->safe_psql('postgres', $pages), $before, 'room again: new rows go where failed ones were');
is_complete($node, 'wide', '<->', 1400, 'room again');
$node->stop;
system_or_bail(@limited);
$node->_update_pid(1);

# a build
$node->safe_psql('postgres', 'DROP INDEX wide_e');
$node->safe_psql('postgres', $insert);
test_fails('build', 'CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 10, pq_dim = 900)',
	qr/could not extend file.*File too large/s);
$node->safe_psql('postgres', 'CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 10, pq_dim = 100)');
is_sound($node, 'wide_e', 'a smaller build');
is_complete($node, 'wide', '<->', 1400, 'a smaller build');
unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal/, 'the server stood');

done_testing();
