/* eval.h: running a program: scopes, calls, and the tables of filters, tests, methods and functions. */
#ifndef TARN__EVAL_H
#define TARN__EVAL_H

#include "text/jinja/program.h"

/* One name with its value. Scopes are short, so lookups compare names one by one. */
typedef struct tarn__jinja_variable {
    const tarn__jinja_string *name;
    tarn__jinja_value value;
} tarn__jinja_variable;

/* The variables of a block; those of its parent are visible, and assignments stay here. */
typedef struct tarn__jinja_scope {
    struct tarn__jinja_scope *parent;
    tarn__jinja_variable *variables;
    size_t count, capacity;
} tarn__jinja_scope;

/* A macro or the block of {% call %}. It sees the variables of the scope where it was defined, as they are when it is
 * called. */
typedef struct tarn__jinja_macro {
    const tarn__jinja_node *node;
    tarn__jinja_scope *scope;       /* where it was defined */
    const tarn__jinja_string *name; /* NULL: a caller */
} tarn__jinja_macro;

/* What a body sees as `loop`. It lives on in the arena after the loop, since a body may store it. */
typedef struct tarn__jinja_loop {
    const tarn__jinja_node *node;
    tarn__jinja_scope *scope; /* around the loop: for its recursion */
    tarn__jinja_list *items;
    size_t index;
    int depth;
    tarn__jinja_list *changed; /* the last arguments of changed(); NULL: none yet */
} tarn__jinja_loop;

/* Rows of the tables. `mode` lets similar ones share a function. */
typedef struct tarn__jinja_function {
    const char *name;
    tarn__jinja_value (*call)(tarn__jinja_run *r, const tarn__jinja_arguments *arguments);
} tarn__jinja_function;

typedef struct tarn__jinja_filter {
    const char *name;
    tarn__jinja_value (*call)(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode);
    int mode;
} tarn__jinja_filter;

typedef struct tarn__jinja_test {
    const char *name;
    bool (*call)(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments, int mode);
    int mode;
} tarn__jinja_test;

/* eval.c. Attributes are a.b, subscripts a[b]: the first looks for a method before a key, the second the other way
 * round. */
tarn__jinja_value tarn__jinja_eval(tarn__jinja_run *r, const tarn__jinja_node *node);
tarn__jinja_value tarn__jinja_call(tarn__jinja_run *r, tarn__jinja_value callee, tarn__jinja_arguments *arguments);
tarn__jinja_value tarn__jinja_attribute(tarn__jinja_run *r, tarn__jinja_value object, const tarn__jinja_string *name);
tarn__jinja_value tarn__jinja_subscript(tarn__jinja_run *r, tarn__jinja_value object, tarn__jinja_value key);

/* statements.c. Flow: how a statement ended; break and continue pass through the blocks around them up to the loop. */
typedef enum tarn__jinja_flow { TARN__JINJA_NEXT, TARN__JINJA_BREAKS, TARN__JINJA_CONTINUES } tarn__jinja_flow;
tarn__jinja_flow tarn__jinja_execute(tarn__jinja_run *r, const tarn__jinja_nodes *nodes);
void tarn__jinja_assign(tarn__jinja_run *r, const tarn__jinja_node *target, tarn__jinja_value v);
tarn__jinja_scope *tarn__jinja_push(tarn__jinja_run *r, const tarn__jinja_names *unset); /* NULL: none */
void tarn__jinja_set(tarn__jinja_run *r, tarn__jinja_scope *scope, const tarn__jinja_string *name, tarn__jinja_value v);
tarn__jinja_value tarn__jinja_call_macro(tarn__jinja_run *r, const tarn__jinja_macro *macro,
                                         const tarn__jinja_arguments *arguments);
tarn__jinja_value tarn__jinja_call_loop(tarn__jinja_run *r, const tarn__jinja_loop *loop,
                                        const tarn__jinja_arguments *arguments);

/* operators.c. A relation's operators are those of comparisons, in and not in. */
tarn__jinja_value tarn__jinja_unary(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value v);
tarn__jinja_value tarn__jinja_binary(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value a,
                                     tarn__jinja_value b);
bool tarn__jinja_relation(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value a,
                          tarn__jinja_value b);
tarn__jinja_value tarn__jinja_format_percent(tarn__jinja_run *r, const tarn__jinja_string *format,
                                             tarn__jinja_value arguments);
tarn__jinja_value tarn__jinja_format_braces(tarn__jinja_run *r, const tarn__jinja_string *format,
                                            const tarn__jinja_arguments *arguments);
tarn__jinja_value tarn__jinja_concat(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b);
tarn__jinja_value tarn__jinja_escape(tarn__jinja_run *r, tarn__jinja_value v);

/* functions.c: binding. `names` separated by spaces, a / before them: not as keywords; fails for too many, unknown or
 * missing ones. */
void tarn__jinja_bind(tarn__jinja_run *r, const char *function, const tarn__jinja_arguments *arguments,
                      const char *names, int required, tarn__jinja_value *values);
int64_t tarn__jinja_index(tarn__jinja_run *r, const char *function, tarn__jinja_value v); /* an int */
const tarn__jinja_string *tarn__jinja_want_string(tarn__jinja_run *r, const char *function, tarn__jinja_value v);

/* The tables; NULL: not there. A method is looked up by the kind of its object and returned bound to it. */
const tarn__jinja_filter *tarn__jinja_find_filter(const char *name, size_t length);
const tarn__jinja_test *tarn__jinja_find_test(const char *name, size_t length);
const tarn__jinja_function *tarn__jinja_find_function(const char *name, size_t length);
tarn__jinja_value tarn__jinja_find_method(tarn__jinja_run *r, tarn__jinja_value self,
                                          const tarn__jinja_string *name); /* undefined: none */
tarn__jinja_value tarn__jinja_loop_attribute(tarn__jinja_run *r, tarn__jinja_loop *loop,
                                             const tarn__jinja_string *name);
extern const tarn__jinja_filter tarn__jinja_text_filters[], tarn__jinja_list_filters[],
    tarn__jinja_select_filters[]; /* end with NULL */

/* What filters and methods share. Filters and tests are applied by name, as map and select need it; an unknown name
 * fails here. Case changes take one of the modes below. */
tarn__jinja_value tarn__jinja_apply_filter(tarn__jinja_run *r, const tarn__jinja_string *name, tarn__jinja_value input,
                                           const tarn__jinja_arguments *arguments);
bool tarn__jinja_apply_test(tarn__jinja_run *r, const tarn__jinja_string *name, tarn__jinja_value input,
                            const tarn__jinja_arguments *arguments);
tarn__jinja_value tarn__jinja_path(tarn__jinja_run *r, tarn__jinja_value item,
                                   tarn__jinja_value attribute); /* "a.b.0" or an int */
tarn__jinja_value tarn__jinja_strip(tarn__jinja_run *r, const tarn__jinja_string *s, tarn__jinja_value characters,
                                    int sides); /* 1 left, 2 right */
tarn__jinja_value tarn__jinja_replace(tarn__jinja_run *r, const tarn__jinja_string *s, const tarn__jinja_string *old,
                                      const tarn__jinja_string *new, int64_t count);
tarn__jinja_value tarn__jinja_change_case(tarn__jinja_run *r, const tarn__jinja_string *s, int mode);
tarn__jinja_value tarn__jinja_iterator_new(tarn__jinja_run *r, tarn__jinja_iterator iterator);
tarn__jinja_value tarn__jinja_sorted(tarn__jinja_run *r, const tarn__jinja_list *list, const tarn__jinja_list *keys,
                                     bool reverse);
void tarn__jinja_json(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments,
                      tarn__jinja_builder *b);

enum { TARN__JINJA_UPPER, TARN__JINJA_LOWER, TARN__JINJA_CAPITALIZE, TARN__JINJA_TITLE, TARN__JINJA_SWAPCASE };

#endif
