# Shared buffers.  gpuvec without what leans on PostgreSQL's insides
# (src/page/README, "Ways Around PostgreSQL") leaves the same pages.  Where shared
# buffers do not hold tables and indexes, so that scans ask for pages ahead, answers are
# right, nothing behind a table's end is read, and nothing stays pinned when a scan
# stops in the middle.

use strict;
use warnings;
use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# -- the plain way: built from the same sources, and loaded by one of two servers that
# begin with the same files.  The same inserts leave the same pages in both: as they
# stand in buffers, and as redo makes them of the records after a crash.

my $inserted = long_test() ? 5000 : 300;
my @indexes = (
	[ 'narrow', '<->', 8, 'lists = 10' ],
	[ 'refined', '<->', 8, 'lists = 10, refine = sq8' ],
	[ 'wide', '<=>', 1400, 'lists = 4, refine = sq8' ],
	[ 'waiting', '<->', 8, 'lists = 10' ]);

# The sources with their objects, of which only those that know the switch are
# compiled anew.
sub build_plain
{
	my $source = abs_path("$FindBin::RealBin/../..");
	my $dir = PostgreSQL::Test::Utils::tempdir() . '/plain';
	# what the objects want to be linked with, too
	my $flags = $ENV{GPUVEC_TEST_COPT} // '';

	# of the kind that these are
	my $kind = -e "$source/src/kind" ? slurp_file("$source/src/kind") : '';

	system_or_bail('mkdir', '-p', "$dir/test");
	system_or_bail('cp', '-a', map({ "$source/$_" } qw(src sql Makefile gpuvec.control)),
		$dir);
	system_or_bail('cp', '-a', "$source/test/memory", "$dir/test");
	unlink map { "$dir/src/page/$_.o" } qw(bufcache delta);
	# a compiler cache may be somebody else's
	local $ENV{CCACHE_DISABLE} = 1;
	# an empty PG_CONFIG, as make exports one, is not left out
	system_or_bail('make', '-s', '-C', $dir, 'PG_CONFIG=' . ($ENV{PG_CONFIG} || 'pg_config'),
		'NVCC=', ($kind =~ /test/ ? 'TEST_BUILD=1' : 'TEST_BUILD='), "COPT=$flags -DIVFPQ_PLAIN_BUFFERS", 'gpuvec.so');
	return "$dir/gpuvec";
}

# The main forks of all indexes, less the LSN and checksum of each page.
sub pages
{
	my ($node) = @_;
	my %pages;

	$node->safe_psql('postgres', 'CHECKPOINT');
	for my $index (@indexes)
	{
		my $path = $node->safe_psql('postgres',
			"SELECT pg_relation_filepath('$index->[0]_e')");
		my $file = slurp_file($node->data_dir . "/$path");

		for (my $at = 0; $at < length($file); $at += 8192)
		{
			substr($file, $at, 10) = "\0" x 10;
		}
		$pages{ $index->[0] } = $file;
	}
	return \%pages;
}

sub insert_rows
{
	my ($node, $first) = @_;
	my $last = $first + $inserted - 1;

	$node->safe_psql('postgres', join ';', map {
		"INSERT INTO $_->[0]
			SELECT g, point(g, $_->[2]) FROM generate_series($first, $last) AS g"
	} @indexes);
	return;
}

my $plain_module = build_plain();
like(slurp_file("$FindBin::RealBin/../../gpuvec.so"),
	qr/XLogRegisterBufData/, 'gpuvec makes records');
unlike(slurp_file("$plain_module.so"),
	qr/XLogRegisterBufData|ReadRecentBuffer/, 'without its own records and hints');

# No full pages, so that redo has to work; and no process that writes pages
# while rows come, so that a crash finds the same of the free space map.
my $origin = new_node(
	'origin',
	allows_streaming => 1,
	conf => "full_page_writes = off\nbgwriter_lru_maxpages = 0\n"
	  . "checkpoint_timeout = '1h'\n");
for my $index (@indexes)
{
	my ($name, $operator, $dims, $options) = @$index;
	my $class = $operator eq '<=>' ? 'real_cosine_ops' : 'real_l2_ops';
	my $first = $name eq 'waiting' ? 1001 : 1;

	$origin->safe_psql('postgres', "
		CREATE TABLE $name (id int, e real[]);
		INSERT INTO $name
			SELECT g, point(g, $dims) FROM generate_series($first, 1000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e $class) WITH ($options)");
}
$origin->backup('same');
$origin->stop;

my %servers;
for my $name ('own', 'plain')
{
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($origin, 'same');
	$node->start;
	$servers{$name} = $node;
}
$servers{plain}->safe_psql('postgres',
	"UPDATE pg_proc SET probin = '$plain_module' WHERE probin = '\$libdir/gpuvec'");

my %pages;
for my $round ('crash', 'no crash')
{
	for my $name ('own', 'plain')
	{
		my $node = $servers{$name};

		insert_rows($node, $round eq 'crash' ? 2001 : 20001);
		if ($round eq 'crash')
		{
			$node->stop('immediate');
			$node->start;
		}
		$pages{$name} = pages($node);
	}
	for my $index (@indexes)
	{
		my $name = $index->[0];

		ok(length($pages{own}{$name}) > 0
			  && $pages{own}{$name} eq $pages{plain}{$name},
			"$round: the same pages of $name");
	}
}

for my $index (@indexes)
{
	my ($name, $operator, $dims) = @$index;

	is( answers($servers{plain}, $name, $operator, $dims, 20, 5),
		answers($servers{own}, $name, $operator, $dims, 20, 5),
		"$name: the same answers");
	is_sound($servers{plain}, "${name}_e", $name);
}
$servers{plain}->stop;

# -- tables and indexes that shared buffers do not hold

my $rows = long_test() ? 40_000 : 10_000;
my $dims = 64;
my $node = $servers{own};
$node->append_conf('postgresql.conf', "full_page_writes = on\nshared_buffers = 1MB\ntemp_buffers = 800kB\n"
	  . "effective_io_concurrency = 16\n");
$node->restart;

# A session's output, and its warnings.
sub said
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, on_error_stop => 0);

	return "$out\n$err";
}

$node->safe_psql(
	'postgres', qq{
	DROP TABLE narrow, refined, wide, waiting;
	CREATE TABLE plain (id int, e real[]) WITH (autovacuum_enabled = off);
	INSERT INTO plain SELECT g, point(g, $dims) FROM generate_series(1, $rows) AS g;
	CREATE TABLE refined AS TABLE plain;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e) WITH (lists = 200);
	CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 20, refine = sq8);
	-- lists that go on elsewhere
	INSERT INTO plain SELECT g, point(g, $dims) FROM generate_series($rows + 1, 2 * $rows) AS g;
	INSERT INTO refined SELECT g, point(g, $dims) FROM generate_series($rows + 1, 2 * $rows) AS g;
});

# -- answers, whatever may be under way at once
for my $table (qw(plain refined))
{
	my %found;

	is_whole($node, 'larger than shared buffers', $table, '<->', $dims);
	for my $concurrency (0, 1, 64)
	{
		$node->safe_psql('postgres',
			"ALTER SYSTEM SET effective_io_concurrency = $concurrency; SELECT pg_reload_conf()");
		$found{answers($node, $table, '<->', $dims, 120, 5)} = 1;
	}
	is(scalar keys %found, 1, "$table: one answer at any concurrency");
}
like(said(qq{
	CREATE TEMP TABLE own AS SELECT * FROM plain WHERE id <= $rows / 2;
	CREATE INDEX ON own USING gpuivfpq (e) WITH (lists = 50);
	SELECT complete('own', '<->', $dims)}),
	qr/^(\d+) rows, \1 distinct/m, 'a temporary table');

# -- a scan that is not read to its end, or goes on after a savepoint
unlike(said(qq{
	SET enable_seqscan = off;
	BEGIN;
	DECLARE few CURSOR FOR SELECT id FROM plain ORDER BY e <-> point(3, $dims);
	FETCH 15 FROM few;
	SAVEPOINT here;
	FETCH 200 FROM few;
	DECLARE more CURSOR FOR SELECT id FROM refined ORDER BY e <-> point(5, $dims);
	FETCH 12 FROM more;
	ROLLBACK TO here;
	FETCH 30 FROM few;
	COMMIT}),
	qr/WARNING|ERROR/, 'cursors left open');

# -- an error in the midst of a pass: a row that cannot be compared
$node->safe_psql(
	'postgres', qq{
	CREATE FUNCTION whole(e real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql
	AS 'BEGIN RETURN e; END';
	CREATE TABLE odd (id int, e real[]);
	CREATE INDEX odd_e ON odd USING gpuivfpq (whole(e)) WITH (train_rows = 1000000);
	INSERT INTO odd SELECT g, CASE WHEN g = $rows / 2 THEN array_fill(77::real, ARRAY[$dims])
		ELSE point(g, $dims) END
	FROM generate_series(1, $rows) AS g;
	CREATE OR REPLACE FUNCTION whole(e real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql
	AS 'BEGIN IF e[1] = 77 THEN RAISE EXCEPTION \$\$no dimensions\$\$; END IF; RETURN e; END'});
my $caught = said(qq{
	SET enable_seqscan = off;
	DO \$\$
	BEGIN
		PERFORM id FROM odd ORDER BY whole(e) <-> point(1, $dims) LIMIT 1;
	EXCEPTION WHEN OTHERS THEN
		RAISE NOTICE 'caught: %', SQLERRM;
	END \$\$;
	SELECT count(*) FROM (SELECT id FROM plain ORDER BY e <-> point(1, $dims) LIMIT 20) AS x});
like($caught, qr/NOTICE:  caught: .*dimensions/, 'an error in the midst of a pass');
like($caught, qr/^20$/m, 'and the session goes on');
unlike($caught, qr/WARNING/, 'without a warning');

# -- canceled at any moment
my $canceled = 0;
for my $ms (1 .. 15)
{
	my $said = said(qq{
		SET enable_seqscan = off;
		-- for its own message alone: SET might be canceled, too
		SET LOCAL statement_timeout = ${\(3 * $ms)} \\;
		SELECT count(*) FROM (SELECT id FROM plain ORDER BY e <-> point($ms, $dims)) AS x;
		SELECT count(*) FROM (SELECT id FROM refined ORDER BY e <-> point($ms, $dims) LIMIT 20) AS x});

	$canceled++ if $said =~ /canceling statement/;
	fail("after a cancel: $said") if $said =~ /WARNING/ || $said !~ /^20$/m;
}
cmp_ok($canceled, '>', 0, "canceled $canceled times");

# -- VACUUM cuts the tables' ends off
my $size = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname IN ('plain', 'refined')";
my $before = $node->safe_psql('postgres', $size);
for my $table (qw(plain refined))
{
	my $pages = "SELECT pg_relation_size('$table')";
	my $full = $node->safe_psql('postgres', "DELETE FROM $table WHERE id > $rows / 2; $pages");

	# it leaves a page as it is that somebody is just writing out
	for (1 .. 100)
	{
		last if $node->safe_psql('postgres', "VACUUM $table; $pages") < $full / 2;
	}
	is_whole($node, 'truncated by VACUUM', $table, '<->', $dims);
}
cmp_ok($node->safe_psql('postgres', $size), '<', $before / 2, 'tables are shorter');

# -- a table whose end was lost: the index says so, before its pages are read
my %file = map {
	$_ => $node->data_dir . '/'
	  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')")
} qw(plain refined);
$node->stop;
truncate($file{$_}, 10 * 8192) for keys %file;
$node->start;
for my $table (qw(plain refined))
{
	like(said(qq{
		SET enable_seqscan = off;
		SET gpuvec.scan_order = relaxed;
		SET gpuvec.candidates = 100;
		SELECT count(*) FROM (SELECT id FROM $table ORDER BY e <-> point(1, $dims)) AS x}),
		qr/index "${table}_e" points to row \(\d+,\d+\), which cannot exist in table "$table"/,
		"$table: rows behind the end");
}

$node->stop;
unlike(slurp_file($node->logfile), qr/refcount leak|was not closed|TRAP|PANIC/,
	'nothing stayed pinned');

done_testing();
