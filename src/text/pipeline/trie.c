/* trie.c: the pieces of a vocabulary by their prefixes, for models that search all pieces that begin at a position.
 * Children of a node are adjacent and sorted by byte. Nodes are created level by level from the sorted pieces, so that
 * no recursion follows the length of a piece. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

typedef struct sorted_piece {
    const char *bytes;
    uint32_t length;
    int32_t id;
} sorted_piece;

/* A piece comes before those that it begins. */
static int by_bytes(const void *a, const void *b)
{
    const sorted_piece *one = a, *other = b;
    size_t shared = one->length < other->length ? one->length : other->length;
    int order = memcmp(one->bytes, other->bytes, shared);
    return order ? order : (one->length > other->length) - (one->length < other->length);
}

/* The pieces below a node while the trie is built: sorted[begin … end), equal in their first `depth` bytes. */
typedef struct range {
    uint32_t begin, end, depth;
} range;

/* Appends the children of a node. The range's first piece is the node's own if it ends there. */
static bool add_children(tarn__buffer *nodes, tarn__buffer *ranges, const sorted_piece *sorted, size_t index)
{
    range r = ((range *)(void *)ranges->data)[index];
    tarn__trie_node *node = (tarn__trie_node *)(void *)nodes->data + index;
    if (sorted[r.begin].length == r.depth)
        node->id = sorted[r.begin++].id;
    node->first = (uint32_t)nodes->count;
    uint32_t children = 0;
    for (uint32_t at = r.begin, end; at < r.end; at = end, children++) {
        unsigned char byte = (unsigned char)sorted[at].bytes[r.depth];
        for (end = at + 1; end < r.end && (unsigned char)sorted[end].bytes[r.depth] == byte;)
            end++;
        /* id -1: no piece ends here, only longer ones. */
        const tarn__trie_node child = {.id = -1, .byte = byte};
        if (!tarn__buffer_add(nodes, &child, 1, sizeof(child)) ||
            !tarn__buffer_add(ranges, &(range){at, end, r.depth + 1}, 1, sizeof(range)))
            return false;
    }
    ((tarn__trie_node *)(void *)nodes->data)[index].count = (uint16_t)children;
    return true;
}

/* The pieces that count, sorted; *count of them. */
static sorted_piece *sort_pieces(const tarn__vocab *vocab, bool (*counts)(const void *, int32_t), const void *ctx,
                                 size_t *count)
{
    sorted_piece *sorted = tarn__alloc(((size_t)vocab->count + 1) * sizeof(*sorted));
    *count = 0;
    for (int32_t id = 0; sorted && id < vocab->count; id++)
        if (vocab->piece[id].used && !vocab->piece[id].outside && (!counts || counts(ctx, id)))
            sorted[(*count)++] =
                (sorted_piece){vocab->bytes.data + vocab->piece[id].begin, vocab->piece[id].length, id};
    if (sorted && *count)
        /* Pieces are unique, so the order of equal ones does not matter. */
        qsort(sorted, *count, sizeof(*sorted), by_bytes);
    return sorted;
}

/* Linear in the bytes of all pieces, after sorting. `nodes` is replaced. */
bool tarn__trie_build(tarn__buffer *nodes, const tarn__vocab *vocab, bool (*counts)(const void *, int32_t),
                      const void *ctx)
{
    size_t count;
    tarn__buffer ranges = {0};
    sorted_piece *sorted = sort_pieces(vocab, counts, ctx, &count);
    const tarn__trie_node root = {.id = -1};
    nodes->count = 0;
    bool good = sorted && tarn__buffer_add(nodes, &root, 1, sizeof(root)) &&
                tarn__buffer_add(&ranges, &(range){0, (uint32_t)count, 0}, 1, sizeof(range));
    for (size_t i = 0; good && count && i < nodes->count; i++)
        good = add_children(nodes, &ranges, sorted, i);
    tarn__release(sorted, ((size_t)vocab->count + 1) * sizeof(*sorted));
    tarn__buffer_free(&ranges, sizeof(range));
    return good;
}

/* A binary search among at most 256 children; 0, which is the root and nobody's child: none. */
uint32_t tarn__trie_next(const tarn__buffer *nodes, uint32_t node, unsigned char byte)
{
    const tarn__trie_node *all = (const tarn__trie_node *)(const void *)nodes->data;
    uint32_t low = all[node].first, high = low + all[node].count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (all[middle].byte == byte)
            return middle;
        *(all[middle].byte < byte ? &low : &high) = all[middle].byte < byte ? middle + 1 : middle;
    }
    return 0;
}
