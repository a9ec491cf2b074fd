# sql/README.md says what the catalogs say: every function, view, operator,
# operator class, index option and setting of both extensions, with types,
# ranges and defaults, and none that is not there.  README.md and sql/docs name
# nothing that is not there either, and README's six statements run as they are
# printed, without pgvector, too.  documents.pl runs all other blocks.

use strict;
use warnings;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $root = dirname(dirname($FindBin::RealBin));
my $reference = slurp_file("$root/sql/README.md");
my $readme = slurp_file("$root/README.md");
my $guides = join '', map { slurp_file($_) } glob "$root/sql/docs/*.md";

# gpuvecd's settings as they are where it may run
my $node = new_node('main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\n");
my $pgvector = $node->safe_psql('postgres',
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});
$node->safe_psql('postgres',
	'SET client_min_messages = warning; CREATE EXTENSION gpuvec_pgvector CASCADE')
  if $pgvector;

sub rows_of
{
	my ($query) = @_;

	return split /\n/, $node->safe_psql('postgres', $query);
}

# Test: the page's words for things are the catalog's, in any order.
sub same
{
	my ($page, $catalog, $what) = @_;
	my %page = map { $_ => 1 } @$page;
	my %catalog = map { $_ => 1 } @$catalog;
	my @missing = grep { !$page{$_} } sort keys %catalog;
	my @stale = grep { !$catalog{$_} } sort keys %page;

	ok(@$catalog > 0 && !@missing && !@stale, "the reference names all $what, and no other");
	diag("missing or other in sql/README.md: $_") for @missing;
	diag("not in the catalog: $_") for @stale;
	return;
}

# The text under a heading.
sub section
{
	my ($heading) = @_;

	return $reference =~ /^## \Q$heading\E\n(.*?)(?=^## |\z)/ms ? $1 : '';
}

# The rows of a section's tables with so many columns, without the heads;
# backticks are left out.
sub table
{
	my ($heading, $ncolumns) = @_;
	my @rows;

	for my $line (split /\n/, section($heading))
	{
		next unless $line =~ /^\| `/;
		(my $plain = $line) =~ s/^\| | \|$|`//g;
		my @cells = split / *\| */, $plain, -1;
		push @rows, \@cells if @cells == $ncolumns;
	}
	return @rows;
}

# Rows of classes, one for each: cells with several names are lists.
sub each_class
{
	my @rows;

	for my $row (@_)
	{
		my @lists = map { [ split /, / ] } @$row;

		for my $i (0 .. $#{ $lists[0] })
		{
			push @rows, [ map { $_->[ @$_ > 1 ? $i : 0 ] } @lists ];
		}
	}
	return @rows;
}

# Without pgvector there is nothing to compare with what needs it.
sub there
{
	my ($extension) = @_;

	return $extension eq 'gpuvec' || $pgvector;
}

my $MEMBERS = q{pg_depend AS d JOIN pg_extension AS e ON d.deptype = 'e'
	AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	AND e.extname IN ('gpuvec', 'gpuvec_pgvector')};
my @functions = rows_of(
	qq{SELECT concat_ws(' ', format('%s(%s)', proname,
			(SELECT string_agg(regexp_replace(a, '::(text|real\\[\\]|regclass|name)\$', ''), ', ' ORDER BY i)
			FROM unnest(string_to_array(pg_get_function_arguments(p.oid), ', '))
				WITH ORDINALITY AS u (a, i) WHERE a !~ '^OUT ')), 'returns',
		CASE WHEN proargmodes IS NULL THEN format_type(prorettype, NULL)
		ELSE format('%s (%s)', CASE WHEN proretset THEN 'rows' ELSE 'row' END,
			(SELECT string_agg(n || ' ' || format_type(t, NULL), ', ' ORDER BY i)
			FROM unnest(proargnames, proallargtypes, proargmodes)
				WITH ORDINALITY AS u (n, t, m, i) WHERE m IN ('o', 't'))) END)
	FROM $MEMBERS JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid});
my @views = rows_of(
	qq{SELECT format('view %s %s', relname, (SELECT string_agg(attname || ' '
			|| format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0))
	FROM $MEMBERS JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
	WHERE relkind = 'v'});

# -- nothing but what is compared below
my @keys = map {
	my $operators = $_->[3];
	map { [ @$_, $operators ] } each_class([ @$_[ 0 .. 2 ] ])
} table('Keys', 4);
my %of_many;
$of_many{ $_->[2] }++ for @keys;
same([ ($pgvector ? 'pg_cast' : ()), qw(pg_am pg_opclass pg_operator pg_opfamily pg_proc), 'view in pg_class',
		'gpuivfpq in pg_am', map { "family $_" } grep { $of_many{$_} > 1 } keys %of_many ],
	[ rows_of(
		qq{SELECT concat(CASE relkind WHEN 'v' THEN 'view in ' END, classid::regclass)
		FROM $MEMBERS LEFT JOIN pg_class AS c ON classid = 'pg_class'::regclass AND objid = c.oid
		-- in later servers the types of a view's rows are members, too
		WHERE classid <> 'pg_type'::regclass
		UNION SELECT amname || ' in pg_am' FROM $MEMBERS JOIN pg_am AS a
			ON classid = 'pg_am'::regclass AND objid = a.oid
		UNION SELECT 'family ' || opfname FROM $MEMBERS JOIN pg_opfamily AS f
			ON classid = 'pg_opfamily'::regclass AND objid = f.oid
		WHERE NOT EXISTS (SELECT FROM pg_opclass WHERE opcfamily = f.oid AND opcname = opfname)}) ],
	'kinds of objects');
like(section('Access method'), qr/^`gpuivfpq`/m, 'the access method has its section');

# -- functions and views: blocks of signatures, of which each begins a line
my @signatures;
while ($reference =~ /^```\n((?:view )?gp\w+[( ].*?)\n```$/msg)
{
	for my $signature (map { s/\s+/ /gr } split /\n(?=\S)/, $1)
	{
		push @signatures, $signature unless $signature =~ /^gpuvec_(mixed|vectors)/ && !$pgvector;
	}
}
my @metrics = grep { $_->[0] =~ /^</ } table('Operators', 4);
my $distances = join '|', map { $_->[1] } @metrics;
# a view's function is the view's entry
my %view = map { /^view (\w+) (.*)/; $1 => $2 } @views;
same([ grep { !/^view/ } @signatures ],
	[ grep { !/^($distances)\(/ && !(/^(\w+)\(\) returns rows \((.*)\)$/ && ($view{$1} // '') eq $2) }
		@functions ],
	'functions');
same([ grep { /^view/ } @signatures ], \@views, 'views');

# -- operators and what computes them
my (@operators, @computing);
for my $row (grep { $_->[0] =~ /^gpuvec/ && there($_->[0]) } table('Operators', 4))
{
	my ($extension, $left, $right, $either) = @$row;

	for my $other (split /, /, $right)
	{
		for my $pair ([ $left, $other ], $either eq 'yes' ? [ $other, $left ] : ())
		{
			my $types = join ', ', @$pair;

			push @operators, map { "$extension $_->[0] ($types) by $_->[1]" } @metrics;
			push @computing, map { "$_->[1]($types) returns double precision" } @metrics;
		}
	}
}
same(\@operators,
	[ rows_of(
		qq{SELECT format('%s %s (%s, %s) by %s', extname, oprname, oprleft::regtype, oprright::regtype, proname)
		FROM $MEMBERS JOIN pg_operator AS o ON d.classid = 'pg_operator'::regclass AND d.objid = o.oid
			JOIN pg_proc AS p ON p.oid = oprcode}) ],
	'operators');
same(\@computing, [ grep { /^($distances)\(/ } @functions ], 'functions of distance');

# -- operator classes
my @classes;
for my $row (table('Operator classes', 5))
{
	my @of_type = each_class($row);

	$_->[2] = $_ == $of_type[0] ? 'yes' : 'no' for @of_type;
	push @classes, @of_type;
}
same([ map { join ' ', @$_ } grep { there($_->[4]) } @classes ],
	[ rows_of(
		qq{SELECT concat_ws(' ', opcname, opcintype::regtype,
			CASE WHEN opcdefault THEN 'yes' ELSE 'no' END, oprname, extname)
		FROM $MEMBERS JOIN pg_opclass AS c ON d.classid = 'pg_opclass'::regclass AND d.objid = c.oid
			JOIN pg_amop AS a ON amopfamily = opcfamily
				AND amoplefttype = opcintype AND amoprighttype = opcintype AND amoppurpose = 'o'
			JOIN pg_operator AS o ON o.oid = amopopr}) ],
	'operator classes');
same([ map { join ' ', @$_ } @keys ],
	[ rows_of(
		qq{SELECT concat_ws(' ', opcname, opcintype::regtype, opfname, string_agg(oprname, ', ' ORDER BY amopstrategy))
		FROM $MEMBERS JOIN pg_opclass AS c ON d.classid = 'pg_opclass'::regclass AND d.objid = c.oid
			JOIN pg_opfamily AS f ON f.oid = opcfamily
			JOIN pg_amop AS a ON amopfamily = opcfamily AND amoplefttype = amoprighttype
				AND amoplefttype IN (opcintype, 'anyarray'::regtype) AND amoppurpose = 's'
			JOIN pg_operator AS o ON o.oid = amopopr
		WHERE opcdefault GROUP BY opcname, opcintype, opfname}) ],
	'classes of keys');
my %strategy = map { $_->[0] => $_->[3] } @metrics;
is( join(' ', map { "$_ $strategy{$_}" } sort keys %strategy),
	join(' ', rows_of(
		q{SELECT DISTINCT oprname || ' ' || amopstrategy FROM pg_amop JOIN pg_operator AS o ON o.oid = amopopr
		WHERE amopmethod = (SELECT oid FROM pg_am WHERE amname = 'gpuivfpq') AND amoppurpose = 'o' ORDER BY 1})),
	'strategies are as the reference says');

# -- what gpuvec_doctor() looks at; extensions and gpuvecd's rows come and go
my %subject = map { $_ => 1 } map { /`([^`]+)`/g } section('Doctor') =~ /^\| (`.*?) \|/mg;
same([ grep { !/^(subject|indexes|gpuvec_pgvector|vector|mirrors)$/ } keys %subject ],
	[ rows_of(q{SELECT DISTINCT subject FROM gpuvec_doctor() WHERE subject !~ 'pgvector|^vector|^indexes'}) ],
	'subjects of gpuvec_doctor');

# -- settings
same([ map { join ' | ', @$_[ 0 .. 3 ] } table('Settings', 5) ],
	[ rows_of(
		q{SELECT concat_ws(' | ', name, concat_ws(' ', vartype, unit, min_val || ' to ' || max_val,
			-- the test build has cpu besides: sql/builds.sql
			array_to_string(CASE name WHEN 'gpuvec.server' THEN array_remove(enumvals, 'cpu')
				ELSE enumvals END, ', ')), coalesce(nullif(boot_val, ''), ''''''), context)
		FROM pg_settings WHERE name LIKE 'gpuvec.%'
		-- the test build's
		AND name NOT LIKE 'gpuvec.fault%'}) ],
	'settings');

# -- options: no catalog has them, so names come from the code that makes them,
# and ranges from what the server says of a value that is out of them
my @names;
for my $file (split /\n/, `find "$root/src" -name '*.c'`)
{
	push @names, slurp_file($file) =~ /add_\w+_reloption\(\s*\w+,\s*"(\w+)"/g;
}
my @options = table('Index options', 5);
same([ map { $_->[0] } @options ], \@names, 'options');
$node->safe_psql('postgres', 'CREATE TABLE odd (e real[])');
for my $option (@options)
{
	my ($name, $type, $default) = @$option;
	my ($out, $expected) =
	    $type =~ /^integer (-?\d+) to (\d+)$/ ? ($1 - 1, qq{between "$1" and "$2"})
	  : $type =~ /^enum (\w.*), (\w+)$/
	  ? ('noname', join(', ', map { qq{"$_"} } split(/, /, $1)) . qq{ and "$2"})
	  : $type eq 'boolean' ? ('maybe', undef)
	  : (0, 'a type that this test knows');
	my $create = "CREATE INDEX ON odd USING gpuivfpq (e) WITH ($name = ";
	my ($status, undef, $stderr) = $node->psql('postgres', "$create $out)");

	like($stderr, defined $expected ? qr/Valid values are \Q$expected\E/ :
		qr/invalid value for boolean option/, "$name: $type");
	is($node->psql('postgres', "$create $default)"), 0, "$name: $default is a value");
}

# -- README.md and sql/docs: what they name is there; a build profile is, too
my %known = map { $_ => 1 } qw(gpuvec_pgvector gpuvec.control gpuvec.cuda),
  (map { /(?:view )?(\w+)/ } @signatures), (map { $_->[0] } table('Settings', 5));
my %named = map { $_ => 1 } "$readme$guides" =~ /\bgpuvec[_.][a-z_]+\b/g;
is(join(' ', grep { !$known{$_} } sort keys %named), '', 'README.md and sql/docs name nothing that is not there');

# -- README's six statements run as they are printed
my ($statements, $answer) = $readme =~ /^### Real vectors to try\n.*?```sql\n(.*?)```\n+```\n(.*?)```/ms;
my @words = $answer =~ /^ (\w+)$/mg;
$node->safe_psql('postgres', 'CREATE DATABASE six');
my $output = $node->safe_psql('six', "\\cd $root\n$statements");
is(join(' ', grep { /^\w+$/ } split /\n/, $output), "@words", 'the six statements find what is printed');
like($output, qr/Index Scan using words_embedding_idx on words\s+Order By/, 'by the index');

$node->stop;
done_testing();
