/* arena.c: memory of programs, contexts and renderings; errors; limits.
 *
 * An arena is a list of chunks, the newest first; memory is cut off the newest only, and nothing is freed singly: a
 * list or string that grows leaves its old memory behind until the arena goes. Growth by doubling keeps that waste
 * below the final size. No function here returns after a failure: all of them jump to the arena's escape, which the
 * entry points set. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/jinja/value.h"

/* Requests above this size get a chunk of their own. It becomes the newest, so the rest of the chunk before it is
 * lost. */
#define CHUNK_BYTES ((size_t)1 << 15)
/* Enough for any member of a value: pointers, int64_t and double. */
#define ALIGNMENT 16

struct tarn__jinja_chunk {
    tarn__jinja_chunk *next;
    size_t used, size; /* with this header */
};

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The arena's limit is reached. A context has no run to name a line with; tarn__raise() keeps the first error, so the
 * second call does nothing if there was a run. */
static _Noreturn void fail_memory(const tarn__jinja_arena *arena)
{
    const tarn__jinja_run *r = arena->run;
    if (r)
        tarn__raise(TARN_ERROR_MEMORY, "%s: %s, line %d: the template needs more than %zu MiB", r->function, r->name,
                    r->line, arena->max_bytes >> 20);
    tarn__raise(TARN_ERROR_MEMORY, "the template needs more than %zu MiB", arena->max_bytes >> 20);
    longjmp(*arena->escape, 1);
}

/* The newest chunk, with at least `bytes` free. tarn__alloc() returns zeros and has raised the error when it fails. */
static tarn__jinja_chunk *chunk_new(tarn__jinja_arena *arena, size_t bytes)
{
    size_t head = round_up(sizeof(tarn__jinja_chunk)), size = bytes + head > CHUNK_BYTES ? bytes + head : CHUNK_BYTES;
    if (size > arena->max_bytes - arena->bytes)
        fail_memory(arena);
    tarn__jinja_chunk *chunk = tarn__alloc(size);
    if (!chunk)
        longjmp(*arena->escape, 1);
    *chunk = (tarn__jinja_chunk){arena->chunks, head, size};
    arena->bytes += size;
    return arena->chunks = chunk;
}

void *tarn__jinja_alloc(tarn__jinja_arena *arena, size_t count, size_t size)
{
    /* Before the product is formed, which could overflow. A product within the limit cannot. */
    if (count > arena->max_bytes / (size ? size : 1))
        fail_memory(arena);
    size_t bytes = round_up(count * size);
    tarn__jinja_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < bytes)
        chunk = chunk_new(arena, bytes);
    void *memory = (char *)chunk + chunk->used;
    chunk->used += bytes;
    return memory;
}

/* Leaves an empty arena that can be used again. The escape stays as it was. */
void tarn__jinja_arena_free(tarn__jinja_arena *arena)
{
    for (tarn__jinja_chunk *next; arena->chunks; arena->chunks = next) {
        next = arena->chunks->next;
        tarn__release(arena->chunks, arena->chunks->size);
    }
    arena->bytes = 0;
}

/* An empty function is for callers that put a name before the message themselves (tarn__raise_within()). */
void tarn__jinja_fail(tarn__jinja_run *r, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    tarn__raise(r->code, "%s%s%s, line %d: %s", r->function, r->function[0] ? ": " : "", r->name, r->line, text);
    longjmp(*r->arena->escape, 1);
}

/* Steps bound the work of a rendering: an evaluated node, an appended item, a comparison and 64 bytes of text are one
 * each, so no construct runs for long without passing here. */
void tarn__jinja_step(tarn__jinja_run *r, size_t count)
{
    r->steps += (int64_t)count;
    if (r->steps > TARN__JINJA_MAX_STEPS)
        tarn__jinja_fail(r, "the template runs too long: more than %d steps", TARN__JINJA_MAX_STEPS);
}

/* Depth bounds the C stack: the parser, the evaluator and the printers recurse with their input. A failure jumps out
 * without tarn__jinja_leave(), which is harmless as the run ends with it. */
void tarn__jinja_enter(tarn__jinja_run *r)
{
    if (++r->depth > TARN__JINJA_MAX_DEPTH)
        tarn__jinja_fail(r, "too deeply nested: more than %d levels", TARN__JINJA_MAX_DEPTH);
}

void tarn__jinja_leave(tarn__jinja_run *r)
{
    r->depth--;
}

/* ---- strings under construction ---------------------------------------------------------------------------------- */

/* Makes room for `more` bytes. The arena cannot extend memory, so text is copied at each doubling; the limit is checked
 * before memory for a text that is too long is asked for. */
static void reserve(tarn__jinja_run *r, tarn__jinja_builder *b, size_t more)
{
    if (more <= b->capacity - b->length)
        return;
    size_t capacity = (b->length + more) * 2 > 64 ? (b->length + more) * 2 : 64;
    if (b->length + more > TARN__JINJA_MAX_OUTPUT)
        tarn__jinja_fail(r, "the text is too long: more than %zu MiB", TARN__JINJA_MAX_OUTPUT >> 20);
    char *text = tarn__jinja_alloc(r->arena, capacity, 1);
    if (b->length)
        memcpy(text, b->text, b->length);
    if (b->origin) {
        uint8_t *origin = tarn__jinja_alloc(r->arena, capacity, 1);
        memcpy(origin, b->origin, b->length);
        b->origin = origin;
    }
    b->text = text;
    b->capacity = capacity;
}

/* Appends bytes with their origins. The array of origins is made when the first byte with an origin comes; the bytes
 * before it count as the template's (0), which the arena's zeros say. */
void tarn__jinja_build(tarn__jinja_run *r, tarn__jinja_builder *b, const char *text, size_t length,
                       const uint8_t *origin)
{
    if (length == 0)
        return;
    tarn__jinja_step(r, length / 64);
    reserve(r, b, length);
    memcpy(b->text + b->length, text, length);
    if (origin && !b->origin)
        b->origin = tarn__jinja_alloc(r->arena, b->capacity, 1);
    if (origin)
        memcpy(b->origin + b->length, origin, length);
    b->length += length;
}

void tarn__jinja_build_string(tarn__jinja_run *r, tarn__jinja_builder *b, const tarn__jinja_string *s)
{
    tarn__jinja_build(r, b, s->text, s->length, s->origin);
}

void tarn__jinja_build_text(tarn__jinja_run *r, tarn__jinja_builder *b, const char *text)
{
    tarn__jinja_build(r, b, text, strlen(text), NULL);
}

/* The string shares the builder's memory: nothing may be appended to the builder afterwards. */
tarn__jinja_value tarn__jinja_built(tarn__jinja_run *r, const tarn__jinja_builder *b)
{
    tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
    *s = (tarn__jinja_string){b->length ? b->text : "", b->length, b->origin, false};
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = s}};
}
