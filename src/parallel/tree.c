/* tree.c: tree sums (tree.h): nodes of a rank, and the sum over all ranks: an all-to-all of shards, a tree sum of each
 * shard, and a gather of the shards. */
#include "parallel/tree.h"

#include <stdlib.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/ops.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/tensor/tensor.h"

tarn__tree tarn__tree_open(int64_t leaves, int64_t first)
{
    return (tarn__tree){.leaves = leaves, .next = first};
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* Sums that were not created here are the caller's. */
static void drop(tarn__tree_node *node)
{
    if (node->is_owned)
        tarn_free(node->sum);
    node->sum = NULL;
}

/* A node without a right sibling is its parent. */
static void promote(const tarn__tree *t, tarn__tree_node *node)
{
    while (node->index > 0 && node->index % 2 == 0 && (node->index + 1) << node->level >= t->leaves) {
        node->level++;
        node->index /= 2;
    }
}

/* Right children have odd numbers. */
static bool is_sibling(const tarn__tree_node *left, const tarn__tree_node *right)
{
    return left->level == right->level && right->index % 2 == 1 && left->index == right->index - 1;
}

/* Adds a node after the others, and sums the parents that are complete then. */
static bool add_node(tarn__tree *t, tarn__tree_node node)
{
    bool good = true;
    promote(t, &node);
    while (good && t->count > 0 && is_sibling(&t->node[t->count - 1], &node)) {
        tarn__tree_node parent = t->node[--t->count];
        good = !node.sum || tarn_add_inplace(parent.sum, node.sum);
        drop(&node);
        parent.level++;
        parent.index /= 2;
        promote(t, &parent);
        node = parent;
    }
    t->node[t->count++] = node;
    return good;
}

/* True when the next leaf is added to the last node at once. */
static bool joins(const tarn__tree *t, const tarn__tree_node *leaf)
{
    tarn__tree_node moved = *leaf;
    promote(t, &moved);
    return t->count > 0 && is_sibling(&t->node[t->count - 1], &moved);
}

bool tarn__tree_add(tarn__tree *t, tarn_tensor *leaf)
{
    tarn__tree_node node = {.index = t->next++, .sum = leaf};
    if (leaf && !joins(t, &node)) {
        node.sum = tarn_clone(leaf);
        node.is_owned = true;
        if (!node.sum)
            return false;
    }
    return add_node(t, node);
}

bool tarn__tree_end(tarn__tree *t, tarn_tensor *leaf)
{
    return add_node(t, (tarn__tree_node){.index = t->next++, .sum = leaf});
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* The sum over all ranks, in pieces: rank r sums elements begin(r) to begin(r + 1) of every node. */
typedef struct job {
    const char *function;
    tarn_comm *comm;
    tarn__tree *own;
    int64_t count;  /* elements of a node */
    bool on_device; /* by the link of the communicator */
} job;

static float *address_of(const tarn_tensor *x)
{
    return tarn__view_at(&x->view);
}

/* Shards differ by one element at most; computed without count * rank, which could overflow. */
static int64_t begin_of(const job *j, int rank)
{
    return j->count / j->comm->size * rank + j->count % j->comm->size * rank / j->comm->size;
}

static int64_t shard_of(const job *j, int rank)
{
    return begin_of(j, rank + 1) - begin_of(j, rank);
}

/* The nodes that a rank is left with. */
static tarn__tree shape_of(const job *j, int rank)
{
    int64_t leaves = j->own->leaves / j->comm->size;
    tarn__tree shape = tarn__tree_open(j->own->leaves, leaves * rank);
    for (int64_t i = 0; i < leaves; i++)
        tarn__tree_add(&shape, NULL);
    return shape;
}

/* Rows of `gathered`: the own shard of the nodes of rank 0, then of rank 1, ... Returns their number. */
static int count_nodes(const job *j)
{
    int rows = 0;
    for (int i = 0; i < j->comm->size; i++)
        rows += shape_of(j, i).count;
    return rows;
}

/* Rows are `stride` elements apart. */
typedef struct shards {
    float *memory;
    int64_t stride;
    int rows;
} shards;

/* All messages of an exchange of shards: those of the own nodes to their ranks, and the own shard of all others.
 * Returns their number. */
static int list_messages(const job *j, const shards *gathered, tarn__message *messages)
{
    int own = j->comm->rank, count = 0, row = 0;
    int64_t shard = shard_of(j, own);
    for (int i = 0; i < j->comm->size; i++) {
        int nodes = shape_of(j, i).count;
        int64_t theirs = shard_of(j, i);
        for (int k = 0; k < nodes; k++, row++)
            if (i != own && shard)
                messages[count++] = (tarn__message){gathered->memory + (size_t)row * (size_t)gathered->stride,
                                                    sizeof(float) * (size_t)shard, i, false};
        for (int k = 0; i != own && theirs && k < j->own->count; k++)
            messages[count++] = (tarn__message){address_of(j->own->node[k].sum) + begin_of(j, i),
                                                sizeof(float) * (size_t)theirs, i, true};
    }
    return count;
}

/* The first row of the own nodes. */
static int first_row(const job *j)
{
    int row = 0;
    for (int i = 0; i < j->comm->rank; i++)
        row += shape_of(j, i).count;
    return row;
}

/* Copies the own shard of the own nodes, on host or device. */
static bool copy_own(const job *j, const shards *gathered)
{
    size_t bytes = sizeof(float) * (size_t)shard_of(j, j->comm->rank);
    bool good = true;
    for (int k = 0; good && bytes && k < j->own->count; k++) {
        float *to = gathered->memory + (size_t)(first_row(j) + k) * (size_t)gathered->stride;
        const float *from = address_of(j->own->node[k].sum) + begin_of(j, j->comm->rank);
        if (j->on_device)
            good = j->comm->link_row->copy(j->comm->link, to, from, bytes) || tarn__link_fail(j->function, j->comm);
        else
            memcpy(to, from, bytes);
    }
    return good;
}

/* Gives every rank its shard of all nodes. */
static bool exchange_shards(const job *j, const shards *gathered)
{
    size_t bytes = sizeof(tarn__message) * ((size_t)gathered->rows + (size_t)(j->own->count * j->comm->size));
    tarn__message *messages = tarn__alloc(bytes);
    int count = messages ? list_messages(j, gathered, messages) : 0;
    bool good = messages && copy_own(j, gathered);
    if (good && j->on_device)
        good = j->comm->link_row->exchange(j->comm->link, messages, count) ? tarn__link_wait(j->function, j->comm)
                                                                           : tarn__link_fail(j->function, j->comm);
    else
        good = good && tarn__comm_exchange(j->function, j->comm, messages, count);
    tarn__release(messages, bytes);
    return good;
}

/* Sums the rows of a shard in the order of their leaves; the result is row 0. */
static bool sum_shard(const job *j, tarn_tensor *gathered)
{
    tarn__tree all = tarn__tree_open(j->own->leaves, 0);
    int row = 0;
    for (int i = 0; i < j->comm->size; i++) {
        tarn__tree theirs = shape_of(j, i);
        for (int k = 0; k < theirs.count; k++, row++) {
            tarn__tree_node node = theirs.node[k];
            node.sum = tarn_slice(gathered, 0, row, row + 1);
            if (!node.sum || !add_node(&all, node))
                return false;
        }
    }
    return true;
}

/* Shards are in the order of the ranks, as in the sum. */
static bool gather_shards(const job *j, const float *shard, float *sum)
{
    size_t bytes = sizeof(size_t) * (size_t)j->comm->size, *sizes = tarn__alloc(bytes);
    if (!sizes)
        return false;
    for (int i = 0; i < j->comm->size; i++)
        sizes[i] = sizeof(float) * (size_t)shard_of(j, i);
    bool good = tarn_comm_all_gather(j->comm, shard, sum, sizes);
    tarn__release(sizes, bytes);
    return good;
}

/* The own shard is summed on the CPU, and the result written to `sum` on its device. */
static bool sum_ranks(const job *j, tarn_tensor *sum)
{
    int64_t shard = shard_of(j, j->comm->rank);
    tarn_device cpu = tarn_device_cpu();
    tarn_tensor *gathered = tarn_zeros(TARN_SHAPE(count_nodes(j), shard > 0 ? shard : 1), TARN_F32, cpu);
    tarn_tensor *on_host = tarn_device_equal(tarn_device_of(sum), cpu) && tarn_is_contiguous(sum)
                               ? sum
                               : tarn_zeros(tarn_shape_of(sum), TARN_F32, cpu);
    if (!gathered || !on_host)
        return false;
    shards rows = {tarn_data(gathered), shard, count_nodes(j)};
    return rows.memory && exchange_shards(j, &rows) && (shard == 0 || sum_shard(j, gathered)) &&
           gather_shards(j, tarn_data(gathered), tarn_data(on_host)) && (on_host == sum || tarn_copy(sum, on_host));
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

/* How often the sum of two rows is taken after each row: the shape of sum_shard(). */
static void list_merges(const job *j, uint8_t *merges)
{
    tarn__tree all = tarn__tree_open(j->own->leaves, 0);
    int row = 0;
    for (int i = 0; i < j->comm->size; i++) {
        tarn__tree theirs = shape_of(j, i);
        for (int k = 0; k < theirs.count; k++, row++) {
            int before = all.count;
            add_node(&all, theirs.node[k]);
            merges[row] = (uint8_t)(before + 1 - all.count);
        }
    }
}

/* The result of a shard is written to its position in the sum, from where the others get it. */
static bool sum_on_link(const job *j, const shards *gathered, tarn_tensor *sum)
{
    uint8_t merges[TARN__LINK_ROWS];
    const tarn__link_row *link = j->comm->link_row;
    size_t bytes = sizeof(size_t) * (size_t)j->comm->size, *sizes = tarn__alloc(bytes);
    if (!sizes)
        return false;
    list_merges(j, merges);
    for (int i = 0; i < j->comm->size; i++)
        sizes[i] = sizeof(float) * (size_t)shard_of(j, i);
    tarn__link_sum s = {.rows = gathered->memory,
                        .count = gathered->rows,
                        .merges = merges,
                        .stride = gathered->stride,
                        .elements = shard_of(j, j->comm->rank),
                        .sum = address_of(sum) + begin_of(j, j->comm->rank)};
    bool good = link->sum(j->comm->link, &s) && link->gather(j->comm->link, address_of(sum), sizes);
    tarn__release(sizes, bytes);
    return good ? tarn__link_wait(j->function, j->comm) : tarn__link_fail(j->function, j->comm);
}

/* The same on all ranks, since it depends on nothing else: whether the link can sum the tree. */
static bool fits_link(const job *j, const tarn_tensor *sum)
{
    bool fits = j->comm->link && tarn__same_device(tarn__device(sum), j->comm->link_device) &&
                tarn_is_contiguous(sum) && count_nodes(j) <= TARN__LINK_ROWS;
    for (int i = 0; fits && i < j->own->count; i++)
        fits = tarn__same_device(tarn__device(j->own->node[i].sum), j->comm->link_device);
    return fits;
}

static bool order_link(const job *j, bool (*call)(tarn__link *link))
{
    return call(j->comm->link) || tarn__link_fail(j->function, j->comm);
}

/* Without the rows of other ranks: the link adds in place. */
static bool reduce_devices(const job *j, tarn_tensor *sum)
{
    const tarn__link_row *link = j->comm->link_row;
    tarn_tensor *leaf = j->own->node[0].sum;
    if (leaf != sum && !tarn_copy(sum, leaf))
        return false;
    tarn__bump_version(sum);
    return order_link(j, link->fork) &&
           (link->all_reduce(j->comm->link, address_of(sum), j->count) ? tarn__link_wait(j->function, j->comm)
                                                                       : tarn__link_fail(j->function, j->comm)) &&
           order_link(j, link->join) && tarn__link_finish(j->function, j->comm);
}

/* Waits for the end: a rank that fails meanwhile is found here, and not where this one waits for its device; and only
 * then is the memory, which is of the pool, free for work on the device's stream. */
static bool sum_devices(const job *j, tarn_tensor *sum)
{
    int64_t shard = shard_of(j, j->comm->rank), stride = (shard + 3) / 4 * 4;
    int rows = count_nodes(j);
    tarn_tensor *memory =
        tarn__tensor_new(j->function, TARN_SHAPE(rows, stride > 0 ? stride : 4), TARN_F32, j->comm->link_device);
    if (!memory)
        return false;
    shards gathered = {address_of(memory), stride, rows};
    tarn__bump_version(sum);
    return order_link(j, j->comm->link_row->fork) && exchange_shards(j, &gathered) && sum_on_link(j, &gathered, sum) &&
           order_link(j, j->comm->link_row->join) && tarn__link_finish(j->function, j->comm);
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

/* Nodes on another device are staged through the host. */
static bool stage(tarn__tree *tree)
{
    for (int i = 0; i < tree->count; i++) {
        tarn__tree_node *node = &tree->node[i];
        tarn_tensor *on_host = tarn_to(node->sum, tarn_device_cpu());
        if (!on_host)
            return false;
        if (on_host != node->sum) {
            drop(node);
            node->sum = on_host;
            node->is_owned = true;
        }
    }
    return true;
}

/* One rank's tree is a single node by then. Host memory of the sum lives in a scope of this call. */
bool tarn__tree_sum(const char *function, tarn__tree *tree, tarn_comm *comm, tarn_tensor *sum)
{
    if (!comm || comm->size == 1)
        return sum == tree->node[0].sum || tarn_copy(sum, tree->node[0].sum);
    tarn_scope *scope = tarn_scope_open();
    job j = {.function = function, .comm = comm, .own = tree, .count = tarn_count(sum)};
    j.on_device = fits_link(&j, sum);
    bool good =
        scope && tarn__not_captured(function, tarn__device(sum), "a sum over ranks") &&
        (j.on_device ? (tree->is_free ? reduce_devices : sum_devices)(&j, sum) : stage(tree) && sum_ranks(&j, sum));
    tarn_scope_close(scope);
    return good;
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

/* f32 only: sums over ranks are of gradients and losses. */
static bool check_part(const char *function, tarn_tensor *part, tarn_tensor *sum)
{
    if (!part || !sum)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is NULL", function, sum ? "a part" : "the result");
    if (tarn_dtype_of(part) != TARN_F32 || tarn_dtype_of(sum) != TARN_F32)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: a tensor is %s; must be f32", function,
                           tarn_dtype_name(tarn_dtype_of(part) != TARN_F32 ? tarn_dtype_of(part) : tarn_dtype_of(sum)));
    return tarn_count(part) == tarn_count(sum) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: a part has %lld elements, the result %lld", function,
                       (long long)tarn_count(part), (long long)tarn_count(sum));
}

bool tarn_comm_sum(tarn_comm *comm, tarn_tensor *const *parts, int count, tarn_tensor *sum)
{
    static const char *const function = "comm_sum";
    if (tarn_failed())
        return false;
    if (!comm || !parts || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !comm   ? "the communicator is NULL"
                           : parts ? "the number of parts is below 1"
                                   : "`parts` is NULL");
    tarn_scope *scope = tarn_scope_open();
    tarn__tree tree = tarn__tree_open((int64_t)count * comm->size, (int64_t)count * comm->rank);
    bool good = scope != NULL;
    tarn_no_grad_open();
    for (int i = 0; good && i < count; i++)
        good = check_part(function, parts[i], sum) && tarn__tree_add(&tree, parts[i]);
    good = good && tarn__tree_sum(function, &tree, comm, sum);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good || tarn__raise_within(function);
}
