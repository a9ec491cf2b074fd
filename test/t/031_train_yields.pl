# The worker that trains an index stands in nobody's way: it runs under its own
# settings, has no snapshot while it clusters, gives way to a session that
# waits for its table and to DROP DATABASE, and there is one a database.  Code of
# an index's owner has a worker of its own, and not for ever.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_build();
my $node = new_node('main', conf => "fsync = off\ndeadlock_timeout = 200ms
	max_worker_processes = 12\nmax_parallel_maintenance_workers = 2
	min_parallel_table_scan_size = 0\nmaintenance_work_mem = 128MB\n");
my $training = q{FROM pg_stat_activity WHERE backend_type = 'gpuvec training'};
my $idle = "SELECT count(*) = 0 $training";
my $held = q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted};
my @holders;

# A table of this name with an index and rows that are to be trained.
sub make_table
{
	my ($name, $rows, $options) = @_;

	$node->safe_psql('postgres', "
		SET client_min_messages = warning;
		CREATE TABLE $name (id int, e real[]);
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e) WITH (dims = 4, train_rows = 1000$options);
		INSERT INTO $name SELECT g, point(g, 4) FROM generate_series(1, $rows) AS g");
	return;
}

# From here on whoever trains, in these databases, stops at that step, until
# release.
sub hold_at
{
	my ($step, @databases) = @_;

	$node->safe_psql('postgres',
		"LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.fault = 'wait 1 $step'; SELECT pg_reload_conf()");
	@holders = map { $node->background_psql($_) } 'postgres', @databases;
	$_->query_safe('SELECT pg_advisory_lock(0, 26486)') for @holders;
	return;
}

sub release
{
	$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM RESET gpuvec.fault; SELECT pg_reload_conf()});
	$_->quit for @holders;
	return;
}

# A database with an index that is to be trained, which takes the worker long.
sub make_other
{
	my ($sleep) = @_;

	$node->safe_psql('template1', 'CREATE DATABASE other');
	$node->safe_psql('other', qq{
		SET client_min_messages = warning;
		CREATE EXTENSION gpuvec;
		CREATE FUNCTION slow(e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS \$\$
		BEGIN
			PERFORM pg_sleep($sleep) FROM pg_stat_activity
			WHERE pid = pg_backend_pid() AND backend_type = 'gpuvec training';
			RETURN e;
		END \$\$;
		CREATE TABLE t (id int, e real[]);
		CREATE INDEX t_e ON t USING gpuivfpq (slow(e)) WITH (dims = 1, train_rows = 1000);
		INSERT INTO t SELECT g, ARRAY[g] FROM generate_series(1, 1500) AS g;});
	return;
}

# Does a statement succeed, while somebody trains who would never end?
sub succeeds
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql,
		timeout => $PostgreSQL::Test::Utils::timeout_default, timed_out => \my $late);

	return !$late && $rc == 0;
}

sub lists
{
	my ($index) = @_;
	return $node->safe_psql('postgres', "SELECT lists > 0 FROM gpuvec_index_info('$index')");
}

# -- settings of the database are for sessions: not one of them is the worker's
make_table('plain', 1500, '');
$node->safe_psql('postgres', q{
	ALTER DATABASE postgres SET default_transaction_isolation = serializable;
	ALTER DATABASE postgres SET lock_timeout = '1ms';
	ALTER DATABASE postgres SET statement_timeout = '10s';
	ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '10s';
	ALTER DATABASE postgres SET search_path = nowhere});
hold_at('train: written');
$node->safe_psql('postgres', "SET search_path = public; VACUUM plain");
my $usual = "SET search_path = public; SET lock_timeout = 0;";
ok(wait_until($node, $held), 'the worker waits, whatever lock_timeout is');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'}),
	'0', '... and is not serializable');
my $writes = '';
$writes .= "BEGIN; SELECT count(*) FROM plain WHERE id = $_; INSERT INTO plain VALUES ($_, point($_, 4)); COMMIT;"
  for 2001 .. 2010;
is($node->psql('postgres', "$usual $writes"), 0, 'sessions that are can write meanwhile');
release();
ok(wait_until($node, "$usual $idle"), 'the worker is gone');
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET ALL');
is(lists('plain_e'), 't', 'trained');

# -- no snapshot while it clusters, nor in its parallel workers
make_table('wide', 3000, ', lists = 260');
my $snapshots = q{SELECT count(*) FILTER (WHERE wait_event = 'advisory'), count(backend_xmin)
	FROM pg_stat_activity WHERE backend_type IN ('gpuvec training', 'parallel worker')};
for my $step ('lists: read', 'lists: trained', 'train: sealed', 'train: written')
{
	my $waiting = $step =~ /lists/ ? 3 : 1;

	hold_at($step);
	$node->safe_psql('postgres', 'VACUUM wide');
	# a little later than pg_locks shows them
	ok(wait_until($node, "SELECT n = $waiting FROM ($snapshots) AS x (n, m)"), "$step: $waiting wait");
	is($node->safe_psql('postgres', $snapshots), "$waiting|0", "$step: nobody holds a snapshot");
	# so that a step comes after another
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $training") if $step ne 'train: written';
	release();
	ok(wait_until($node, $idle), "$step: the worker is gone");
}
is(lists('wide_e'), 't', 'trained');
is_sound($node, 'wide_e', 'without snapshots', warnings => 1);

# -- whoever waits for the table gets it, soon; the next VACUUM has it trained
make_table('wanted', 3000, ', lists = 260');
for my $sql ('ALTER TABLE wanted ADD COLUMN x int', 'VACUUM wanted')
{
	hold_at('lists: trained');
	my $from = -s $node->logfile;
	$node->safe_psql('postgres', 'VACUUM wanted');
	ok(wait_until($node, $held), "$sql: the worker trains");
	my $query = background($node, 'SELECT pg_sleep(.1); SELECT count(*) FROM wanted');
	ok(succeeds($sql), "$sql: has its lock");
	is(end_of($query), 0, '... and so has a query behind it');
	# after VACUUM it begins again by itself
	is(lists('wanted_e'), 'f', '... the index is not trained') if $sql =~ /ALTER/;
	my $log = slurp_file($node->logfile, $from);
	my $lines = () = $log =~ /gpuvec: training of index "public.wanted_e" ended, a session waits for its table/g;
	is($lines, 1, '... and the log says so, once');
	unlike($log, qr/ERROR/, '... as no error');
	release();
	ok(wait_until($node, $idle), '... the worker is gone') if $sql =~ /ALTER/;
}
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('wanted_e')"),
	'the VACUUM that it made way for has it trained');
ok(wait_until($node, $idle), 'the worker is gone');
is_sound($node, 'wanted_e', 'trained at last', warnings => 1);

# -- DROP DATABASE ends it
make_other(60);
$node->safe_psql('other', 'VACUUM t');
ok(wait_until($node, "SELECT count(*) = 1 $training AND wait_event = 'PgSleep'"), 'the worker trains');
ok(succeeds('DROP DATABASE other'), 'DROP DATABASE meanwhile');
ok(wait_until($node, $idle), 'the worker is gone');

# -- one worker a database, which goes on with what else wants training
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE parts (id int, e real[]) PARTITION BY HASH (id);
	CREATE INDEX parts_e ON parts USING gpuivfpq (e) WITH (train_rows = 1000);
	SELECT format('CREATE TABLE part%s PARTITION OF parts FOR VALUES WITH (MODULUS 8, REMAINDER %s)', i, i)
	FROM generate_series(0, 7) AS i \gexec
	INSERT INTO parts SELECT g, ARRAY[g, g % 7] FROM generate_series(1, 12000) AS g});
my $trained = q{SELECT count(*) FROM pg_class, gpuvec_index_info(oid)
	WHERE relname LIKE 'part%_e_idx' AND relkind = 'i' AND lists > 0};
hold_at('train: sealed');
$node->safe_psql('postgres', 'VACUUM parts');
ok(wait_until($node, $held), 'the worker trains a partition');
ok(wait_until($node, "SELECT count(*) = 1 $training"), 'there is but one');
is($node->safe_psql('postgres', $trained), '0', 'no partition is trained yet');
release();
ok(wait_until($node, $idle), 'the worker is gone');
is($node->safe_psql('postgres', $trained), '8', 'it has trained all partitions');

# -- an index that cannot be trained, nor even be read, is no hindrance to others
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE FUNCTION fails(e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $$
	BEGIN
		PERFORM 1 / (backend_type <> 'gpuvec training')::int FROM pg_stat_activity
		WHERE pid = pg_backend_pid();
		RETURN e;
	END $$;
	CREATE TABLE bad (id int, e real[]);
	CREATE INDEX bad_1 ON bad USING gpuivfpq (fails(e)) WITH (train_rows = 1000);
	CREATE INDEX bad_2 ON bad USING gpuivfpq (e) WITH (train_rows = 1000);
	CREATE INDEX bad_3 ON bad USING gpuivfpq (e) WITH (train_rows = 1000);
	INSERT INTO bad SELECT g, ARRAY[g, g % 7] FROM generate_series(1, 1500) AS g});
my $path = $node->data_dir . '/' . $node->safe_psql('postgres',
	q{CHECKPOINT; SELECT pg_relation_filepath('bad_2')});
$node->stop;
truncate $path, 8192;
$node->start;
my $from = -s $node->logfile;
$node->psql('postgres', 'VACUUM (INDEX_CLEANUP off) bad');
$node->psql('postgres', 'VACUUM bad');
$node->safe_psql('postgres', 'DROP INDEX bad_2; VACUUM bad');
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('bad_3')"), 'the index beside it is trained');
ok(wait_until($node, $idle), 'the worker is gone');
like(slurp_file($node->logfile, $from), qr/ERROR:  division by zero.*training of index "public.bad_1"/s,
	'the log says what could not be trained');
$node->safe_psql('postgres', 'DROP TABLE bad');

# -- as many in all databases as the setting says
make_other(0);
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.max_training_workers = 0; SELECT pg_reload_conf()});
$node->safe_psql('other', 'VACUUM t');
make_table('one', 1500, '');
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.max_training_workers = 1; SELECT pg_reload_conf()});
hold_at('train: written', 'other');
$node->safe_psql('postgres', 'VACUUM one');
ok(wait_until($node, $held), 'one trains');
my $asked = -s $node->logfile;
$node->safe_psql('other', 'VACUUM t');
# VACUUM says so when it has decided
like(slurp_file($node->logfile, $asked), qr/index "t_e" has to wait: all gpuvec.max_training_workers are at work/, 'no other does, as the log says');
is($node->safe_psql('postgres', "SELECT count(*) $training"), '1', '... nor is there another');
is($node->safe_psql('other', "SELECT lists FROM gpuvec_index_info('t_e')"), '0', 'its database has to wait');
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM RESET gpuvec.max_training_workers; SELECT pg_reload_conf()});
$node->safe_psql('other', 'VACUUM t');
ok(wait_until($node, "SELECT count(*) = 2 $training"), 'two are there by default');
release();
ok(wait_until($node, $idle), 'both are gone');
is(lists('one_e'), 't', 'one is trained');
is($node->safe_psql('other', "SELECT lists > 0 FROM gpuvec_index_info('t_e')"), 't', 'so is the other');

# -- an owner's code: an advisory lock is not its turn, nor is an error its end
$node->safe_psql('postgres', q{
	CREATE ROLE mallory;
	CREATE SCHEMA mal AUTHORIZATION mallory;
	SET ROLE mallory;
	SET client_min_messages = warning;
	CREATE FUNCTION mal.code(e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
	BEGIN
		IF current_setting('application_name') <> '' THEN
			RETURN e;
		END IF;
		PERFORM pg_advisory_unlock_all();
		IF e[2] = 1 THEN
			RAISE EXCEPTION 'no';
		ELSIF e[2] = 2 AND e[1] <= 4 THEN
			PERFORM pg_sleep(.3);
		ELSIF e[2] = 3 THEN
			LOOP
				BEGIN
					PERFORM pg_sleep(3600);
				EXCEPTION WHEN query_canceled THEN
				END;
			END LOOP;
		END IF;
		RETURN e;
	END $$;
	SELECT format('CREATE TABLE mal.%s (e real[]);
		CREATE INDEX %1$s_e ON mal.%1$s USING gpuivfpq (mal.code(e)) WITH (dims = 2, train_rows = 1000);
		INSERT INTO mal.%1$s SELECT ARRAY[g, %s] FROM generate_series(1, 1500) AS g', name, number)
	FROM (VALUES ('fails', 1), ('waits', 3), ('deaf', 3)) AS kind (name, number) \gexec});
# -111 is a part that objects of the database do not have
my $turn = q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND objsubid = -111 AND granted};
my $asleep = "SELECT count(*) = 1 $training AND wait_event = 'PgSleep'";
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM mal.fails');
ok(wait_until($node, $asleep), 'an owner\'s code waits for ever');
like(slurp_file($node->logfile, $from), qr/ERROR:  no\n/, '... after an error');
is($node->safe_psql('postgres', $turn), '3', '... and has its turn still');
$node->safe_psql('postgres', 'VACUUM mal.waits; VACUUM mal.deaf');
make_table('meanwhile', 1500, '');
$node->safe_psql('postgres', 'VACUUM meanwhile');
ok(wait_until($node, "SELECT lists > 0 FROM gpuvec_index_info('meanwhile_e')"), 'another owner\'s index is trained meanwhile');
ok(wait_until($node, $asleep), 'there is one worker for that code');

# -- ... which catches a cancellation, and is ended
$from = -s $node->logfile;
ok(succeeds('DROP TABLE mal.waits, mal.deaf, mal.fails'), 'a session that waits for it has the table');
like(slurp_file($node->logfile, $from),
	qr/FATAL:  gpuvec: training of index "mal.(waits|deaf)_e" ended, its code did not heed a cancellation\n.*DETAIL:  The code is that of role "mallory"/,
	'... the log says whose code it was');
ok(wait_until($node, $idle), '... the worker is gone');

# -- ... which is ended by itself, when it does not finish a row
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.training_timeout = '700ms'; SELECT pg_reload_conf();
	SET ROLE mallory;
	SET client_min_messages = warning;
	SELECT format('CREATE TABLE mal.%s (e real[]);
		CREATE INDEX %1$s_e ON mal.%1$s USING gpuivfpq (mal.code(e)) WITH (dims = 2, train_rows = 1000);
		INSERT INTO mal.%1$s SELECT ARRAY[g, %s] FROM generate_series(1, 1500) AS g', name, number)
	FROM (VALUES ('waits', 3), ('slow', 2)) AS kind (name, number) \gexec});
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM mal.waits');
log_has($node, qr/FATAL:  gpuvec: training of index "mal.waits_e" ended, its code finished no row within gpuvec.training_timeout\n.*DETAIL:  The code is that of role "mallory"/,
	$from, 'code that finishes no row is ended, the log says whose it was');
ok(wait_until($node, $idle), '... the worker is gone');
is($node->safe_psql('postgres', $turn), '0', '... nobody has its turn');
$node->safe_psql('postgres', 'DROP TABLE mal.waits');

# -- ... but not where rows are finished, or nothing is computed of rows
hold_at('train: written');
$node->safe_psql('postgres', 'VACUUM mal.slow');
ok(wait_until($node, $held), 'slow code goes on');
select(undef, undef, undef, 1);
is($node->safe_psql('postgres', $held), 't', '... steps without rows may take long');
release();
ok(wait_until($node, $idle), '... the worker is gone');
is(lists('mal.slow_e'), 't', '... and the index is trained');

done_testing();
