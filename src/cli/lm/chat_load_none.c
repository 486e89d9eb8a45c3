/* chat_load_none.c: what the build has without jansson: conversations cannot be loaded. */
#include "cli/lm/chat.h"

bool tarn__history_load(tarn__history *history, const char *path, int *calls, int *pending)
{
    (void)history;
    (void)calls;
    (void)pending;
    return tarn_set_error(TARN_ERROR_UNSUPPORTED, "'%s' cannot be loaded: tarn was built without JSON (libjansson-dev)",
                          path);
}
