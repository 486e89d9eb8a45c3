/* page_routes.c: the pages of the server, which talk to it through the API. They hold no secrets and need no key, and
 * come while the model is loaded. */
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
