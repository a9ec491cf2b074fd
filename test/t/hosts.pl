# Rows divided among servers behind postgres_fdw, set up as sql/docs/scaling.md prints
# it: every form of search has its order in each server's
# statement and is answered by the index there, with the rows of one big table;
# rows written, servers that are lost, and roles without rights.  test/hosts does
# the same at size and over a network.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecHosts;

my ($rows, $dims, $n) = (long_test() ? 4000 : 2500, 16, 2);
my @ops = ([ '<->', 'l2' ], [ '<#>', 'ip' ], [ '<=>', 'cosine' ]);
my @nodes = map { PostgreSQL::Test::Cluster->new($_) } 'asked', map { "data$_" } 0 .. $n - 1;

# A server as GpuvecHosts takes it.
sub begin
{
	my ($node) = @_;

	$node->init;
	$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\n" . ($node eq $nodes[0] ? '' : $LOGGED));
	$node->start;
	$node->safe_psql('postgres', q{CREATE DATABASE shop; CREATE ROLE app LOGIN PASSWORD 'secret'});
	my $control = 'pg_ctl -w -s -D ' . $node->data_dir;
	return {
		name => $node->name,
		log => $node->logfile,
		ask => sub { $node->psql('shop', $_[0]) },
		stop => "$control -m immediate stop >/dev/null 2>&1",
		start => "$control -l " . $node->logfile . ' start >/dev/null 2>&1 </dev/null'
	};
}

my $asked = begin($nodes[0]);
my %there = map { $_ => 1 } split /\n/, good($asked, 'SELECT name FROM pg_available_extensions');
if (!$there{postgres_fdw})
{
	$nodes[0]->stop;
	plan skip_all => 'this PostgreSQL has no postgres_fdw';
}
my @servers = map { begin($_) } @nodes[ 1 .. $n ];
my @addresses = map { "host '" . $_->host . "', port '" . $_->port . "'" } @nodes[ 1 .. $n ];
my @tables = ({ name => 'items', column => 'v', type => 'real[]', all => 'items_all' });

# -- as printed, with pgvector; without, what is needed besides its table
my ($on_each, $on_asked, $async, $prepare) = printed('sql/docs/scaling.md', 'Rows divided among servers');
my @once = grep { !/s0/ } @$on_asked;
my @of_each = grep { /s0/ } @$on_asked;
is(scalar(@of_each), 3, 'three statements are for each server');
if (!$there{vector})
{
	$on_each = [];
	@once = ('CREATE EXTENSION gpuvec', 'CREATE EXTENSION postgres_fdw');
	@of_each = map { s/vector, gpuvec, gpuvec_pgvector/gpuvec/r } grep { !/TABLE/ } @of_each;
}
good($asked, for_server($_, 0, $n, '', $dims)) for @once;
for my $i (0 .. $n - 1)
{
	good($servers[$i], for_server($_, $i, $n, $addresses[$i], $dims)) for @$on_each;
	good($servers[$i], there_sql());
	good($asked, for_server($_, $i, $n, $addresses[$i], $dims)) for @of_each;
}
good($asked, here_sql($n) . rows_sql($rows * ($n + 1), $dims) . ';
	CREATE VIEW items_all AS SELECT id, body, v FROM whole');

# -- rows that are inserted go to their servers
good($asked, join '', map { "ALTER SERVER s$_ OPTIONS (ADD batch_size '100');" } 0 .. $n - 1);
good($asked, 'INSERT INTO items SELECT id, body, v FROM whole');
good($_, indexes_sql('items', 'v', 'real', qw(l2 ip cosine)) . 'VACUUM ANALYZE items') for @servers;
good($asked, indexes_sql('items_here', 'v', 'real', qw(l2 ip cosine)) . 'VACUUM ANALYZE items_here');
if ($there{vector})
{
	unshift @tables, { name => 'docs', column => 'embedding', type => 'vector', all => 'docs_all' };
	good($asked, "CREATE VIEW docs_all AS SELECT id, body, v::vector($dims) AS embedding FROM whole WHERE id < $rows * $n;
		INSERT INTO docs SELECT * FROM docs_all");
	good($_, 'REINDEX INDEX docs_embedding_idx; ALTER INDEX docs_embedding_idx RENAME TO docs_cosine;'
		  . indexes_sql('docs', 'embedding', 'vector', qw(l2 ip)) . 'VACUUM ANALYZE docs') for @servers;
}
for my $table (@tables)
{
	my @counts = map { good($_, "SELECT count(*) FROM $table->{name}") } @servers;

	cmp_ok($_, '>', .9 * $rows, "$table->{name}: rows are where their hash sends them") for @counts;
}

# -- plans; in a short run each form has one distance of each table
my $query = good($asked, q{SELECT array_to_string(v, ',') FROM asked WHERE n = 3});
my @cases;
for my $table (@tables)
{
	my @forms = natural();

	for my $i (0 .. $#forms)
	{
		push @cases, [ $table, $forms[$i], $_ ] for @ops[ long_test() ? (0 .. 2) : (@cases + ($table->{name} eq "docs")) % 3 ];
	}
}
for my $case (grep { !$_->[1][3] || $_->[0]{name} eq 'docs' } @cases)
{
	my ($table, $form, $op) = @$case;

	is_ordered($asked, \@servers, $table->{name}, $form, $table, $op->[0], $query, "$table->{name}_$op->[1]");
}

# -- rows
my ($options) = "@of_each" =~ /options '([^']*)'/;
good($asked, "ALTER SERVER s$_ OPTIONS (SET options '$options -c gpuvec.recall=1')") for 0 .. $n - 1;
for my $case (@cases)
{
	my ($table, $form, $op) = @$case;

	is_same($asked, $table->{name}, $form, $table, $op->[0], $query);
}

# -- the doctor, where servers bring the order
for (
	[ 'SELECT id FROM items ORDER BY v <=> $1::real[] LIMIT $2', 'provides the order(;|$)', 'LIMIT as a parameter beside a local partition' ],
	[ 'SELECT id FROM items ORDER BY v <=> $1::real[] LIMIT 10', 'provides the order; items_here_cosine used$', 'and LIMIT 10' ],
	[ 'SELECT id FROM items_0 WHERE id = 3 ORDER BY v <=> $1::real[]',
		'could provide the order, but the planner estimates that fetching and sorting all rows costs less', 'rows that are fetched and sorted' ],
	[ 'SELECT id FROM (SELECT * FROM items_0 ORDER BY v <=> $1::real[] LIMIT (SELECT 10)) AS s ORDER BY id',
		'provides the order$', '... and rows that are sorted otherwise behind LIMIT' ])
{
	my ($statement, $said, $what) = @$_;

	like(good($asked, "SELECT string_agg(subject || ' ' || state, '; ' ORDER BY subject) FROM gpuvec_doctor('$statement')
		WHERE subject IN ('items_0', 'items_here_cosine')"), qr/^items_0 the foreign server $said/, $what);
}

# -- all servers at once, as it is printed
if ($there{vector})
{
	my $vector = "(SELECT v::vector($dims) FROM asked WHERE n = 3)";
	my $literal = good($asked, "SELECT v::vector($dims) FROM asked WHERE n = 3");

	good($asked, $async->[0] =~ s/ s0 / s$_ /r) for 0 .. $n - 1;
	my $plan = good($asked, "$prepare->[0]; EXPLAIN (VERBOSE, COSTS OFF) EXECUTE nearest ('$literal')");
	is(scalar(() = $plan =~ /Async Foreign Scan on .*\n.*\n +Remote SQL: .*ORDER BY .* LIMIT 10/g), $n, 'all servers are asked at once');
	is( good($asked, "$prepare->[0]; EXECUTE nearest ('$literal')"),
		good($asked, "SELECT id, embedding <=> $vector AS d FROM docs_all ORDER BY d LIMIT 10"),
		'... for the same rows');
}

# -- rows written, rights, and servers that are lost
for my $table (@tables)
{
	test_writes($asked, $table, $dims);
	test_lost($asked, \@servers, 1, $table, $query);
}
test_roles($asked, \@servers, $tables[0]);

# -- a server that has a standby: of several hosts the one that is there
my ($attributes) = page('sql/docs/scaling.md') =~ /^host 'db0a\.example,db0b\.example', (.*)$/m;
my ($host, $port) = ($nodes[1]->host, $nodes[1]->port);
good($asked, "ALTER SERVER s0 OPTIONS (SET host '/nowhere,$host', SET port '$port,$port', ADD $attributes)");
is(good($asked, 'SELECT count(*) FROM items_0'), good($servers[0], 'SELECT count(*) FROM items'), 'of two hosts the one that is there');

$_->stop for @nodes;
done_testing();
