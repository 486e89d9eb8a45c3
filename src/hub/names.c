/* names.c: which names of a hub may become part of a path or URL. A hub is not trusted: one bad name is enough for a
 * pull to be refused.
 *
 * The rules are at least as strict as those of the hub, of git and of file systems, and none of them depends on the
 * locale, which a program that never calls setlocale() leaves at "C". What passes needs no quoting in a path; URLs are
 * percent-encoded all the same. */
#include <ctype.h>
#include <string.h>
#include <tarn/base.h>

#include "hub/hub.h"

/* Bytes of ORG or NAME, as the hub's own limit; of a component, as that of the file systems of Linux. */
enum { MAX_PART = 96, MAX_COMPONENT = 255 };

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

/* ORG or NAME. "--" separates the parts of a folder's name in the cache. So neither part may hold it, or two
 * repositories would share a folder; and no first '-' or '.', as of an option or a hidden folder. */
static bool is_part(const char *part, size_t length)
{
    if (length == 0 || length > MAX_PART || strchr("-.", part[0]) || strchr("-.", part[length - 1]))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!is_word(part[i]) || (i > 0 && part[i] == part[i - 1] && strchr("-.", part[i])))
            return false;
    return true;
}

bool tarn__hub_is_repo(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash && is_part(name, (size_t)(slash - name)) && is_part(slash + 1, strlen(slash + 1));
}

/* git allows more; what it does not allow either is refused: "..", a leading dash or dot of a component. Tags
 * may have '@', '+', '=' and '#'; spaces, '~', '^', ':', '?', '*', '[' and backslashes git refuses, too. */
bool tarn__hub_is_revision(const char *revision)
{
    size_t length = strlen(revision);
    if (length == 0 || length >= TARN__HUB_REVISION || strstr(revision, "..") || strchr("/.", revision[length - 1]))
        return false;
    for (size_t i = 0; i < length; i++) {
        bool is_first = i == 0 || revision[i - 1] == '/';
        if ((!is_word(revision[i]) && !strchr("/+=@#", revision[i])) || (is_first && strchr("-./", revision[i])))
            return false;
    }
    return true;
}

static bool is_hexadecimal(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

bool tarn__hub_is_sha1(const char *text)
{
    return is_hexadecimal(text, 40);
}

bool tarn__hub_is_sha256(const char *text)
{
    return is_hexadecimal(text, 64);
}

/* Wider than a hash, since mirrors name contents in their own way. Without slashes it is one component of a path. */
bool tarn__hub_is_etag(const char *text)
{
    size_t length = strlen(text);
    bool good = length > 0 && length < TARN__HUB_ETAG && text[0] != '.';
    for (size_t i = 0; good && i < length; i++)
        good = is_word(text[i]);
    return good;
}

/* What tarn_string_escape() would show in another way cannot be read as it is, and has no business in a name. */
static bool is_visible(const char *file, size_t length)
{
    char shown[4 * TARN__HUB_FILE];
    return tarn_string_escape(shown, sizeof(shown), file, length, false) == length && memcmp(shown, file, length) == 0;
}

/* Why a file's name is refused, or NULL. A backslash separates folders where Windows reads the cache. Every
 * component is looked at, so "a/../b" is refused though it would stay below the folder. */
static const char *problem_of(const char *file)
{
    size_t length = strlen(file);
    if (length == 0)
        return "it is empty";
    if (length >= TARN__HUB_FILE)
        return "it is too long";
    if (file[0] == '/')
        return "it is absolute";
    if (strchr(file, '\\'))
        return "it has a backslash";
    if (!is_visible(file, length))
        return "it has control characters, or is not UTF-8";
    for (const char *at = file;; at++) {
        size_t part = strcspn(at, "/");
        if (part == 0 || (part == 1 && at[0] == '.') || (part == 2 && at[0] == '.' && at[1] == '.'))
            return "it has an empty component, '.' or '..'";
        if (part > MAX_COMPONENT)
            return "a component has more than 255 bytes";
        at += part;
        if (!*at)
            return NULL;
    }
}

bool tarn__hub_check_file(const char *repo, const char *file)
{
    const char *why = problem_of(file);
    return !why || tarn_set_error(TARN_ERROR_FORMAT,
                                  "'%s' has a file with an unsafe name: '%.200s': %s; nothing was "
                                  "downloaded",
                                  repo, file, why);
}
