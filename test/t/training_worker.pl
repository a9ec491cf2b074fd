# The worker that trains indexes.  Rows are loaded into an empty indexed table, and
# autovacuum and the worker that it asks for do the rest, with nothing preloaded; the
# standby follows, a scan there that began before included.  The worker says what it
# cannot train; one trains an index again that has outgrown its training.
#
# It stands in nobody's way: it runs under its own settings, has no snapshot while it
# clusters, gives way to a session that waits for its table, to DROP and to DROP
# DATABASE, and there is one a database.  Code of an index's owner has a worker of its
# own, and not for ever.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

need_test_build();
my $rows = long_test() ? 1_000_000 : 20_000;
my $node = new_node('main', allows_streaming => 1,
	# a session that waits for the worker cancels it no sooner
	conf => "autovacuum_naptime = 1s\nmax_wal_size = 4GB\ndeadlock_timeout = 5min\n");

my $training = q{FROM pg_stat_activity WHERE backend_type = 'gpuvec training'};
my $idle = "SELECT count(*) = 0 $training";
my $standby = new_standby($node, 'standby');

my @holders;

# From here on whoever trains, in database postgres and these, stops at that step, when it
# comes there for the n-th time, until go_on.
sub hold_at
{
	my ($step, @databases) = @_;    # N STEP

	$node->safe_psql('postgres',
		"LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.fault = 'wait $step'; SELECT pg_reload_conf()");
	@holders = map { hold($node, $_) } 'postgres', @databases;
	return;
}

sub go_on
{
	$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM RESET gpuvec.fault; SELECT pg_reload_conf()});
	release($_) for @holders;
	return;
}

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
log_has($node, qr/LOG:  trained index "public.loaded_e": $rows rows in \d+ lists, 0 remain pending/,
	0, 'the log says so');
unlike(slurp_file($node->logfile), qr/trained index[^\n]*\n[^\n]*CONTEXT/, 'in one line');
comes($node, $idle, 'the worker is gone');
gives($node, q{SELECT rows, pending, rows_at_training, advice
		FROM gpuvec_index_info('loaded_e')}, "$rows|0|$rows|", 'all rows are in lists');
is_whole($node, 'autovacuum', 'loaded', '<->', 8);
$node->wait_for_catchup($standby);
is_whole($standby, 'standby', 'loaded', '<->', 8);
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
gives($node, "SELECT lists FROM gpuvec_index_info('t_e')", '0', 'no training below train_rows');
$node->safe_psql('postgres', 'INSERT INTO t SELECT * FROM source WHERE id BETWEEN 4901 AND 5000');
$node->wait_for_catchup($standby);

my $holder = hold($standby);
my $scan = background($standby, "SET gpuvec.fault = 'wait 2 read: pending page';
	SELECT complete('t', '<->', 8);");
is_held($standby, 'the standby reads the pending list');
$node->safe_psql('postgres', 'VACUUM t');
comes($node, "SELECT lists > 0 FROM gpuvec_index_info('t_e')", 'VACUUM had it trained');
comes($node, $idle, 'the worker is gone');
$node->safe_psql('postgres', 'INSERT INTO t SELECT id + 1000000, e FROM source LIMIT 3000');
$node->wait_for_catchup($standby);
release($holder);
is(end_of($scan), 0, 'the scan ends');
is(slurp_file($scan->{output}), "5000 rows, 5000 distinct\n",
	'... with each row of its snapshot once');
is_complete($standby, 't', '<->', 8, 'standby, later');

# -- rows that come while it trains are flushed at once, or by the next VACUUM
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE busy (id int, e real[]);
	CREATE INDEX busy_e ON busy USING gpuivfpq (e) WITH (dims = 8, train_rows = 2000, lists = 30);
	INSERT INTO busy SELECT * FROM source WHERE id <= 3000});
my $advice = q{SELECT state, i.advice FROM gpuvec_index_info('busy_e') AS i, gpuvec_doctor() AS d
	WHERE subject = 'busy_e' AND d.advice = i.advice};
like($node->safe_psql('postgres', $advice), qr/VACUUM trains it .*Run VACUUM on the table, or call/,
	'before, the doctor advises VACUUM');
hold_at('1 train: written');
$node->safe_psql('postgres', 'VACUUM busy');
is_held($node, 'the worker has written its pages');
like($node->safe_psql('postgres', $advice), qr/worker is training it, or does so next\|.* has 3000 rows\.  Wait: /,
	'while it trains, to wait');
my $open = $node->background_psql('postgres');
$open->query_safe('BEGIN');
$open->query_safe('INSERT INTO busy SELECT id + 2000000, e FROM source WHERE id <= 50');
$node->safe_psql('postgres', 'INSERT INTO busy SELECT id + 1000000, e FROM source WHERE id <= 1500;
	DELETE FROM busy WHERE id % 10 = 0');
is_complete($node, 'busy', '<->', 8, 'untrained still');
my $second = background($node, q{SELECT gpuvec_train('busy_e')});
go_on();
is(end_of($second), 0, 'gpuvec_train waits for the worker');
comes($node, $idle, 'the worker is gone');
$open->query_safe('COMMIT');
$open->quit;
is($node->safe_psql('postgres', "SELECT lists, pending FROM gpuvec_index_info('busy_e')"),
	'30|200', 'trained; what was not committed, or deleted too late, is pending');
is_complete($node, 'busy', '<->', 8, 'trained');
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM busy');
log_has($node, qr/moved \d+ pending rows of index "public.busy_e" into lists/, $from, 'VACUUM had them flushed');
comes($node, $idle, 'the worker is gone');
is_whole($node, 'flushed', 'busy', '<->', 8);

# -- nothing but duplicates, of more than one vector: that would be a placeholder
$node->safe_psql('postgres', "
	SET client_min_messages = warning;
	CREATE TABLE same (id int, e real[]);
	CREATE INDEX same_e ON same USING gpuivfpq (e) WITH (dims = 8, train_rows = 4000);
	INSERT INTO same SELECT g, point(g % 2, 8) FROM generate_series(1, 4000) AS g;
	VACUUM same");
comes($node, "SELECT rows_at_training = 4000 FROM gpuvec_index_info('same_e')", 'duplicates are trained');
comes($node, $idle, 'the worker is gone');
is_whole($node, 'duplicates', 'same', '<->', 8, exact => 0);

# -- the index outgrows its training
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE grown (LIKE source);
	CREATE INDEX grown_e ON grown USING gpuivfpq (e) WITH (dims = 8);
	INSERT INTO grown SELECT * FROM source WHERE id <= 3000;
	SELECT gpuvec_train('grown_e')});
$from = -s $node->logfile;
$node->safe_psql('postgres', q{INSERT INTO grown SELECT id + 1000000, e FROM source, generate_series(1, 2)
	WHERE id <= 6000; VACUUM grown});
log_has($node, qr/LOG:  trained index "public.grown_e": 15000 rows in 150 lists, 0 remain pending/,
	$from, 'it is trained again');
comes($node, $idle, 'the worker is gone');
gives($node, "SELECT rows_at_training, advice FROM gpuvec_index_info('grown_e')", '15000|', 'which index_info tells');
$from = -s $node->logfile;
$node->safe_psql('postgres', 'INSERT INTO grown SELECT id + 2000000, e FROM source WHERE id <= 5000; VACUUM grown');
settle($node, 'grown a little');
unlike(slurp_file($node->logfile, $from), qr/trained index "public.grown_e"/, 'a third more rows are no reason');
is_sound($node, 'grown_e', 'grown');
is_exact($node, 'grown', '<->', 8, 'grown');
$node->wait_for_catchup($standby);
is_exact($standby, 'grown', '<->', 8, 'grown, standby');

# -- twenty times the rows, VACUUM now and then, nobody's hand: searches read what those of
# a fresh index read, and find as much
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE growing (id int, e real[]);
	INSERT INTO growing SELECT g, (point(g, 12))[1:4] || (point(g / 7, 12))[5:12] FROM generate_series(1, 2000) AS g;
	CREATE INDEX growing_e ON growing USING gpuivfpq (e);
	-- postings that a search reads
	CREATE FUNCTION read_by(index text) RETURNS numeric LANGUAGE plpgsql SET enable_seqscan = off AS $$
	DECLARE
		total numeric = 0;
	BEGIN
		FOR q IN 1 .. 100 LOOP
			PERFORM id FROM (SELECT id FROM growing ORDER BY e <-> (SELECT e FROM growing WHERE id = q * 17) LIMIT 10) AS x;
			total = total + (SELECT postings FROM gpuvec_last_scan());
		END LOOP;
		RETURN total / 100;
	END $$});
for my $rows (3000, 5000, 8000, 12000, 20000, 40000)
{
	$node->safe_psql('postgres', "INSERT INTO growing SELECT g, (point(g, 12))[1:4] || (point(g / 7, 12))[5:12]
		FROM generate_series((SELECT max(id) + 1 FROM growing), $rows) AS g; VACUUM growing");
	settle($node, "$rows rows");
}
is_whole($node, 'growing', 'growing', '<->', 12);
my $read = q{SELECT read_by('growing_e'), (SELECT recall FROM gpuvec_recall('growing_e', 10, 200))};
my @grown = split /\|/, $node->safe_psql('postgres', $read);
$node->safe_psql('postgres', 'REINDEX INDEX growing_e');
my @fresh = split /\|/, $node->safe_psql('postgres', $read);
cmp_ok($grown[0], '<', 1.2 * $fresh[0], "$grown[0] postings are read, $fresh[0] of a fresh index");
cmp_ok($grown[1], '>', $fresh[1] - 0.02, "recall is $grown[1], and $fresh[1]");

# -- ... one whose targets are for queries that were given: they stay
$node->safe_psql('postgres', q{
	CREATE TABLE theirs AS SELECT id, e FROM source WHERE id <= 3000;
	CREATE INDEX theirs_e ON theirs USING gpuivfpq (e);
	SELECT FROM gpuvec_calibrate('theirs_e', queries => ARRAY(SELECT point(g, 8) FROM generate_series(90001, 90200) AS g));
	INSERT INTO theirs SELECT id + 1000000, e FROM source, generate_series(1, 2) WHERE id <= 6000});
my $before = $node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('theirs_e')");
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM theirs');
settle($node, 'given queries');
unlike(slurp_file($node->logfile, $from), qr/trained index "public.theirs_e"/, 'given queries: it is not trained again');
is($node->safe_psql('postgres', "SELECT * FROM gpuvec_calibration('theirs_e')"), $before, 'given queries: targets stay');
like($before, qr/\|queries$/m, '... and say whose they are');
like($node->safe_psql('postgres', "SELECT advice FROM gpuvec_index_info('theirs_e')"),
	qr/15000, .*Call gpuvec_train\('public.theirs_e', true\), then call gpuvec_calibrate\('public.theirs_e', queries => ...\)/,
	'... index_info says what to do');
$node->safe_psql('postgres', "SELECT gpuvec_train('theirs_e', true)");
like($node->safe_psql('postgres', "SELECT advice FROM gpuvec_index_info('theirs_e')"),
	qr/^Recall targets hold for rows of the table, not for your queries/, '... and after that, what is left');

# -- a promoted standby trains
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE late (LIKE source);
	CREATE INDEX late_e ON late USING gpuivfpq (e) WITH (dims = 8, train_rows = 2000);
	INSERT INTO late SELECT * FROM source WHERE id <= 2500;});
$node->wait_for_catchup($standby);
my ($rc, $out, $err) = $standby->psql('postgres', "SELECT gpuvec_train('late_e')");
like($err, qr/cannot train indexes during recovery/, 'a standby does not train');
is_complete($standby, 'late', '<->', 8, 'standby, untrained');
$standby->promote;
$standby->safe_psql('postgres', 'VACUUM late');
comes($standby, "SELECT lists > 0 FROM gpuvec_index_info('late_e')", 'promoted, it does');
comes($standby, $idle, 'the worker is gone');
is_whole($standby, 'promoted', 'late', '<->', 8);
$standby->stop;

# -- the worker stands in nobody's way

$node->append_conf('postgresql.conf', "deadlock_timeout = 200ms
	max_worker_processes = 12\nmax_parallel_maintenance_workers = 2
	min_parallel_table_scan_size = 0\nmaintenance_work_mem = 128MB\n");
$node->restart;
$node->safe_psql('postgres', 'DROP TABLE loaded, t, busy, same, grown, theirs, late, source');

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
	ALTER DATABASE postgres SET gpuvec.engine = gpu;
	ALTER DATABASE postgres SET gpuvec.on_gpu_error = error;
	ALTER DATABASE postgres SET search_path = nowhere});
hold_at('1 train: written');
$node->safe_psql('postgres', "SET search_path = public; VACUUM plain");
my $usual = "SET search_path = public; SET lock_timeout = 0;";
is_held($node, 'the worker waits, whatever lock_timeout is');
gives($node, q{SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'}, '0', '... and is not serializable');
my $writes = '';
$writes .= "BEGIN; SELECT count(*) FROM plain WHERE id = $_; INSERT INTO plain VALUES ($_, point($_, 4)); COMMIT;"
  for 2001 .. 2010;
is($node->psql('postgres', "$usual $writes"), 0, 'sessions that are can write meanwhile');
go_on();
comes($node, "$usual $idle", 'the worker is gone');
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET ALL');
is(lists('plain_e'), 't', 'trained');

# -- no snapshot while it clusters, nor in its parallel workers
make_table('wide', 3000, ', lists = 260');
my $snapshots = q{SELECT count(*) FILTER (WHERE wait_event = 'advisory'), count(backend_xmin)
	FROM pg_stat_activity WHERE backend_type IN ('gpuvec training', 'parallel worker')};
for my $step ('lists: read', 'lists: trained', 'train: sealed', 'train: written')
{
	my $waiting = $step =~ /lists/ ? 3 : 1;

	hold_at("1 $step");
	$node->safe_psql('postgres', 'VACUUM wide');
	# a little later than pg_locks shows them
	comes($node, "SELECT n = $waiting FROM ($snapshots) AS x (n, m)", "$step: $waiting wait");
	is($node->safe_psql('postgres', $snapshots), "$waiting|0", "$step: nobody holds a snapshot");
	# so that a step comes after another
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $training") if $step ne 'train: written';
	go_on();
	comes($node, $idle, "$step: the worker is gone");
}
is(lists('wide_e'), 't', 'trained');
is_sound($node, 'wide_e', 'without snapshots', warnings => 1);

# -- whoever waits for the table gets it, soon; the next VACUUM has it trained
make_table('wanted', 3000, ', lists = 260');
for my $sql ('ALTER TABLE wanted ADD COLUMN x int', 'VACUUM wanted')
{
	hold_at('1 lists: trained');
	$from = -s $node->logfile;
	$node->safe_psql('postgres', 'VACUUM wanted');
	is_held($node, "$sql: the worker trains");
	my $query = background($node, 'SELECT pg_sleep(.1); SELECT count(*) FROM wanted');
	ok(succeeds($sql), "$sql: has its lock");
	is(end_of($query), 0, '... and so has a query behind it');
	# after VACUUM it begins again by itself
	is(lists('wanted_e'), 'f', '... the index is not trained') if $sql =~ /ALTER/;
	my $log = slurp_file($node->logfile, $from);
	my $lines = () = $log =~ /canceled training of index "public.wanted_e" because a session waits for its table/g;
	is($lines, 1, '... and the log says so, once');
	unlike($log, qr/ERROR/, '... as no error');
	go_on();
	ok(wait_until($node, $idle), '... the worker is gone') if $sql =~ /ALTER/;
}
comes($node, "SELECT lists > 0 FROM gpuvec_index_info('wanted_e')", 'the VACUUM that it made way for has it trained');
comes($node, $idle, 'the worker is gone');
is_sound($node, 'wanted_e', 'trained at last', warnings => 1);

# -- DROP DATABASE ends it
make_other(60);
$node->safe_psql('other', 'VACUUM t');
comes($node, "SELECT count(*) = 1 $training AND wait_event = 'PgSleep'", 'the worker trains');
ok(succeeds('DROP DATABASE other'), 'DROP DATABASE meanwhile');
comes($node, $idle, 'the worker is gone');

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
hold_at('1 train: sealed');
$node->safe_psql('postgres', 'VACUUM parts');
is_held($node, 'the worker trains a partition');
comes($node, "SELECT count(*) = 1 $training", 'there is but one');
is($node->safe_psql('postgres', $trained), '0', 'no partition is trained yet');
go_on();
comes($node, $idle, 'the worker is gone');
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
$from = -s $node->logfile;
$node->psql('postgres', 'VACUUM (INDEX_CLEANUP off) bad');
$node->psql('postgres', 'VACUUM bad');
$node->safe_psql('postgres', 'DROP INDEX bad_2; VACUUM bad');
comes($node, "SELECT lists > 0 FROM gpuvec_index_info('bad_3')", 'the index beside it is trained');
comes($node, $idle, 'the worker is gone');
like(slurp_file($node->logfile, $from), qr/ERROR:  division by zero.*training of index "public.bad_1"/s,
	'the log says what could not be trained');
$node->safe_psql('postgres', 'DROP TABLE bad');

# -- as many in all databases as the setting says
make_other(0);
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.max_training_workers = 0; SELECT pg_reload_conf()});
$node->safe_psql('other', 'VACUUM t');
make_table('one', 1500, '');
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM SET gpuvec.max_training_workers = 1; SELECT pg_reload_conf()});
hold_at('1 train: written', 'other');
$node->safe_psql('postgres', 'VACUUM one');
is_held($node, 'one trains');
my $asked = -s $node->logfile;
$node->safe_psql('other', 'VACUUM t');
# VACUUM says so when it has decided
like(slurp_file($node->logfile, $asked), qr/no training worker available for index "t_e"/, 'no other does, as the log says');
is($node->safe_psql('postgres', "SELECT count(*) $training"), '1', '... nor is there another');
is($node->safe_psql('other', "SELECT lists FROM gpuvec_index_info('t_e')"), '0', 'its database has to wait');
$node->safe_psql('postgres', q{LOAD 'gpuvec'; ALTER SYSTEM RESET gpuvec.max_training_workers; SELECT pg_reload_conf()});
$node->safe_psql('other', 'VACUUM t');
comes($node, "SELECT count(*) = 2 $training", 'two are there by default');
go_on();
comes($node, $idle, 'both are gone');
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
comes($node, $asleep, 'an owner\'s code waits for ever');
like(slurp_file($node->logfile, $from), qr/ERROR:  no\n/, '... after an error');
is($node->safe_psql('postgres', $turn), '3', '... and has its turn still');
$node->safe_psql('postgres', 'VACUUM mal.waits; VACUUM mal.deaf');
make_table('meanwhile', 1500, '');
$node->safe_psql('postgres', 'VACUUM meanwhile');
comes($node, "SELECT lists > 0 FROM gpuvec_index_info('meanwhile_e')", 'another owner\'s index is trained meanwhile');
comes($node, $asleep, 'there is one worker for that code');

# -- ... which catches a cancellation, and is ended
$from = -s $node->logfile;
ok(succeeds('DROP TABLE mal.waits, mal.deaf, mal.fails'), 'a session that waits for it has the table');
like(slurp_file($node->logfile, $from),
	qr/FATAL:  terminating training of index "mal.(waits|deaf)_e" because its functions did not respond to cancellation\n.*DETAIL:  The functions run as role "mallory"/,
	'... the log says whose code it was');
comes($node, $idle, '... the worker is gone');

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
log_has($node, qr/FATAL:  terminating training of index "mal.waits_e" because its functions exceeded "gpuvec\.training_timeout"\n.*DETAIL:  The functions run as role "mallory"/,
	$from, 'code that finishes no row is ended, the log says whose it was');
comes($node, $idle, '... the worker is gone');
is($node->safe_psql('postgres', $turn), '0', '... nobody has its turn');
$node->safe_psql('postgres', 'DROP TABLE mal.waits');

# -- ... but not where rows are finished, or nothing is computed of rows
hold_at('1 train: written');
$node->safe_psql('postgres', 'VACUUM mal.slow');
is_held($node, 'slow code goes on');
select(undef, undef, undef, 1);
is_held($node, '... steps without rows may take long');
go_on();
comes($node, $idle, '... the worker is gone');
is(lists('mal.slow_e'), 't', '... and the index is trained');

$node->stop;
done_testing();
