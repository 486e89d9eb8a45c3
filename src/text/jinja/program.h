/* program.h: templates as trees of nodes, and the tokens they are made from. A program is written while it is compiled
 * and never afterwards, which is why threads can share it. Nodes, names and literals live in its arena; renderings
 * refer to them and outlive none.
 *
 *     {% if x %}{{ x | upper }}{% endif %}
 *
 *     IF  left: NAME x
 *         items: OUTPUT  left: FILTER upper  left: NAME x
 *         others: none */
#ifndef TARN__PROGRAM_H
#define TARN__PROGRAM_H

#include "text/jinja/value.h"

/* What a node is, and which of its members it uses. */
typedef enum tarn__jinja_node_kind {
    /* expressions: what they use of the node */
    TARN__JINJA_LITERAL,   /* value */
    TARN__JINJA_NAME,      /* value: the name */
    TARN__JINJA_MAKE_LIST, /* items */
    TARN__JINJA_MAKE_TUPLE,
    TARN__JINJA_MAKE_DICT, /* items: keys and values in turn */
    TARN__JINJA_UNARY,     /* operator, left */
    TARN__JINJA_BINARY,    /* operator, left, right */
    TARN__JINJA_AND,
    TARN__JINJA_OR,
    TARN__JINJA_NOT,
    TARN__JINJA_COMPARE,    /* left, items: operands */
    TARN__JINJA_OPERAND,    /* operator, left */
    TARN__JINJA_CONCAT,     /* items */
    TARN__JINJA_CHOICE,     /* left: condition, right: if true, third: else, or NULL */
    TARN__JINJA_ATTRIBUTE,  /* left, value */
    TARN__JINJA_SUBSCRIPT,  /* left, right */
    TARN__JINJA_MAKE_SLICE, /* left, right, third: each may be NULL */
    TARN__JINJA_CALL,       /* left, items: arguments */
    TARN__JINJA_FILTER,     /* left, or NULL: the input of the block; value: the name; items: arguments */
    TARN__JINJA_TEST,       /* left, value, items */
    TARN__JINJA_KEYWORD,    /* an argument name=left: value, left */
    TARN__JINJA_STAR,       /* *left */
    TARN__JINJA_STARS,      /* **left */
    TARN__JINJA_FIELD,      /* a target namespace.field: left: the name, value: the field */
    /* statements */
    TARN__JINJA_DATA,         /* value: text */
    TARN__JINJA_OUTPUT,       /* left */
    TARN__JINJA_FOR,          /* left: target, right: iterable, third: condition or NULL, items: body, others: else */
    TARN__JINJA_IF,           /* left, items, others */
    TARN__JINJA_SET,          /* left: target, right */
    TARN__JINJA_SET_BLOCK,    /* left: target, right: filters or NULL, items */
    TARN__JINJA_MACRO_BLOCK,  /* value: name, left: parameters (a tuple: items names, others defaults), items */
    TARN__JINJA_CALL_BLOCK,   /* left: parameters, right: the call, items */
    TARN__JINJA_FILTER_BLOCK, /* right: filters, items */
    TARN__JINJA_GENERATION_BLOCK, /* items */
    TARN__JINJA_WITH,             /* left: a tuple (items targets, others values), items */
    TARN__JINJA_BREAK,
    TARN__JINJA_CONTINUE,
} tarn__jinja_node_kind;

/* The order counts: operators.c takes the symbols from ADD to POW by it, the parser the comparisons from EQ to LTEQ. */
typedef enum tarn__jinja_token_kind {
    TARN__JINJA_T_DATA,
    TARN__JINJA_T_VARIABLE_BEGIN,
    TARN__JINJA_T_VARIABLE_END,
    TARN__JINJA_T_BLOCK_BEGIN,
    TARN__JINJA_T_BLOCK_END,
    TARN__JINJA_T_NAME,
    TARN__JINJA_T_STRING,
    TARN__JINJA_T_INTEGER,
    TARN__JINJA_T_FLOAT,
    TARN__JINJA_T_ADD,
    TARN__JINJA_T_SUB,
    TARN__JINJA_T_DIV,
    TARN__JINJA_T_FLOORDIV,
    TARN__JINJA_T_MUL,
    TARN__JINJA_T_MOD,
    TARN__JINJA_T_POW,
    TARN__JINJA_T_TILDE,
    TARN__JINJA_T_LBRACKET,
    TARN__JINJA_T_RBRACKET,
    TARN__JINJA_T_LPAREN,
    TARN__JINJA_T_RPAREN,
    TARN__JINJA_T_LBRACE,
    TARN__JINJA_T_RBRACE,
    TARN__JINJA_T_EQ,
    TARN__JINJA_T_NE,
    TARN__JINJA_T_GT,
    TARN__JINJA_T_GTEQ,
    TARN__JINJA_T_LT,
    TARN__JINJA_T_LTEQ,
    TARN__JINJA_T_IN, /* operators only: made by the parser */
    TARN__JINJA_T_NOT_IN,
    TARN__JINJA_T_ASSIGN,
    TARN__JINJA_T_DOT,
    TARN__JINJA_T_COLON,
    TARN__JINJA_T_PIPE,
    TARN__JINJA_T_COMMA,
    TARN__JINJA_T_SEMICOLON,
    TARN__JINJA_T_END,
} tarn__jinja_token_kind;

typedef struct tarn__jinja_token {
    tarn__jinja_token_kind kind;
    int line;
    tarn__jinja_value value; /* data, names and strings: a string; numbers */
} tarn__jinja_token;

typedef struct tarn__jinja_nodes {
    struct tarn__jinja_node **at;
    int count, capacity;
} tarn__jinja_nodes;

typedef struct tarn__jinja_names {
    const tarn__jinja_string **at;
    int count, capacity;
} tarn__jinja_names;

/* One node for all kinds: templates are small, and a member's meaning is in the list above. */
typedef struct tarn__jinja_node {
    tarn__jinja_node_kind kind;
    tarn__jinja_token_kind operator;
    int line;
    bool is_recursive, uses_loop;                /* for; its body names loop */
    bool uses_caller, uses_varargs, uses_kwargs; /* macro, call: its body names them */
    tarn__jinja_value value;
    struct tarn__jinja_node *left, *right, *third;
    tarn__jinja_nodes items, others;
    tarn__jinja_names unset, others_unset; /* variables of items and others that begin undefined (symbols.c) */
} tarn__jinja_node;

struct tarn__jinja_program {
    tarn__jinja_arena arena;
    char *function, *name; /* in the arena */
    tarn__jinja_nodes body;
    tarn__jinja_names unset;
    bool has_generation;
};

/* Splits a template into tokens, in r's arena; the last is TARN__JINJA_T_END. */
tarn__jinja_token *tarn__jinja_tokenize(tarn__jinja_run *r, const char *source, size_t length, size_t *count);

/* A parser at a token. */
typedef struct tarn__jinja_parser {
    tarn__jinja_run *r;
    const tarn__jinja_token *at;
    int loops; /* around the current position, inside the current macro */
    bool has_generation;
} tarn__jinja_parser;

/* parse.c: statements; parse_expression.c: the rest. */
void tarn__jinja_parse(tarn__jinja_parser *p, tarn__jinja_nodes *body);
tarn__jinja_node *tarn__jinja_parse_expression(tarn__jinja_parser *p, bool with_choice);
tarn__jinja_node *tarn__jinja_parse_tuple(tarn__jinja_parser *p, bool with_choice, bool is_parenthesized,
                                          const char *end);
tarn__jinja_node *tarn__jinja_parse_target(tarn__jinja_parser *p, bool with_tuple, bool with_field, const char *end);
tarn__jinja_node *tarn__jinja_parse_filters(tarn__jinja_parser *p, tarn__jinja_node *left, bool is_inline);
tarn__jinja_node *tarn__jinja_parse_unary(tarn__jinja_parser *p, bool with_filter);

tarn__jinja_node *tarn__jinja_node_new(tarn__jinja_parser *p, tarn__jinja_node_kind kind);
void tarn__jinja_node_add(tarn__jinja_parser *p, tarn__jinja_nodes *nodes, tarn__jinja_node *node);
bool tarn__jinja_is_name(const tarn__jinja_token *token, const char *name);
bool tarn__jinja_skip_name(tarn__jinja_parser *p, const char *name);
bool tarn__jinja_skip(tarn__jinja_parser *p, tarn__jinja_token_kind kind);
tarn__jinja_token tarn__jinja_expect(tarn__jinja_parser *p, tarn__jinja_token_kind kind, const char *what);

/* check.c: what Jinja refuses when it compiles: unknown filters and tests, an assignment to loop. */
void tarn__jinja_check(tarn__jinja_run *r, const tarn__jinja_nodes *nodes);

/* symbols.c: finds the variables that begin undefined, for all blocks of a program; returns those of the outermost. */
tarn__jinja_names tarn__jinja_find_symbols(tarn__jinja_run *r, const tarn__jinja_nodes *body);

#endif
