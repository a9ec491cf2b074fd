#!/bin/bash
# Runs in a bare folder of Debian (test/packaging/run.sh): install the packages
# of the version before, six statements, upgrade, the same again, purge, and
# nothing is left.
#
# usage: upgrade.sh VERSION-BEFORE VERSION
set -uo pipefail
before=$1-1 now=$2-1
cd /srv/source || exit

ok() {
	local what=$1
	shift
	if "$@"; then echo "ok: $what"; else echo "not ok: $what"; fi
}

as_postgres() { runuser -u postgres -- "$@"; }
ask() { as_postgres psql -XAt -v ON_ERROR_STOP=1 -d six "$@"; }

# Every file and its kind, but for what belongs to dpkg, apt, the cluster and
# the kernel.
files() {
	find / -xdev \( -path /proc -o -path /dev -o -path /srv -o -path /tmp \
		-o -path /run -o -path /var/lib/dpkg -o -path /var/lib/apt \
		-o -path /var/cache -o -path /var/log -o -path /var/lib/postgresql \
		-o -path '/etc/postgresql/*' \) -prune -o -printf '%p %y %m %u %l\n' | sort
}

block() {
	awk -v n="$1" '/^##/{on = /^### Real vectors to try/} on && /^```/{
		k++; next} on && k == n' README.md
}

words() {
	ask -c "SELECT word FROM words ORDER BY embedding <=>
		(SELECT embedding FROM words WHERE id = 5796) LIMIT 5" |
		cmp - /tmp/words
}

six_statements() {
	as_postgres createdb six
	block 1 >/tmp/statements.sql
	ask -f /tmp/statements.sql | tee /tmp/out
	grep -q 'Index Scan using words_embedding_idx' /tmp/out && words
}

installed() {
	local package
	for package in "postgresql-$version-gpuvec" gpuvecd; do
		[ "$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$package")" = \
			"installed $1" ] || return 1
	done
}

restart() {
	log=/var/log/postgresql/postgresql-$version-main.log
	logged=$(wc -l <"$log")
	pg_ctlcluster "$version" main restart
}

# The package's gpuvecd was found and started since the restart; it ends, since it
# has no kernels.
started() {
	local n
	for ((n = 0; n < 300; n++)); do
		! tail -n "+$((logged + 1))" "$log" |
			grep 'gpuvecd: this gpuvecd was built without CUDA' || return 0
		sleep .1
	done
	return 1
}

# the module of one version with the gpuvecd of another
mixed() {
	apt-get -s install "postgresql-$version-gpuvec=$1" "gpuvecd=$2"
}

apt-get -qq update
version=$(apt-cache depends postgresql |
	sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -1)
echo "# PostgreSQL $version"
apt-get -qqy install "postgresql-$version" procps >/dev/null
files >/tmp/files.before
block 3 | sed -n '3,7s/ //p' >/tmp/words

# -- the version before
ok "version before: install" apt-get -qqy install \
	"postgresql-$version-gpuvec=$before" "gpuvecd=$before"
ok "version before: $before is installed" installed "$before"
conf=/etc/postgresql/$version/main/conf.d/gpuvec.conf
cat >"$conf" <<'SETTINGS'
shared_preload_libraries = 'gpuvec'
gpuvec.server = 'cuda'
SETTINGS
pg_ctlcluster "$version" main start
ok "version before: six statements" six_statements

# -- upgrade
ok "an older gpuvecd beside the new module is refused" \
	eval '! mixed "$now" "$before"'
ok "a newer gpuvecd beside the old module is refused" \
	eval '! mixed "$before" "$now"'
ok "upgrade: by apt-get upgrade" apt-get -qqy upgrade
ok "upgrade: $now is installed" installed "$now"
# the library of before is preloaded; a session has what it needs
ok "upgrade: before a restart sessions search" words
restart
ok "upgrade: before ALTER EXTENSION sessions search" words
ok "upgrade: ALTER EXTENSION" ask -c 'ALTER EXTENSION gpuvec UPDATE'
ok "upgrade: version" eval \
	'[ "$(ask -c "SELECT extversion FROM pg_extension WHERE extname = '\''gpuvec'\''")-1" = "$now" ]'
ok "upgrade: gpuvecd is started" started
ok "upgrade: the same rows" words
ok "upgrade: the index is sound" ask -c \
	"SELECT * FROM gpuvec_verify_index('words_embedding_idx')"
as_postgres dropdb six
ok "fresh: six statements" six_statements

# -- removal
ok "gpuvecd alone is removed: sessions search" eval '
	apt-get -qqy purge gpuvecd && pg_ctlcluster "$version" main restart && words'
ok "removed: the log says how to have it" grep -q 'could not find program' \
	"/var/log/postgresql/postgresql-$version-main.log"
ask -c 'DROP INDEX words_embedding_idx' -c 'DROP EXTENSION gpuvec'
rm "$conf"
pg_ctlcluster "$version" main restart
ok "purge" apt-get -qqy purge "postgresql-$version-gpuvec"
files >/tmp/files.after
ok "purge: no file is left" diff /tmp/files.before /tmp/files.after
ok "purge: dpkg knows nothing" eval '! dpkg-query -W | grep gpuvec'
ok "purge: the table is still there" eval \
	'[ "$(ask -c "SELECT count(*) FROM words")" = 50000 ]'
pg_ctlcluster "$version" main stop
