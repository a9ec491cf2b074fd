/*
 * gv_select_table.h
 *		Which way of selection is quickest, by (rows, columns, k).
 *
 * Written by test/bench/selectcard.py --table: of the ways that can, the
 * quickest of random rows.  A line has its most columns, a letter its most k;
 * larger numbers than the last count as the last.
 *
 * t: team, h: threshold, w: warp, s: sample, r: radix
 *
 * Card: NVIDIA H200.  Date: 2026-11-22.
 */
#ifndef GV_SELECT_TABLE_H
#define GV_SELECT_TABLE_H

#define GV_TABLE_ROWS		4
#define GV_TABLE_COLUMNS	8
#define GV_TABLE_KS			7

static const long long gv_table_rows[GV_TABLE_ROWS] = {
1, 16, 256, 4096};

static const long long gv_table_columns[GV_TABLE_COLUMNS] = {
256, 1024, 4096, 16384, 65536, 1048576, 16777216, 134217728};

static const long long gv_table_ks[GV_TABLE_KS] = {
16, 128, 512, 2048, 4096, 8192, 65536};

static const char *const gv_table_ways[GV_TABLE_ROWS][GV_TABLE_COLUMNS] = {
	{
		"ttttttt",
		"ttttttt",
		"ttttsss",
		"tthtrrr",
		"hhhhrrs",
		"hhhhhrr",
		"hhhhhrr",
		"hhhhrrr",
	},
	{
		"ttttttt",
		"ttttttt",
		"ttttsss",
		"ttttrrr",
		"hhhhrrs",
		"hhhhhrr",
		"hhhhhrr",
		"hhhhrrr",
	},
	{
		"ttttttt",
		"ttttttt",
		"ttttsss",
		"tthtrrr",
		"hhhhrrr",
		"hhhhhrr",
		"hhhhhrr",
		"hhhhrrr",
	},
	{
		"ttttttt",
		"ttttttt",
		"ttttstt",
		"tthhrrh",
		"hhhhrrs",
		"hhhhhrr",
		"hhhhhrr",
		"hhhhrrr",
	},
};

#endif							/* GV_SELECT_TABLE_H */
