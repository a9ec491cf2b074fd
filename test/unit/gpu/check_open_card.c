/*
 * check_open_card.c
 *		Devices that cannot be used, on emulated threads alone: the others are,
 *		and whoever opens them is told whether to try again.
 */
#include <unistd.h>

#include "card.h"
#include "../engine/mirrors.h"

#define NDEVICES		4			/* GV_EMULATED_DEVICES */

/* Faults of two devices, and the result of opening them. */
typedef struct Case
{
	const char *faults;			/* see emulate/cuda_runtime.h */
	const char *devices;
	GvStatus	status;
	int32_t		n;				/* devices that can be used */
	int32_t		first;			/* the number of the first */
	const char *left_out;		/* is in the first reason; NULL: none */
} Case;

static const Case cases[] = {
	{"", "", GV_OK, NDEVICES, 0, NULL},
	{"", "1,0", GV_OK, 2, 1, NULL},
	{"lost 0 214\n", "", GV_OK, NDEVICES - 1, 1, "card 0: "},
	{"lost 1 46\n", "", GV_OK, NDEVICES - 1, 0, "card 1: "},
	{"lost 1 46\n", "1,0", GV_OK, 1, 0, "card 1: "},
	{"lost 0 46\n", "0,1", GV_OK, 1, 1, "card 0: "},
	{"", "7,1", GV_OK, 1, 1, "there is no card 7"},
	{"lost 0 214\nlost 1 46\n", "", GV_OK, NDEVICES - 2, 2, "card 0: "},
	{"lost 0 214\nlost 1 46\n", "0,1", GV_FAILED, 0, 0, "card 0: "},
	{"lost 1 214\n", "1", GV_FAILED, 0, 0, "card 1: "},
	{"lost 1 2\n", "1", GV_NO_MEMORY, 0, 0, "card 1: "},
	{"lost 1 46\n", "7,1", GV_FAILED, 0, 0, "there is no card 7"},
	{"lost 1 209\n", "1", GV_INVALID, 0, 0, "card 1: "},
	{"", "7", GV_INVALID, 0, 0, "there is no card 7"},
	{"lost 1 46\n", "0,", GV_INVALID, 0, 0, "malformed"}
};

static void
check_case(const Case *one, const char *path)
{
	GvDevice	found[GV_MAX_DEVICES];
	FILE	   *file = fopen(path, "w");
	int32_t		n = 0;
	GvStatus	status;

	fputs(one->faults, file);
	fclose(file);
	memset(found, 0, sizeof(found));
	status = UNIT_MIRRORS.open(one->devices, found, &n);
	CHECK(status == one->status && n == one->n, "%s, \"%s\": %d, %d cards",
		  one->faults, one->devices, status, n);
	CHECK(n == 0 || found[0].number == one->first, "%s, \"%s\": card %d",
		  one->faults, one->devices, found[0].number);
	CHECK(one->left_out == NULL ? found[n].name[0] == '\0' :
		  strstr(found[n].name, one->left_out) != NULL,
		  "%s, \"%s\": \"%s\"", one->faults, one->devices, found[n].name);
}

/*
 * Where cuBLAS is missing, devices that need it, as older ones do, say so and
 * work; unless it was asked for.  A process of its own, since a library that
 * was found is.
 */
static void
test_missing(void)
{
	GvDevice	found[GV_MAX_DEVICES];
	int32_t		n = 0;
	GvStatus	status;

	memset(found, 0, sizeof(found));
	status = UNIT_MIRRORS.open("", found, &n);
	CHECK(status == GV_OK && n == NDEVICES &&
		  (strstr(found[1].name, "install libcublas") != NULL) ==
		  (gv_emulated_capability != 90), "%d: %s", status, found[1].name);
	gv_matmul_use(GV_MATMUL_OWN);
	CHECK(UNIT_MIRRORS.open("", found, &n) == GV_OK &&
		  strstr(found[0].name, "cuBLAS") == NULL, "%s", found[0].name);
	gv_matmul_use(GV_MATMUL_CUBLAS);
	CHECK(UNIT_MIRRORS.open("", found, &n) == GV_INVALID &&
		  strstr(found[0].name, "install libcublas") != NULL, "%s",
		  found[0].name);
	gv_matmul_use(GV_MATMUL_AUTO);
}

/* Before any engine is opened: the emulation reads the file's name once. */
void
test_open_card(void)
{
	char		path[] = "/tmp/gvfaultsXXXXXX";
	int			fd;
	size_t		i;

	if (!device_is_emulated())
		return;
	if (getenv("GPUVEC_EMULATED_NO_CUBLAS") != NULL)
	{
		test_missing();
		return;
	}
	fd = mkstemp(path);
	close(fd);
	setenv("GPUVEC_EMULATED_FAULTS", path, 1);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_case(&cases[i], path);
	unlink(path);
}
