/* sql/gpuvec_pgvector--0.2.0--1.0.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec_pgvector UPDATE TO '1.0.0'" to load this file. \quit

--
-- Nothing changes: from here on both extensions have gpuvec's version.
--
