#!/usr/bin/perl
#
# check_layers.pl
#		Proves the rules of the house (src/README): who includes whom, which
#		rooms call which, where versions, threads and changes of pages are.
#
# usage: check_layers.pl [--rooms] [TREE]			TREE: by default this file's
#
# Also that files which comments and READMEs name exist, and that names have the
# words of src/README and spelling is American.
#
# Prints every offence, and "layers: N passed, M failed".  --rooms prints the
# rooms with their sizes, and what they include or call, instead.
#
# A room is a folder.  It uses another one if a file of it includes a header
# from there, or mentions a function that a .c or .cu file there defines for
# others.  Comments and strings do not count.
#
# Each rule is tried on a planted offence first: a line that breaks it, in a
# file that there is not.
use strict;
use warnings;
use FindBin;

my $show = @ARGV && $ARGV[0] eq '--rooms' && shift;
my $tree = shift // "$FindBin::RealBin/../..";
chdir $tree or die "$tree: $!\n";
-f 'src/engine/gv_engine.h' or die "layers: $tree is no gpuvec tree\n";

my %text = map { $_ => plain(slurp($_)) } sources('src', 'gpu', 'test/oracle');
my ($passed, $failed) = (0, 0);

# ---- sources

sub slurp
{
	my ($path) = @_;
	local $/;
	open my $in, '<', $path or die "$path: $!\n";
	return <$in>;
}

# Files of C and CUDA below folders.
sub sources
{
	my @found;
	for my $path (map { glob "$_/*" } @_)
	{
		push @found, -d $path ? sources($path) : $path =~ /\.(?:c|h|cu|cuh)$/ ? $path : ();
	}
	return @found;
}

# Without comments and what strings say, but line by line as it was.
sub plain
{
	my ($text) = @_;
	$text =~ s{(/\*.*?\*/)|(^\s*\#\s*include[^\n]*)|"(?:[^"\\\n]|\\.)*"|//[^\n]*}
	{ defined $2 ? $2 : defined $1 ? $1 =~ tr/\n//cdr : substr($&, 0, 1) eq '"' ? '""' : '' }gsme;
	return $text;
}

# Only its comments, line by line as they were.
sub comments
{
	my ($text) = @_;
	$text =~ s{(/\*.*?\*/|//[^\n]*)|"(?:[^"\\\n]|\\.)*"|.}
	{ $1 // ($& eq "\n" ? "\n" : '') }gse;
	return $text;
}

# All files below folders, but what is built.
sub all_files
{
	my @found;
	for my $path (map { glob "$_/*" } @_)
	{
		push @found, -d $path ? all_files($path) : $path;
	}
	return grep { !/\.(?:o|d|bc|so|pyc)$/ } @found;
}

sub room { return $_[0] =~ s{/[^/]+$}{}r }

# The files that a file includes as "...", each with its line.
sub includes
{
	my ($text) = @_;
	my @found;
	my $n = 0;
	for (split /\n/, $text)
	{
		$n++;
		push @found, [ $1, $n, $2 ] if /^\s*#\s*include\s*([<"])([^>"]+)/;
	}
	return @found;
}

# The file of the tree that an include means, or nothing.
sub target
{
	my ($texts, $name) = @_;
	return "src/$name" if exists $texts->{"src/$name"};
	return $name if $name =~ m{^(?:gpu|test/oracle)/} && exists $texts->{$name};
	return;
}

# ---- rules of lines

my $STANDARD = qr{^(?:assert|ctype|errno|fenv|float|inttypes|limits|math|stdalign|stdarg|stdbool
	|stddef|stdint|stdio|stdlib|string|time)\.h$}x;
my $SYSTEM = qr{$STANDARD|^(?:dirent|fcntl|getopt|poll|pthread|pwd|signal|unistd)\.h$|^sys/};
my $OURS = qr{^(?:am|client|cpu|engine|inspect|page|planner|protocol|server|set|gpu|test/oracle)/|^pgcompat\.h$};

# Checks includes of files in $in: all that $may matches, and others that are
# not ours where $foreign.  $plant = a file and an include that break it.
sub may_include
{
	my ($text, $in, $may, $foreign, @plant) = @_;
	check($text, \@plant, sub {
		my ($texts) = @_;
		my @bad;
		for my $file (grep { /$in/ } sort keys %$texts)
		{
			for (includes($texts->{$file}))
			{
				my ($kind, $line, $name) = @$_;
				next if $name =~ $may || $foreign && $name !~ $OURS;
				push @bad, "$file:$line: includes $name";
			}
		}
		return @bad;
	});
}

# Files that $in matches, and $except does not, have no line that matches $bad.
sub must_not
{
	my ($text, $in, $except, $bad, @plant) = @_;
	check($text, \@plant, sub {
		my ($texts) = @_;
		my @bad;
		for my $file (grep { /$in/ && !/$except/ } sort keys %$texts)
		{
			my $n = 0;
			for (split /\n/, $texts->{$file})
			{
				$n++;
				push @bad, "$file:$n: $_" if /$bad/;
			}
		}
		return @bad;
	});
}

# One test: nothing found in the tree, and something with $plant, pairs of a
# path and a text, put into it.  $of: the texts to look at, if not the sources.
sub check
{
	my ($text, $plant, $find, $of) = @_;
	$of //= \%text;
	my @bad = $find->($of);
	my %planted = (%$of, @$plant);
	push @bad, "the check does not see what is planted" unless $find->(\%planted) > @bad;
	if (@bad)
	{
		$failed++;
		print "FAILED: $text\n", map { "$_\n" } @bad;
	}
	else
	{
		$passed++;
	}
}

# ---- graphs

# Circles of a graph: its strongly connected parts of more than one node, each a
# list (Tarjan).
sub circles
{
	my ($graph) = @_;
	my (%index, %low, %on, @stack, @found);
	my $visit;
	$visit = sub {
		my ($node) = @_;
		$index{$node} = $low{$node} = keys %index;
		push @stack, $node;
		$on{$node} = 1;
		for my $next (sort keys %{ $graph->{$node} })
		{
			$visit->($next) unless exists $index{$next};
			$low{$node} = $low{$next} if $on{$next} && $low{$next} < $low{$node};
		}
		return if $low{$node} != $index{$node};
		my @part;
		do
		{
			push @part, pop @stack;
			$on{ $part[-1] } = 0;
		} while ($part[-1] ne $node);
		push @found, [ sort @part ] if @part > 1 || $graph->{$node}{$node};
	};
	for (sort keys %$graph) { $visit->($_) unless exists $index{$_} }
	return @found;
}

# header -> header -> where
sub header_graph
{
	my ($texts) = @_;
	my %graph;
	for my $file (grep { /\.(?:h|cuh)$/ } keys %$texts)
	{
		for (includes($texts->{$file}))
		{
			my $to = target($texts, $_->[2]);
			$graph{$file}{$to} = "$file includes $to" if $to;
		}
	}
	return \%graph;
}

# place -> place -> [what], where $of gives the place of a file; by calls and, if
# $includes, by includes
sub use_graph
{
	my ($texts, $of, $includes) = @_;
	my (%graph, %home);
	for my $file (grep { /\.(?:c|cu)$/ } keys %$texts)
	{
		while ($texts->{$file} =~ /^([^\s#{}][^\n;{}=]*)\n([A-Za-z_]\w*)\(/gm)
		{
			$home{$2} = $of->($file) unless $1 =~ /\bstatic\b/;
		}
	}
	for my $file (sort keys %$texts)
	{
		my $room = $of->($file);
		for ($includes ? includes($texts->{$file}) : ())
		{
			my $to = target($texts, $_->[2]) // next;
			push @{ $graph{$room}{ $of->($to) } }, "$file includes $to" if $of->($to) ne $room;
		}
		next if $file =~ /\.h$/;
		my %seen;
		for ($texts->{$file} =~ /\b([A-Za-z_]\w*)\b/g)
		{
			next if $seen{$_}++ || !$home{$_} || $home{$_} eq $room;
			push @{ $graph{$room}{ $home{$_} } }, "$file calls $_";
		}
	}
	return \%graph;
}

# Rooms; files at the top of src are rooms of their own.
sub room_graph
{
	my ($texts) = @_;
	return use_graph($texts, sub { my $room = room($_[0]); $room eq 'src' ? $_[0] : $room }, 1);
}

# Modules whose files are chapters: none calls a file that calls it.
my $CHAPTERS = qr{^src/(?:am|page|planner|inspect|planted)/};

sub file_circles
{
	my ($texts) = @_;
	my %chapters = map { $_ => $texts->{$_} } grep { /$CHAPTERS/ } keys %$texts;
	return named_circles(use_graph(\%chapters, sub { $_[0] }, 0));
}

sub header_circles
{
	return map { 'circle: ' . join(' ', @$_) } circles(header_graph(@_));
}

sub room_circles
{
	return named_circles(room_graph(@_));
}

# Each circle of a graph, and why.
sub named_circles
{
	my ($graph) = @_;
	my @bad;
	for my $circle (circles($graph))
	{
		push @bad, 'circle: ' . join(' ', @$circle);
		for my $from (@$circle)
		{
			for my $to (grep { $graph->{$from}{$_} } @$circle)
			{
				my @why = @{ $graph->{$from}{$to} };
				my $more = @why > 3 ? ', ... (' . @why . ')' : '';
				push @bad, "  $from -> $to: " . join(', ', grep { defined } @why[ 0 .. 2 ]) . $more;
			}
		}
	}
	return @bad;
}

sub same_names
{
	my ($texts) = @_;
	my %files;
	push @{ $files{ s{.*/}{}r } }, $_ for grep { m{^(?:src|test/oracle)/.*\.c$} } sort keys %$texts;
	return map { "@{$files{$_}}" } grep { @{ $files{$_} } > 1 } sort keys %files;
}

sub no_such_file
{
	my ($texts) = @_;
	my @bad;
	for my $file (sort keys %$texts)
	{
		for (includes($texts->{$file}))
		{
			my ($kind, $line, $name) = @$_;
			push @bad, "$file:$line: $name is no path from src or the root"
				if !target($texts, $name) && ($name =~ m{^\.|^src/} || $name =~ $OURS
					|| $name =~ /^(?:gv_|ivfpq)/ || -f room($file) . "/$name");
		}
	}
	return @bad;
}

# PostgreSQL's files, by name, and names that stand for others.
my $FOREIGN = qr{^(?:execJunk\.c|nodeSubplan\.c|test/t/NNN_name\.pl)$};

# Files that a text names and that are not there.  A name may have folders in
# front, as many as tell it apart, and * in it; a file that some source includes
# from elsewhere is known by that.
sub no_such_mention
{
	my ($texts) = @_;
	my %there = map { $_ => 1 } all_files('src', 'gpu', 'test', 'sql'), glob('*');
	my %known;
	my @bad;
	for my $path (keys %there)
	{
		my $end = $path;
		do { $known{$end} = 1 } while $end =~ s{^[^/]*/}{};
	}
	for (map { includes($_) } values %text)
	{
		my $name = $_->[2];
		do { $known{$name} = 1 } while $name =~ s{^[^/]*/}{};
	}
	for my $file (sort keys %$texts)
	{
		my $n = 0;
		for (split /\n/, $texts->{$file})
		{
			$n++;
			while (m{(?<![\w.*/$<-])((?:[\w.-]+/)*(?:[\w*-]+\.(?:c|h|cuh?|p[lmy]|sh|md)\b|(?<=/)README\b(?!\.)))}g)
			{
				my $name = $1;
				my $from = room($file);
				while ($name =~ s{^\.\./}{}) { $from = room($from) }
				next if $known{$name} || $name =~ $FOREIGN || $there{"$from/$name"};
				(my $like = $name) =~ s{([^\w/*])|(\*)}{$2 ? '[^/]*' : "\\$1"}ge;
				next if $name =~ /\*/ && grep { /^$like$/ } keys %known;
				push @bad, "$file:$n: names $name";
			}
		}
	}
	return @bad;
}

# ---- words that src/README, "Words", replaced

# Parts of names for which the tree has no other use, and their successors.
my %NEW_WORD = (
	'breadth' => 'coarse_fraction', 'card|cards' => 'device', 'climb|rung' => 'grid, target',
	'crew' => 'parallel_for', 'effort|efforts' => 'search_params', 'fulfil\w*' => 'matches',
	'images' => 'abbrevs', 'ladder|ladders' => 'recall_grid',
	'meeting|meetings' => 'pairs', 'mend|mends|mending' => 'rebalance, reseed',
	'polish' => 'final_lloyd_pass', 'putting' => 'upload', 'roomiest' => 'most_available',
	'screen|screens|screened' => 'prefilter', 'unpend\w*' => 'remove_pending');

# Beginnings of exported names whose words have plain uses, too.
my %NEW_STEM = (
	'Ivfpq(?:Take|Store|Stored)?Cop(?:y(?!Disabled)|ies)|GV_MANY_COPIES|gv_gpu_sorts?_copies' => 'Posting',
	'IvfpqTeam|IVFPQ_TEAM_' => 'IvfpqParallel', 'IvfpqMany|IVFPQ_MANY_|gv_many_|GV_ROLE_MANY' => 'Bulk',
	'IvfpqMeasure|gv_exact_measure|gv_nearest_measure' => 'Rerank', 'IvfpqDrain|IvfpqTrainOrDrain' => 'Flush',
	'IvfpqPendingSeal|IvfpqSeal|IvfpqSortSealed' => 'Freeze', 'IvfpqSweep' => 'Reclaim',
	'Ivfpq(?:Key)?(?:Float[48]|Integer)?Image|gv_image' => 'Abbrev', 'IvfpqKeySpan' => 'IvfpqKeyRange',
	'IvfpqKeyTests|IvfpqRowTest' => 'Quals', 'Ivfpq(?:List|Directory)Entry' => 'IvfpqDirEntry',
	'IvfpqGiven|IVFPQ_COUNT_GIVEN' => 'Returned', '(?:Ivfpq(?:Calibration)?|IVFPQ_)(?:Truth|TRUTH)' => 'ground truth',
	'IvfpqWanted|IVFPQ_WANTED_' => 'mirror request', 'IvfpqTurn|IVFPQ_TURN_' => 'worker slot',
	'IvfpqTrial|gv_trial|GvTrial|gv_build_trial|GV_MSG_TRIAL' => 'calibration mirror', 'IvfpqFindOdd' => 'Mismatched',
	'IvfpqLiveQueries' => 'query log', 'IvfpqStopPoint|IVFPQ_STOP_POINT' => 'injection point',
	'gv_life_' => 'incarnation', 'gv_turns_|GV_TURNS' => 'batch slot', 'gv_watch_' => 'gv_watchdog_',
	'gv_spread_|GvSpread|gv_mirror_parts?' => 'placement', 'GvHeld' => 'mirror entry',
	'gv_(?:build_)?pieces?_(?!at\b)|GvPiece|GvListPiece|GV_MSG_PIECES' => 'chunk', 'GvExactLane' => 'stream',
	'gv_guess_|GvGuess|gv_\w+_guess(?:ed)?\b' => 'estimate', 'gv_gpu_settle|gv_nearest_settle' => 'rescore',
	'gv_give_(?!rows?_)|gv_gpu_give' => 'download', 'gv_gpu_meet|gv_exact_meet|GvMet(?!ric)' => 'pairs',
	'gv_gpu_put_(?!array|list|refine|rows)' => 'upload', 'gv_gpu_halves?|gv_halves_' => 'half', 'IvfpqStarts' => 'seeds',
	'IvfpqNearShare' => 'sampled selectivity', 'gv_become' => 'epilogue', 'gv_(?:answer|gpu)_arrived|GvArrivals' => 'completion',
	'GvProduct|gv_gpu_product|GV_PRODUCTS_|IVFPQ_PRODUCTS_|gv_products_used?' => 'matmul',
	'\w+_(?:room|ROOM)\b(?<=gv_registry_room|gv_mirrors_room|gv_shared_room|gv_kept_room|GV_RING_ROOM)' => 'memory, capacity');

# Names of code that have a word or begin as above.
sub old_names
{
	my ($texts) = @_;
	my (%where, @bad);
	for my $file (sort keys %$texts)
	{
		my $code = $texts->{$file} =~ s/^\s*#\s*include[^\n]*//gmr;
		$where{$_} //= $file for $code =~ /\b([A-Za-z_]\w*)\b/g;
	}
	my ($any_word, $any_stem) = map { my $any = join '|', sort keys %$_; qr/$any/ } \%NEW_WORD, \%NEW_STEM;
	# guards of headers are named after their files
	for my $name (grep { !/_C?U?H$/ } sort keys %where)
	{
		my $words = '_' . lc($name =~ s/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/_/gr) . '_';
		next if $words !~ /_n?(?:$any_word)_/ && $name !~ /^(?:$any_stem)/;
		my @new = map { $NEW_WORD{$_} } grep { $words =~ /_n?(?:$_)_/ } sort keys %NEW_WORD;
		push @new, map { $NEW_STEM{$_} } grep { $name =~ /^(?:$_)/ } sort keys %NEW_STEM;
		push @bad, "$where{$name}: $name: say $new[0]" if @new;
	}
	return @bad;
}

# British spellings and ours.
my %AMERICAN = ('(?:neighb|behavi|col|fav|hon|lab)our' => 'or', 'centre' => 'center',
	'(?:cance|labe|mode|trave|signa)ll(?:ed|ing)' => 'one l', '(?i:fulfil)(?![l_])' => 'fulfill',
	'catalogue' => 'catalog', 'artefact' => 'artifact', 'defence' => 'defense', 'analys(?:ed|er|es?\b)(?<!analyses)' => 'analyze',
	'(?:optim|initial|normal|quant|serial|organ|recogn|material|summar|minim|maxim|parallel|general|special'
		. '|real|util|vector|synchron|author|random|character)is(?:e[drs]?|ers|ing|ation)(?-i:(?![a-z]))' => 'z');

sub british
{
	my ($texts) = @_;
	my @bad;
	my ($any) = map { qr/$_/i } join '|', sort keys %AMERICAN;
	for my $file (grep { $texts->{$_} =~ $any } sort keys %$texts)
	{
		for my $stem (sort keys %AMERICAN)
		{
			push @bad, "$file: $1: say $AMERICAN{$stem}" while $texts->{$file} =~ /(\w*$stem\w*)/gi;
		}
	}
	return @bad;
}

if ($show)
{
	my $graph = room_graph(\%text);
	my %size;
	$size{ room($_) }++ for keys %text;
	for my $room (sort keys %size)
	{
		printf "%-24s %2d files  %s\n", $room, $size{$room}, join ' ', sort keys %{ $graph->{$room} };
	}
	exit 0;
}

# ---- the rules

check('every include is a path from src, of kernels and the oracle from the root',
	[ 'src/am/planted.c', '#include "handler.h"' . "\n" . '#include "am/nothing.h"' ], \&no_such_file);
check('names of .c files are unique within src and test/oracle: gdb, gcov and errors name no folders',
	[ 'src/page/handler.c', '' ], \&same_names);
check('headers form no circle',
	[ 'src/am/a.h', '#include "am/b.h"', 'src/am/b.h', '#include "am/a.h"' ], \&header_circles);
check('rooms form no circle, neither by includes nor by calls',
	[ 'src/planted/a/a.c', "void\nPlantedA(void)\n{ PlantedB(); }",
		'src/planted/b/b.c', "void\nPlantedB(void)\n{ PlantedA(); }" ], \&room_circles);

my %prose = map { $_ => comments(slurp($_)) } sources('src', 'gpu', 'test/oracle');
$prose{$_} = slurp($_) for grep { m{(?:^|/)README(?:\.md)?$} } all_files('src', 'gpu', 'test', 'sql'), glob('*');
$prose{"test/bench/$_.md"} = slurp("test/bench/$_.md") for 'RESULTS', 'PAPERS';
check('files of a module form no circle of calls',
	[ 'src/planted/a/a.c', "void\nPlantedA(void)\n{ PlantedB(); }",
		'src/planted/a/b.c', "void\nPlantedB(void)\n{ PlantedA(); }" ], \&file_circles);
check('files that comments and READMEs name exist',
	[ 'src/am/scan/planted.c', "/* see am/nothing.c */" ], \&no_such_mention, \%prose);

for ("int\tbest_effort;", "void\nIvfpqTeamBegin(void)\n{ }", "int\tncards;", "struct GvScreenedRows;")
{
	check('names have the words of src/README, not those that they replaced', [ 'src/am/planted.c', $_ ], \&old_names);
}
my %written = map { $_ => slurp($_) }
	grep { m{\.(?:c|h|cuh?|p[lmy]|sh|sql|spec|md)$|/README$} && $_ ne 'test/unit/check_layers.pl' } all_files('src', 'gpu', 'sql', 'test');
check('spelling is American', [ 'src/am/planted.c', "/* of its n" . "eighbours */" ], \&british, \%written);
check('spelling is American', [ 'src/am/planted.c', "void\ninitialiseAll(void)" ], \&british, \%written);

may_include('src/engine includes C standard and engine headers only, but for its threads',
	qr{^src/engine/(?!mirror/gv_parallel\.[ch]$)}, qr{$STANDARD|^engine/}, 0,
	'src/engine/planted.c', '#include <unistd.h>');
may_include('src/cpu includes C standard, intrinsics, engine and cpu headers only',
	qr{^src/cpu/}, qr{$STANDARD|^(?:engine|cpu)/|^(?:immintrin|cpuid|arm_neon)\.h$}, 0,
	'src/cpu/pq/planted.c', '#include "page/page.h"');
may_include('test/oracle includes C standard, engine, cpu and its own headers only',
	qr{^test/oracle/}, qr{$STANDARD|^(?:engine|cpu|test/oracle)/}, 0,
	'test/oracle/planted.c', '#include "server/server.h"');
must_not('none but the oracle includes it: the release has none of it',
	qr{.}, qr{^test/oracle/}, qr{^\s*#\s*include\s*"test/oracle/},
	'src/server/planted.c', '#include "test/oracle/gv_oracle.h"');
may_include('src/protocol includes C standard and engine headers only',
	qr{^src/protocol/}, qr{$STANDARD|^(?:engine|protocol)/}, 0,
	'src/protocol/planted.c', '#include "server/server.h"');
may_include('src/server includes system, engine, protocol and server headers only',
	qr{^src/server/}, qr{$SYSTEM|^(?:engine|protocol|server)/}, 0,
	'src/server/planted.c', '#include "cpu/cpu.h"');
may_include('src/page knows nobody',
	qr{^src/page/}, qr{^page/|^pgcompat\.h$}, 1,
	'src/page/planted.c', '#include "engine/gv_engine.h"');
may_include('src/client knows pages, the protocol, and of the engine contracts',
	qr{^src/client/}, qr{^(?:client|page|protocol)/|^engine/(?:gv_engine|gv_set|mirror/gv_mirror|mirror/gv_builder)\.h$|^pgcompat\.h$}, 1,
	'src/client/work/planted.c', '#include "am/handler.h"');
may_include('src/am reaches pages, and the engine, the protocol and clients by one header each',
	qr{^src/am/}, qr{^(?:am|page)/|^engine/gv_engine\.h$|^protocol/gv_protocol\.h$|^client/client\.h$|^pgcompat\.h$}, 1,
	'src/am/scan/planted.c', '#include "client/state.h"');
may_include('src/planner and src/inspect reach what src/am does, and that',
	qr{^src/(?:planner|inspect)/}, qr{^(?:am|page|planner|inspect)/|^engine/gv_engine\.h$|^client/client\.h$|^pgcompat\.h$}, 1,
	'src/planner/planted.c', '#include "protocol/gv_protocol.h"');
may_include('src/set reaches the engine, am and clients by their contracts',
	qr{^src/set/}, qr{^set/|^engine/gv_(?:engine|select|set)\.h$|^am/|^page/sort\.h$|^client/client\.h$|^pgcompat\.h$}, 1,
	'src/set/planted.c', '#include "page/page.h"');
may_include('gpu includes C standard, intrinsics, threads, CUDA, engine and gpu headers, and none of PostgreSQL',
	qr{^gpu/}, qr{$STANDARD|^(?:engine|gpu)/|^cpu/gv_\w+\.h$|^emmintrin\.h$|cuda|cub/|cooperative_groups|^emulated_\w+\.h$|^algorithm$|^(?:pthread|sched|signal|unistd)\.h$|^dlfcn\.h$|cublas}, 0,
	'gpu/search/planted.cu', '#include "utils/rel.h"');
must_not('one file of gpu speaks to cuBLAS',
	qr{^gpu/}, qr{^gpu/product/cublas\.cu$}, qr{cublas(?:\w*_v2|[A-Z]\w+)|\bdlopen\b},
	'gpu/search/planted.cu', 'cublasGemmEx(handle');
must_not('no CUDA header outside gpu',
	qr{^src/}, qr{^$}, qr{^\s*#\s*include[^\n]*(?:cuda|cublas|cub/|thrust|nvml|\.cuh)},
	'src/server/planted.c', '#include <cuda_runtime.h>');
must_not('threads in gpuvecd only, whose is gv_parallel.c, too',
	qr{^src/}, qr{^src/(?:server|client)/|^src/engine/mirror/gv_parallel\.[ch]$}, qr{\bpthread_|<(?:pthread|threads)\.h>|\bfork\s*\(},
	'src/cpu/pq/planted.c', 'pthread_create(');
must_not('versions of PostgreSQL are told apart in pgcompat.h only',
	qr{.}, qr{^src/pgcompat\.h$}, qr{PG_VERSION_NUM|PG_MAJORVERSION|CATALOG_VERSION},
	'src/am/scan/planted.c', '#if PG_VERSION_NUM >= 170000');
must_not('only src/page changes pages',
	qr{.}, qr{^src/page/},
	qr{\b(?:GenericXLog\w*|MarkBufferDirty\w*|PageInit|PageAddItem\w*|PageSet[A-Z]\w*|log_newpage\w*|XLogInsert|smgrextend)\s*\(},
	'src/am/scan/planted.c', 'MarkBufferDirty(buffer);');

print "layers: $passed passed, $failed failed\n";
exit($failed != 0);
