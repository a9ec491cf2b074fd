# Searches by gpuvecd find the rows that the session's own engine finds, in the same
# order and for the same work, whatever the index, the query and the way it is run;
# and gpuvec_last_scan says who answered.  So does gpuvec_search, with many queries at
# once, whatever the mirror's age, and whatever becomes of gpuvecd meanwhile.  Rows of
# keys that few have are those of a sort; under conditions on keys gpuvec_search asks
# for many queries at once, too.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use Time::HiRes qw(time usleep);

# With all lists, because gpuvecd chooses the last of the nearest in another way.
my $all = 'gpuvec.probes = 1000';

# A query whose rows are one text.
sub text_of { return "SELECT string_agg(n::text, ' ') FROM ($_[0]) AS n"; }

# Test: who waits for gpuvecd heeds time-outs and canceling, and a request that is given
# up leaves nothing behind: the next one of the session has its own answer.
sub test_given_up
{
	my ($node, $what, $query, $other) = @_;
	my $set = "SET enable_seqscan = off; SET gpuvec.request_timeout = '60s'; SET $all;";
	my $expected = $node->safe_psql('postgres', "$set SET gpuvec.engine = cpu; $other");
	my $broken = stat_of($node, 'broken');
	my ($supervisor, $pid) = stand_still($node);

	$set .= 'SET gpuvec.engine = gpu;';
	test_timeout($node, $what, "$set $query", 300);
	test_cancel($node, $what, "$set $query", 'pg_stat_activity',
		q{wait_event_type = 'Extension' AND backend_type = 'client backend' AND pid <> pg_backend_pid()});
	kill 'CONT', $pid;
	my (undef, $out, $err) = $node->psql('postgres', qq{
		$set
		$other;
		\\! kill -STOP $pid
		-- for its own message alone: SET might be canceled, too
		SET LOCAL statement_timeout = '300ms' \\; $query;
		\\! kill -CONT $pid
		$other;
		SELECT engine, fallback IS NULL FROM gpuvec_last_scan()}, on_error_stop => 0);
	go_on($supervisor, $pid);
	like($err, qr/canceling statement due to statement timeout/, "$what: given up");
	is($out, "$expected\n$expected\n$SERVER|t", "$what: ... and the next request has its own answer");
	return is(stat_of($node, 'broken'), $broken, "$what: ... and nothing is out of step");
}

# Test: searches by a mailbox, of a session that polls for its answers, which have any size
# about that of the mailbox.  It is woken after a long search, given up and asked again, does
# without a gpuvecd that is killed, and gpuvecd without a session that is.
sub test_mailbox
{
	my ($node, $search) = @_;
	my $query = text_of($search);
	my $expected = $node->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = cpu; $query");
	my $counts = stat_of($node, 'broken, timed_out');
	my $pid = gpuvecd_pid($node);
	my $set = "SET enable_seqscan = off; SET gpuvec.engine = gpu; SET gpuvec.request_timeout = '60s';
		SELECT pg_backend_pid() AS pid \\gset\n\\setenv PID :pid";
	my $many = "DO \$\$ BEGIN FOR i IN 1 .. 40 LOOP EXECUTE \$x\$$query\$x\$; END LOOP; END \$\$;";
	(my $all = $query) =~ s/ LIMIT \d+//;
	my $deeper = "DO \$\$ DECLARE row record; BEGIN FOR i IN 1 .. 200 LOOP
		PERFORM set_config('gpuvec.candidates', (CASE WHEN i > 5 THEN 1150 + i ELSE 3 * 4 ^ i END)::int::text, true), set_config('gpuvec.probes', '60', true); FOR row IN $all LOOP EXIT; END LOOP; END LOOP; END \$\$;";
	my $mailboxes = '\! grep -c memfd:gpuvec /proc/$PID/maps';
	my $stop = "\\! kill -STOP $pid";
	my $later = sub { return "\\! (sleep 0.3; kill -$_[0] $pid) > /dev/null 2>&1 &"; };
	my $who = 'SELECT engine FROM gpuvec_last_scan();';

	my (undef, $out, $err) = $node->psql('postgres', join("\n", $set, $many, $deeper, $mailboxes, $stop,
			$later->('CONT'), "$query;", $who, $stop,
			"SET LOCAL statement_timeout = '300ms' \\; $query;", $mailboxes, "\\! kill -CONT $pid", $many, "$query;",
			$who, $mailboxes), on_error_stop => 0);
	like($err, qr/canceling statement due to statement timeout/, 'a mailbox: given up');
	is($out, join("\n", 1, $expected, $SERVER, 1, $expected, $SERVER, 1), '... and all others answered');
	is(stat_of($node, 'broken, timed_out'), $counts, '... in time, and none is out of step');

	my $killed = background($node, join("\n", $set, $many, $stop, $query));
	ok( wait_until($node, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE wait_event_type = 'Extension' AND backend_type = 'client backend'}), 'a session waits, and is killed');
	kill 'CONT', $pid;
	isnt(end_of($killed), 0, '... it is gone');
	differs($node, $search, '... and others are answered');

	(undef, $out) = $node->psql('postgres', join("\n", $set, $many, $stop, $later->('KILL'), "$query;", $who));
	is($out, "$expected\nsession", 'gpuvecd is killed: the session finds the rows');
	return;
}

my $rows = long_test() ? 50_000 : 3000;
my $node = new_remote_node('main', conf => "max_connections = 20\nfsync = off\ngpuvec.server_timeout = '60s'\n");
my @tables = (
	[ 'l2', 'real[]', '<->', 'real_l2_ops', 'lists = 60, spill = 1' ],
	[ 'l2_once', 'real[]', '<->', 'real_l2_ops', 'lists = 60, spill = 0' ],
	[ 'l2_refined', 'real[]', '<->', 'real_l2_ops', 'lists = 60, refine = sq8' ],
	[ 'l2_formula', 'real[]', '<->', 'real_l2_ops', 'lists = 300, probes = 9, candidates = 70, pq_dim = 5' ],
	[ 'l2_list', 'real[]', '<->', 'real_l2_ops', 'lists = 1' ],
	[ 'ip', 'real[]', '<#>', 'real_ip_ops', 'lists = 60' ],
	[ 'ip_refined', 'real[]', '<#>', 'real_ip_ops', 'lists = 60, refine = sq8' ],
	[ 'cosine', 'real[]', '<=>', 'real_cosine_ops', 'lists = 60' ],
	[ 'cosine_refined', 'real[]', '<=>', 'real_cosine_ops', 'lists = 60, refine = sq8, spill = 0' ]);

if ($ENV{GPUVEC_PGVECTOR})
{
	$node->safe_psql('postgres', 'CREATE EXTENSION gpuvec_pgvector CASCADE');
	push @tables,
	  [ 'vector_l2', 'vector(12)', '<->', 'vector_l2_ops', 'lists = 60' ],
	  [ 'vector_ip', 'vector(12)', '<#>', 'vector_ip_ops', 'lists = 60, refine = sq8' ],
	  [ 'halfvec_cosine', 'halfvec(12)', '<=>', 'halfvec_cosine_ops', 'lists = 60' ];
}

# The k nearest rows of a table to query q.
sub query
{
	my ($table, $q, $k) = @_;
	my ($name, $type, $operator) = @$table;
	my $value = "(point($q, 12)::real[])::$type";

	return "SELECT id, e $operator $value FROM $name ORDER BY e $operator $value LIMIT $k";
}

for my $table (@tables)
{
	my ($name, $type, $operator, $opclass, $options) = @$table;

	$node->safe_psql('postgres', qq{
		CREATE TABLE $name (id int, e $type);
		INSERT INTO $name SELECT g, point(g, 12)::$type FROM generate_series(1, $rows) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e $opclass) WITH ($options);
		ANALYZE $name});
	is_mirrored($node, "${name}_e", query($table, 1, 10), $name);
}

# first batch and later ones, up to all rows, in either order
for my $table (@tables)
{
	for my $order ('strict', 'relaxed')
	{
		for my $k (1, 10, 100, 1000, 'ALL')
		{
			# the last page of so many rows: a scan that knew how many are wanted
			# would begin with a pass
			my $page = $k eq 'ALL' || $k < 10 ? $k : '10 OFFSET ' . ($k - 10);

			differs($node, query($table, 7919 + ($k eq 'ALL' ? 0 : $k), $page),
				"$table->[0], LIMIT $k, $order", set => ["gpuvec.scan_order = $order"]);
		}
	}
}
differs($node, query($tables[0], $_ * 7919, 10), "l2, query $_") for 2 .. 6;
for my $set (
	'gpuvec.probes = 1', 'gpuvec.probes = 1000', 'gpuvec.candidates = 1',
	'gpuvec.candidates = 3000', 'gpuvec.candidates = 1000000', 'gpuvec.recall = 0.5', 'gpuvec.recall = 0.99',
	'gpuvec.max_probes = 5')
{
	differs($node, query($_, 31, '10 OFFSET 40'), "$_->[0], $set", set => [$set]) for @tables[ 0, 2 ];
}

# what gpuvecd has no part in
differs($node, query($tables[0], 5, 10), 'recall 1: the session',
	set => ['gpuvec.recall = 1'], answered => 'session');
differs($node, 'SELECT id FROM l2 ORDER BY e <-> (SELECT NULL::real[]) LIMIT 20',
	'no query: the session', answered => 'session');

# An index that is made or rewritten in a transaction is its own until it is
# committed, and another one after it was rolled back.
gives($node, q{
	BEGIN;
	TRUNCATE l2_list;
	INSERT INTO l2_list SELECT id + 10000, e FROM l2;
	REINDEX INDEX l2_list_e;
	SELECT differs('SELECT id FROM l2_list ORDER BY e <-> point(3, 12) LIMIT 10', 'session');
	ROLLBACK;
	SELECT differs('SELECT id FROM l2_list ORDER BY e <-> point(3, 12) LIMIT 10');
	BEGIN;
	SAVEPOINT before;
	REINDEX INDEX l2_list_e;
	SELECT differs('SELECT id FROM l2_list ORDER BY e <-> point(3, 12) LIMIT 10', 'session');
	ROLLBACK TO before;
	SELECT differs('SELECT id FROM l2_list ORDER BY e <-> point(3, 12) LIMIT 10')},
	"\n\n\n", 'an index in its own transaction, and rolled back');
gives($node, q{
	CREATE TEMP TABLE own AS SELECT * FROM l2;
	CREATE INDEX own_e ON own USING gpuivfpq (e);
	SELECT differs('SELECT id FROM own ORDER BY e <-> point(3, 12) LIMIT 10', 'session')},
	'', 'a temporary table');

# one session sees an index change
gives($node, q{
	CREATE UNLOGGED TABLE changing AS SELECT * FROM l2;
	CREATE INDEX changing_e ON changing USING gpuivfpq (e) WITH (lists = 20);
	SELECT await_mirror('SELECT id FROM changing ORDER BY e <-> point(3, 12) LIMIT 10');
	SET gpuvec.auto_mirror = off;
	REINDEX INDEX changing_e;
	SELECT differs('SELECT id FROM changing ORDER BY e <-> point(3, 12) LIMIT 10', 'session');
	SET gpuvec.auto_mirror = on;
	SELECT await_mirror('SELECT id FROM changing ORDER BY e <-> point(3, 12) LIMIT 10');
	SELECT differs('SELECT id FROM changing ORDER BY e <-> point(3, 12) LIMIT 10')},
	"\n\n\n", 'a session, before and after REINDEX');

# rescans, and the ways in which statements are run
differs(
	$node, q{SELECT q.id AS query, x.id FROM l2 AS q, LATERAL
		(SELECT id FROM cosine ORDER BY e <=> q.e LIMIT 15) AS x WHERE q.id <= 25},
	'LATERAL: rescans');
# two scans that a merge of partitions reads in turn, so that each asks for more when
# the other was the last to be answered
$node->safe_psql('postgres', q{
	CREATE TABLE parted (id int, e real[]) PARTITION BY HASH (id);
	CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	INSERT INTO parted SELECT * FROM l2;
	CREATE INDEX parted_e ON parted USING gpuivfpq (e) WITH (lists = 30);
	ANALYZE parted});
is_mirrored($node, "parted_${_}_e_idx", "SELECT id FROM parted_$_ ORDER BY e <-> point(1, 12) LIMIT 10",
	'partition') for 0, 1;
like($node->safe_psql('postgres', 'SET enable_seqscan = off; EXPLAIN SELECT id FROM parted ORDER BY e <-> point(5, 12) LIMIT 300'),
	qr/Merge Append/, 'partitions are merged');
differs($node, 'SELECT id FROM parted ORDER BY e <-> point(5, 12) LIMIT 10 OFFSET 290', 'two partitions, merged');

# a scan whose batches are answered by both in turn neither skips nor repeats a row
$node->safe_psql('postgres', q{
	CREATE FUNCTION mixed(tab text, operator text, engines text[]) RETURNS text
	LANGUAGE plpgsql SET enable_seqscan = off SET gpuvec.engine = cpu AS $$
	DECLARE
		c refcursor;
		fetched record;
		result text = '';
		n int = 0;
	BEGIN
		OPEN c FOR EXECUTE format('SELECT id FROM %s ORDER BY e %s point(79, 12)', tab, operator);
		LOOP
			PERFORM set_config('gpuvec.engine', engines[n / 7 % cardinality(engines) + 1], true);
			FETCH c INTO fetched;
			EXIT WHEN NOT FOUND;
			result = result || ' ' || fetched.id;
			n = n + 1;
		END LOOP;
		CLOSE c;
		RETURN (SELECT engine FROM gpuvec_last_scan()) || result;
	END
	$$});
for my $table (@tables[ 0, 1, 2, 5 ])
{
	my ($name, undef, $operator) = @$table;
	my $here = $node->safe_psql('postgres', "SELECT mixed('$name', '$operator', '{cpu}')");

	cmp_ok(scalar(split ' ', $here), '>', $rows * 0.9, "$name: nearly all rows, some out of order");
	gives($node, "SELECT mixed('$name', '$operator', '{gpu}')", $here =~ s/^session/$SERVER/r, "$name: all batches by gpuvecd");
	gives($node, "SELECT mixed('$name', '$operator', '{$_}')", $here =~ s/^session/mixed/r, "$name: batches by $_")
	  for 'gpu,cpu', 'cpu,gpu,cpu';
}

# a parallel worker has a connection of its own
my $parallel = $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000 ?
  'debug_parallel_query' : 'force_parallel_mode';
my $nearest = text_of('SELECT id FROM l2 ORDER BY e <-> point(4711, 12) LIMIT 30');
my $before = served($node);
my $there = $node->safe_psql('postgres',
	"SET enable_seqscan = off; SET gpuvec.engine = gpu; SET $parallel = on; $nearest");
cmp_ok(served($node), '>', $before, 'a parallel worker was answered by gpuvecd');
gives($node, "SET enable_seqscan = off; SET gpuvec.engine = cpu; $nearest", $there, '... as the session would have been');

test_given_up($node, 'stopped', $nearest, text_of('SELECT id FROM ip ORDER BY e <#> point(815, 12) LIMIT 30'));

# -- refine records come with the answer: no page of them, or of lists, is read
for my $table (grep { $_->[0] =~ /refined/ } @tables)
{
	my %pages;

	for my $engine ('cpu', 'gpu')
	{
		my $plan = $node->safe_psql('postgres', "
			SET enable_seqscan = off;
			SET gpuvec.candidates = 300;
			SET gpuvec.engine = $engine;
			" . query($table, 11, 10) . ";
			EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) "
			  . query($table, 11, 10));
		($pages{$engine}) = $plan =~ /Buffers: shared hit=(\d+)/;
	}
	cmp_ok($pages{gpu} + 10, '<', $pages{cpu},
		"$table->[0]: $pages{gpu} pages by gpuvecd, $pages{cpu} by the session");
}

# -- Keys that few rows have: gpuvecd is asked once, for all lists, and then the rows
# are those of a sort, whatever has changed since the mirror was loaded.  12,000 rows of
# 400 tenants, and a tenant all of whose 300 rows are far away and near each other.
my %small = (small => 'lists = 120', small_refined => 'lists = 120, refine = sq8');

$node->safe_psql('postgres', "
	CREATE TABLE $_ WITH (autovacuum_enabled = off) AS
	SELECT g AS id, abs(hashint4(g)) % 400 AS tenant, g AS low, g AS high, point(g, 8) AS e
		FROM generate_series(1, 12000) AS g
	UNION ALL SELECT g, -1, g, g, (SELECT array_agg((500 + x)::real) FROM unnest(point(g, 8)) AS x)
		FROM generate_series(12001, 12300) AS g;
	CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e, tenant, low, high) WITH ($small{$_});
	ANALYZE $_") for sort keys %small;

# The nearest rows of 20 tenants, a search each.
sub tenants
{
	my ($name) = @_;

	return "SELECT q, array_agg(id) FROM generate_series(1, 20) AS q, LATERAL (SELECT id FROM $name
		WHERE tenant = q ORDER BY e <-> point(q * 37, 8) LIMIT 10) AS n GROUP BY q ORDER BY q";
}

# Test: the rows are those of a sort, by at most $most searches of gpuvecd and none of the
# session; if its mirror may be too old ($most undefined) by whoever has them.
sub is_sorted
{
	my ($query, $most, $what) = @_;
	my $sorted = $node->safe_psql('postgres', "SET enable_indexscan = off; $query");
	my $by = defined $most ? 'SELECT engine FROM gpuvec_last_scan()' : '';
	my $before = served($node);

	gives($node, "SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.engine = gpu; $query; $by",
		defined $most ? "$sorted\n$SERVER" : $sorted, "$what: the rows of a sort");
	my $asked = served($node) - $before;
	cmp_ok($asked, '<=', $most, "$what: searches of gpuvecd") if defined $most;
	return;
}

# Test: gpuvec_search finds nearly all rows that a sort finds for 300 queries of half of
# the tenants, by at most $most searches of gpuvecd: a first one, and messages.
sub are_found
{
	my ($name, $most, $what) = @_;
	my $before = served($node);
	my $found = $node->safe_psql('postgres', "
		SET gpuvec.engine = gpu; SET gpuvec.max_probes = 1000;
		WITH asked AS (SELECT g::int AS query, point(41 * g::int, 8) AS v FROM generate_series(1, 300) AS g)
		SELECT count(*) FROM gpuvec_search('${name}_e', (SELECT array_agg(v ORDER BY query) FROM asked), 10,
				ARRAY(SELECT generate_series(0, 199))) AS f
			JOIN (SELECT query, s.tid FROM asked, LATERAL (SELECT ctid AS tid FROM $name
				WHERE tenant BETWEEN 0 AND 199 ORDER BY (e <-> v) + 0 LIMIT 10) AS s) AS s USING (query, tid)");

	cmp_ok($found, '>=', .95 * 3000, "$what: rows of half of the tenants");
	return cmp_ok(served($node) - $before, '<=', $most, "$what: messages");
}

for my $name (sort keys %small)
{
	my $one = "SELECT id FROM $name WHERE tenant = 7 ORDER BY e <-> point(3, 8) LIMIT 10";
	my $far = "SELECT array_agg(id) FROM (SELECT id FROM $name WHERE tenant = -1 ORDER BY e <-> point(3, 8) LIMIT 10) AS n";

	is_mirrored($node, "${name}_e", $one, $name);
	is_sorted(tenants($name), 20, "$name: one search for each");
	are_found($name, 3, $name);
	gives($node, "SET enable_seqscan = off; SET gpuvec.engine = gpu; SELECT count(*) FROM ($one) AS n;
		SELECT engine, lists, batches, matched, full_pass FROM gpuvec_last_scan()",
		"10\n$SERVER|120|1|" . $node->safe_psql('postgres', "SELECT sum(2) FROM $name WHERE tenant = 7") . '|f',
		"$name: all lists in one batch");
	is_sorted($far, 2, "$name: rows that are far");
	# of which the planner expects a quarter of all rows
	is_sorted("SELECT array_agg(id) FROM (SELECT id FROM $name WHERE low < 6015 AND high >= 5985
		ORDER BY e <-> point(3, 8) LIMIT 10) AS n", 2, "$name: fewer rows than expected");
	is_sorted("SELECT array_agg(id) FROM (SELECT id FROM $name WHERE tenant = 7 ORDER BY e <-> point(3, 8)) AS n",
		3, "$name: all rows of a tenant");

	pause_loaders($node);
	$node->safe_psql('postgres', "INSERT INTO $name
		SELECT g, abs(hashint4(g)) % 20, g, g, point(g, 8) FROM generate_series(20001, 20040) AS g");
	is_sorted(tenants($name), 20, "$name: rows that the mirror lacks");
	are_found($name, 5, "$name: rows that the mirror lacks");
	$node->safe_psql('postgres', "DELETE FROM $name WHERE tenant = 5 AND id % 3 = 0");
	is_sorted(tenants($name), 20, "$name: rows that are gone");
	are_found($name, 5, "$name: rows that are gone");
	$node->safe_psql('postgres', "VACUUM $name");
	is_sorted(tenants($name), undef, "$name: lists that have changed");
	are_found($name, 600, "$name: lists that have changed");
	resume_loaders($node);
	is_mirrored($node, "${name}_e", $one, "$name: again");
	is_sorted(tenants($name), 20, "$name: it has caught up");
	is_sorted($far, 2, "$name: it has caught up, rows that are far");
}
$node->safe_psql('postgres', 'DROP TABLE ' . join ', ', sort keys %small);

# -- gpuvec_search, whose mirrors follow only when they are told to

$node->safe_psql('postgres', "DROP TABLE $_->[0]") for @tables;
$node->safe_psql('postgres', 'DROP TABLE parted, changing');
$node->safe_psql('postgres', 'ALTER SYSTEM SET gpuvec.auto_mirror = off; SELECT pg_reload_conf()');
my %lists = (plain => 'lists = 30', once => 'lists = 30, spill = 0', refined => 'lists = 30, refine = sq8');
# Test: gpuvecd has all of a table's index.
sub has_mirror { my ($name, $what) = @_; return is_mirrored($node, "${name}_e", "SELECT FROM $name ORDER BY e <-> point(1, 8) LIMIT 1", $what); }

for my $name (sort keys %lists)
{
	$node->safe_psql('postgres', "
		CREATE TABLE $name AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 3000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e) WITH ($lists{$name});");
	has_mirror($name, 'new');
}
$node->safe_psql('postgres', 'CREATE TABLE asked AS SELECT point(7 * g, 8) AS v FROM generate_series(1, 700) AS g');

# A search for many queries, the $k nearest of each, $times as many queries.
sub many
{
	my ($name, $k, $times) = @_;

	return "SELECT * FROM gpuvec_search('${name}_e', (SELECT array_agg(v) FROM asked"
	  . ($times ? ", generate_series(1, $times)" : '') . '), ' . ($k // 10) . ')';
}

for my $name (sort keys %lists)
{
	my $before = served($node);

	differs($node, many($name), "$name: the same rows", set => [$all]);
	differs($node, many($name, 1), "$name: of each the nearest", set => [$all]);
	differs($node, many($name, 60), "$name: of each many", set => [$all]);
	differs($node, many($name), "$name: in several requests", set => [ $all, "maintenance_work_mem = '1MB'" ], stale => 1);
	cmp_ok(served($node), '<', $before + 60, "$name: by few messages");
}
gives($node, 'SET gpuvec.engine = gpu; SELECT count(*) FROM (' . many('plain') . ') AS n;
	SELECT engine, batch_size, returned, fallback IS NULL FROM gpuvec_last_scan()',
	"7000\n$SERVER|700|7000|t", 'the last scan tells of it');
# in shared memory two messages are under way, of 1,024 queries each
for my $name (sort keys %lists)
{
	my $before = served($node);

	differs($node, many($name, 10, 4), "$name: in three messages", set => [$all]);
	is(served($node), $before + 3, "$name: three messages");
}
gives($node, 'SET gpuvec.engine = gpu; SELECT count(*) FROM (' . many('plain', 10, 4) . ') AS n;
	SELECT batch_size FROM gpuvec_last_scan(); SELECT count(*) FROM (' . many('plain', 10, 3) . ') AS n;
	SELECT batch_size FROM gpuvec_last_scan()',
	"28000\n752\n21000\n52", 'the last message has what is left');
# gpuvecd closes idle connections
gives($node, 'SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error; SELECT count(*) FROM (' . many('plain') . ") AS n;
	DO 'BEGIN PERFORM pg_sleep(2.5); END'; SELECT count(*) FROM (" . many('plain') . ') AS n; SELECT engine FROM gpuvec_last_scan()',
	"7000\n7000\n$SERVER", 'again, after a while');

# the shared memory stays for further calls, until gpuvecd closes the connection
my $inode = q{substring(pg_read_file('/proc/self/maps') FROM '(\d+) +/memfd:gpuvec')};
my $rss = q{substring(pg_read_file('/proc/self/smaps') FROM 'memfd:gpuvec[^\n]*\n(?:[^\n]*\n){1,5}?Rss: +(\d+)')::int};
gives($node, 'SET gpuvec.engine = gpu; SELECT count(*) FROM (' . many('plain', 10, 4) . ") AS n;
	CREATE TEMP TABLE slots AS SELECT $inode AS inode; SELECT count(*) FROM (" . many('plain', 10, 3) . ") AS n;
	SELECT inode = $inode FROM slots; SELECT $rss > 0; DO 'BEGIN PERFORM pg_sleep(3.5); END'; SELECT $rss;
	SELECT count(*) FROM (" . many('plain', 10, 3) . ') AS n', "28000\n21000\nt\nt\n0\n21000", 'slots are kept, and given back');

# mirrors that lack something: tails, lists that have changed, dead rows
pause_loaders($node);
for my $name (sort keys %lists)
{
	$node->safe_psql('postgres', "INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(3001, 3300) AS g");
	differs($node, many($name), "$name: rows that the mirror lacks", set => [$all], stale => 1);
	$node->safe_psql('postgres', "DELETE FROM $name WHERE id % 3 = 0");
	differs($node, many($name), "$name: rows that are gone", set => [$all], stale => 1);
	# so many lists are stale that the session searches itself, for some queries
	# or for all
	$node->safe_psql('postgres', "DELETE FROM $name WHERE id % 400 = 1; VACUUM $name");
	my $query = text_of(many($name));
	gives($node, "SET $all; SET gpuvec.engine = gpu; $query",
		$node->safe_psql('postgres', "SET $all; SET gpuvec.engine = cpu; $query"), "$name: after VACUUM");
}
resume_loaders($node);
for my $name (sort keys %lists)
{
	has_mirror($name, 'again');
	differs($node, many($name), "$name: it has caught up", set => [$all]);
}

# rows that have changed in place are elsewhere than the index says, be it that the
# page says so by a pointer
for my $name (sort keys %lists)
{
	# where a page is full there are new postings, too
	$node->safe_psql('postgres', "UPDATE $name SET id = id WHERE id % 5 = 1");
	differs($node, many($name), "$name: changed in place", set => [$all], stale => 1);
	$node->safe_psql('postgres', "VACUUM $name");
	has_mirror($name, 'vacuumed');
	differs($node, many($name), "$name: changed in place, vacuumed", set => [$all]);
	gives($node, "SET gpuvec.engine = gpu; SET $all; SELECT count(*) FROM (" . many($name) . ") AS n JOIN $name ON ctid = tid", 7000,
		"$name: they are where it says");
	cmp_ok($node->safe_psql('postgres', "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '$name'"), '>', 100,
		"$name: in place");
}

# With half of the rows gone: a second round, whose queries are not next to each
# other, and which answers all of them: where one needs a third,
# that would be a full pass for each, and prove nothing of the second.
sub when_few_are_left
{
	my ($engine) = @_;

	return $node->safe_psql('postgres', "SET $all; SET gpuvec.engine = $engine; BEGIN; DELETE FROM plain WHERE id % 2 <> 1;
		" . text_of(many('plain')) . '; SELECT batches, full_pass FROM gpuvec_last_scan(); ROLLBACK');
}
my $few = when_few_are_left('gpu');
like($few, qr/\n2\|f$/, 'a second round, and no pass');
is($few, when_few_are_left('cpu'), 'a second round through gpuvecd');

# Of queries that gpuvecd answers and others, which the session searches for, a
# row is not left out for what refine records say of another query.  Lists are parts
# of a line; the first of two queries has lost rows that its answer has, the second
# has not.
$node->safe_psql('postgres', '
	CREATE TABLE pairs AS SELECT g AS id, ARRAY[g, 0, 0, 0]::real[] AS e FROM generate_series(1, 3000) AS g;
	CREATE INDEX pairs_e ON pairs USING gpuivfpq (e) WITH (lists = 20, spill = 0, refine = sq8);');
is_mirrored($node, 'pairs_e', "SELECT FROM pairs ORDER BY e <-> '{1,0,0,0}' LIMIT 1", 'pairs');
pause_loaders($node);
$node->safe_psql('postgres', 'DELETE FROM pairs WHERE id BETWEEN 1000 AND 1100 AND id % 3 > 0; VACUUM pairs');
gives($node, q{
	SET gpuvec.engine = gpu; SET gpuvec.probes = 2; SET gpuvec.candidates = 300;
	SELECT count(*) FROM pairs AS a, unnest('{-80,-40,-15,15,40,80}'::int[]) AS far,
		LATERAL (SELECT min(distance) AS d FROM gpuvec_search('pairs_e', ARRAY[a.e, ARRAY[a.id + far, 0, 0, 0]::real[]], 1)
			WHERE query = 1) AS s
	WHERE a.id BETWEEN 800 AND 1600 AND d > 0},
	0, 'each row is its own nearest');
resume_loaders($node);

# -- gpuvecd does not answer, is killed, is gone
my $own = $node->safe_psql('postgres', "SET gpuvec.engine = cpu; SET $all; " . text_of(many('plain')));

# Test: the session finds the rows, since gpuvecd does not, for such a reason.
sub by_fallback
{
	my ($set, $what, $why) = @_;
	my $found = $node->safe_psql('postgres', "SET gpuvec.engine = gpu; SET $all; $set
		" . text_of(many('plain')) . '; SELECT fallback FROM gpuvec_last_scan()');

	like($found, qr/\n($why)$/, "$what: why");
	return is($found =~ s/\n[^\n]*$//r, $own, "$what: the session's rows");
}
my ($supervisor, $pid) = stand_still($node);
my $begun = time;
by_fallback("SET gpuvec.request_timeout = '200ms';", 'stopped', 'timed out');
cmp_ok(time - $begun, '<', 15, 'stopped: it was not waited for long');
$begun = time;
is($node->safe_psql('postgres', "SET gpuvec.engine = gpu; SET $all; SET gpuvec.request_timeout = '200ms'; SELECT md5(string_agg(n::text, ' '))
	FROM (" . many('once', 5, 4) . ") AS n; SELECT fallback FROM gpuvec_last_scan()"),
	$node->safe_psql('postgres', "SET gpuvec.engine = cpu; SET $all; SELECT md5(string_agg(n::text, ' ')) FROM (" . many('once', 5, 4) . ') AS n')
	. "\ntimed out", 'stopped, two messages under way: the session\'s rows');
cmp_ok(time - $begun, '<', 20, 'stopped, two messages under way: they were not waited for long');
go_on($supervisor, $pid);
soon_up($node, 'it goes on');
differs($node, many('plain'), 'it answers again', set => [ $all, "gpuvec.request_timeout = '9s'" ]);
test_given_up($node, 'many, stopped',
	q{SELECT count(*) FROM gpuvec_search('plain_e', (SELECT array_agg(point(g, 8)) FROM generate_series(1, 900) AS g), 3)},
	text_of(many('plain')));
($supervisor, $pid) = stand_still($node);
says($node, "SET gpuvec.engine = gpu; SET gpuvec.on_gpu_error = error; SET gpuvec.request_timeout = '150ms'; " . many('plain'),
	qr/ERROR: .*gpuvecd did not respond within 150 ms/, 'an error, if that is wanted');
# nobody starts another before the session has asked: the supervisor stands still
kill 'KILL', $pid;
by_fallback('', 'killed', 'down|broken|suspended');
kill 'CONT', $supervisor;
ok(revive($node), 'there is another');
has_mirror('plain', 'the other one');
differs($node, many('plain'), 'and it answers', set => [$all]);

# -- killed while it answers: who has asked finds the rows itself
for my $ms (0, 7, 40)
{
	my $job = background($node, "SET gpuvec.engine = gpu; SET $all;\n" . (text_of(many('plain')) . ";\n") x 30);

	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%gpuvec_search%'
		AND pid <> pg_backend_pid()}, 10);
	usleep(1000 * $ms);
	kill 'KILL', gpuvecd_pid($node);
	is(end_of($job), 0, "killed after $ms ms");
	is(slurp_file($job->{output}), "$own\n" x 30, '... all answers were right');
	ok(revive($node), '... there is another');
	has_mirror('plain', 'the other one');
}

test_mailbox($node, 'SELECT id FROM plain ORDER BY e <-> point(4711, 8) LIMIT 30');
no_crash($node);
$node->stop;
done_testing();
