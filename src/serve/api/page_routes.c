/* page_routes.c: files of the build: the pages of the server, which talk to it through the API, and the document of its
 * routes. They hold no secrets and need no key, and come while the model is loaded.
 *
 * What a page asks the API for needs the key all the same; the page asks its user for it. The policy allows a page
 * nothing from other hosts, so text of a model cannot make it load anything. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/api_private.h"
#include "serve/pages/pages.h"

static const struct {
    const char *path, *name;
} pages[] = {{"/", "chat.html"},
             {"/chat.css", "chat.css"},
             {"/chat.js", "chat.js"},
             {"/common.css", "common.css"},
             {"/common.js", "common.js"},
             {"/conversations.js", "conversations.js"},
             {"/markdown.js", "markdown.js"},
             {"/messages.js", "messages.js"},
             {"/status", "status.html"},
             {"/status.css", "status.css"},
             {"/status.js", "status.js"},
             {"/stream.js", "stream.js"}};

const char *tarn__api_page(const char *path)
{
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (strcmp(pages[i].path, path) == 0)
            return pages[i].name;
    return NULL;
}

void tarn__api_answer_page(tarn__http_exchange *x, const char *name)
{
    const tarn__page *page = tarn__page_find(name);
    tarn__http_exchange_header(x, "Content-Security-Policy", TARN__PAGE_POLICY);
    tarn__http_exchange_header(x, "Referrer-Policy", "no-referrer");
    tarn__http_exchange_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    tarn__http_exchange_answer(x, 200, tarn__page_type(page), page->bytes, page->size);
}

/* GET /openapi.json: the file with the version of tarn. */
void tarn__api_answer_openapi(tarn__api *a, tarn__http_exchange *x)
{
    const tarn__page *file = tarn__page_find("openapi.json");
    json_t *root = json_loadb((const char *)file->bytes, file->size, 0, NULL);
    json_object_set_new(json_object_get(root, "info"), "version", json_string(tarn_version()));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text) {
        tarn__api_answer_json(x, 200, text);
    } else {
        tarn__api_error error = {0};
        tarn__api_refuse(&error, 503, NULL, NULL, "no memory for the answer");
        tarn__api_answer_error(a, x, &error);
    }
    free(text);
}
