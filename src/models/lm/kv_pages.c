/* kv_pages.c: the tensors of the paged KV cache, and attention of a packed batch over them.
 *
 * A page holds TARN__KV_PAGE rows of all heads, for one layer's keys or values; its number is the same in all
 * layers, so a sequence has one list of pages. Nothing here knows sequences: slots and lists come with the batch. */
#include "models/lm/kv_pages.h"

#include "base/memory.h"

static int64_t groups_of(const tarn__kv_pages_shape *s)
{
    return s->dtype == TARN_U8 ? tarn__kv_q8_scales(s->head_dim) : 0;
}

int64_t tarn__kv_pages_page_bytes(const tarn__kv_pages_shape *s)
{
    return 2 * s->layers * s->heads * TARN__KV_PAGE *
           (s->head_dim * (int64_t)tarn_dtype_size(s->dtype) + groups_of(s) * (int64_t)tarn_dtype_size(TARN_F16));
}

/* Pages of a layer's keys or values, taken from the open scope. */
static bool open_rows(tarn__kv_page_rows *to, const tarn__kv_pages_shape *s, tarn_device device)
{
    tarn_tensor *rows = tarn_zeros(TARN_SHAPE(s->pages, TARN__KV_PAGE, s->heads, s->head_dim), s->dtype, device);
    tarn_tensor *scale = rows && s->dtype == TARN_U8
                             ? tarn_zeros(TARN_SHAPE(s->pages, TARN__KV_PAGE, s->heads, groups_of(s)), TARN_F16, device)
                             : NULL;
    if (!rows || tarn_failed())
        return false;
    to->rows = tarn__scope_take(rows);
    to->scale = scale ? tarn__scope_take(scale) : NULL;
    return !tarn_failed();
}

bool tarn__kv_pages_open(const char *function, tarn__kv_pages *pages, const tarn__kv_pages_shape *s)
{
    *pages = (tarn__kv_pages){.shape = *s, .rows = tarn__alloc(sizeof(*pages->rows) * (size_t)(2 * s->layers))};
    bool good = pages->rows != NULL;
    for (int64_t i = 0; good && i < 2 * s->layers; i++)
        good = open_rows(&pages->rows[i], s, tarn__device_of_layer(&s->map, i % s->layers));
    if (good)
        return true;
    tarn__kv_pages_close(pages);
    return tarn__raise_within(function);
}

void tarn__kv_pages_close(tarn__kv_pages *pages)
{
    for (int64_t i = 0; pages->rows && i < 2 * pages->shape.layers; i++) {
        tarn_free(pages->rows[i].rows);
        tarn_free(pages->rows[i].scale);
    }
    tarn__release(pages->rows, sizeof(*pages->rows) * (size_t)(2 * pages->shape.layers));
    *pages = (tarn__kv_pages){0};
}

/* Copies one page of a tensor of pages. Returns the host memory after it; NULL with an error. Pages are adjacent, so
 * one is a single transfer. */
static char *copy_page(const tarn_tensor *rows, int32_t page, char *host, bool is_read)
{
    size_t bytes = (size_t)(tarn_count(rows) / rows->view.shape[0]) * tarn_dtype_size(rows->view.dtype);
    int64_t offset = rows->start * (int64_t)tarn_dtype_size(rows->view.dtype) + page * (int64_t)bytes;
    bool good = is_read ? tarn__storage_download(rows->storage, offset, host, bytes)
                        : tarn__storage_upload(rows->storage, offset, host, bytes);
    return good ? host + bytes : NULL;
}

/* In the order of `rows`, each with its scales behind it: what is read here is written back by the same walk. */
static bool copy_layers(const tarn__kv_pages *pages, int32_t page, char *host, bool is_read)
{
    for (int64_t i = 0; host && i < 2 * pages->shape.layers; i++) {
        host = copy_page(pages->rows[i].rows, page, host, is_read);
        host = host && pages->rows[i].scale ? copy_page(pages->rows[i].scale, page, host, is_read) : host;
    }
    return host != NULL;
}

bool tarn__kv_pages_read(const tarn__kv_pages *pages, int32_t page, void *host)
{
    return copy_layers(pages, page, host, true);
}

bool tarn__kv_pages_write(const tarn__kv_pages *pages, int32_t page, void *host)
{
    return copy_layers(pages, page, host, false);
}

/* Keys are rotated before they are cached, as in kv_cache.c. */
tarn_tensor *tarn__kv_pages_attend(const tarn__page_batch *b, int64_t layer, tarn_tensor *queries, tarn_tensor *keys,
                                   tarn_tensor *values, const tarn__decode_attention_options *how)
{
    const tarn__kv_page_rows *key = &b->pages->rows[layer], *value = key + b->pages->shape.layers;
    const tarn__page_index *index = &b->index[tarn__device_map_index(&b->pages->shape.map, layer)];
    tarn_tensor *part[] = {queries, keys, values};
    for (int i = 0; i < 3; i++) {
        part[i] = how->rope && i < 2 ? tarn_rope(part[i], index->positions, how->rope) : part[i];
        part[i] = part[i] ? tarn_squeeze(part[i], 0) : NULL;
        if (!part[i])
            return NULL;
    }
    if (!tarn__write_pages(key, index->slots, part[1]) || !tarn__write_pages(value, index->slots, part[2]))
        return NULL;
    const tarn__paged_options options = {.scale = how->scale, .window = how->window, .softcap = how->softcap};
    tarn_tensor *y = tarn__attention_paged(part[0], key, value, &index->sequences, &options);
    return y ? tarn_reshape(y, TARN_SHAPE(1, tarn_size(y, 0), tarn_size(y, 1) * tarn_size(y, 2))) : NULL;
}
