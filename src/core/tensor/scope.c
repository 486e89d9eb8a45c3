/* scope.c: ownership of tensors. Each thread has a stack of scopes; a tensor belongs to one scope, or to its caller.
 * The list of a scope is accessed by its own thread only, without locks.
 *
 * Closing a scope releases its tensors in reverse order of creation. A tensor moves between scopes only on its own
 * thread; to pass one to another thread, keep it first. The root scope of a thread is emptied when the thread ends.
 *
 * Every public function that returns a new tensor ends in tarn__scope_add(); nothing else creates ownership. That is
 * why operations need no clean-up on failure: a half-built result belongs to the scope. */
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "core/tensor/tensor.h"

struct tarn_scope {
    tarn_scope *parent; /* NULL: the root scope is its parent */
    tarn_tensor *first;
    const void *thread; /* address of the thread's root scope, which identifies the thread */
};

static _Thread_local tarn_scope root;
static _Thread_local tarn_scope *top;
static _Thread_local bool watched;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

/* Releases the scope's reference to each tensor. The list is popped one by one, because a release may free other
 * tensors. */
static void empty_scope(tarn_scope *scope)
{
    while (scope->first) {
        tarn_tensor *tensor = scope->first;
        scope->first = tensor->next;
        if (tensor->next)
            tensor->next->previous = NULL;
        tensor->scope = NULL;
        tensor->next = NULL;
        tarn__tensor_release(tensor);
    }
}

/* A thread ends: its scopes are closed. */
static void close_thread(void *ignored)
{
    (void)ignored;
    while (top)
        tarn_scope_close(top);
    empty_scope(&root);
    watched = false; /* destructors of other libraries may run later and create tensors */
}

static void make_key(void)
{
    pthread_key_create(&key, close_thread);
}

/* Registers a thread-exit destructor on the thread's first tensor. */
static void watch_thread(void)
{
    watched = true;
    pthread_once(&once, make_key);
    pthread_setspecific(key, &root);
    root.thread = &root;
}

tarn_scope *tarn__scope_top(void)
{
    return top;
}

/* At the head of the list: the newest tensor is freed first. */
static void add_to(tarn_scope *scope, tarn_tensor *tensor)
{
    tensor->scope = scope;
    tensor->previous = NULL;
    tensor->next = scope->first;
    if (scope->first)
        scope->first->previous = tensor;
    scope->first = tensor;
}

static void unlink_tensor(tarn_tensor *tensor)
{
    if (tensor->previous)
        tensor->previous->next = tensor->next;
    else
        tensor->scope->first = tensor->next;
    if (tensor->next)
        tensor->next->previous = tensor->previous;
    tensor->previous = tensor->next = NULL;
    tensor->scope = NULL;
}

void tarn__scope_add(tarn_tensor *tensor)
{
    if (!watched)
        watch_thread();
    add_to(top ? top : &root, tensor);
}

tarn_scope *tarn_scope_open(void)
{
    if (tarn_failed())
        return NULL;
    if (!watched)
        watch_thread();
    tarn_scope *scope = tarn__alloc(sizeof(*scope));
    if (!scope)
        return NULL;
    scope->parent = top;
    scope->thread = &root;
    top = scope;
    return scope;
}

/* Scopes are few and shallow: a linear search. */
static bool is_open(const tarn_scope *scope)
{
    for (const tarn_scope *s = top; s; s = s->parent)
        if (s == scope)
            return true;
    return false;
}

/* Inner scopes left open are closed as well, innermost first. */
void tarn_scope_close(tarn_scope *scope)
{
    if (!scope)
        return;
    if (!is_open(scope)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "scope_close: the scope is not open on this thread");
        return;
    }
    for (bool last = false; !last;) {
        tarn_scope *inner = top;
        last = inner == scope;
        top = inner->parent;
        empty_scope(inner);
        tarn__release(inner, sizeof(*inner));
    }
}

/* A scope's list has no lock, so only its own thread may change it. */
static bool of_this_thread(const char *function, const tarn_tensor *tensor)
{
    return !tensor->scope || tensor->scope->thread == &root ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the tensor belongs to a scope of another thread; keep it there first",
                       function);
}

/* True when `scope` is `outer`, or an open scope inside it, which the close of `outer` closes too. */
static bool is_inside(const tarn_scope *scope, const tarn_scope *outer)
{
    for (const tarn_scope *s = top; s != outer->parent; s = s->parent)
        if (s == scope)
            return true;
    return false;
}

/* Moves a tensor of this scope, or of one inside it, to the enclosing scope; others stay where they are. */
tarn_tensor *tarn_scope_return(tarn_scope *scope, tarn_tensor *tensor)
{
    if (!tarn__check_any("scope_return", tensor, "the tensor"))
        return NULL;
    if (!scope || !is_open(scope)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "scope_return: the scope is %s", scope ? "not open on this thread" : "NULL");
        return NULL;
    }
    if (!of_this_thread("scope_return", tensor))
        return NULL;
    if (is_inside(tensor->scope, scope)) {
        unlink_tensor(tensor);
        add_to(scope->parent ? scope->parent : &root, tensor);
    }
    return tensor;
}

tarn_tensor *tarn__scope_pass_out(tarn_scope *scope, tarn_tensor *tensor, bool *made_inside)
{
    if (!tarn__check_live("scope_return", tensor, "the result"))
        return NULL;
    bool had_scope = tensor->scope != NULL;
    tarn__tensor_retain(tensor);
    while (top != scope)
        tarn_scope_close(top);
    if (had_scope && !tensor->scope)
        tarn__scope_add(tensor); /* its scope was closed: the reference from above becomes this scope's */
    else
        tarn__tensor_release(tensor);
    if (made_inside)
        *made_inside = tensor->scope == scope;
    return tarn_scope_return(scope, tensor);
}

tarn_tensor *tarn__scope_take(tarn_tensor *tensor)
{
    if (!tarn__check_any("keep", tensor, "the tensor") || !of_this_thread("keep", tensor))
        return NULL;
    if (tensor->scope)
        unlink_tensor(tensor);
    else
        tarn__tensor_retain(tensor);
    atomic_fetch_add_explicit(&tensor->kept, 1, memory_order_relaxed);
    return tensor;
}

/* The handle is independent of scopes and threads; the caller frees it with tarn_free(). */
tarn_tensor *tarn_keep(tarn_tensor *tensor)
{
    if (!tarn__check_any("keep", tensor, "the tensor") || !of_this_thread("keep", tensor))
        return NULL;
    tarn_tensor *handle = tarn__tensor_handle(tensor);
    if (handle)
        handle->kept = 1;
    return handle;
}

/* A tensor in a scope is released early; one outside needs a reference owned by a caller. */
void tarn_free(tarn_tensor *tensor)
{
    if (!tensor || !tarn__check_live("free", tensor, "the tensor") || !of_this_thread("free", tensor))
        return;
    if (tensor->scope)
        unlink_tensor(tensor);
    else if (atomic_fetch_sub_explicit(&tensor->kept, 1, memory_order_relaxed) <= 0) {
        atomic_fetch_add_explicit(&tensor->kept, 1, memory_order_relaxed);
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "free: the tensor belongs to the library (a parameter or a gradient), not to the caller");
        return;
    }
    tarn__tensor_release(tensor);
}
