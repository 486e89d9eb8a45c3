/* grammar.h: the internals of grammars.
 *
 * Front ends (GBNF, regular expressions, JSON Schema) build expressions and rules in a tarn__gb. compile() turns them
 * into a recursive transition network (tarn__rtn): one automaton over bytes per rule, with edges that call other rules.
 * A position in a text is a set of configurations, each a state and a stack of return states. Sets and stacks are
 * interned, and transitions between sets are computed when first taken: what is regular becomes a lazy DFA.
 *
 * Errors are sticky: builders return expression 0 after a failure, and only the end of a front end asks. */
#ifndef TARN__GRAMMAR_H
#define TARN__GRAMMAR_H

#include <pthread.h>
#include <tarn/grammar.h>

#include "base/buffer.h"

/* Limits. What exceeds the first group is an error of the compiler; what exceeds the second is not accepted, or, in a
 * mask, an error. */
#define TARN__G_MAX_TEXT ((size_t)4 << 20) /* bytes of a grammar's text */
#define TARN__G_MAX_NESTING 200            /* groups inside groups, JSON values inside values */
#define TARN__G_MAX_REPEAT 100000          /* bounds of a repetition */
#define TARN__G_MAX_NODES ((size_t)1 << 20)
#define TARN__G_MAX_STATES ((size_t)1 << 20)
#define TARN__G_MAX_EDGES ((size_t)1 << 22)
#define TARN__G_MAX_DEPTH 4096     /* return states on a stack */
#define TARN__G_MAX_CONFIGS 4096   /* configurations of a set: ways to read the text so far */
#define TARN__G_MAX_WORK 400000000 /* configurations visited for one mask */
#define TARN__G_SETS_BYTES \
    ((size_t)64 << 20) /* of interned sets, before those in use are copied and the rest dropped */
#define TARN__G_MASKS_BYTES ((size_t)64 << 20) /* of masks, before all are dropped */

/* ---- expressions (expr.c) ---------------------------------------------------------------------------------------- */

typedef struct tarn__range {
    uint32_t low, high; /* code points, inclusive */
} tarn__range;

#define TARN__MAX_CODE 0x10FFFF

typedef enum tarn__expr_kind {
    TARN__E_EMPTY,  /* the empty string */
    TARN__E_CLASS,  /* one code point of `ranges` */
    TARN__E_STRING, /* `bytes` */
    TARN__E_SEQ,    /* `children` one after another */
    TARN__E_ALT,    /* one of `children`; without any: nothing matches */
    TARN__E_REPEAT, /* child `first`, min to max times; max -1: without end */
    TARN__E_CALL,   /* rule `first` */
    TARN__E_DFA,    /* automaton `first` of `dfas` */
    TARN__E_BEGIN,  /* anchors of regular expressions; regex.c removes them */
    TARN__E_END
} tarn__expr_kind;

typedef struct tarn__expr {
    uint8_t kind;
    uint32_t first, count; /* in the array of its kind */
    int32_t min, max;
} tarn__expr;

typedef struct tarn__grammar_rule {
    size_t name, name_length; /* in `bytes`; length 0: of the compiler's own */
    uint32_t expr;
    uint32_t line; /* of its first use or definition; 0: none */
    bool is_defined;
} tarn__grammar_rule;

/* A deterministic automaton over bytes; state 0 is the start. */
typedef struct tarn__dfa {
    uint32_t count;
    uint32_t *next; /* [count * 256]: the next state + 1; 0: none */
    uint8_t *final; /* [count] */
} tarn__dfa;

/* A grammar under construction. All zero is empty; see tarn__gb_open(). */
typedef struct tarn__gb {
    tarn__buffer exprs, children, ranges, bytes, rules, dfas; /* tarn__expr, uint32_t, tarn__range, char, … */
    uint32_t root;                                            /* rule */
} tarn__gb;

bool tarn__gb_open(tarn__gb *gb); /* with expression 0, the empty string; false with an error */
void tarn__gb_close(tarn__gb *gb);

/* Expressions. Each returns its index; 0 after an error. */
uint32_t tarn__gb_string(tarn__gb *gb, const char *bytes, size_t length);
uint32_t tarn__gb_text(tarn__gb *gb, const char *text); /* terminated by 0 */
/* Ranges in any order, which may overlap; surrogates are dropped. `negated`: all other code points. */
uint32_t tarn__gb_class(tarn__gb *gb, const tarn__range *ranges, size_t count, bool negated);
uint32_t tarn__gb_seq(tarn__gb *gb, const uint32_t *children, size_t count);
uint32_t tarn__gb_alt(tarn__gb *gb, const uint32_t *children, size_t count);
uint32_t tarn__gb_repeat(tarn__gb *gb, uint32_t child, int32_t min, int32_t max);
uint32_t tarn__gb_call(tarn__gb *gb, uint32_t rule);
uint32_t tarn__gb_dfa(tarn__gb *gb, tarn__dfa *dfa); /* takes over its memory */
uint32_t tarn__gb_anchor(tarn__gb *gb, tarn__expr_kind kind);

/* Expressions of up to eight parts: tarn__gb_seq_of(gb, a, b, c). */
#define tarn__gb_seq_of(gb, ...) \
    tarn__gb_seq(gb, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define tarn__gb_alt_of(gb, ...) \
    tarn__gb_alt(gb, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* A new rule; `name` may be NULL. set: its expression. */
uint32_t tarn__gb_rule(tarn__gb *gb, const char *name, size_t length);
void tarn__gb_rule_set(tarn__gb *gb, uint32_t rule, uint32_t expr);

static inline tarn__expr *tarn__gb_expr(const tarn__gb *gb, uint32_t index)
{
    return (tarn__expr *)(void *)gb->exprs.data + index;
}
static inline const uint32_t *tarn__gb_children(const tarn__gb *gb, const tarn__expr *e)
{
    return (const uint32_t *)(const void *)gb->children.data + e->first;
}
static inline const tarn__range *tarn__gb_ranges(const tarn__gb *gb, const tarn__expr *e)
{
    return (const tarn__range *)(const void *)gb->ranges.data + e->first;
}
static inline tarn__grammar_rule *tarn__gb_rule_at(const tarn__gb *gb, uint32_t rule)
{
    return (tarn__grammar_rule *)(void *)gb->rules.data + rule;
}

/* Byte ranges of the UTF-8 forms of a range of code points, one call per sequence of 1 to 4 byte ranges. */
typedef bool (*tarn__utf8_range_fn)(const uint8_t *low, const uint8_t *high, int count, void *ctx);
bool tarn__utf8_ranges(tarn__range range, tarn__utf8_range_fn see, void *ctx);

/* ---- front ends -------------------------------------------------------------------------------------------------- */

/* Parse a text into rules; gb->root is set. False with an error that begins with `function`. */
bool tarn__gbnf_parse(tarn__gb *gb, const char *function, const char *text, size_t length);

/* The expression of a regular expression. `searches`: a match anywhere in the text is enough, as in JSON Schema. The
 * error begins with `where`. `flavor`: NULL for text; else the caller's encoding of one character class, for patterns
 * of JSON strings. */
typedef uint32_t (*tarn__class_fn)(tarn__gb *gb, const tarn__range *ranges, size_t count, bool negated);
uint32_t tarn__regex_parse(tarn__gb *gb, const char *where, const char *pattern, size_t length, bool searches,
                           tarn__class_fn encode);

/* ---- automata (rtn.c, sets.c) ------------------------------------------------------------------------------------ */

typedef struct tarn__rtn_edge {
    uint32_t target;
    uint32_t rule; /* calls: rule + 1; 0: bytes */
    uint8_t low, high;
} tarn__rtn_edge;

typedef struct tarn__rtn_state {
    uint32_t first, bytes, calls; /* edges: first those of bytes, then calls */
    bool is_final;
} tarn__rtn_state;

/* A recursive transition network. Immutable. */
typedef struct tarn__rtn {
    tarn__rtn_state *states;
    tarn__rtn_edge *edges;
    uint32_t *starts; /* of each rule */
    size_t state_count, edge_count, rule_count;
    uint32_t root;            /* rule */
    uint8_t classes[256];     /* the class of each byte: bytes of a class are on the same edges everywhere */
    uint8_t class_bytes[256]; /* a byte of each class */
    int class_count;
} tarn__rtn;

/* Compiles the rules of a builder. Raises left recursion, missing rules and a root that matches no finite text. */
bool tarn__rtn_build(tarn__rtn *rtn, const tarn__gb *gb, const char *function);
bool tarn__rtn_check(tarn__rtn *rtn, const tarn__gb *gb, const char *function); /* part of it: rtn_check.c */
void tarn__rtn_free(tarn__rtn *rtn);

typedef struct tarn__stack {
    uint32_t target; /* return state */
    uint32_t below;
    uint32_t height; /* 0: the empty stack */
} tarn__stack;

typedef struct tarn__config {
    uint32_t state, stack;
} tarn__config;

#define TARN__SET_DEAD 0  /* nothing matches */
#define TARN__SET_ENDED 1 /* an EOS token was accepted */
#define TARN__SET_NONE UINT32_MAX

typedef struct tarn__set {
    uint32_t first, count; /* in `configs`: those with an edge of bytes, sorted */
    uint32_t max_height;
    uint32_t mask; /* index + 1; 0: not known */
    bool accepts;
} tarn__set;

/* Interned stacks and sets, and the transitions known so far. Stack 0 is empty. */
typedef struct tarn__sets {
    const tarn__rtn *rtn;
    tarn__buffer stacks, configs, sets;
    tarn__buffer next, heights; /* [set * classes]: next set, and lowest stack height that the transition looked at */
    uint32_t *stack_slots, *set_slots;
    size_t stack_slot_count, set_slot_count;
    tarn__buffer work, found; /* scratch: tarn__config */
    uint64_t *seen;           /* scratch: configurations of a closure, open addressing */
    uint32_t *seen_stamp;
    uint32_t stamp;
    uint32_t lowest; /* stack height looked at */
    uint32_t start;  /* the set before the first byte */
} tarn__sets;

bool tarn__sets_open(tarn__sets *sets, const tarn__rtn *rtn); /* false with an error */
void tarn__sets_close(tarn__sets *sets);
size_t tarn__sets_bytes(const tarn__sets *sets);

/* The set after a byte, by its class; lowers *height to the lowest stack height looked at. TARN__SET_NONE with an
 * error. */
uint32_t tarn__sets_compute(tarn__sets *sets, uint32_t set, int class);
static inline uint32_t tarn__sets_step(tarn__sets *sets, uint32_t set, int class, uint32_t *height)
{
    size_t at = (size_t)set * (size_t)sets->rtn->class_count + (size_t) class;
    uint32_t next = ((const uint32_t *)(const void *)sets->next.data)[at];
    if (next == TARN__SET_NONE && (next = tarn__sets_compute(sets, set, class)) == TARN__SET_NONE)
        return next;
    uint16_t low = ((const uint16_t *)(const void *)sets->heights.data)[at];
    if (low < *height)
        *height = low;
    return next;
}

static inline tarn__set *tarn__sets_at(const tarn__sets *sets, uint32_t set)
{
    return (tarn__set *)(void *)sets->sets.data + set;
}

/* A set of other tables, interned here. TARN__SET_NONE with an error. */
uint32_t tarn__sets_copy(tarn__sets *sets, const tarn__sets *from, uint32_t set);

/* ---- masks (trie.c, mask.c) -------------------------------------------------------------------------------------- */

/* Nodes in depth-first order: the children of a node follow it. */
typedef struct tarn__token_node {
    uint32_t end;   /* the node after the subtree */
    int32_t token;  /* with these bytes; -1: none */
    uint16_t depth; /* bytes */
    uint8_t byte;
    bool is_twin; /* more tokens have these bytes: see `twins` */
} tarn__token_node;

typedef struct tarn__token_twin {
    uint32_t node;
    int32_t token;
} tarn__token_twin;

struct tarn_grammar_vocab {
    int64_t size; /* bits of a mask */
    int64_t words;
    tarn__buffer nodes, twins; /* tarn__token_node, tarn__token_twin */
    tarn__buffer bytes;        /* of all tokens */
    uint32_t *offsets;         /* [size + 1]: where the bytes of each token begin */
    tarn__buffer eos;          /* int32_t */
    uint32_t max_depth;
    _Atomic int references;
};

typedef struct tarn__mask {
    size_t key, key_count; /* in `keys` */
    uint32_t depth;        /* stack levels of the key */
    uint32_t next;         /* with the same hash: index + 1 */
} tarn__mask;

#define TARN__MASK_BUCKETS 4096

/* Masks of sets, by the part of their stacks that the tokens can reach. */
typedef struct tarn__masks {
    tarn__buffer masks, keys, words; /* tarn__mask, uint32_t, uint32_t */
    uint32_t buckets[TARN__MASK_BUCKETS];
    uint32_t max_depth;
    tarn__buffer path;        /* scratch: uint32_t, sets along a token */
    tarn__buffer key, pieces; /* scratch */
} tarn__masks;

struct tarn_grammar {
    pthread_mutex_t lock; /* guards all but `rtn`, `vocab` and `references` */
    tarn__rtn rtn;
    tarn__sets sets;
    tarn_grammar_vocab *vocab; /* a reference; NULL: none */
    tarn__masks masks;
    tarn_matcher *matchers; /* a list */
    size_t sets_limit;      /* bytes of `sets` before the next collection */
    _Atomic int references;
};

struct tarn_matcher {
    tarn_grammar *grammar; /* a reference */
    tarn_matcher *next, *previous;
    tarn__buffer history; /* uint32_t: sets, the current one last */
};

/* Adds a reference, for tarn_grammar_free(); never waits for the lock. */
void tarn__grammar_retain(tarn_grammar *grammar);

/* True for a token that ends a text, by the grammar's vocabulary. */
bool tarn__grammar_is_eos(const tarn_grammar *grammar, int32_t token);

/* The mask of a set, borrowed until the next call; NULL with an error. EOS tokens are not in it. */
const uint32_t *tarn__mask_of(tarn_grammar *grammar, uint32_t set);
void tarn__masks_free(tarn__masks *masks);

/* A grammar of the rules of a builder, which is closed in any case. NULL with an error. */
tarn_grammar *tarn__grammar_compile(const char *function, tarn_grammar_vocab *vocab, tarn__gb *gb);

#endif
