-- Rows that VACUUM has not seen die.
DELETE FROM ordered WHERE id % 11 = 0;
DELETE FROM hashed WHERE id % 11 = 0;
DELETE FROM wide WHERE id % 10 = 4;
DELETE FROM untrained WHERE id % 13 = 0;
DELETE FROM inplace WHERE id % 9 = 0;
