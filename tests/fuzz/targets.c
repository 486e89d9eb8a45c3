/* targets.c: the list of targets, and the checks around each run. */
#include "fuzz/targets.h"

#include <tarn/profile.h>
#include <unistd.h>

#include "base/memory.h"
#include "support/files.h"
#include "tarn_features.h"

#define MOST_AT_ONCE ((size_t)1 << 30) /* bytes: more is refused, as on a small machine */

static const char *trying = "", *place_of_input = "";
static size_t out, most_out;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *give(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    void *memory = NULL;
    if (size > MOST_AT_ONCE || __atomic_load_n(&out, __ATOMIC_RELAXED) > MOST_AT_ONCE - size ||
        posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) != 0)
        return NULL;
    size_t now = __atomic_add_fetch(&out, size, __ATOMIC_RELAXED);
    if (now > most_out)
        most_out = now;
    return memory;
}

static void take_back(void *memory, size_t size, void *ctx)
{
    (void)ctx;
    __atomic_sub_fetch(&out, size, __ATOMIC_RELAXED);
    free(memory);
}

static const tarn_allocator counting = {give, take_back, NULL};

void fuzz_begin(void)
{
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    fuzz_must(make_scratch(NULL) == 0 && tarn_set_allocator(&counting), "a scratch folder and an allocator are there");
}

void fuzz_end(void)
{
    fuzz_must(tarn_set_allocator(NULL) && remove_scratch(NULL) == 0, "everything is given back");
}

/* ---- a try ------------------------------------------------------------------------------------------------------- */

void fuzz_must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz target %s, %s: it does not hold that %s; the error is \"%s\", and %zu bytes were out\n",
            trying, place_of_input, what, tarn_error() ? tarn_error() : "", most_out);
    abort();
}

bool fuzz_try(const fuzz_target *target, const void *from, size_t count, const char *place)
{
    trying = target->name;
    place_of_input = place;
    most_out = 0;
    bool taken = target->take(from, count);
    fuzz_must(taken != tarn_failed(), "what is refused has an error, and what is taken none");
    fuzz_must(taken || strlen(tarn_error()) > 20, "an error is a sentence");
    fuzz_must(tarn_error_code() != TARN_ERROR_INTERNAL, "no error is the library's own");
    tarn_clear_error();
    tarn_empty_cache(tarn_device_cpu());
    fuzz_must(tarn__memory_in_use() == 0, "all memory is given back");
    return taken;
}

const char *fuzz_write(const char *name, const void *from, size_t count)
{
    const char *path = scratch(name);
    remove(path);
    put_file(path, from, count);
    return path;
}

void fuzz_seed_file(const char *name, fuzz_seed_fn use, void *ctx)
{
    size_t count;
    char *bytes_of = get_file(scratch(name), &count);
    use(bytes_of, count, ctx);
    free(bytes_of);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

bool fuzz_has_json(void)
{
    return TARN__HAVE_JANSSON;
}

bool fuzz_has_bpe(void)
{
    return TARN__HAVE_JANSSON && TARN__HAVE_PCRE2;
}

const fuzz_target *fuzz_target_at(int index)
{
    const fuzz_target *const lists[] = {fuzz_data_targets,    fuzz_text_targets, fuzz_file_targets, fuzz_run_targets,
                                        fuzz_grammar_targets, fuzz_http_targets, fuzz_api_targets};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        for (const fuzz_target *target = lists[i]; target->name; target++)
            if (index-- == 0)
                return target;
    return NULL;
}
