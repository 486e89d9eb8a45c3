/* lora_groups.c: sets of LoRA adapters beside a model, and their updates of the rows of open groups. */
#include "nn/lora_groups.h"

#include <string.h>

#include "base/memory.h"
#include "ops/internal.h"

/* ---- sets -------------------------------------------------------------------------------------------------------- */

/* A reference of the set's own. NULL for NULL. */
static tarn_tensor *retained(tarn_tensor *tensor)
{
    if (tensor)
        tarn__tensor_retain(tensor);
    return tensor;
}

bool tarn__lora_set_take(tarn__lora_set *set, tarn_module *layer)
{
    if (!tarn__list_reserve(&set->entry, set->count, &set->capacity, sizeof(*set->entry)))
        return false;
    int at = 0;
    while (at < set->count && (uintptr_t)set->entry[at].layer < (uintptr_t)layer)
        at++;
    memmove(&set->entry[at + 1], &set->entry[at], sizeof(*set->entry) * (size_t)(set->count - at));
    set->count++;
    set->entry[at] =
        (tarn__lora_entry){.layer = layer,
                           .scale = layer->adapter->scale,
                           .a = retained(tarn__adapter_weight(layer, TARN__ADAPTER_A)),
                           .b = retained(tarn__adapter_weight(layer, TARN__ADAPTER_B)),
                           .factor = layer->adapter->has_magnitude ? retained(tarn__adapter_factor(layer)) : NULL};
    tarn__adapter_remove(layer);
    return true;
}

void tarn__lora_set_close(tarn__lora_set *set)
{
    for (int i = 0; i < set->count; i++) {
        tarn__tensor_release(set->entry[i].a);
        tarn__tensor_release(set->entry[i].b);
        if (set->entry[i].factor)
            tarn__tensor_release(set->entry[i].factor);
    }
    tarn__release(set->entry, sizeof(*set->entry) * (size_t)set->capacity);
    *set = (tarn__lora_set){0};
}

/* The entry of a layer; NULL: none. */
static const tarn__lora_entry *find(const tarn__lora_set *set, const tarn_module *layer)
{
    int low = 0, high = set->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if ((uintptr_t)set->entry[middle].layer < (uintptr_t)layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->count && set->entry[low].layer == layer ? &set->entry[low] : NULL;
}

/* ---- open groups ------------------------------------------------------------------------------------------------- */

static _Thread_local const tarn__lora_groups *opened; /* NULL: none */
static _Thread_local bool is_of_logits;

void tarn__lora_groups_open(const tarn__lora_groups *groups, bool of_logits)
{
    opened = groups;
    is_of_logits = of_logits;
}

void tarn__lora_groups_close(void)
{
    opened = NULL;
}

bool tarn__lora_groups_touch(const tarn_module *layer)
{
    for (int i = 0; opened && i < opened->sets; i++)
        if (find(opened->set[i], layer))
            return true;
    return false;
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

static tarn_tensor *rows_of(tarn_tensor *x)
{
    return tarn__rows_of("lora", x);
}

/* DoRA scales the base's part too: these rows are computed anew. `x` and `y` are their rows. */
static bool replace_rows(const tarn__lora_entry *entry, tarn_tensor *x, tarn_tensor *y)
{
    tarn_tensor *bias = tarn__module_own(entry->layer, "bias"), *base = tarn__lora_base(entry->layer, x, NULL);
    tarn_tensor *h = base ? tarn__lora_low_rank(x, entry->a, entry->b, entry->scale) : NULL;
    base = h ? tarn__lora_add_wide(base, h, entry->factor) : NULL;
    base = base && bias ? tarn_add(base, bias) : base;
    return base && tarn_copy(y, base);
}

static bool add_embedding_rows(const tarn__lora_entry *entry, tarn_tensor *index, tarn_tensor *y)
{
    tarn_tensor *h = tarn__lora_embedding_update(index, entry->a, entry->b, entry->scale);
    tarn_tensor *sum = h ? tarn__lora_add_wide(y, h, NULL) : NULL;
    return sum && tarn_copy(y, sum);
}

/* Rows [first, end) of the groups that have an adapter for this layer, in a scope each. */
static tarn_tensor *add_all(const tarn_module *layer, tarn_tensor *x, tarn_tensor *y, bool is_embedding)
{
    bool good = true;
    for (int i = 0; good && y && i < opened->count; i++) {
        const tarn__lora_group *group = &opened->group[i];
        const tarn__lora_entry *entry = find(group->set, layer);
        int64_t first = is_of_logits ? group->first_logit : group->first,
                end = is_of_logits ? group->end_logit : group->end;
        if (!entry || first == end)
            continue;
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *from = scope ? (is_embedding ? tarn_reshape(x, TARN_SHAPE(tarn_count(x))) : rows_of(x)) : NULL,
                    *to = from ? tarn_slice(rows_of(y), 0, first, end) : NULL;
        from = to ? tarn_slice(from, 0, first, end) : NULL;
        good = from && (is_embedding    ? add_embedding_rows(entry, from, to)
                        : entry->factor ? replace_rows(entry, from, to)
                                        : tarn__lora_add(from, entry->a, entry->b, entry->scale, to));
        tarn_scope_close(scope);
    }
    return good ? y : NULL;
}

tarn_tensor *tarn__lora_groups_add(const tarn_module *layer, tarn_tensor *x, tarn_tensor *y)
{
    return opened ? add_all(layer, x, y, false) : y;
}

tarn_tensor *tarn__lora_groups_add_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y)
{
    return opened ? add_all(embedding, index, y, true) : y;
}
