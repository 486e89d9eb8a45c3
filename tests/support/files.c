/* files.c: see files.h. */
#include "support/files.h"

const char *write_file(const char *name, const void *from, size_t count)
{
    const char *path = scratch(name);
    put_file(path, from, count);
    return path;
}

const char *write_text(const char *name, const char *text)
{
    return write_file(name, text, strlen(text));
}

void put(bytes *b, const void *from, size_t count)
{
    assert_true(b->count + count <= sizeof(b->data));
    if (count > 0)
        memcpy(b->data + b->count, from, count);
    b->count += count;
}

void put_text(bytes *b, const char *text)
{
    put(b, text, strlen(text));
}

void put_big32(bytes *b, uint32_t value)
{
    put(b,
        (const unsigned char[]){(unsigned char)(value >> 24), (unsigned char)(value >> 16), (unsigned char)(value >> 8),
                                (unsigned char)value},
        4);
}

static void put_little32(bytes *b, uint32_t value)
{
    put(b,
        (const unsigned char[]){(unsigned char)value, (unsigned char)(value >> 8), (unsigned char)(value >> 16),
                                (unsigned char)(value >> 24)},
        4);
}

uint32_t checksum(uint32_t before, const void *from, size_t count)
{
    static uint32_t table[256];
    for (uint32_t i = 256; table[1] == 0 && i-- > 1;) { /* entry 1 last: it says that the table is made */
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        table[i] = c;
    }
    uint32_t crc = ~before;
    for (size_t i = 0; i < count; i++)
        crc = table[(crc ^ ((const unsigned char *)from)[i]) & 255] ^ crc >> 8;
    return ~crc;
}

void put_gzip(bytes *b, const void *from, size_t count)
{
    put(b, "\x1F\x8B\x08\0\0\0\0\0\0\xFF", 10);
    size_t at = 0;
    do {
        size_t now = count - at < 60000 ? count - at : 60000;
        unsigned char head[5] = {at + now == count, (unsigned char)now, (unsigned char)(now >> 8), (unsigned char)~now,
                                 (unsigned char)(~now >> 8)};
        put(b, head, 5);
        put(b, (const unsigned char *)from + at, now);
        at += now;
    } while (at < count);
    put_little32(b, checksum(0, from, count));
    put_little32(b, (uint32_t)count);
}

const char *write_gzip(const char *name, const void *from, size_t count)
{
    static bytes b;
    b.count = 0;
    put_gzip(&b, from, count);
    return write_file(name, b.data, b.count);
}

void assert_same_file(const char *folder, const char *other, const char *name)
{
    char path[2][4096];
    size_t count[2];
    snprintf(path[0], sizeof(path[0]), "%s/%s", folder, name);
    snprintf(path[1], sizeof(path[1]), "%s/%s", other, name);
    char *bytes_of[2] = {get_file(path[0], &count[0]), get_file(path[1], &count[1])};
    if (count[0] != count[1] || memcmp(bytes_of[0], bytes_of[1], count[0]) != 0)
        fail_msg("%s and %s differ", path[0], path[1]);
    free(bytes_of[0]);
    free(bytes_of[1]);
}

/* Puts a text in the place of another one of the same length, wherever that is. */
static void put_everywhere(char *bytes_of, size_t count, const char *text, const char *other)
{
    size_t length = strlen(text);
    for (size_t at = 0; at + length <= count; at++)
        if (memcmp(bytes_of + at, text, length) == 0)
            memcpy(bytes_of + at, other, length);
}

void drop_checksums(const char *path)
{
    size_t count;
    char *bytes_of = get_file(path, &count);
    put_everywhere(bytes_of, count, "\"tarn.checksum", "\"none.checksum");
    put_everywhere(bytes_of, count, "\"checksum\"", "\"no-check\"");
    if (strstr(path, "trainer.json"))
        put_everywhere(bytes_of, count, "\"format\": 2", "\"format\": 1");
    put_file(path, bytes_of, count);
    free(bytes_of);
}

const char *real_data(const char *name)
{
    static char path[4096];
    const char *base = getenv("TARN_TEST_DATA");
    if (!base || !base[0])
        return NULL;
    snprintf(path, sizeof(path), "%s/%s", base, name);
    return path;
}
