/* fuzz.c: random damage to good files. */
#include "support/fuzz.h"

size_t fuzz_largest;

static void *note_alloc(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    fuzz_largest = size > fuzz_largest ? size : fuzz_largest;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) == 0 ? memory : NULL;
}

static void note_release(void *memory, size_t size, void *ctx)
{
    (void)size, (void)ctx;
    free(memory);
}

const tarn_allocator fuzz_allocator = {note_alloc, note_release, NULL};

int fuzz_rounds(void)
{
    const char *quick = getenv("TARN_TEST_QUICK"), *many = getenv("TARN_TEST_LONG");
    return many && many[0] == '1' ? 100000 : quick && quick[0] == '1' ? 100 : 500;
}

void fuzz_damage(bytes *b, uint64_t *random)
{
    static const unsigned char favourites[] = {0,    1,   7,   8,   9,   0x7F, 0x80, 0xFF,
                                               '\n', '"', ',', '(', ')', '\'', '9',  '-'};
    for (int64_t n = 1 + random_below(random, 4); n > 0 && b->count > 0; n--) {
        size_t head = b->count < 100 || random_below(random, 4) == 0 ? b->count : 100; /* where formats decide */
        size_t at = (size_t)random_below(random, (int64_t)head), length = (size_t)random_below(random, 9);
        length = at + length > b->count ? b->count - at : length;
        switch (random_below(random, 6)) {
        case 0: b->data[at] ^= (unsigned char)(1 << random_below(random, 8)); break;
        case 1: b->data[at] = favourites[random_below(random, sizeof(favourites))]; break;
        case 2: b->data[at] = (unsigned char)random_bits(random); break;
        case 3: /* cut out */
            memmove(b->data + at, b->data + at + length, b->count - at - length);
            b->count -= length;
            break;
        case 4: /* doubled */
            if (b->count + length <= sizeof(b->data)) {
                memmove(b->data + at + length, b->data + at, b->count - at);
                b->count += length;
            }
            break;
        default: b->count = at; break;
        }
    }
}
