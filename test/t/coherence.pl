# Answers are right whatever the age of gpuvecd's mirror, on a primary and on
# its standby, each with a gpuvecd of its own: beside inserts, deletes,
# updates, VACUUM and training, with mirrors that catch up and with mirrors
# that never do, and while gpuvecd is killed again and again; under conditions on
# keys, too.
#
# Under such conditions gpuvecd's answers are brief where the mirror is known to be of
# the directory's version that the session saw, and full where it is not: after
# inserts, VACUUM, training.  Then they say what the mirror lacks, and are brief again
# when it has caught up; with wal_level = minimal, too.  Where changes are not logged
# answers are never brief.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;

my $seconds = long_test() ? 120 : 3;
# queries of each audit
my $asked = long_test() ? 10 : 4;
my $rows = 1500;

# table, operator, how the index is made
my @tables = (
	[ 'plain', '<->', '(e)', 'lists = 20' ],
	[ 'once', '<->', '(e, (id % 5), id)', 'lists = 20, spill = 0' ],
	[ 'refined', '<#>', '(e real_ip_ops, id, (id % 5))', 'lists = 20, refine = sq8' ]);

my $primary = new_remote_node('primary', allows_streaming => 1, conf => "max_connections = 40\nmax_prepared_transactions = 1\nwal_keep_size = '1GB'\n");
my $standby = new_standby($primary, 'standby', conf => "max_standby_streaming_delay = -1\n");
ok(!-e $primary->backup_dir . '/standby/pgsql_tmp.gpuvec.sock', 'a backup has no socket');
my @nodes = ($primary, $standby);

# -- brief answers and full ones

my $lists = 300;
# a full answer has so many bytes of lists, and brief ones are shorter
my $full = 24 * $lists;

$primary->safe_psql('postgres', q{
	-- '' when the k nearest rows that satisfy a condition by gpuvecd, with all
	-- lists, are those of a sort, and otherwise how not.  Not for ever more
	-- candidates than a message has room for.
	CREATE FUNCTION inexact_there(tab text, operator text, q real[], k int, condition text)
	RETURNS text
	LANGUAGE plpgsql SET gpuvec.probes = 1000 SET gpuvec.candidates = 20000
	SET enable_seqscan = off SET gpuvec.engine = gpu AS $$
	DECLARE
		a float8[];
		b float8[];
	BEGIN
		EXECUTE format('SELECT array_agg(d) FROM (SELECT e %1$s $1 AS d FROM %2$s
			WHERE %3$s ORDER BY e %1$s $1 LIMIT $2) AS x', operator, tab, condition) INTO a USING q, k;
		EXECUTE format('SELECT array_agg(d) FROM (SELECT (e %1$s $1) + 0 AS d FROM %2$s
			WHERE (%3$s) IS TRUE ORDER BY 1 LIMIT $2) AS x', operator, tab, condition) INTO b USING q, k;
		IF a IS DISTINCT FROM b THEN
			RETURN format('%s %s %s: %s, not %s; %s', tab, condition, q, a, b,
				(SELECT s::text FROM gpuvec_last_scan() AS s));
		END IF;
		RETURN '';
	END
	$$;

	-- '' when rows are those of a sort, and answers brief or full.  Messages
	-- beside them, once in a while, make them longer; no answer is neither.
	CREATE FUNCTION wrong_brevity(tab text, brief bool) RETURNS text
	LANGUAGE plpgsql AS $$
	DECLARE
		received bigint;
		problem text;
		n int = 0;
		m int = 0;
	BEGIN
		FOR g IN 1..10 LOOP
			received = (SELECT bytes_received FROM gpuvec_stat);
			problem = inexact_there(tab, '<->', point(31 * g, 8), 10, 'k = 3');
			IF problem <> '' THEN
				RETURN problem;
			END IF;
			received = (SELECT bytes_received FROM gpuvec_stat) - received;
			n = n + (received BETWEEN 1 AND {full} AND (SELECT engine FROM gpuvec_last_scan()) <> 'session')::int;
			m = m + (received > {full})::int;
		END LOOP;
		RETURN CASE WHEN NOT brief AND (n > 0 OR m < 8) OR brief AND n < 8 THEN
			format('%s brief answers, %s full ones; %s bytes', n, m, received) ELSE '' END;
	END
	$$;

	-- ask until answers are brief, or wrong
	CREATE FUNCTION await_brief(tab text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		told text;
	BEGIN
		FOR i IN 1..600 LOOP
			told = wrong_brevity(tab, true);
			EXIT WHEN told NOT LIKE '% brief answers, %';
			PERFORM pg_sleep(0.05);
		END LOOP;
		RETURN told;
	END
	$$} =~ s/\{full\}/$full/gr);

my @brief = ('brief', 'brief_refined');

# A table of 6,000 rows, of which 60 match the condition.
sub table
{
	my ($name, $kind, $options) = @_;

	$options //= '';
	return "CREATE $kind TABLE $name (id serial, e real[], k int);
		INSERT INTO $name (e, k) SELECT point(g, 8), g % 100 FROM generate_series(1, 6000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e, k) WITH (lists = $lists$options);";
}

# Test: the mirror catches up, and answers are brief.
sub is_brief
{
	my ($node, $what, $name) = @_;

	return gives($node, "SELECT await_brief('$name')", '', "$what: soon brief answers, $name on the " . $node->name);
}

# Test: answers are full, and right.
sub is_full
{
	my ($node, $what, $name) = @_;

	return gives($node, "SELECT wrong_brevity('$name', false)", '', "$what: full answers, $name on the " . $node->name);
}

# Run statements, for each TABLE of these, of which by default there are those below.
sub everywhere
{
	my ($sql, @names) = @_;

	$primary->safe_psql('postgres', $sql =~ s/TABLE/$_/gr) for @names ? @names : map { $_->[0] } @tables;
	return $primary->wait_for_catchup($standby);
}

$primary->safe_psql('postgres', table('brief', '') . table('brief_refined', '', ', refine = sq8'));
$primary->wait_for_catchup($standby);

# Changes of a table that its mirrors first miss, and then follow.
my %changes = (
	'1 insert' => 'INSERT INTO TABLE (e, k) SELECT point(31 * g, 8), 3 FROM generate_series(1, 10) AS g',
	'2 insert elsewhere' => "INSERT INTO TABLE (e, k) VALUES (point(77777, 8), 4)",
	'3 delete and VACUUM' => 'DELETE FROM TABLE WHERE k = 3 AND id % 3 = 0; VACUUM (INDEX_CLEANUP on) TABLE',
	'4 lists rewritten' => 'DELETE FROM TABLE WHERE id % 2 = 0 AND k <> 3; VACUUM (INDEX_CLEANUP on) TABLE',
	'5 rows in their places' => 'INSERT INTO TABLE (e, k) SELECT point(31 * g + 1, 8), 3 FROM generate_series(1, 10) AS g');

# Test: soon after such a change both nodes' answers are brief again.
sub are_brief_again
{
	my ($what, @names) = @_;

	for my $node (@nodes)
	{
		is_full($node, $what, $_) for @names;
		resume_loaders($node);
		is_brief($node, $what, $_) for @names;
	}
	return;
}

for my $name (@brief)
{
	is_brief($_, 'new', $name) for @nodes;
}
for my $change (sort keys %changes)
{
	pause_loaders($_) for @nodes;
	everywhere($changes{$change}, @brief);
	are_brief_again($change, @brief);
}

# Rows of a transaction that is under way while the index is trained stay pending;
# they come to lists when it is trained again.
$primary->safe_psql('postgres', "CREATE TABLE flushed (id serial, e real[], k int);
	CREATE INDEX flushed_e ON flushed USING gpuivfpq (e, k) WITH (lists = $lists, dims = 8);
	INSERT INTO flushed (e, k) SELECT point(g, 8), g % 100 FROM generate_series(1, 6000) AS g");
$primary->safe_psql('postgres', q{BEGIN;
	INSERT INTO flushed (e, k) SELECT point(31 * g, 8), 3 FROM generate_series(1, 10) AS g;
	PREPARE TRANSACTION 'open'});
everywhere("SELECT gpuvec_train('flushed_e')", 'flushed');
is_brief($_, 'trained', 'flushed') for @nodes;
pause_loaders($_) for @nodes;
$primary->safe_psql('postgres', q{COMMIT PREPARED 'open'});
$primary->wait_for_catchup($standby);
gives($primary, "SELECT pending FROM gpuvec_index_info('flushed_e')", '10', 'they are pending');
gives($_, "SELECT wrong_brevity('flushed', true)", '', 'pending rows: brief answers') for @nodes;
everywhere("SELECT gpuvec_train('flushed_e')", 'flushed');
are_brief_again('from pending to lists', 'flushed');

# Another index, and a mirror of it; pages that are only written whole, for the sake of
# their checksums or hints, are the same: whatever that leads to, it ends.
for my $sql ('REINDEX INDEX TABLE_e', 'CHECKPOINT; DELETE FROM TABLE WHERE id % 5 = 0; VACUUM TABLE')
{
	everywhere($sql, 'brief');
	is_brief($_, $sql, 'brief') for @nodes;
}

# -- mirrors that nobody brings up to date

$_->safe_psql('postgres', 'ALTER SYSTEM SET gpuvec.auto_mirror = off; SELECT pg_reload_conf()') for @nodes;
$primary->safe_psql('postgres', q{
	-- who answered a scan of all lists, and whether something had to be read
	-- again, or was missing
	CREATE FUNCTION ages(tab text, operator text) RETURNS text
	LANGUAGE plpgsql SET gpuvec.probes = 1000 SET gpuvec.candidates = 20000
	SET enable_seqscan = off SET gpuvec.engine = gpu AS $$
	BEGIN
		EXECUTE format('SELECT FROM %s ORDER BY e %s point(1, 8) LIMIT 1', tab, operator);
		RETURN (SELECT engine || CASE WHEN stale_lists > 0 THEN ', stale lists' ELSE '' END
			|| CASE WHEN tail_postings > 0 THEN ', tails' ELSE '' END
			|| coalesce(', ' || fallback, '')
			FROM gpuvec_last_scan());
	END
	$$;

	-- With ten candidates for ten rows the rows are the candidates.  Nothing
	-- goes on meanwhile, so gpuvecd's and the session's are the same, and so
	-- are the lists and postings read.  Returns the outcome of answers with
	-- stale lists, over n queries.
	CREATE FUNCTION candidates(tab text, operator text, n int) RETURNS text
	LANGUAGE plpgsql SET gpuvec.probes = 7 SET gpuvec.candidates = 10
	SET enable_seqscan = off SET gpuvec.engine = gpu AS $$
	DECLARE
		nearest text = format('SELECT array_agg(id) FROM
			(SELECT id FROM %s ORDER BY e %s $1 LIMIT 10) AS x', tab, operator);
		there bigint[];
		here bigint[];
		merged int = 0;
		useless int = 0;
		s record;
		t record;
	BEGIN
		-- by rows in the mirror it is not known how many candidates are dead
		PERFORM set_config('gpuvec.mirror_rows', 'off', true);
		FOR g IN 1..n LOOP
			PERFORM set_config('gpuvec.engine', 'gpu', true);
			EXECUTE nearest INTO there USING point(g, 8);
			SELECT * INTO s FROM gpuvec_last_scan();
			merged = merged + (s.engine = current_setting('test.server') AND s.stale_lists > 0)::int;
			useless = useless + (s.engine = 'session' AND s.fallback = 'stale')::int;
			PERFORM set_config('gpuvec.engine', 'cpu', true);
			EXECUTE nearest INTO here USING point(g, 8);
			SELECT * INTO t FROM gpuvec_last_scan();
			IF here IS NULL OR (there, s.batches, s.refined, s.reranked, s.out_of_order) IS DISTINCT FROM
				(here, t.batches, t.refined, t.reranked, t.out_of_order) THEN
				RAISE EXCEPTION '% % %: %, not %, %, not %', tab, operator, g, there, here, s, t;
			END IF;
		END LOOP;
		RETURN concat_ws(', ', CASE WHEN merged > 0 THEN 'merged' END,
			CASE WHEN useless > 0 THEN 'useless' END);
	END
	$$;

	-- Checks answers to query g in a transaction of one snapshot; an error
	-- says what does not hold.
	CREATE FUNCTION audit(tab text, operator text, g int) RETURNS text
	LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec.engine = gpu AS $$
	DECLARE
		q real[] = point(g, 8);
		nearest text;
		before bigint[];
		there bigint[];
		after bigint[];
		answered text;
		problem text;
		condition text;
		more int;
	BEGIN
		-- with all lists
		FOREACH condition IN ARRAY ARRAY['true', 'id % 5 = 3', 'id < 900 AND id % 5 <= 1'] LOOP
			problem = inexact_there(tab, operator, q, 20, condition);
			IF problem <> '' THEN
				RAISE EXCEPTION 'inexact: %', problem;
			END IF;
		END LOOP;

		-- with the usual ones: rows that the snapshot sees, each once, in order
		FOREACH condition IN ARRAY ARRAY['true', 'id % 5 = 3'] LOOP
			EXECUTE format('SELECT CASE
					WHEN count(*) <> 10 THEN ''too few rows''
					WHEN count(DISTINCT x.id) <> 10 THEN ''a row twice''
					WHEN count(t.id) <> 10 THEN ''a row that nobody sees''
					WHEN NOT bool_and(%3$s) THEN ''a row that does not satisfy it''
					WHEN bool_or(x.d < x.before) THEN ''out of order''
					WHEN bool_or(x.d <> (t.e %1$s $1)) THEN ''a wrong distance''
					ELSE '''' END
				FROM (SELECT id, d, lag(d) OVER () AS before FROM
					(SELECT id, e %1$s $1 AS d FROM %2$s WHERE %3$s
					ORDER BY e %1$s $1 LIMIT 10) AS y) AS x
				LEFT JOIN %2$s AS t USING (id)', operator, tab, condition)
				INTO problem USING q;
			IF problem <> '' THEN
				RAISE EXCEPTION '% % % %: %', tab, condition, operator, q, problem;
			END IF;
		END LOOP;

		-- The session's own engine gives the same; not under a condition, where
		-- gpuvecd is asked for more lists than the session reads.  Others' new rows
		-- may take candidates' places meanwhile, in the session before a mirror has
		-- them: it may know of more rows then, in the places of the session's last.
		nearest = format('SELECT array_agg(id) FROM (SELECT id FROM %s
			ORDER BY e %s $1 LIMIT 10) AS x', tab, operator);
		PERFORM set_config('gpuvec.engine', 'cpu', true);
		EXECUTE nearest INTO before USING q;
		PERFORM set_config('gpuvec.engine', 'gpu', true);
		EXECUTE nearest INTO there USING q;
		answered = (SELECT engine FROM gpuvec_last_scan());
		PERFORM set_config('gpuvec.engine', 'cpu', true);
		EXECUTE nearest INTO after USING q;
		more = (SELECT count(*) FROM unnest(there) AS x WHERE x <> ALL (before));
		IF before = after AND (NOT before[1:10 - more] <@ there
				OR more = 0 AND there IS DISTINCT FROM before) THEN
			RAISE EXCEPTION '% % %: % by %, not %', tab, operator, q, there, answered, before;
		END IF;
		RETURN answered;
	END
	$$});
for my $table (@tables)
{
	my ($name, $operator, $columns, $options) = @$table;

	$primary->safe_psql('postgres', qq{
		CREATE TABLE $name (id bigserial, e real[]);
		INSERT INTO $name (e) SELECT point(g, 8) FROM generate_series(1, $rows) AS g;
		CREATE INDEX ${name}_id ON $name (id);
		CREATE INDEX ${name}_e ON $name USING gpuivfpq $columns WITH ($options)});
}

# Run a check on each node of each table: its name, its operator.
sub each_table
{
	my ($check) = @_;

	for my $node (@nodes)
	{
		$check->($node, @$_[ 0, 1 ]) for @tables;
	}
	return;
}

# Have both gpuvecds get mirrors of all indexes as they are now, and no newer
# ones.
sub mirror
{
	my ($what) = @_;

	$primary->wait_for_catchup($standby);
	resume_loaders($_) for @nodes;
	each_table(
		sub {
			my ($node, $name, $operator) = @_;

			is_mirrored($node, "${name}_e", "SELECT FROM $name ORDER BY e $operator point(1, 8) LIMIT 10", $what);
		});
	pause_loaders($_) for @nodes;
	return;
}

# Test: with mirrors of this age (who answers a scan of all lists, and what
# the mirror had not), answers are right on both nodes.  A scan asks for no more
# candidates than the lists have postings, so where the mirror has more of them
# its answer may have no room for all, and is of no use.
sub test_answers
{
	my ($what, $ages) = @_;

	return each_table(
		sub {
			my ($node, $name, $operator) = @_;

			like( $node->safe_psql('postgres', qq{
					SELECT ages('$name', '$operator');
					BEGIN ISOLATION LEVEL REPEATABLE READ;
					SELECT count(audit('$name', '$operator', g)) FROM generate_series(1, $asked) AS g}),
				qr/^(?:$ages)\n$asked$/,
				"$what: $name on the " . $node->name);
		});
}

# Test: whichever of an answer's lists are stale, candidates are the session's.
sub test_candidates
{
	my ($what, $expected) = @_;

	return each_table(
		sub {
			my ($node, $name, $operator) = @_;

			gives($node, "SELECT candidates('$name', '$operator', 100)", $expected, "$what: candidates, $name on the " . $node->name);
		});
}

mirror('built');
test_answers('built', $SERVER);
everywhere('INSERT INTO TABLE (e) SELECT point(g, 8) FROM generate_series(5001, 5100) AS g');
test_answers('rows came', "$SERVER, tails");
everywhere('DELETE FROM TABLE WHERE id % 400 = 3');
test_answers('rows deleted', "$SERVER, tails");
everywhere('VACUUM (INDEX_CLEANUP on) TABLE');
test_answers('dead flags', "$SERVER, stale lists, tails");
everywhere('UPDATE TABLE SET e = point(id::int + 7000, 8) WHERE id % 20 = 4');
test_answers('rows moved', "$SERVER, stale lists, tails");
mirror('brought up to date');
test_answers('brought up to date', $SERVER);
test_candidates('brought up to date', '');
everywhere('DELETE FROM TABLE WHERE id % 100 = 7; VACUUM (INDEX_CLEANUP on) TABLE');
test_candidates('some stale lists', 'merged, useless');
everywhere('DELETE FROM TABLE WHERE e <-> point(9, 8) < 4 AND e <> point(9, 8);
	VACUUM (INDEX_CLEANUP on) TABLE');
test_candidates('a list all but emptied', 'merged, useless');
everywhere('INSERT INTO TABLE (e) SELECT point(g, 8) FROM generate_series(1, 60) AS g');
test_candidates('some stale lists, tails', 'merged, useless');
everywhere('DELETE FROM TABLE WHERE id % 3 <> 1; VACUUM (INDEX_CLEANUP on) TABLE');
my $rewritten = "$SERVER, stale lists|session, stale lists, stale";
test_answers('lists rewritten', $rewritten);
everywhere('INSERT INTO TABLE (e) SELECT point(g, 8) FROM generate_series(6001, 6500) AS g');
test_answers('blocks used again', $rewritten);
everywhere('DELETE FROM TABLE; VACUUM (INDEX_CLEANUP on) TABLE;
	INSERT INTO TABLE (e) SELECT point(g, 8) FROM generate_series(1, 700) AS g');
test_answers('emptied and filled again', $rewritten);

# mirrors of what is no more
everywhere('REINDEX INDEX TABLE_e');
test_answers('reindexed', 'session, not mirrored');
everywhere("TRUNCATE TABLE;
	INSERT INTO TABLE (e) SELECT point(g, 8) FROM generate_series(1, $rows) AS g");
test_answers('truncated', 'session');

# Rows of a transaction that is under way while the index is trained stay
# pending; they come to lists when it is trained again.
$primary->safe_psql('postgres', join ';', 'BEGIN',
	map({ "INSERT INTO $_->[0] (e) SELECT point(g, 8) FROM generate_series(8001, 8100) AS g" } @tables),
	q{PREPARE TRANSACTION 'open'});
everywhere("SELECT gpuvec_train('TABLE_e')");
mirror('trained');
$primary->safe_psql('postgres', q{COMMIT PREPARED 'open'});
$primary->wait_for_catchup($standby);
gives($primary, "SELECT pending FROM gpuvec_index_info('plain_e')", '100', 'they are pending');
test_answers('pending rows', $SERVER);
everywhere("SELECT gpuvec_train('TABLE_e')");
test_answers('from pending to lists', "$SERVER, tails");
mirror('up to date');

# -- load, with mirrors that catch up; then gpuvecd is killed, too

for my $node (@nodes)
{
	resume_loaders($node);
	$node->safe_psql('postgres', 'ALTER SYSTEM SET gpuvec.auto_mirror = on; SELECT pg_reload_conf()');
}
my %scripts = (
	'insert@3' => "\\set g random(1, 1000000)\n" . join("\n",
		map { "INSERT INTO $_->[0] (e) SELECT point(:g + i, 8) FROM generate_series(1, 5) AS i;" } @tables),
	'delete@2' => q{
		\set g random(1, 1000000)
		DELETE FROM plain WHERE id IN (SELECT id FROM plain ORDER BY e <-> point(:g, 8) LIMIT 6);
		DELETE FROM refined WHERE id IN (SELECT id FROM refined ORDER BY e <#> point(:g, 8) LIMIT 6);
		DELETE FROM once WHERE id IN (SELECT id FROM once ORDER BY id LIMIT 6);},
	'update@2' => q{
		\set g random(1, 1000000)
		UPDATE plain SET e = point(:g, 8) WHERE id IN
			(SELECT id FROM plain ORDER BY e <-> point(:g + 1, 8) LIMIT 3);
		UPDATE refined SET e = point(:g, 8) WHERE id IN
			(SELECT id FROM refined ORDER BY e <#> point(:g + 1, 8) LIMIT 3);},
	'audit@4' => "\\set g random(1, 1000000)\nBEGIN ISOLATION LEVEL REPEATABLE READ;\n"
	  . join('', map { "SELECT audit('$_->[0]', '$_->[1]', :g);\n" } @tables) . "COMMIT;\n");

# Audit answers on the standby until there is a row in `done`; killing gpuvecd
# there and on the primary goes on for as long.
$primary->safe_psql('postgres', 'CREATE TABLE done (id int)');

# Begin to run psql commands again and again until then, or so many times.
sub begin_repeating
{
	my ($node, $commands, $times) = @_;

	return background($node, qq{
		SELECT EXISTS (SELECT FROM done) AS over \\gset
		\\if :over
		\\q
		\\endif
		$commands
		} x ($times // 5000));
}

sub load
{
	my ($what, $kill) = @_;
	my %before = map { $_->name => served($_) } @nodes;
	my %restarts = map { $_->name => stat_of($_, 'restarts') } @nodes;

	everywhere('TRUNCATE TABLE', 'done');
	my @jobs = map { begin_repeating($standby, qq{
			SELECT (random() * 1000000)::int AS g \\gset
			BEGIN ISOLATION LEVEL REPEATABLE READ;
			SELECT audit('$_->[0]', '$_->[1]', :g);
			COMMIT;}) } @tables;
	push @jobs, begin_repeating($primary, q{
		SELECT pg_sleep(0.5);
		VACUUM plain; VACUUM refined; VACUUM once;});
	if ($kill)
	{
		# It is not the session that sleeps: its snapshot would keep the standby from
		# replaying WAL.  And it ends with the load: after each kill it takes twice as
		# long until gpuvecd is started again.  Once it has answered some searches:
		# on a slow machine it is not up again, with mirrors, before the next kill.
		push @jobs, begin_repeating($_, qq{
			\\! sleep 0.7
			SELECT coalesce(max(pid) FILTER (WHERE searches_by_server > $before{$_->name} + 10), 0) AS pid
			FROM gpuvec_stat \\gset
			\\setenv GPUVECD :pid
			\\! test "\$GPUVECD" -gt 1 && kill -9 "\$GPUVECD"
			}, int($seconds / 0.7)) for @nodes;
	}

	$primary->pgbench(
		"--no-vacuum --client=4 --jobs=2 --time=$seconds",
		0, [qr{actually processed}], [qr{^$}], "$what: answers on the primary",
		{ map { ("load_${kill}_$_" => $scripts{$_}) } keys %scripts });
	$primary->safe_psql('postgres', 'INSERT INTO done VALUES (1)');
	is(end_of($_), 0, "$what: beside it") for @jobs;
	for my $node (@nodes)
	{
		my $name = $node->name;
		my $n = served($node) - $before{$name};

		# one that is killed is away for longer each time
		cmp_ok($n, '>', $kill ? 10 : 50, "$what: gpuvecd of the $name answered $n searches");
		soon($node, "restarts > $restarts{$name}", "$what: it is another on the $name") if $kill;
	}
	return;
}

load('load', 0);
load('gpuvecd killed', 1);

# When all is quiet mirrors catch up by themselves.  Where the nearest rows are deleted,
# a scan by the bounds that rows in a mirror give goes deeper than the session's.
$primary->safe_psql('postgres',
	"DELETE FROM $_->[0] WHERE id IN (SELECT id FROM $_->[0] ORDER BY e $_->[1] point(4711, 8) LIMIT 40)") for @tables;
$primary->wait_for_catchup($standby);
each_table(
	sub {
		my ($node, $name, $operator) = @_;
		my $on = "$name on the " . $node->name;

		gives($node, "SELECT await_mirror('SELECT FROM $name ORDER BY e $operator point(1, 8) LIMIT 10')",
			'', "afterwards: mirrored, $on");
		differs($node, "SELECT id FROM $name ORDER BY e $operator point(4711, 8) LIMIT $_", "afterwards: $on, LIMIT $_",
			set => ['gpuvec.mirror_rows = off'])
		  for 10, '10 OFFSET 990';
		gives($node, "SELECT * FROM gpuvec_verify_index('${name}_e', mirror => true)", '', "afterwards: sound, $on");
	});

# -- a standby that is one no more goes on with its mirrors

my $before = gpuvecd_pid($standby);
$standby->promote;
$standby->safe_psql('postgres', qq{
	INSERT INTO $_->[0] (e) SELECT point(g, 8) FROM generate_series(1, 200) AS g;
	DELETE FROM $_->[0] WHERE id % 7 = 1;
	VACUUM (INDEX_CLEANUP on) $_->[0]}) for @tables;
for my $table (@tables)
{
	my ($name, $operator) = @$table;
	my $sql = qq{
		BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT DISTINCT audit('$name', '$operator', g) FROM generate_series(1, 10) AS g};

	$standby->safe_psql('postgres', $sql);
	is_mirrored($standby, "${name}_e", "SELECT FROM $name ORDER BY e $operator point(1, 8) LIMIT 10", 'promoted');
	gives($standby, $sql, $SERVER, "... and right answers, $name");
}
is(gpuvecd_pid($standby), $before, '... the same gpuvecd');

$standby->safe_psql('postgres', "DROP TABLE $_->[0]") for @tables;
is_brief($standby, 'promoted', $_) for @brief;
pause_loaders($standby);
$standby->safe_psql('postgres', 'INSERT INTO brief (e, k) SELECT point(31 * g + 2, 8), 3 FROM generate_series(1, 10) AS g');
is_full($standby, 'promoted, insert', 'brief');
resume_loaders($standby);
is_brief($standby, 'promoted, insert', 'brief');
$standby->stop;

# -- changes that are not logged, and tables that were not while they were made

$primary->stop;
$primary->append_conf('postgresql.conf', "wal_level = minimal\nmax_wal_senders = 0\n");
$primary->start;
$primary->safe_psql('postgres', table('unlogged', 'UNLOGGED'));
is_mirrored($primary, 'unlogged_e', 'SELECT FROM unlogged ORDER BY e <-> point(1, 8) LIMIT 10', 'unlogged');
is_full($primary, 'unlogged', 'unlogged');
$primary->safe_psql('postgres', 'BEGIN; ' . table('skipped', '') . ' COMMIT');
is_brief($primary, 'wal_level = minimal', 'skipped');
pause_loaders($primary);
$primary->safe_psql('postgres', $changes{'1 insert'} =~ s/TABLE/$_/r) for qw(skipped unlogged);
is_full($primary, 'wal_level = minimal, insert', $_) for qw(skipped unlogged);
resume_loaders($primary);
is_brief($primary, 'wal_level = minimal, insert', 'skipped');
$primary->stop;

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|damaged/, 'log of the ' . $_->name) for @nodes;

done_testing();
