/* symbols.c: which variables of a block hide those of the same name outside before they are assigned.
 *
 * Jinja gives each block variables of its own when it compiles it. One that the block assigns before it reads it, which
 * no block around knows, begins undefined, and blocks inside that read it early find that instead of the variable that
 * the caller passed. An if decides at run time, so what is first assigned inside it hides nothing. */
#include <string.h>

#include "text/jinja/program.h"

/* A block under analysis. `known`: its names that were read or assigned so far; `unset`: those of them that begin
 * undefined. */
typedef struct block {
    const struct block *parent;
    tarn__jinja_run *r;
    tarn__jinja_names known, unset;
    int branches; /* ifs around the current node */
} block;

static bool has(const tarn__jinja_names *names, const tarn__jinja_string *name)
{
    for (int i = 0; i < names->count; i++)
        if (names->at[i]->length == name->length && memcmp(names->at[i]->text, name->text, name->length) == 0)
            return true;
    return false;
}

/* In the block or any around it, as far as those were analysed: a name that comes later outside is not known yet. */
static bool is_known(const block *b, const tarn__jinja_string *name)
{
    for (; b; b = b->parent)
        if (has(&b->known, name))
            return true;
    return false;
}

static void add(tarn__jinja_run *r, tarn__jinja_names *names, const tarn__jinja_string *name)
{
    if (names->count == names->capacity) {
        names->capacity = names->capacity ? names->capacity * 2 : 8;
        const tarn__jinja_string **at = tarn__jinja_alloc(r->arena, (size_t)names->capacity, sizeof(*at));
        if (names->count)
            memcpy(at, names->at, (size_t)names->count * sizeof(*at));
        names->at = at;
    }
    names->at[names->count++] = name;
}

/* A name that is read before it is assigned is the one outside, for the whole block. */
static void load(block *b, const tarn__jinja_string *name)
{
    if (!is_known(b, name))
        add(b->r, &b->known, name);
}

/* A first assignment. It makes the variable begin undefined unless an if is around it or a block outside knows the
 * name; then the lookup at run time goes outwards until the assignment has happened. */
static void store(block *b, const tarn__jinja_string *name)
{
    if (has(&b->known, name))
        return;
    if (b->branches == 0 && !is_known(b->parent, name))
        add(b->r, &b->unset, name);
    add(b->r, &b->known, name);
}

/* Visits the targets of an assignment; as parameters they are set from the start. */
static void visit_target(block *b, const tarn__jinja_node *node, bool is_parameter)
{
    if (node->kind == TARN__JINJA_FIELD)
        load(b, node->left->value.as.string);
    else if (node->kind == TARN__JINJA_NAME && is_parameter)
        add(b->r, &b->known, node->value.as.string);
    else if (node->kind == TARN__JINJA_NAME)
        store(b, node->value.as.string);
    for (int i = 0; node->kind == TARN__JINJA_MAKE_TUPLE && i < node->items.count; i++)
        visit_target(b, node->items.at[i], is_parameter);
}

static void visit(block *b, const tarn__jinja_node *node);

static void visit_all(block *b, const tarn__jinja_nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++)
        visit(b, nodes->at[i]);
}

/* Both branches count as conditional; the condition does not. */
static void visit_if(block *b, const tarn__jinja_node *node)
{
    visit(b, node->left);
    b->branches++;
    visit_all(b, &node->items);
    visit_all(b, &node->others);
    b->branches--;
}

/* Visits what a node reads and assigns in its own block, not in those inside it. */
static void visit(block *b, const tarn__jinja_node *node)
{
    if (!node)
        return;
    tarn__jinja_enter(b->r);
    switch (node->kind) {
    case TARN__JINJA_NAME: load(b, node->value.as.string); break;
    case TARN__JINJA_IF: visit_if(b, node); break;
    case TARN__JINJA_SET:
        visit(b, node->right);
        visit_target(b, node->left, false);
        break;
    case TARN__JINJA_SET_BLOCK: visit_target(b, node->left, false); break;
    case TARN__JINJA_MACRO_BLOCK: store(b, node->value.as.string); break;
    /* What is evaluated in this block: iterables, calls and filters, but no bodies; a loop's condition belongs to the
     * loop. */
    case TARN__JINJA_FOR:
    case TARN__JINJA_CALL_BLOCK:
    case TARN__JINJA_FILTER_BLOCK: visit(b, node->right); break;
    case TARN__JINJA_WITH: visit_all(b, &node->left->others); break;
    case TARN__JINJA_GENERATION_BLOCK: break;
    default:
        visit(b, node->left);
        visit(b, node->right);
        visit(b, node->third);
        visit_all(b, &node->items);
        visit_all(b, &node->others);
        break;
    }
    tarn__jinja_leave(b->r);
}

static void descend(const block *b, const tarn__jinja_nodes *nodes);

/* Analyses the body of a block whose parameters are known. */
static tarn__jinja_names analyse(block *b, const tarn__jinja_nodes *body)
{
    visit_all(b, body);
    descend(b, body);
    return b->unset;
}

/* A special variable, as a parameter. */
static void add_text(block *b, const char *name)
{
    add(b->r, &b->known, tarn__jinja_text(b->r, name, strlen(name)).as.string);
}

/* Parameters are set by the call. Defaults are evaluated inside the macro. */
static void analyse_macro(block *b, tarn__jinja_node *node)
{
    if (node->uses_caller)
        add_text(b, "caller");
    if (node->uses_kwargs)
        add_text(b, "kwargs");
    if (node->uses_varargs)
        add_text(b, "varargs");
    visit_target(b, node->left, true);
    visit_all(b, &node->left->others);
}

/* The blocks inside a statement. */
static void descend_into(const block *outer, tarn__jinja_node *node)
{
    block b = {.parent = outer, .r = outer->r};
    tarn__jinja_enter(outer->r);
    switch (node->kind) {
    case TARN__JINJA_IF:
        descend(outer, &node->items);
        descend(outer, &node->others);
        break;
    case TARN__JINJA_FOR: {
        /* The else branch is a block of its own, which knows neither the targets nor loop. */
        block other = b;
        if (node->uses_loop)
            add_text(&b, "loop");
        visit_target(&b, node->left, true);
        node->unset = analyse(&b, &node->items);
        node->others_unset = analyse(&other, &node->others);
        break;
    }
    case TARN__JINJA_MACRO_BLOCK:
    case TARN__JINJA_CALL_BLOCK:
        analyse_macro(&b, node);
        node->unset = analyse(&b, &node->items);
        break;
    case TARN__JINJA_WITH:
        visit_target(&b, node->left, true);
        node->unset = analyse(&b, &node->items);
        break;
    case TARN__JINJA_SET_BLOCK:
    case TARN__JINJA_GENERATION_BLOCK: node->unset = analyse(&b, &node->items); break;
    /* The filter's arguments are evaluated inside the block, after its body. */
    case TARN__JINJA_FILTER_BLOCK:
        visit_all(&b, &node->items);
        visit(&b, node->right);
        descend(&b, &node->items);
        node->unset = b.unset;
        break;
    default: break;
    }
    tarn__jinja_leave(outer->r);
}

static void descend(const block *b, const tarn__jinja_nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++)
        descend_into(b, nodes->at[i]);
}

tarn__jinja_names tarn__jinja_find_symbols(tarn__jinja_run *r, const tarn__jinja_nodes *body)
{
    block b = {.r = r};
    return analyse(&b, body);
}
