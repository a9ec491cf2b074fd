-- Rows that VACUUM has not seen die.
DELETE FROM refined WHERE id % 11 = 0;
DELETE FROM product WHERE id % 10 = 4;
DELETE FROM untrained WHERE id % 13 = 0;
DELETE FROM inplace WHERE id % 9 = 0;
