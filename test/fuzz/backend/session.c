/*
 * session.c
 *		Memory, errors and subtransactions of a session.
 */
#include "backend.h"

#include <setjmp.h>
#include <stdarg.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* No index of these tests needs so much. */
#define MOST_MEMORY		((Size) 64 << 20)

/* A piece of memory, and the context that it is in. */
typedef struct Chunk
{
	struct Chunk *next;
	struct Chunk *previous;
	double		aligned[];
} Piece;

typedef struct Context
{
	MemoryContextData data;
	struct Context *next;		/* that was made before, by this act */
	Piece		pieces;			/* of a ring */
}			Context;

static Context top;
static Context act_context;
static Context *made;
static ErrorData error;
char		backend_error[512];

/* PostgreSQL's */
MemoryContext CurrentMemoryContext = &top.data;
MemoryContext TopMemoryContext = &top.data;
ResourceOwner CurrentResourceOwner;
sigjmp_buf *PG_exception_stack;
ErrorContextCallback *error_context_stack;
volatile sig_atomic_t InterruptPending;
volatile uint32 InterruptHoldoffCount;
int			MyProcPid = 1;
pg_prng_state pg_global_prng_state;

/* ---- memory */

static void
begin_context(Context *context)
{
	context->pieces.next = context->pieces.previous = &context->pieces;
}

static void
empty_context(Context *context)
{
	Piece	   *piece = context->pieces.next;

	while (piece != NULL && piece != &context->pieces)
	{
		Piece	   *next = piece->next;

		free(piece);
		piece = next;
	}
	begin_context(context);
}

void *
MemoryContextAllocExtended(MemoryContext context, Size size, int flags)
{
	Piece	   *ring = &((Context *) context)->pieces;
	Piece	   *piece;

	if (ring->next == NULL)
		begin_context((Context *) context);
	if (size > MOST_MEMORY)
		FAULT("it asks for %zu bytes", size);
	/* what is not set shall not look good */
	piece = malloc(sizeof(Piece) + size);
	memset(piece->aligned, flags & MCXT_ALLOC_ZERO ? 0 : 0x7F, size);
	piece->next = ring->next;
	piece->previous = ring;
	ring->next->previous = piece;
	ring->next = piece;
	return piece->aligned;
}

static Piece *
piece_of(void *pointer)
{
	return (Piece *) ((char *) pointer - offsetof(Piece, aligned));
}

void
pfree(void *pointer)
{
	Piece	   *piece = piece_of(pointer);

	piece->next->previous = piece->previous;
	piece->previous->next = piece->next;
	free(piece);
}

void *
repalloc_huge(void *pointer, Size size)
{
	Piece	   *piece = piece_of(pointer);

	if (size > MOST_MEMORY)
		FAULT("it asks for %zu bytes", size);
	piece = realloc(piece, sizeof(Piece) + size);
	piece->next->previous = piece;
	piece->previous->next = piece;
	return piece->aligned;
}

#define ALLOCATES(context, flags, ...) \
	__VA_ARGS__ { return MemoryContextAllocExtended(context, size, flags); }
ALLOCATES(context, 0, void *MemoryContextAlloc(MemoryContext context, Size size))
ALLOCATES(context, 0,
		  void *MemoryContextAllocHuge(MemoryContext context, Size size))
ALLOCATES(context, MCXT_ALLOC_ZERO,
		  void *MemoryContextAllocZero(MemoryContext context, Size size))
ALLOCATES(CurrentMemoryContext, 0, void *palloc(Size size))
ALLOCATES(CurrentMemoryContext, MCXT_ALLOC_ZERO, void *palloc0(Size size))
ALLOCATES(CurrentMemoryContext, flags, void *palloc_extended(Size size, int flags))

char *
pstrdup(const char *text)
{
	return strcpy(palloc(strlen(text) + 1), text);
}

MemoryContext
AllocSetContextCreateInternal(MemoryContext parent, const char *name,
							  Size least, Size first, Size most)
{
	Context    *context = calloc(1, sizeof(Context));

	begin_context(context);
	context->next = made;
	made = context;
	return &context->data;
}

void
MemoryContextReset(MemoryContext context)
{
	empty_context((Context *) context);
}

/* It is gone with all others of the act. */
void
MemoryContextDelete(MemoryContext context)
{
	empty_context((Context *) context);
}

List *
lappend(List *list, void *datum)
{
	if (list == NIL)
	{
		list = palloc0(sizeof(List));
		list->type = T_List;
	}
	if (list->length == list->max_length)
	{
		ListCell   *cells = palloc((list->length + 1) * 2 * sizeof(ListCell));

		if (list->length > 0)
			memcpy(cells, list->elements, list->length * sizeof(ListCell));
		list->elements = cells;
		list->max_length = (list->length + 1) * 2;
	}
	list->elements[list->length++].ptr_value = datum;
	return list;
}

/* Is nothing there that would stay as long as the session? */
bool
backend_keeps_nothing(void)
{
	return top.pieces.next == NULL || top.pieces.next == &top.pieces;
}

/* ---- errors */

bool
errstart(int elevel, const char *domain)
{
	memset(&error, 0, sizeof(error));
	error.elevel = elevel;
	error.sqlerrcode = ERRCODE_INTERNAL_ERROR;
	error.message = backend_error;
	return elevel >= ERROR;
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

void
pg_re_throw(void)
{
	if (PG_exception_stack == NULL)
		FAULT("nobody catches: %s", backend_error);
	siglongjmp(*PG_exception_stack, 1);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	pg_re_throw();
}

int
errcode(int sqlerrcode)
{
	error.sqlerrcode = sqlerrcode;
	return 0;
}

#define SETS_MESSAGE(name) \
	int name(const char *fmt,...) \
	{ \
		va_list		args; \
\
		va_start(args, fmt); \
		vsnprintf(backend_error, sizeof(backend_error), fmt, args); \
		va_end(args); \
		return 0; \
	}
SETS_MESSAGE(errmsg)
SETS_MESSAGE(errmsg_internal)

/* names of samples need no quotes */
const char *
quote_identifier(const char *ident)
{
	return ident;
}

int
errdetail(const char *fmt,...)
{
	return 0;
}

int
errhint(const char *fmt,...)
{
	return 0;
}

ErrorData *
CopyErrorData(void)
{
	ErrorData  *copy = palloc(sizeof(ErrorData));

	*copy = error;
	copy->message = pstrdup(backend_error);
	return copy;
}

NO_OP(void FlushErrorState(void))

void
FreeErrorData(ErrorData *edata)
{
	pfree(edata->message);
	pfree(edata);
}

void
ReThrowError(ErrorData *edata)
{
	error.sqlerrcode = edata->sqlerrcode;
	snprintf(backend_error, sizeof(backend_error), "%s", edata->message);
	pg_re_throw();
}

/* ---- transactions */

void
BeginInternalSubTransaction(const char *name)
{
	if (!backend_holds_nothing())
		FAULT("a subtransaction begins with a page held");
}

NO_OP(void ReleaseCurrentSubTransaction(void))

void
RollbackAndReleaseCurrentSubTransaction(void)
{
	backend_let_go();
}

/* An error that says what it is: there is damage. */
static bool
is_clean(int sqlerrcode)
{
	return sqlerrcode == ERRCODE_INDEX_CORRUPTED ||
		sqlerrcode == ERRCODE_DATA_CORRUPTED ||
		sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
}

bool
backend_try(const char *name, BackendAct act, void *arg)
{
	sigjmp_buf	here;
	volatile bool done = false;

	begin_context(&act_context);
	CurrentMemoryContext = &act_context.data;
	backend_reads = 0;
	if (sigsetjmp(here, 0) == 0)
	{
		PG_exception_stack = &here;
		act(arg);
		if (!backend_holds_nothing())
			FAULT("%s leaves a page locked or pinned", name);
		done = true;
	}
	else if (!is_clean(error.sqlerrcode))
		FAULT("%s: %s", name, backend_error);
	PG_exception_stack = NULL;
	CurrentMemoryContext = &top.data;
	backend_let_go();
	empty_context(&act_context);
	while (made != NULL)
	{
		Context    *next = made->next;

		empty_context(made);
		free(made);
		made = next;
	}
	return done;
}

/* ---- the rest */

NO_OP(void ProcessInterrupts(void))
NO_OP(void vacuum_delay_point(void))
UNREACHED(Datum DirectFunctionCall2Coll(PGFunction func, Oid collation,
										Datum arg1, Datum arg2))
UNREACHED(Datum pg_advisory_lock_int4(PG_FUNCTION_ARGS))
UNREACHED(Datum pg_advisory_unlock_int4(PG_FUNCTION_ARGS))

uint64
pg_prng_uint64(pg_prng_state *state)
{
	return UINT64CONST(0x2545F4914F6CDD1D);
}

void
pg_qsort(void *base, size_t n, size_t size,
		 int (*compare) (const void *, const void *))
{
	if (n > 0)
		qsort(base, n, size, compare);
}

int
pg_snprintf(char *text, size_t size, const char *fmt,...)
{
	va_list		args;
	int			n;

	va_start(args, fmt);
	n = vsnprintf(text, size, fmt, args);
	va_end(args);
	return n;
}

char *
psprintf(const char *fmt,...)
{
	char		text[1024];
	va_list		args;
	int			n;

	va_start(args, fmt);
	n = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	return memcpy(palloc(n + 1), text, n + 1);
}

int
pg_vsnprintf(char *text, size_t size, const char *fmt, va_list args)
{
	return vsnprintf(text, size, fmt, args);
}

size_t
strlcpy(char *to, const char *from, size_t size)
{
	return snprintf(to, size, "%s", from);
}

static int
count_bits(uint32 word)
{
	return __builtin_popcount(word);
}

int			(*pg_popcount32) (uint32 word) = count_bits;

void
ExceptionalCondition(const char *condition, const char *type,
					 const char *file, int line)
{
	FAULT("assertion %s, %s:%d", condition, file, line);
}
