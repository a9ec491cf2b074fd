#!/bin/bash
# Runs in a bare folder of Debian (test/packaging/run.sh): debian/tests, as
# Debian's own machines do it, without a virtual machine.
set -uo pipefail
apt-get -qq update
apt-get -qqy install autopkgtest dpkg-dev >/dev/null
cd /srv/gpuvec || exit
packages=()
for package in ./*.deb; do
	[[ $package == *-dbgsym_* ]] || packages+=("$package")
done
autopkgtest -B gpuvec_*.dsc "${packages[@]}" -- null
status=$?
# 0: all passed; 2: some were skipped
if [ $status = 0 ]; then
	echo "ok: autopkgtest"
else
	echo "not ok: autopkgtest: $status"
fi
