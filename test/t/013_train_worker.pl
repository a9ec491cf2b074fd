# An index trains itself: rows are loaded into an empty indexed table, and
# autovacuum and the worker that it asks for do the rest, with nothing
# preloaded.  The standby follows, a scan there that began before included.
# The worker can be ended, gives way to DROP, says what it cannot train, and
# that an index has outgrown its training.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $rows = long_test() ? 1_000_000 : 20_000;
my $node = new_node('main', allows_streaming => 1,
	# a session that waits for the worker cancels it no sooner (031 has that)
	conf => "fsync = off\nautovacuum_naptime = 1s\nmax_wal_size = 4GB\ndeadlock_timeout = 5min\n");

# Begin a session that holds the lock for which faults of kind `wait` wait.
sub hold
{
	my ($server) = @_;
	my $session = $server->background_psql('postgres');

	$session->query_safe('SELECT pg_advisory_lock(0, 26486)');
	return $session;
}

sub release
{
	my ($session) = @_;

	$session->query_safe('SELECT pg_advisory_unlock(0, 26486)');
	$session->quit;
	return;
}

my $waiting = q{SELECT count(*) > 0 FROM pg_locks
	WHERE locktype = 'advisory' AND NOT granted};
my $idle = q{SELECT count(*) = 0 FROM pg_stat_activity
	WHERE backend_type = 'gpuvec training'};

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

# -- bulk load into an empty indexed table; nobody does anything
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE loaded (id int, e real[]) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
	CREATE INDEX loaded_e ON loaded USING gpuivfpq (e) WITH (dims = 8);
	CREATE TABLE source AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, $rows) AS g;");
my $file = PostgreSQL::Test::Utils::tempdir() . '/rows';
$node->safe_psql('postgres', "\\copy source TO '$file'
	\\copy loaded FROM '$file'");
$node->safe_psql('postgres', "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()");
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('loaded_e')", 1800),
	'autovacuum had the index trained');
log_has($node, qr/LOG:  gpuvec: trained index "public.loaded_e": $rows rows in \d+ lists, 0 stay pending/,
	0, 'the log says so');
unlike(slurp_file($node->logfile), qr/trained index[^\n]*\n[^\n]*CONTEXT/, 'in one line');
ok(wait_until($node, $idle), 'the worker is gone');
is($node->safe_psql('postgres', q{SELECT rows, pending, rows_at_training, advice
		FROM gpuvec_index_info('loaded_e')}),
	"$rows|0|$rows|", 'all rows are in lists');
is_sound($node, 'loaded_e', 'autovacuum');
is_complete($node, 'loaded', '<->', 8, 'autovacuum');
is_exact($node, 'loaded', '<->', 8, 'autovacuum');
$node->wait_for_catchup($standby);
is_complete($standby, 'loaded', '<->', 8, 'standby');
is_exact($standby, 'loaded', '<->', 8, 'standby');
is(answers($standby, 'loaded', '<->', 8, 20, 5), answers($node, 'loaded', '<->', 8, 20, 5),
	'the standby gives the same answers');
$node->safe_psql('postgres', "ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()");

# -- VACUUM by hand; a scan on the standby reads across the publication
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE t (id int, e real[]);
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (dims = 8, train_rows = 5000);
	INSERT INTO t SELECT * FROM source WHERE id <= 4900;});
my $from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM t');
settle($node, 'few rows');
is($node->safe_psql('postgres', "SELECT lists FROM gpuvec_index_info('t_e')"), '0',
	'no training below train_rows');
$node->safe_psql('postgres', 'INSERT INTO t SELECT * FROM source WHERE id BETWEEN 4901 AND 5000');
$node->wait_for_catchup($standby);

my $holder = hold($standby);
my $scan = background($standby, "SET gpuvec.fault = 'wait 2 read: pending page';
	SELECT complete('t', '<->', 8);");
ok(wait_until($standby, $waiting), 'the standby reads the pending list');
$node->safe_psql('postgres', 'VACUUM t');
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('t_e')"), 'VACUUM had it trained');
ok(wait_until($node, $idle), 'the worker is gone');
$node->safe_psql('postgres', 'INSERT INTO t SELECT id + 1000000, e FROM source LIMIT 3000');
$node->wait_for_catchup($standby);
release($holder);
is(end_of($scan), 0, 'the scan ends');
is(slurp_file($scan->{output}), "5000 rows, 5000 distinct\n",
	'... with each row of its snapshot once');
is_complete($standby, 't', '<->', 8, 'standby, later');

# -- rows that come while it trains are drained at once, or by the next VACUUM
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE busy (id int, e real[]);
	CREATE INDEX busy_e ON busy USING gpuivfpq (e) WITH (dims = 8, train_rows = 2000, lists = 30);
	INSERT INTO busy SELECT * FROM source WHERE id <= 3000;
	ALTER SYSTEM SET gpuvec.fault = 'wait 1 train: written';
	SELECT pg_reload_conf();});
$holder = hold($node);
$node->safe_psql('postgres', 'VACUUM busy');
ok(wait_until($node, $waiting), 'the worker has written its pages');
my $open = $node->background_psql('postgres');
$open->query_safe('BEGIN');
$open->query_safe('INSERT INTO busy SELECT id + 2000000, e FROM source WHERE id <= 50');
$node->safe_psql('postgres', 'INSERT INTO busy SELECT id + 1000000, e FROM source WHERE id <= 1500;
	DELETE FROM busy WHERE id % 10 = 0');
is_complete($node, 'busy', '<->', 8, 'untrained still');

# DROP and REINDEX wait, and a second worker does not
my $drop = background($node, "SET lock_timeout = '200ms'; DROP INDEX busy_e;");
isnt(end_of($drop), 0, 'DROP waits for training');
my $second = background($node, 'SELECT gpuvec_train(\'busy_e\')');
release($holder);
is(end_of($second), 0, 'gpuvec_train waits for the worker');
ok(wait_until($node, $idle), 'the worker is gone');
$open->query_safe('COMMIT');
$open->quit;
is($node->safe_psql('postgres', "SELECT lists, pending FROM gpuvec_index_info('busy_e')"),
	'30|200', 'trained; what was not committed, or deleted too late, is pending');
is_complete($node, 'busy', '<->', 8, 'trained');
$node->safe_psql('postgres',
	'ALTER SYSTEM RESET gpuvec.fault; SELECT pg_reload_conf(); VACUUM busy');
ok(wait_until($node, "SELECT pending = 0 FROM gpuvec_index_info('busy_e')"), 'VACUUM had them drained');
ok(wait_until($node, $idle), 'the worker is gone');
is_sound($node, 'busy_e', 'drained');
is_complete($node, 'busy', '<->', 8, 'drained');
is_exact($node, 'busy', '<->', 8, 'drained');

# -- the worker is ended; the next VACUUM starts another
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE ended (LIKE source);
	CREATE INDEX ended_e ON ended USING gpuivfpq (e) WITH (dims = 8, train_rows = 2000);
	INSERT INTO ended SELECT * FROM source WHERE id <= 3000;
	ALTER SYSTEM SET gpuvec.fault = 'wait 3 train: page';
	SELECT pg_reload_conf();});
$holder = hold($node);
$node->safe_psql('postgres', 'VACUUM ended');
ok(wait_until($node, $waiting), 'the worker writes');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE backend_type = 'gpuvec training'});
ok(wait_until($node, $idle), 'the worker is ended');
release($holder);
is_sound($node, 'ended_e', 'ended', warnings => 1);
is_complete($node, 'ended', '<->', 8, 'ended');
$node->safe_psql('postgres',
	'ALTER SYSTEM RESET gpuvec.fault; SELECT pg_reload_conf(); VACUUM ended');
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('ended_e')"), 'the next one trains');
ok(wait_until($node, $idle), 'the worker is gone');
is_sound($node, 'ended_e', 'trained');
is_exact($node, 'ended', '<->', 8, 'trained');

# -- nothing but duplicates, of more than one vector: that would be a placeholder
my $many = long_test() ? 100_000 : 4000;
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE same (id int, e real[]);
	CREATE INDEX same_e ON same USING gpuivfpq (e) WITH (dims = 8, train_rows = $many);
	INSERT INTO same SELECT g, point(g % 2, 8) FROM generate_series(1, $many) AS g;
	VACUUM same");
ok(wait_until($node, "SELECT rows_at_training = $many FROM gpuvec_index_info('same_e')"), 'duplicates are trained');
ok(wait_until($node, $idle), 'the worker is gone');
is_sound($node, 'same_e', 'duplicates');
is_complete($node, 'same', '<->', 8, 'duplicates');

# -- rows that training did not see (of other lengths: 029_formats.pl)
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE unseen (id int, e real[]);
	CREATE INDEX unseen_e ON unseen USING gpuivfpq (e) WITH (train_rows = 2000);
	INSERT INTO unseen SELECT * FROM source WHERE id <= 2500});
my $writer = $node->background_psql('postgres');
$writer->query_safe(q{BEGIN; INSERT INTO unseen VALUES (-1, point(5, 8))});
is($node->safe_psql('postgres', "SELECT gpuvec_train('unseen_e')"), '2500', 'unseen: trained without it');
$writer->query_safe('COMMIT');
$writer->quit;
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM unseen');
log_has($node, qr/put 1 pending rows of index "public.unseen_e" into lists/, $from, 'unseen: it is put into a list');
ok(wait_until($node, $idle), 'unseen: the worker is gone');
is($node->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('unseen_e')"), '0', 'unseen: none is pending');
is_sound($node, 'unseen_e', 'unseen');

# -- the index outgrows its training
$from = -s $node->logfile;
$node->safe_psql('postgres', q{INSERT INTO ended SELECT id + 1000000, e FROM source, generate_series(1, 2)
	WHERE id <= 6000; VACUUM ended});
log_has($node, qr/LOG:  gpuvec: index "public.ended_e" was trained on 3000 rows and holds 15000.*HINT:  REINDEX INDEX CONCURRENTLY/s,
	$from, 'the log advises a rebuild');
ok(wait_until($node, $idle), 'the worker is gone');
like($node->safe_psql('postgres', "SELECT advice FROM gpuvec_index_info('ended_e')"),
	qr/^trained on 3000 rows, holds 15000: REINDEX INDEX CONCURRENTLY/, 'so does index_info');
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM ended');
settle($node, 'outgrown');
unlike(slurp_file($node->logfile, $from), qr/was trained on/, 'it is said once');
is_exact($node, 'ended', '<->', 8, 'grown');
$node->safe_psql('postgres', 'REINDEX INDEX CONCURRENTLY ended_e');
is($node->safe_psql('postgres', "SELECT rows_at_training, advice FROM gpuvec_index_info('ended_e')"),
	'15000|', 'REINDEX mends that');

# -- ... one whose targets are for queries that were given: they stay
$node->safe_psql('postgres', q{
	CREATE TABLE theirs AS SELECT id, e FROM source WHERE id <= 3000;
	CREATE INDEX theirs_e ON theirs USING gpuivfpq (e);
	SELECT FROM gpuvec_calibrate('theirs_e', queries => ARRAY(SELECT point(g, 8) FROM generate_series(90001, 90200) AS g));
	INSERT INTO theirs SELECT id + 1000000, e FROM source, generate_series(1, 2) WHERE id <= 6000});
my $before = $node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('theirs_e')");
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM theirs');
log_has($node, qr/index "public.theirs_e" was trained on 3000 rows and holds 15000.*Then calibrate it with your queries again/s,
	$from, 'given queries: the log advises a rebuild and to calibrate');
ok(wait_until($node, $idle), 'given queries: the worker is gone');
is($node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('theirs_e')"), $before, 'given queries: targets stay');
like($before, qr/\|queries$/m, '... and say whose they are');
like($node->safe_psql('postgres', "SELECT advice FROM gpuvec_index_info('theirs_e')"),
	qr/REINDEX INDEX CONCURRENTLY public.theirs_e, then gpuvec_calibrate\('public.theirs_e', queries => ...\)/,
	'... index_info says what to do');
$node->safe_psql('postgres', 'REINDEX INDEX CONCURRENTLY theirs_e');
like($node->safe_psql('postgres', "SELECT advice FROM gpuvec_index_info('theirs_e')"),
	qr/^its targets are for rows of the table, not for queries of yours/, '... and after that, what is left');

# -- a promoted standby trains
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE late (LIKE source);
	CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (dims = 8, train_rows = 2000);
	INSERT INTO late SELECT * FROM source WHERE id <= 2500;});
$node->wait_for_catchup($standby);
my ($rc, $out, $err) = $standby->psql('postgres', "SELECT gpuvec_train('late_e')");
like($err, qr/recovery is in progress/, 'a standby does not train');
is_complete($standby, 'late', '<->', 8, 'standby, untrained');
$standby->promote;
$standby->safe_psql('postgres', 'VACUUM late');
ok(wait_until($standby, "SELECT lists > 0 FROM gpuvec_index_info('late_e')"), 'promoted, it does');
ok(wait_until($standby, $idle), 'the worker is gone');
is_sound($standby, 'late_e', 'promoted');
is_exact($standby, 'late', '<->', 8, 'promoted');

done_testing();
