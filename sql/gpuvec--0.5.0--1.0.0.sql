/* sql/gpuvec--0.5.0--1.0.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '1.0.0'" to load this file. \quit
