/* info.c: `tarn info`: version and build, optional libraries, devices, the device that `auto` selects, and the reason
 * why a backend is missing.
 *
 * It must work on a broken installation: a device that cannot be opened is listed with its error, and the exit status
 * stays 0. */
#include <string.h>
#include <tarn/parallel.h>

#include "cli/blas.h"
#include "cli/cli.h"
#include "tarn_features.h"

/* Device `index` of a backend; false with an error pending. Opening it may load a driver, which is why each is tried
 * by itself. */
static bool query(const char *backend, int index, tarn_device_info *info)
{
    char name[32];
    snprintf(name, sizeof(name), "%s:%d", backend, index);
    tarn_device device = tarn_device_parse(name);
    return !tarn_failed() && tarn_device_query(device, info);
}

/* Lists a device that exists but cannot be used, with the reason. Clears the pending error. */
static void print_unusable(const char *backend, int index)
{
    char name[32], why[TARN__MESSAGE_MAX];
    snprintf(name, sizeof(name), "%s:%d", backend, index);
    printf("  %-8s %s\n", name, tarn__user_error("info", why, sizeof(why)));
}

static void print_unusable_json(tarn__json *json, const char *backend, int index)
{
    char name[32], why[TARN__MESSAGE_MAX];
    snprintf(name, sizeof(name), "%s:%d", backend, index);
    tarn__json_open(json, NULL, '{');
    tarn__json_string(json, "name", name);
    tarn__json_string(json, "unusable", tarn__user_error("info", why, sizeof(why)));
    tarn__json_close(json, '}');
}

/* Calls `print` for each pair of devices of a backend whose link is known. */
static void each_link(void (*print)(void *ctx, const char *a, const char *b, const char *link), void *ctx)
{
    const char *backend;
    char link[64], first[TARN__MESSAGE_MAX], second[32];
    for (int n = 0; (backend = tarn_backend_name(n)) != NULL; n++)
        for (int b = 1, count = tarn_device_count(backend); b < count; b++)
            for (int a = 0; a < b; a++) {
                snprintf(first, sizeof(first), "%s:%d", backend, a);
                snprintf(second, sizeof(second), "%s:%d", backend, b);
                tarn_device one = tarn_device_parse(first), other = tarn_device_parse(second);
                if (!tarn_device_link(one, other, link, sizeof(link)))
                    tarn__user_error("info", first, sizeof(first)); /* the device's own line has the reason */
                else if (link[0])
                    print(ctx, first, second, link);
            }
}

static void print_link(void *ctx, const char *a, const char *b, const char *link)
{
    bool *has_printed = ctx;
    if (!*has_printed)
        tarn__heading("links");
    *has_printed = true;
    printf("  %-8s %-8s %s\n", a, b, link);
}

static void print_link_json(void *ctx, const char *a, const char *b, const char *link)
{
    tarn__json *json = ctx;
    tarn__json_open(json, NULL, '{');
    tarn__json_string(json, "from", a);
    tarn__json_string(json, "to", b);
    tarn__json_string(json, "link", link);
    tarn__json_close(json, '}');
}

/* tarn_features.h has the TARN__ macros of the build. OpenBLAS is the only optional library looked up at run time. */
static int print_json(void)
{
    tarn__json json = {stdout, false};
    char name[32];
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "version", tarn_version());
    tarn__json_open(&json, "build", '{');
    tarn__json_string(&json, "type", TARN__BUILD_TYPE);
    tarn__json_string(&json, "compiler", TARN__COMPILER);
    tarn__json_string(&json, "processor", TARN__PROCESSOR);
    tarn__json_string(&json, "sanitizers", TARN__SANITIZE);
    tarn__json_close(&json, '}');
    tarn__json_open(&json, "features", '{');
    tarn__json_bool(&json, "openblas", tarn__blas_missing() == NULL);
    tarn__json_bool(&json, "jansson", TARN__HAVE_JANSSON);
    tarn__json_bool(&json, "pcre2", TARN__HAVE_PCRE2);
    tarn__json_bool(&json, "zlib", TARN__HAVE_ZLIB);
    tarn__json_bool(&json, "jpeg", TARN__HAVE_JPEG);
    tarn__json_bool(&json, "libevent", TARN__HAVE_EVENT);
    tarn__json_bool(&json, "libcurl", TARN__HAVE_CURL);
    tarn__json_bool(&json, "libedit", TARN__HAVE_EDIT);
    tarn__json_close(&json, '}');
    tarn__json_int(&json, "threads", tarn_threads());
    tarn__json_open(&json, "devices", '[');
    const char *backend;
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++)
        for (int i = 0; i < tarn_device_count(backend); i++) {
            tarn_device_info info;
            if (!query(backend, i, &info)) {
                print_unusable_json(&json, backend, i);
                continue;
            }
            tarn__json_open(&json, NULL, '{');
            tarn__json_string(&json, "name", info.name);
            tarn__json_string(&json, "description", info.description);
            tarn__json_string(&json, "detail", info.detail);
            tarn__json_string(&json, "type", info.type);
            tarn__json_string(&json, "vendor", info.vendor);
            tarn__json_int(&json, "memory_total", info.memory_total);
            tarn__json_int(&json, "memory_free", info.memory_free);
            tarn__json_close(&json, '}');
        }
    tarn__json_close(&json, ']');
    tarn__json_open(&json, "links", '[');
    each_link(print_link_json, &json);
    tarn__json_close(&json, ']');
    tarn__json_string(&json, "auto", tarn_device_name(tarn_device_auto(), name, sizeof(name)));
    tarn__json_open(&json, "missing", '{');
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++) {
        const char *why = tarn_backend_missing(backend);
        if (why[0])
            tarn__json_string(&json, backend, why);
    }
    tarn__json_close(&json, '}');
    tarn__json_end(&json);
    return TARN__DONE;
}

/* Built without it, or built with it and not found at run time: two different remedies. */
static void print_blas(void)
{
    const char *why = tarn__blas_missing();
    if (why && TARN__HAVE_OPENBLAS)
        printf("  BLAS     none, so matrix products are slower: %s\n", why);
    else
        printf("  BLAS     %s\n",
               why ? "none, so matrix products are slower (libopenblas-dev brings one)" : "OpenBLAS");
}

/* Columns are nine wide, as the names of devices: "opencl:1" has eight letters. Lines that say "none" name what the
 * lack costs, and the package that brings it. */
static int print_text(void)
{
    char name[32];
    const char *backend;
    bool offers_cpu = false; /* a backend may offer the CPU as a device; `auto` never selects that one */
    tarn__heading("tarn %s", tarn_version());
    printf("  build    %s, %s, %s%s%s\n", TARN__BUILD_TYPE, TARN__COMPILER, TARN__PROCESSOR,
           TARN__SANITIZE[0] ? ", sanitizers " : "", TARN__SANITIZE);
    print_blas();
    printf("  JSON     %s\n", TARN__HAVE_JANSSON
                                  ? "jansson"
                                  : "none, so no safetensors files and no tokenizers (libjansson-dev brings one)");
    printf("  patterns %s\n", TARN__HAVE_PCRE2 ? "PCRE2" : "none, so no BPE tokenizers (libpcre2-dev brings them)");
    printf("  gzip     %s\n",
           TARN__HAVE_ZLIB ? "zlib" : "none, so gzip data files must be unpacked first (zlib1g-dev brings it)");
    printf("  JPEG     %s\n",
           TARN__HAVE_JPEG ? "libjpeg-turbo" : "none, so JPEG images are errors (libjpeg62-turbo-dev brings it)");
    printf("  HTTP     %s\n",
           TARN__HAVE_EVENT ? "libevent" : "none, so no tarn serve and board (libevent-dev brings it)");
    printf("  download %s\n", TARN__HAVE_CURL ? "libcurl" : "none, so no tarn pull (libcurl4-openssl-dev brings it)");
    printf("  editing  %s\n",
           TARN__HAVE_EDIT ? "libedit" : "none, so no line editing in tarn chat (libedit-dev brings it)");
    printf("  threads  %d\n", tarn_threads());
    tarn__heading("devices");
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++) {
        for (int i = 0; i < tarn_device_count(backend); i++) {
            tarn_device_info info;
            if (!query(backend, i, &info)) {
                print_unusable(backend, i);
                continue;
            }
            offers_cpu = offers_cpu || (b > 0 && strcmp(info.type, "cpu") == 0);
            printf("  %-8s %s\n", info.name, info.description[0] ? info.description : "unknown processor");
            printf("  %-8s %s; %s of memory, %s free\n", "", info.detail, tarn__bytes_text(info.memory_total),
                   tarn__bytes_text(info.memory_free));
        }
        const char *why = tarn_backend_missing(backend);
        if (why[0])
            printf("  %-8s not here: %s\n", backend, why);
    }
    printf("  %-8s takes %s%s\n", "auto", tarn_device_name(tarn_device_auto(), name, sizeof(name)),
           offers_cpu
               ? "; never a CPU through another backend, since the CPU's own kernels are faster: name it to use it"
               : "");
    bool has_links = false;
    each_link(print_link, &has_links);
    return TARN__DONE;
}

int tarn__info(const tarn__options *options)
{
    return options->json ? print_json() : print_text();
}
