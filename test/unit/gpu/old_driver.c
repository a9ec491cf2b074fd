/*
 * old_driver.c
 *		A libcuda.so.1 that is older than any CUDA runtime wants, and nothing
 *		else: gpuvecd is to say so.
 */
extern int	cuInit(unsigned flags);
extern int	cuDriverGetVersion(int *version);

int
cuInit(unsigned flags)
{
	(void) flags;
	return 0;
}

int
cuDriverGetVersion(int *version)
{
	*version = 11040;
	return 0;
}
