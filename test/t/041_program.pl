# Where the supervisor finds gpuvecd: beside the library, be that in an image
# mounted read-only, beside postgres, in PATH, or where gpuvec.server_path says;
# nowhere: sessions search, and the log says what to do.

use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename;
use File::Copy;
use File::Path;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

need_gpuvecd();
my %config = map { $_ => config("--$_") } qw(bindir pkglibdir sharedir);
my $temp = abs_path(PostgreSQL::Test::Utils::tempdir());
my $system = '/usr/bin:/bin';

sub config
{
	my ($option) = @_;
	my ($value) = run_command([ 'pg_config', $option ]);

	return $value;
}

# Copy a program, or a library.
sub put
{
	my ($from, $to) = @_;

	mkpath(dirname($to));
	copy($from, $to) or die "$from to $to: $!";
	chmod 0755, $to;
	return $to;
}

# Links in the folder $to to all that is in $from, but for what is gpuvec's.
sub link_folder
{
	my ($from, $to) = @_;

	mkpath($to);
	for my $file (glob "$from/*")
	{
		my $name = basename($file);
		symlink $file, "$to/$name" unless $name =~ /^gpuvec/ || -e "$to/$name";
	}
	return;
}

# Another installation of this PostgreSQL, without gpuvec.  It finds its folders
# by where they are, seen from its programs.
my ($prefix) = "$config{bindir}\n$config{pkglibdir}\n$config{sharedir}" =~ m{^(/.*/).*\n\1.*\n\1};
my %bare = map { $_ => "$temp/bare/" . substr($config{$_}, length $prefix) } keys %config;
put("$config{bindir}/$_", "$bare{bindir}/$_") for qw(pg_ctl postgres);
link_folder($config{bindir}, $bare{bindir});
link_folder($config{pkglibdir}, $bare{pkglibdir});
link_folder("$config{sharedir}/extension", "$bare{sharedir}/extension");
link_folder($config{sharedir}, $bare{sharedir});

my $node = new_node('main', conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'cpu'\n");
my $log = 0;

# Start the server again, as another installation and with another PATH.
sub start_as
{
	my ($path, $settings) = @_;

	$node->stop if $node->{_pid};
	$node->append_conf('postgresql.conf', $settings // '');
	$log = -s $node->logfile;
	local $ENV{PATH} = $path;
	$node->start;
	return;
}

# The log since then, as soon as it matches.
sub log_like
{
	my ($pattern) = @_;
	my $text;

	for (1 .. 3600)
	{
		$text = slurp_file($node->logfile, $log);
		last if $text =~ $pattern;
		usleep(50_000);
	}
	return $text;
}

# Test: this program runs as gpuvecd.
sub runs
{
	my ($program, $what) = @_;
	my $text = log_like(qr/started gpuvecd, PID \d+(?s:.*)gpuvecd is up/);
	my ($pid) = $text =~ /.*started gpuvecd, PID (\d+)/s;

	is($pid && readlink "/proc/$pid/exe", $program, $what);
	diag($text) unless $pid;
	return $pid;
}

# -- as `make install` leaves it
start_as($ENV{PATH});
runs("$config{bindir}/gpuvecd", 'beside the library, or postgres');
is($node->safe_psql('postgres', 'SHOW gpuvec.server_path'), '', 'no path is set');
$node->safe_psql('postgres',
	'CREATE TABLE t AS SELECT id, point(id, 4) AS e FROM generate_series(1, 2000) AS id');
$node->safe_psql('postgres', 'CREATE INDEX ON t USING gpuivfpq (e)');
my $right = $node->safe_psql('postgres', "SELECT answers('t', '<->', 4, 5, 5)");

# -- nowhere: the library without its program
put("$config{pkglibdir}/gpuvec.so", "$bare{pkglibdir}/gpuvec.so");
start_as("$bare{bindir}:$system");
like(
	log_like(qr/could not find the program/),
	qr/could not find the program "gpuvecd"\n.*DETAIL:  It is neither .*\n.*HINT:  Install it/,
	'nowhere: the log says so');
is($node->safe_psql('postgres', "SELECT answers('t', '<->', 4, 5, 5)"),
	$right, 'nowhere: sessions search');
is($node->safe_psql('postgres', 'SELECT state FROM gpuvec_stat'), 'down', 'nowhere: it is down');

# -- in PATH, behind what is not it: a folder, a file, the data directory
mkpath([ "$temp/folder/gpuvecd", "$temp/file" ]);
append_to_file("$temp/file/gpuvecd", 'no program');
my $packaged = put("$config{bindir}/gpuvecd", "$temp/sbin/gpuvecd");
put("$config{bindir}/gpuvecd", $node->data_dir . '/gpuvecd');
start_as("$bare{bindir}:.::$temp/folder:$temp/file:$temp/none:$temp/sbin:$config{bindir}:$system");
my $pid = runs($packaged, 'PATH: the first program in it, not one in the data directory');
is($node->safe_psql('postgres', "SELECT answers('t', '<->', 4, 5, 5)"), $right, 'PATH: answers');

# -- named: from the next start on, and that one or none
my $named = put("$config{bindir}/gpuvecd", "$temp/named/server");
(undef, undef, my $err) =
  $node->psql('postgres', "ALTER SYSTEM SET gpuvec.server_path = 'named/server'");
like($err, qr/ERROR:  invalid value for .*\nDETAIL:  It has to be an absolute path/, 'named: absolutely');
$node->safe_psql('postgres', "ALTER SYSTEM SET gpuvec.server_path = '$named'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('gpuvec.server_path') <> ''");
$log = -s $node->logfile;
kill 'KILL', $pid;
$pid = runs($named, 'named: rather than that in PATH');
$node->safe_psql('postgres', "ALTER SYSTEM SET gpuvec.server_path = '$temp/nothing'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('gpuvec.server_path') ~ 'nothing'");
$log = -s $node->logfile;
kill 'KILL', $pid;
like(
	log_like(qr/could not execute/),
	qr{could not execute "$temp/nothing": No such file or directory\n.*HINT:  gpuvec.server_path names it},
	'named: one that is not there');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET gpuvec.server_path');
$log = -s $node->logfile;
$node->reload;
runs($packaged, 'named no more: started at once');

# -- an image of the extension, read-only, in front of everything else
my $image = "$temp/extensions/gpuvec";
put("$config{pkglibdir}/gpuvec.so", "$image/lib/gpuvec.so");
put("$config{bindir}/gpuvecd", "$image/bin/gpuvecd");
mkpath("$image/share/extension");
copy($_, "$image/share/extension") for glob "$config{sharedir}/extension/gpuvec*";
unlink "$bare{pkglibdir}/gpuvec.so";
put("$config{bindir}/gpuvecd", "$bare{bindir}/gpuvecd");
chmod 0555, "$image/$_" for qw(lib bin share/extension share), '';
my $whole = $node->pg_version >= 18;
start_as("$bare{bindir}:$temp/sbin:$system",
	"dynamic_library_path = '$image/lib:\$libdir'\n"
	  . ($whole ? "extension_control_path = '$image/share:\$system'\n" : ''));
runs("$image/bin/gpuvecd", 'image: beside its library');
SKIP:
{
	skip 'images of extensions need PostgreSQL 18', 3 unless $whole;
	is($node->safe_psql('postgres', "SELECT answers('t', '<->', 4, 5, 5)"), $right, 'image: answers');
	is($node->safe_psql('postgres', 'SELECT state FROM gpuvec_stat'), 'up', 'image: it is up');
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	is($node->safe_psql('other', 'CREATE EXTENSION gpuvec; SELECT count(*) FROM gpuvec_stat'),
		'1', 'image: CREATE EXTENSION');
}
chmod 0755, "$image/$_" for '', qw(lib bin share share/extension);
$node->stop;

done_testing();
