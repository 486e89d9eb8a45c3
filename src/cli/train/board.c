/* board.c: `tarn board`: the curves of all runs of a folder as a page that follows them, served on loopback.
 *
 * The server hands out what is in the run folders and knows no state: the page asks for the list of runs, and for the
 * bytes of each metrics.jsonl that it has not seen. A run is named by its folder's name, which must be one that is
 * there: no request names a path.
 *
 * Everything runs on the thread of the loop, so a list that is being made is never read by another request. Files
 * are read as the run that writes them goes on: sizes only grow, and a line that is not complete yet is left for the
 * next request. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/runs.h>
#include <unistd.h>

#include "cli/cli.h"
#include "serve/http/access.h"
#include "serve/http/server.h"
#include "serve/pages/pages.h"
#include "tarn_features.h"

#if TARN__HAVE_EVENT

#define METRICS "metrics.jsonl"
/* Bytes of an answer with metrics; of a folder's name with its 0; seconds for open requests at the end. */
enum { PART_MAX = 1 << 20, NAME_SIZE = 256, STOP_SECONDS = 2 };

/* What the log says of a folder's last run. */
typedef struct logged {
    char name[NAME_SIZE], model[64], data[128], device[32], end[32];
    int64_t parameters;
} logged;

typedef struct board {
    const char *folder;
    tarn__http_access access;
    logged *log; /* while a list is made */
    size_t log_count, log_capacity;
} board;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* `message` is a literal without quotes: it goes into JSON as it is. */
static void answer_error(tarn__http_exchange *x, int status, const char *message)
{
    char body[512];
    int size = snprintf(body, sizeof(body), "{\"error\":{\"message\":\"%s\"}}\n", message);
    tarn__http_exchange_answer(x, status, "application/json", body, (size_t)size);
}

static void answer_page(tarn__http_exchange *x, const char *name)
{
    const tarn__page *page = tarn__page_find(name);
    tarn__http_exchange_answer(x, 200, tarn__page_type(page), page->bytes, page->size);
}

/* ---- list of runs ------------------------------------------------------------------------------------------------ */

/* A later entry of the same folder replaces an earlier one. The log names folders by their paths; the list shows
 * those of one folder, so the last part is enough. */
static void keep_logged(const tarn_logged_run *r, void *ctx)
{
    board *b = ctx;
    const char *slash = strrchr(r->folder, '/'), *name = slash ? slash + 1 : r->folder;
    size_t at = 0;
    while (at < b->log_count && strcmp(b->log[at].name, name) != 0)
        at++;
    if (at == b->log_count && !tarn__input_reserve(&b->log, b->log_count, &b->log_capacity, 1, sizeof(*b->log)))
        return;
    b->log_count += at == b->log_count;
    logged *one = &b->log[at];
    snprintf(one->name, sizeof(one->name), "%s", name);
    snprintf(one->model, sizeof(one->model), "%s", r->model);
    snprintf(one->data, sizeof(one->data), "%s", r->data);
    snprintf(one->device, sizeof(one->device), "%s", r->device);
    snprintf(one->end, sizeof(one->end), "%s", r->end);
    one->parameters = r->parameters;
}

/* Size and time of a run's metrics. False: the folder is no run, or one without metrics yet. */
static bool find_metrics(const board *b, const char *name, struct stat *found)
{
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%s/" METRICS, b->folder, name);
    return length > 0 && length < (int)sizeof(path) && stat(path, found) == 0 && S_ISREG(found->st_mode);
}

/* {"name": "r1", "bytes": 4096, "modified": UNIX_TIME}, and what the log has of it. A run that the log does not know
 * has curves all the same. */
static void add_run(tarn__json *json, const board *b, const char *name)
{
    struct stat metrics;
    if (strlen(name) >= NAME_SIZE || !find_metrics(b, name, &metrics))
        return;
    tarn__json_open(json, NULL, '{');
    tarn__json_string(json, "name", name);
    tarn__json_int(json, "bytes", (int64_t)metrics.st_size);
    tarn__json_int(json, "modified", (int64_t)metrics.st_mtime);
    for (size_t i = 0; i < b->log_count; i++)
        if (strcmp(b->log[i].name, name) == 0) {
            tarn__json_string(json, "model", b->log[i].model);
            tarn__json_string(json, "data", b->log[i].data);
            tarn__json_string(json, "device", b->log[i].device);
            tarn__json_string(json, "end", b->log[i].end);
            tarn__json_int(json, "parameters", b->log[i].parameters);
        }
    tarn__json_close(json, '}');
}

/* The folders in it, by name; the folder itself, where it is a run. */
static void answer_runs(tarn__http_exchange *x, board *b)
{
    char *text = NULL;
    size_t size = 0;
    struct dirent **entries = NULL;
    tarn__json json = {open_memstream(&text, &size), false};
    if (!json.to) {
        answer_error(x, 503, "no memory for the list of runs");
        return;
    }
    if (!tarn_runs_read(b->folder, keep_logged, b)) /* no log yet, or one that cannot be read: the runs are there */
        tarn_clear_error();
    int count = scandir(b->folder, &entries, NULL, alphasort);
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "folder", b->folder);
    tarn__json_open(&json, "runs", '[');
    add_run(&json, b, ".");
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.')
            add_run(&json, b, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    tarn__json_close(&json, ']');
    tarn__json_end(&json);
    fclose(json.to);
    b->log_count = 0;
    if (text)
        tarn__http_exchange_answer(x, 200, "application/json", text, size);
    else
        answer_error(x, 503, "no memory for the list of runs");
    free(text);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/* Bytes that the page has seen. Digits alone: neither a sign nor space. */
static bool read_offset(const tarn__http_request *request, int64_t *offset)
{
    char text[32], *end;
    if (!tarn__http_request_parameter(request, "from", text, sizeof(text)))
        return false;
    errno = 0;
    *offset = strtoll(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno;
}

/* Whole lines of a metrics.jsonl from an offset on, at most PART_MAX bytes. Status 409 where the file is shorter
 * than what the page has seen: the run began anew, and so does the page. */
static void answer_metrics(tarn__http_exchange *x, const board *b)
{
    const tarn__http_request *request = tarn__http_exchange_request(x);
    char name[NAME_SIZE], path[4096];
    int64_t offset;
    struct stat metrics;
    if (!tarn__http_request_parameter(request, "run", name, sizeof(name)) || !read_offset(request, &offset)) {
        answer_error(x, 400, "run and from are needed: /api/metrics?run=NAME&from=BYTES");
        return;
    }
    /* without a slash and without a dot in front it cannot leave the folder */
    bool is_name = strcmp(name, ".") == 0 || (name[0] != '.' && !strchr(name, '/'));
    if (!is_name || !find_metrics(b, name, &metrics)) {
        answer_error(x, 404, "no such run");
        return;
    }
    if (offset > metrics.st_size) {
        answer_error(x, 409, "the metrics are shorter than that");
        return;
    }
    snprintf(path, sizeof(path), "%s/%s/" METRICS, b->folder, name);
    char *bytes = malloc(PART_MAX);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = bytes && file >= 0 ? pread(file, bytes, PART_MAX, offset) : -1;
    if (file >= 0)
        close(file);
    if (size < 0) {
        answer_error(x, 503, "the metrics cannot be read");
    } else {
        while (size > 0 && bytes[size - 1] != '\n')
            size--;
        tarn__http_exchange_answer(x, 200, "application/x-ndjson", bytes, (size_t)size);
    }
    free(bytes);
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

/* Loopback alone, and without a key: access.h keeps pages of other sites from reading the curves. */
static void handle(tarn__http_exchange *x, void *ctx)
{
    board *b = ctx;
    const tarn__http_request *request = tarn__http_exchange_request(x);
    const char *refusal = tarn__http_access_refusal(&b->access, request);
    tarn__http_exchange_header(x, "Cache-Control", "no-store");
    tarn__http_exchange_header(x, "X-Content-Type-Options", "nosniff");
    tarn__http_exchange_header(x, "Referrer-Policy", "no-referrer");
    tarn__http_exchange_header(x, "Content-Security-Policy", TARN__PAGE_POLICY);
    if (refusal) {
        answer_error(x, 403, refusal);
    } else if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) {
        tarn__http_exchange_header(x, "Allow", "GET, HEAD");
        answer_error(x, 405, "the board is read with GET");
    } else if (strcmp(request->path, "/") == 0) {
        answer_page(x, "board.html");
    } else if (strcmp(request->path, "/board.css") == 0 || strcmp(request->path, "/board.js") == 0) {
        answer_page(x, request->path + 1);
    } else if (strcmp(request->path, "/api/runs") == 0) {
        answer_runs(x, b);
    } else if (strcmp(request->path, "/api/metrics") == 0) {
        answer_metrics(x, b);
    } else {
        answer_error(x, 404, "no such page");
    }
}

int tarn__board(const tarn__options *options)
{
    board b = {.folder = options->word_count ? options->words[0] : "runs"};
    tarn__http_options http = tarn__http_options_default();
    char error[256];
    struct stat found;
    bool is_there = stat(b.folder, &found) == 0;
    if (!is_there || !S_ISDIR(found.st_mode)) {
        fprintf(stderr, "tarn board: %s is not a folder of runs: %s\n", tarn__escaped(b.folder),
                is_there ? "it is a file" : strerror(errno));
        return TARN__FAILED;
    }
    http.port = (int)options->port;
    http.limits.body = 1 << 16; /* nothing is sent to a board, and a 405 says so */
    http.handler = handle;
    http.ctx = &b;
    b.access.address = http.address;
    tarn__http_server *server = tarn__http_server_new(&http, error, sizeof(error));
    if (!server || !tarn__http_server_stop_on_signals(server, STOP_SECONDS)) {
        fprintf(stderr, "tarn board: cannot listen: %s\n", server ? "no memory" : error);
        tarn__http_server_free(server);
        return TARN__FAILED;
    }
    printf("http://%s:%d shows the runs in %s; Ctrl-C stops the server\n", http.address, tarn__http_server_port(server),
           tarn__escaped(b.folder));
    fflush(stdout);
    tarn__http_server_run(server);
    tarn__http_server_free(server);
    free(b.log);
    return TARN__DONE;
}

#else

int tarn__board(const tarn__options *options)
{
    (void)options;
    fprintf(stderr, "tarn board: this build has no HTTP server: libevent was not found (libevent-dev brings it)\n");
    return TARN__FAILED;
}

#endif
