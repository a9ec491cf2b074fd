# The servers of test/hosts/servers.sh, as their programs ask them.

package GpuvecServers;

use strict;
use warnings;
use Exporter 'import';
use IPC::Run ();

our @EXPORT = qw($folder $port $n psql server);

our ($folder, $control, $port, $n) = @ENV{ map { "HOSTS$_" } '', qw(_CONTROL _PORT _SERVERS) };

# psql to server $i.
sub psql
{
	my ($i, $database, @arguments) = @_;

	return (qw(psql -X -A -t -q -v ON_ERROR_STOP=1 -h), "$folder/sock", '-p', $port + $i, '-U', 'postgres',
		'-d', $database, @arguments);
}

sub ask
{
	my ($i, $database, $sql) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ psql($i, $database, '-f', '-') ], '<', \$sql, '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	chomp($out, $err);
	return ($status, $out, $err);
}

# Server $i as GpuvecHosts takes it, with a database for its rows.
sub server
{
	my ($i, $name) = @_;
	my $quiet = '>/dev/null 2>&1 </dev/null';

	ask($i, 'postgres', q{CREATE DATABASE shop; CREATE ROLE app LOGIN PASSWORD 'secret'});
	return {
		name => $name,
		log => "$folder/data$i/server.log",
		ask => sub { ask($i, 'shop', $_[0]) },
		map { $_ => "$control $i $_ $quiet" } qw(stop start cut mend)
	};
}

1;
