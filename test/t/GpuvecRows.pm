# The rows of tests and of the soak, which are the same everywhere.

package GpuvecRows;

use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw($POINT);

# The vector of row `g`: in one of 20 clusters.  (In SQL it takes six times as
# long, and tests ask for millions of numbers.)
our $POINT = q{
CREATE FUNCTION point(g int, dims int) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
	result real[];
	n float8;
BEGIN
	FOR i IN 1..dims LOOP
		n = abs(sin(g * 12.9898::float8 + i * 78.233::float8)) * 43758.5453;
		result[i] = 10 * sin(g % 20 * 131 + i * 17) + n - floor(n);
	END LOOP;
	RETURN result;
END
$$;
};

1;
