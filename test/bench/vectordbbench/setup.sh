#!/bin/bash
# VectorDBBench, of this version, in a Python environment of its own.
#
# usage: test/bench/vectordbbench/setup.sh
#
# Makes build/vectordbbench, once, from PyPI: VectorDBBench without what it needs
# for other databases and for its web page.  Python 3.11 or newer.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../../lib.sh"

VERSION=2.0.0
VENV=${GPUVEC_BUILD:-$GV_ROOT/build}/vectordbbench

[ ! -e "$VENV/have-$VERSION" ] || exit 0
gv_note "installing VectorDBBench $VERSION from PyPI into $VENV"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
	gv_die "vectordbbench: it needs Python 3.11"
python3 -m venv "$VENV"
pip() {
	"$VENV/bin/pip" install --quiet --disable-pip-version-check "$@"
}
pip --no-deps "vectordb-bench==$VERSION" ir_datasets cloudpickle
pip 'environs<16' h5py hdrhistogram numpy pandas pgvector polars psutil \
	'psycopg[binary]' pyarrow 'pydantic>=2,<3' pytz tqdm ujson
touch "$VENV/have-$VERSION"
