/* pages.c: the embedded files by name.
 *
 * The files are part of the program, so a server needs none of its own and shows what it was built with. There are
 * fewer than twenty: a search from the front is as good as any. */
#include "serve/pages/pages.h"

#include <string.h>

const tarn__page *tarn__page_find(const char *name)
{
    for (int i = 0; i < tarn__page_count; i++)
        if (strcmp(tarn__pages[i].name, name) == 0)
            return &tarn__pages[i];
    return NULL;
}

/* Every name has an extension. The document of routes is sent as JSON by its own route, never with this type. */
const char *tarn__page_type(const tarn__page *page)
{
    const char *extension = strrchr(page->name, '.');
    return strcmp(extension, ".css") == 0  ? "text/css; charset=utf-8"
           : strcmp(extension, ".js") == 0 ? "text/javascript; charset=utf-8"
                                           : "text/html; charset=utf-8";
}
