-- What is done to the indexes alone.
SELECT gpuvec_train('inplace_e');
