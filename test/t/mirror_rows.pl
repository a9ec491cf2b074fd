# Rows of the table in a mirror: which indexes have them; answers by them are those of
# a sort; their TIDs given to other rows before, while and after a session asks; rows
# that a loader cannot see; chains that CREATE INDEX found broken; memory that others
# need; a standby.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote qw(:DEFAULT is_verified is_loaded);

need_test_build();
my $node = new_remote_node('primary', allows_streaming => 1, conf => "autovacuum = off\nmax_worker_processes = 16\n");

# Asks whether a mirror of an index, of this file or the one before, has rows.
sub rows_of { return "SELECT bool_or(rows) FROM gpuvec_mirrors WHERE index = '$_[0]'::regclass"; }

# Whether the mirror of an index has rows, after it was loaded.
sub has_rows
{
	my ($index) = @_;

	$node->safe_psql('postgres', "SELECT gpuvec_prewarm('$index')");
	return $node->safe_psql('postgres', rows_of($index));
}

# -- which indexes have rows, and what that spares

$node->safe_psql('postgres', q{
	CREATE FUNCTION same(real[]) RETURNS real[] LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS 'SELECT $1';
	CREATE TABLE t AS SELECT g AS id, point(g, 8) AS e, g % 10 AS k FROM generate_series(1, 3000) AS g;
	CREATE INDEX t_l2 ON t USING gpuivfpq (e);
	CREATE INDEX t_ip ON t USING gpuivfpq (e real_ip_ops);
	CREATE INDEX t_cosine ON t USING gpuivfpq (e real_cosine_ops);
	CREATE INDEX t_key ON t USING gpuivfpq (e, k);
	CREATE INDEX t_partial ON t USING gpuivfpq (e) WHERE k < 5;
	CREATE INDEX t_sq8 ON t USING gpuivfpq (e) WITH (refine = sq8);
	CREATE INDEX t_c ON t USING gpuivfpq (array_remove(e, NULL));
	CREATE INDEX t_sql ON t USING gpuivfpq (same(e))});
is(has_rows($_), /sq8|sql/ ? 'f' : 't', "$_ has rows, or none") for qw(t_l2 t_ip t_cosine t_key t_partial t_sq8 t_c t_sql);
is_verified($node, "t_$_", 'loaded') for qw(l2 ip cosine key partial c);

for (
	[ '<->', 'true' ], [ '<#>', 'true' ], [ '<=>', 'true' ],
	[ '<->', 'k = 3' ], [ '<->', 'k < 5' ], [ '<->', 'id % 3 = 0' ])
{
	my ($operator, $condition) = @$_;

	# under conditions gpuvecd may read other lists than the session, unless both read all
	differs($node, "SELECT id FROM t WHERE $condition ORDER BY e $operator point(77, 8) LIMIT $_", "$operator, $condition, $_ rows",
		$condition =~ /^k/ ? (set => ['gpuvec.probes = 10000'], stale => 1) : ())
	  for (1, 10, 300);
}
gives($node, q{SET enable_seqscan = off; SET gpuvec.engine = gpu;
	SELECT count(*) FROM (SELECT FROM t ORDER BY e <-> point(77, 8) LIMIT 10) AS x;
	SELECT refined >= 30, reranked FROM gpuvec_last_scan()}, "10\nt|0", 'no row is fetched twice');

# -- candidates beyond LIMIT come when they are needed, also those of a tenant
$node->safe_psql('postgres', 'CREATE TABLE n AS SELECT * FROM t; CREATE INDEX n_e ON n USING gpuivfpq (e, k);
	INSERT INTO n SELECT id + 10000, e, 3 FROM n ORDER BY e <-> point(77, 8) DESC LIMIT 20; ANALYZE n');
has_rows('n_e');
for ([ 'true', 0, 1 ], [ 'true', 40, 3 ], [ 'k = 3', 0, 1 ], [ 'k = 3', 40, 2 ])
{
	my ($condition, $gone, $searches) = @$_;
	my $near = "WHERE $condition ORDER BY (e <-> point(77, 8)) + 0 LIMIT";
	my $begin = "BEGIN; DELETE FROM n WHERE id IN (SELECT id FROM n $near $gone); SET LOCAL gpuvec.candidates = 350; SET LOCAL gpuvec.probes = 30";
	my $sorted = $node->safe_psql('postgres', "$begin; SELECT array_agg(id) FROM (SELECT id FROM n $near 10) AS x; ROLLBACK");
	my $before = served($node);

	gives($node, "$begin; SET LOCAL enable_seqscan = off; SET LOCAL gpuvec.engine = gpu;
		SELECT array_agg(id) FROM (SELECT id FROM n WHERE $condition ORDER BY e <-> point(77, 8) LIMIT 10) AS x; ROLLBACK", $sorted,
		"$condition, the nearest $gone gone, far rows pending: the rows of a sort");
	is(served($node) - $before, $searches, "$condition, the nearest $gone gone: searches of gpuvecd");
}

# -- a loader, whose user is a superuser, runs no code of an index's owner as itself
$node->safe_psql('postgres', q{
	CREATE ROLE mallory;
	GRANT CREATE ON SCHEMA public TO mallory;
	SET ROLE mallory;
	CREATE FUNCTION grab() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
			ALTER ROLE mallory SUPERUSER;
		END IF;
	END
	$$;
	CREATE FUNCTION steal() RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM public.grab(); RETURN '{1,2,3,4}'; END $$;
	CREATE FUNCTION lend(real[]) RETURNS real[] LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, public.steal())';
	CREATE TABLE trap AS SELECT g AS id, point(g, 4) AS e FROM generate_series(1, 500) AS g;
	CREATE INDEX trap_constant ON trap USING gpuivfpq (coalesce(e, steal())) WITH (lists = 4, dims = 4);
	CREATE INDEX trap_inlined ON trap USING gpuivfpq (lend(e)) WITH (lists = 4, dims = 4)});
is(has_rows($_), 'f', "$_ has no rows") for qw(trap_constant trap_inlined);
gives($node, q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}, 'f', 'nobody became a superuser');

# -- equal and odd vectors: nothing is returned by its distance that a sort would not
$node->safe_psql('postgres', q{
	CREATE TABLE odd (id serial, e real[]);
	INSERT INTO odd (e) SELECT point(g % 20, 4) FROM generate_series(1, 400) AS g;
	INSERT INTO odd (e) SELECT array_fill(x::real, ARRAY[4]) FROM unnest(ARRAY[0, 1e-30, 3e38, -3e38, 1e-45]) AS x, generate_series(1, 5);
	CREATE INDEX odd_e ON odd USING gpuivfpq (e) WITH (lists = 4)});
is(has_rows('odd_e'), 't', 'odd vectors are in a mirror');
differs($node, "SELECT id FROM odd ORDER BY e <-> $_ LIMIT 60", "odd vectors near $_", stale => 1)
  for ('point(7, 4)', q{'{0,0,0,0}'}, q{'{3e38,3e38,3e38,3e38}'}, q{'{1e-40,0,0,0}'});

# -- an operator that rounds: its order is not that of the distances
$node->safe_psql('postgres', q{
	CREATE FUNCTION rough(real[], real[]) RETURNS float8 LANGUAGE sql IMMUTABLE STRICT
		AS 'SELECT sqrt(sum((x - y) * (x - y)))::float8 FROM unnest($1, $2) AS u(x, y)';
	CREATE OPERATOR <~> (FUNCTION = rough, LEFTARG = real[], RIGHTARG = real[]);
	CREATE OPERATOR CLASS rough_ops FOR TYPE real[] USING gpuivfpq AS OPERATOR 1 <~> FOR ORDER BY float_ops;
	CREATE TABLE sphere AS SELECT g AS id, ARRAY(SELECT (x / norm)::real FROM unnest(e) AS x) AS e
		FROM (SELECT g, point(g, 8) AS e, sqrt((SELECT sum(x * x) FROM unnest(point(g, 8)) AS x)) AS norm
			FROM generate_series(1, 500) AS g) AS s;
	CREATE INDEX sphere_e ON sphere USING gpuivfpq (e rough_ops) WITH (lists = 4)});
is(has_rows('sphere_e'), 't', 'an operator that rounds has rows');
differs($node, q{SELECT e <~> '{0,0,0,0,0,0,0,0}' FROM sphere ORDER BY e <~> '{0,0,0,0,0,0,0,0}' LIMIT 100},
	'an operator that rounds', set => ['gpuvec.probes = 10000'], stale => 1);

# -- the TID of a row is given to another

# A row's TID, which its next row has to have, too.
my $tid;
sub reborn
{
	my ($what) = @_;

	return gives($node, 'SELECT ctid FROM r WHERE id > 2000', $tid, "$what: the TID is another row's");
}

# The first rows of a query, by the index and by a sort.
my $nearest = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM r WHERE true ORDER BY e <-> point(5, 8) LIMIT 8) AS x";

# A table in which row 5, the nearest of the query, has been deleted.
sub begin_reuse
{
	my ($keys) = @_;

	$node->safe_psql('postgres', qq{
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS r;
		CREATE TABLE r AS SELECT g AS id, point(g, 8) AS e, g % 2 AS k FROM generate_series(1, 2000) AS g;
		CREATE INDEX r_e ON r USING gpuivfpq (e$keys) WITH (lists = 20);
		SELECT gpuvec_prewarm('r_e')});
	$tid = $node->safe_psql('postgres', 'SELECT ctid FROM r WHERE id = 5');
	$node->safe_psql('postgres', 'DELETE FROM r WHERE id = 5');
	return;
}

# A session stops at each of its steps, and meanwhile the row's TID gets another row,
# far away or as near as the old one, and the mirror catches up, or does not.  The
# session sees neither row.
for my $keys ('', ', k')
{
	my $query = $keys ? $nearest =~ s/WHERE true/WHERE k = 1/r : $nearest;
	for my $step ('remote: ask', 'remote: answered', 'remote: compared')
	{
		for my $g (1000, 5)
		{
			my $what = "$step, keys '$keys', $g";

			begin_reuse($keys);
			my $expected = $node->safe_psql('postgres', "SET enable_indexscan = off; $query");
			my $holder = hold($node);
			my $job = background($node, "SET enable_seqscan = off; SET gpuvec.engine = gpu;
				SET gpuvec.fault = 'wait 1 $step'; $query;");

			is_held($node, "$what: the session stops");
			$node->safe_psql('postgres', $_)
			  for ('VACUUM r', "INSERT INTO r SELECT 2001, point($g, 8), 1", q{SELECT gpuvec_prewarm('r_e')});
			release($holder);
			is(end_of($job), 0, '... and goes on');
			is(slurp_file($job->{output}), "$expected\n", '... and finds what it sees');
			is($node->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; $query"),
				$node->safe_psql('postgres', "SET enable_indexscan = off; $query"),
				'... and the next session, too');
			is_verified($node, 'r_e', $what);
		}
	}
}

# A mirror that is behind has the old row where sessions see the new one.
for my $keys ('', ', k')
{
	begin_reuse($keys);
	pause_loaders($node);
	$node->safe_psql('postgres', $_) for ('VACUUM r', 'INSERT INTO r SELECT 2001, point(1000, 8), 1');
	reborn("behind, keys '$keys'");
	for my $query ($nearest, $nearest =~ s/point\(5/point(1000/r, $nearest =~ s/WHERE true/WHERE k = 1/r)
	{
		is($node->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; $query"),
			$node->safe_psql('postgres', "SET enable_indexscan = off; $query"),
			"behind, keys '$keys': $query");
	}
	resume_loaders($node);
}

# New rows have the TIDs and codes of old ones, and so their scores; the mirror is
# behind, and others are nearer than the new rows, though not than the old ones.
begin_reuse('');
pause_loaders($node);
$node->safe_psql('postgres', $_) for (
	'DELETE FROM r WHERE id BETWEEN 6 AND 9', 'VACUUM r',
	map { "INSERT INTO r SELECT $_->[0] + g, ARRAY(SELECT x + (i = 1)::int * $_->[1] FROM unnest(point(g, 8))
		WITH ORDINALITY AS u(x, i) ORDER BY i), 1 FROM generate_series(5, 9) AS g" } [ 2000, 0.002 ], [ 3000, 0.001 ]);
gives($node, 'SELECT ctid FROM r WHERE id = 2005', $tid, 'equal codes: the TID is another row\'s');
for my $g (5 .. 9)
{
	my $query = $nearest =~ s/point\(5/point($g/r;
	gives($node, "SET enable_seqscan = off; SET gpuvec.engine = gpu; SELECT ($query) LIKE '@{[3000 + $g]} @{[2000 + $g]} %'", 't',
		"equal codes: rows near $g");
}
resume_loaders($node);

# A loader cannot see the new row, and must not leave the old one.  Sessions fetch it,
# and report it, and it is brought.
begin_reuse('');
$node->safe_psql('postgres', $_) for ('VACUUM r', q{SELECT gpuvec_prewarm('r_e')});
my $writer = $node->background_psql('postgres');
$writer->query_safe('BEGIN; INSERT INTO r SELECT 2001, point(3000, 8), 1');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('r_e')});
$writer->query_safe('COMMIT');
$writer->quit;
reborn('committed after the loader came');
my $far = $nearest =~ s/point\(5/point(3000/r;
my $mine = "SET enable_seqscan = off; SET gpuvec.engine = gpu;";
is($node->safe_psql('postgres', "$mine $_"), $node->safe_psql('postgres', "SET enable_indexscan = off; $_"), "unseen: $_")
  for ($nearest, $far);
my $reranked;
for (1 .. 200)
{
	$reranked = $node->safe_psql('postgres', "$mine SELECT ($far) IS NULL; SELECT reranked FROM gpuvec_last_scan()") =~ s/.*\n//r;
	last if $reranked == 0;
	select undef, undef, undef, 0.05;
}
is($reranked, 0, 'a row that sessions report is brought');
is_verified($node, 'r_e', 'brought');

# -- a chain of updates that was there before the index
$node->safe_psql('postgres', q{
	CREATE TABLE chain (id int, e real[]) WITH (fillfactor = 20);
	INSERT INTO chain SELECT g, point(g, 8) FROM generate_series(1, 500) AS g});
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM chain');
$node->safe_psql('postgres', q{
	UPDATE chain SET e = point(id + 1000, 8);
	CREATE INDEX chain_e ON chain USING gpuivfpq (e) WITH (lists = 5);
	SELECT gpuvec_prewarm('chain_e')});
is($old->query_safe(q{SELECT * FROM gpuvec_verify_index('chain_e', mirror => true)}), '', 'a snapshot that sees other members');
$old->query_safe('COMMIT');
$old->quit;
is(has_rows('chain_e'), 't', 'a broken chain is in a mirror');
is_verified($node, 'chain_e', 'a broken chain');
differs($node, "SELECT id FROM chain ORDER BY e <-> point($_, 8) LIMIT 10", "a broken chain near $_", stale => 1) for (7, 1007);

# -- rows that loaders may no longer read: a mirror that has some goes, and does not
# keep old ones under TIDs that others get
begin_reuse('');
$node->append_conf('postgresql.conf', "gpuvec.mirror_rows = off\n");
$node->reload;
$node->safe_psql('postgres', $_) for ('VACUUM r', 'INSERT INTO r SELECT 2001, point(1000, 8), 1');
reborn('off');
for my $query (($nearest, $nearest =~ s/point\(5/point(1000/r) x 3)
{
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; SET gpuvec.mirror_rows = auto; $query"),
		$node->safe_psql('postgres', "SET enable_indexscan = off; $query"),
		"off while the mirror has rows: $query");
	select undef, undef, undef, 0.4;
}
comes($node, q{SELECT count(*) = 0 FROM gpuvec_mirrors WHERE index = 'r_e'::regclass AND rows}, 'the mirror with rows goes');

# -- the setting
$node->safe_psql('postgres', 'REINDEX INDEX t_l2');
is(has_rows('t_l2'), 'f', 'off: no rows');
differs($node, 'SELECT id FROM t ORDER BY e <-> point(77, 8) LIMIT 10', 'off');
$node->append_conf('postgresql.conf', "gpuvec.mirror_rows = auto\n");
$node->reload;
$node->safe_psql('postgres', 'REINDEX INDEX t_l2');
is(has_rows('t_l2'), 't', 'auto again: rows');

# -- memory: rows go first, and the mirrors stay
my $wide = 'SELECT g AS id, point(g, 256) AS e FROM generate_series(1, %d) AS g';
$node->safe_psql('postgres', sprintf("CREATE TABLE w1 AS $wide", 1000)
	  . ';' . sprintf("CREATE TABLE w2 AS $wide", 1000)
	  . '; CREATE INDEX w1_e ON w1 USING gpuivfpq (e); CREATE INDEX w2_e ON w2 USING gpuivfpq (e)');
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '4MB'\ngpuvec.auto_mirror = off\n");
$node->restart;
soon_up($node, 'with little memory');
is(has_rows('w1_e'), 't', 'the first has rows');
is(has_rows('w2_e'), 'f', 'there is no free memory for those of the second') || diag($node->safe_psql('postgres', 'SELECT * FROM gpuvec_mirrors'));
differs($node, 'SELECT id FROM w1 ORDER BY e <-> point(77, 256) LIMIT 10', 'the first, with little memory');
differs($node, 'SELECT id FROM w2 ORDER BY e <-> point(77, 256) LIMIT 10', 'the second, with little memory');

# -- and while sessions search: the rows of one mirror take the place of the other's, in
# turn, and TIDs get other rows
$node->safe_psql('postgres', q{
	CREATE TABLE searched (n int, by_rows int);
	CREATE PROCEDURE search(seed int) LANGUAGE plpgsql AS $$
	DECLARE
		n int = 0;
		by_rows int = 0;
		found record;
	BEGIN
		WHILE NOT EXISTS (SELECT FROM pg_class WHERE relname = 'stopped') LOOP
			EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e <-> %2$L AS d FROM w%1$s ORDER BY e <-> %2$L LIMIT 10) AS x) AS mine,
				(SELECT array_agg(d) FROM (SELECT (e <-> %2$L) + 0 AS d FROM w%1$s ORDER BY 1 LIMIT 10) AS x) AS sorted',
				n % 2 + 1, point(seed + n * 31 % 1500, 256)) INTO found;
			IF found.mine IS DISTINCT FROM found.sorted THEN
				RAISE '%', found;
			END IF;
			by_rows = by_rows + (SELECT (refined > 0 AND reranked = 0)::int FROM gpuvec_last_scan());
			n = n + 1;
			COMMIT;
		END LOOP;
		INSERT INTO searched VALUES (n, by_rows);
	END
	$$});
$node->append_conf('postgresql.conf', "gpuvec.mirror_rows = on\n");
$node->reload;
my $before = -s $node->logfile;
my @searching = map { background($node, "SET enable_seqscan = off; SET gpuvec.engine = gpu; SET gpuvec.probes = 10000;
	SET gpuvec.candidates = 10000; CALL search($_)") } 1 .. 3;
my $rounds = long_test() ? 50 : 4;
for my $round (1 .. $rounds)
{
	my ($mine, $other) = $round % 2 ? ('w2', 'w1') : ('w1', 'w2');

	$node->safe_psql('postgres', "REINDEX INDEX ${mine}_e");
	is(has_rows("${mine}_e"), 't', "round $round: rows of $mine");
	gives($node, rows_of("${other}_e"), 'f', "round $round: in place of those of $other");
	for my $table ('w1', 'w2')
	{
		$node->safe_psql('postgres', $_)
		  for ("DELETE FROM $table WHERE id % 40 = $round", "VACUUM $table",
			"INSERT INTO $table SELECT g * 40 + $round, point(g * 40 + $round + 500 * $round, 256) FROM generate_series(0, 24) AS g");
	}
}
$node->safe_psql('postgres', 'CREATE TABLE stopped ()');
is(end_of($_), 0, 'answers were right') || diag(errors_of($_)) for @searching;
gives($node, 'SELECT count(*), min(by_rows) > 0, min(n - by_rows) > 0 FROM searched', '3|t|t', 'by rows, and without');
is(() = slurp_file($node->logfile, $before) =~ /dropped rows of the mirror/g, $rounds, 'rows were dropped in each round');
is_verified($node, "${_}_e", 'searched meanwhile') for 'w1', 'w2';

# -- a standby has rows of its own
my $standby = new_standby($node, 'standby', conf => "max_standby_streaming_delay = -1\ngpuvec.gpu_memory = 0\n");
soon_up($standby, 'standby');
$standby->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_l2')});
is($standby->safe_psql('postgres', q{SELECT rows FROM gpuvec_mirrors WHERE index = 't_l2'::regclass}), 't', 'a standby has rows');
differs($standby, 'SELECT id FROM t ORDER BY e <-> point(77, 8) LIMIT 10', 'a standby');
$node->safe_psql('postgres', $_)
  for ('DELETE FROM t WHERE id BETWEEN 70 AND 90', 'VACUUM t', 'INSERT INTO t SELECT g, point(g + 900, 8), 1 FROM generate_series(70, 90) AS g');
$node->wait_for_catchup($standby, 'replay', $node->lsn('write'));
for my $near (77, 977)
{
	my $query = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM t ORDER BY e <-> point($near, 8) LIMIT 10) AS x";

	is($standby->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = gpu; $query"),
		$node->safe_psql('postgres', "SET enable_seqscan = off; SET gpuvec.engine = cpu; $query"), "a standby that is behind, near $near");
}

no_crash($_) for ($node, $standby);
done_testing();
