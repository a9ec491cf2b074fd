#!/bin/bash
# A throw-away PostgreSQL cluster with gpuvec in it, to try things out.
#
# usage: test/cluster.sh [COMMAND [ARGUMENT...]]      (default: psql)
#
# Copies the PostgreSQL that PG_CONFIG names (else the newest found) into a
# temporary folder, builds gpuvec from this tree and installs it there, also
# pgvector where it is to be had, starts a cluster that only a socket in that
# folder reaches, and runs COMMAND with PGHOST, PGPORT, PGUSER and PATH set.
# Everything is gone afterwards.  SETTINGS holds lines for postgresql.conf,
# DATABASE=empty leaves out CREATE EXTENSION.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/lib.sh"

"$GV_ROOT/test/setup.sh" demo
gv_begin
gv_copy_server "$(gv_find_pg_config)"
gv_copy_source src
echo 'building gpuvec (a minute or two) ...' >&2
gv_build src
"$GV_ROOT/test/pgvector.sh" "$GV_PG_CONFIG" || gv_note "without pgvector"
gv_start data "${SETTINGS:-}"
if [ "${DATABASE:-}" != empty ]; then
	gv_psql -c 'CREATE EXTENSION gpuvec'
	if [ -e "$("$GV_PG_CONFIG" --sharedir)/extension/vector.control" ]; then
		gv_psql -c 'CREATE EXTENSION gpuvec_pgvector CASCADE'
	fi
fi
if [ $# = 0 ]; then
	set -- psql -X
	[ ! -t 0 ] || cat >&2 <<-NOTE
		A throw-away server: socket $PGHOST, port $PGPORT, user $PGUSER.
		\\q leaves psql and removes the server with all that is in it.
	NOTE
fi
export PATH=$GV_BIN:$PATH PG_CONFIG=$GV_PG_CONFIG
"$@"
