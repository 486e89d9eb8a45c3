/* value.h: values of templates, and the memory they live in.
 *
 * Values are immutable but for namespaces, iterators and loop state: the sandbox forbids what would change lists and
 * dicts. All memory of a rendering is in one arena, which is freed as a whole; a failure anywhere jumps to the entry
 * point (tarn__jinja_fail()), so functions here return values and never errors. */
#ifndef TARN__VALUE_H
#define TARN__VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/jinja/jinja.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct tarn__jinja_chunk tarn__jinja_chunk;

/* Memory that is freed at once. A failed allocation jumps to `escape` with an error raised. */
typedef struct tarn__jinja_arena {
    tarn__jinja_chunk *chunks;
    size_t bytes, max_bytes; /* of all chunks */
    jmp_buf *escape;
    const struct tarn__jinja_run *run; /* for the line of an error; NULL: unknown */
} tarn__jinja_arena;

/* Zeroed memory, aligned for any value. */
void *tarn__jinja_alloc(tarn__jinja_arena *arena, size_t count, size_t size);
void tarn__jinja_arena_free(tarn__jinja_arena *arena);

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef enum tarn__jinja_kind {
    TARN__JINJA_UNDEFINED, /* as.name: what was looked up, for errors; NULL: unknown */
    TARN__JINJA_NONE,
    TARN__JINJA_BOOL,
    TARN__JINJA_INT,
    TARN__JINJA_FLOAT,
    TARN__JINJA_STRING,
    TARN__JINJA_LIST,
    TARN__JINJA_TUPLE,
    TARN__JINJA_KEYS, /* the views of a dict: lists that print and compare in their own way */
    TARN__JINJA_VALUES,
    TARN__JINJA_ITEMS,
    TARN__JINJA_RANGE,
    TARN__JINJA_DICT,
    TARN__JINJA_NAMESPACE, /* as.dict */
    TARN__JINJA_ITERATOR,
    TARN__JINJA_MACRO,
    TARN__JINJA_FUNCTION, /* as.function */
    TARN__JINJA_METHOD,
    TARN__JINJA_LOOP,
    TARN__JINJA_CYCLER,
    TARN__JINJA_JOINER,
    TARN__JINJA_SLICE, /* as.slice: only as a subscript */
} tarn__jinja_kind;

typedef struct tarn__jinja_string {
    const char *text; /* UTF-8, not terminated */
    size_t length;
    const uint8_t *origin; /* [length] as in tarn__jinja_masks; NULL: all 0 */
    bool is_markup;        /* of the filters safe and escape: + escapes what is added */
} tarn__jinja_string;

typedef struct tarn__jinja_value {
    tarn__jinja_kind kind;
    union {
        bool flag;
        int64_t integer;
        double number;
        const tarn__jinja_string *string, *name;
        struct tarn__jinja_list *list;
        struct tarn__jinja_range *range;
        struct tarn__jinja_dict *dict;
        struct tarn__jinja_iterator *iterator;
        struct tarn__jinja_macro *macro;
        const struct tarn__jinja_function *function;
        struct tarn__jinja_method *method;
        struct tarn__jinja_loop *loop;
        struct tarn__jinja_cycler *cycler;
        struct tarn__jinja_slice *slice;
    } as;
} tarn__jinja_value;

typedef struct tarn__jinja_list {
    tarn__jinja_value *items;
    size_t count, capacity;
    bool is_group; /* a pair of groupby, whose items have the names grouper and list too */
} tarn__jinja_list;

typedef struct tarn__jinja_range {
    int64_t begin, step, count, end; /* end: for printing */
} tarn__jinja_range;

/* Parts that are missing are none. */
typedef struct tarn__jinja_slice {
    tarn__jinja_value begin, end, step;
} tarn__jinja_slice;

typedef struct tarn__jinja_pair {
    tarn__jinja_value key, value;
} tarn__jinja_pair;

/* In the order of insertion. */
typedef struct tarn__jinja_dict {
    tarn__jinja_pair *pairs;
    size_t count, capacity;
} tarn__jinja_dict;

/* Arguments of a call. */
typedef struct tarn__jinja_arguments {
    tarn__jinja_list positional;
    tarn__jinja_dict keywords;
} tarn__jinja_arguments;

typedef struct tarn__jinja_run tarn__jinja_run;

/* What Python makes a generator: `make` runs when the first item is asked for, so that its errors come then. */
typedef struct tarn__jinja_iterator {
    tarn__jinja_list *(*make)(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode);
    tarn__jinja_value input;
    const tarn__jinja_arguments *arguments;
    int mode;
    tarn__jinja_list *items; /* NULL: not made yet */
    size_t next;
} tarn__jinja_iterator;

/* A method taken from its object; `self` is bound as in Python, so it can be stored and called later. */
typedef struct tarn__jinja_method {
    tarn__jinja_value self;
    tarn__jinja_value (*call)(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                              int mode);
    int mode;
} tarn__jinja_method;

/* cycler(…) and joiner(sep): the values with a position that calls advance. */
typedef struct tarn__jinja_cycler {
    tarn__jinja_list *items; /* a joiner's: its separator */
    size_t next;
} tarn__jinja_cycler;

/* ---- the state of a rendering ------------------------------------------------------------------------------------ */

#define TARN__JINJA_MAX_STEPS 50000000          /* evaluated nodes, and bytes moved / 64 */
#define TARN__JINJA_MAX_DEPTH 500               /* nested calls and nodes; values printed in values */
#define TARN__JINJA_MAX_BYTES ((size_t)1 << 28) /* memory of a rendering */
#define TARN__JINJA_MAX_OUTPUT ((size_t)1 << 27)

/* A string under construction, in an arena. */
typedef struct tarn__jinja_builder {
    char *text;
    uint8_t *origin; /* NULL while all 0 */
    size_t length, capacity;
} tarn__jinja_builder;

/* What compiling, building a context or rendering carries along. It lives on the stack of the entry point. */
struct tarn__jinja_run {
    const char *function, *name; /* for errors */
    int line;                    /* of the node being parsed or evaluated */
    tarn_code code;              /* of the errors */
    tarn__jinja_arena *arena;
    int64_t steps;
    int depth;
    struct tarn__jinja_scope *scope;
    tarn__jinja_builder *output;
    tarn__jinja_value filter_input; /* of a filter without an expression before it: a filter or set block */
    const tarn__jinja_context *context;
};

/* The variables stay unchanged while templates are rendered with them. */
struct tarn__jinja_context {
    tarn__jinja_arena arena;
    tarn__jinja_dict variables;
    bool has_time;
    struct tm now;
};

/* Raises an error with the template's name and line, and leaves the rendering. */
_Noreturn void tarn__jinja_fail(tarn__jinja_run *r, const char *format, ...) TARN_PRINTF(2, 3);

/* How many bytes of a name an error shows. */
static inline int tarn__jinja_shown(size_t length)
{
    return length < 60 ? (int)length : 60;
}

/* Counts steps; fails beyond the limit. */
void tarn__jinja_step(tarn__jinja_run *r, size_t count);

/* Enter and leave a level of recursion. */
void tarn__jinja_enter(tarn__jinja_run *r);
void tarn__jinja_leave(tarn__jinja_run *r);

/* ---- making values ----------------------------------------------------------------------------------------------- */

#define TARN__JINJA_TEXT(literal) tarn__jinja_text(r, "" literal, sizeof(literal) - 1)

tarn__jinja_value tarn__jinja_none(void);
tarn__jinja_value tarn__jinja_bool(bool flag);
tarn__jinja_value tarn__jinja_int(int64_t integer);
tarn__jinja_value tarn__jinja_float(double number);
tarn__jinja_value tarn__jinja_undefined(tarn__jinja_run *r, const char *name, size_t length);
tarn__jinja_value tarn__jinja_text(tarn__jinja_run *r, const char *text, size_t length); /* copies */
tarn__jinja_value tarn__jinja_slice_of(tarn__jinja_run *r, const tarn__jinja_string *s, size_t begin,
                                       size_t end); /* shares the bytes */
/* The same string, markup if `like` is: methods of markup return markup. */
tarn__jinja_value tarn__jinja_like(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_string *like);
tarn__jinja_value tarn__jinja_list_new(tarn__jinja_run *r, tarn__jinja_kind kind, size_t capacity);
tarn__jinja_value tarn__jinja_pair_new(tarn__jinja_run *r, tarn__jinja_value first,
                                       tarn__jinja_value second); /* a tuple */
tarn__jinja_value tarn__jinja_dict_new(tarn__jinja_run *r);
tarn__jinja_value tarn__jinja_method_new(tarn__jinja_run *r, tarn__jinja_value self,
                                         tarn__jinja_value (*call)(tarn__jinja_run *, tarn__jinja_value,
                                                                   const tarn__jinja_arguments *, int),
                                         int mode);
void tarn__jinja_append(tarn__jinja_run *r, tarn__jinja_list *list, tarn__jinja_value item);
void tarn__jinja_dict_set(tarn__jinja_run *r, tarn__jinja_dict *dict, tarn__jinja_value key, tarn__jinja_value item);

void tarn__jinja_build(tarn__jinja_run *r, tarn__jinja_builder *b, const char *text, size_t length,
                       const uint8_t *origin);
void tarn__jinja_build_string(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *s);
void tarn__jinja_build_text(tarn__jinja_run *r, tarn__jinja_builder *b, const char *text); /* terminated */
void tarn__jinja_build_code(tarn__jinja_run *r, tarn__jinja_builder *b, uint32_t code, uint8_t origin);
tarn__jinja_value tarn__jinja_built(tarn__jinja_run *r, const tarn__jinja_builder *b);

/* ---- using values ------------------------------------------------------------------------------------------------ */

bool tarn__jinja_is_text(tarn__jinja_value v, const char *text);
bool tarn__jinja_is_number(tarn__jinja_value v);   /* int, float or bool */
bool tarn__jinja_is_integer(tarn__jinja_value v);  /* int or bool */
bool tarn__jinja_is_sequence(tarn__jinja_value v); /* a list or tuple */
int64_t tarn__jinja_integer_of(tarn__jinja_value v);
double tarn__jinja_number_of(tarn__jinja_value v);
const char *tarn__jinja_type_name(tarn__jinja_value v); /* Python's */
bool tarn__jinja_truth(tarn__jinja_run *r, tarn__jinja_value v);
bool tarn__jinja_equal(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b);
int tarn__jinja_compare(tarn__jinja_run *r, const char *operation, tarn__jinja_value a,
                        tarn__jinja_value b); /* <0, 0, >0; 2: unordered */
bool tarn__jinja_contains(tarn__jinja_run *r, tarn__jinja_value container, tarn__jinja_value item);
bool tarn__jinja_is_hashable(tarn__jinja_value v);
const tarn__jinja_value *tarn__jinja_dict_find(tarn__jinja_run *r, const tarn__jinja_dict *dict, tarn__jinja_value key);
const tarn__jinja_value *tarn__jinja_dict_find_text(const tarn__jinja_dict *dict, const char *text, size_t length);
int64_t tarn__jinja_length(tarn__jinja_run *r, tarn__jinja_value v); /* fails for what has none */
bool tarn__jinja_is_iterable(tarn__jinja_value v);

/* The byte at which a part occurs at or after `from`; SIZE_MAX: not there (builtins/methods_text.c). */
size_t tarn__jinja_find(tarn__jinja_run *r, const tarn__jinja_string *s, size_t from, const tarn__jinja_string *part);
tarn__jinja_list *tarn__jinja_iterate(tarn__jinja_run *r, tarn__jinja_value v); /* the items; uses an iterator up */
tarn__jinja_value tarn__jinja_range_at(const tarn__jinja_range *range, int64_t index);

/* print.c: str() and repr(). */
void tarn__jinja_print(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v);
void tarn__jinja_repr(tarn__jinja_run *r, tarn__jinja_builder *b, tarn__jinja_value v);
const tarn__jinja_string *tarn__jinja_str(tarn__jinja_run *r, tarn__jinja_value v);

/* characters.c: code points. */
bool tarn__jinja_is_space(uint32_t code);
bool tarn__jinja_is_upper(uint32_t code);
bool tarn__jinja_is_lower(uint32_t code);
bool tarn__jinja_is_alpha(uint32_t code);
bool tarn__jinja_is_printable(uint32_t code);
uint32_t tarn__jinja_to_upper(uint32_t code);
uint32_t tarn__jinja_to_lower(uint32_t code);
size_t tarn__jinja_decode(const char *text, size_t length, uint32_t *code); /* invalid bytes are U+FFFD, one each */
size_t tarn__jinja_count(const tarn__jinja_string *s);                      /* code points */
size_t tarn__jinja_offset(const tarn__jinja_string *s, size_t index);       /* of a code point, in bytes */

#endif
