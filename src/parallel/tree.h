/* tree.h: sums of L leaves as a binary tree whose shape depends on L alone, so that the bits of a sum do not depend on
 * which rank has which leaves.
 *
 * Node (level, index) is the sum of leaves index · 2^level up to the next node's first; a node without a right sibling
 * is its left child. A rank adds its adjacent leaves in order and is left with the largest nodes that lie within them:
 * one where their number is a power of two, as in any balanced job. Nodes are exchanged, not leaves: each rank sums one
 * shard of all ranks' nodes and the shards are gathered, which is the traffic of a ring. */
#ifndef TARN__TREE_H
#define TARN__TREE_H

#include <tarn/tensor.h>

#include "parallel/comm.h"

enum { TARN__TREE_NODES = 64 }; /* two per level */

typedef struct tarn__tree_node {
    int level;
    int64_t index;
    tarn_tensor *sum; /* contiguous; NULL where only the shape of a tree is computed */
    bool is_owned;    /* created here, in the open scope; freed once it is added to another */
} tarn__tree_node;

typedef struct tarn__tree {
    int64_t leaves, next; /* of the whole tree; the next leaf to add */
    bool is_free;         /* one leaf per rank, and any order of additions: a device link sums as it likes */
    int count;
    tarn__tree_node node[TARN__TREE_NODES]; /* in order of their leaves */
} tarn__tree;

/* A tree of `leaves` leaves, to which those from `first` on are added. */
tarn__tree tarn__tree_open(int64_t leaves, int64_t first);

/* Adds the next leaf. The tensor is copied where it must be kept, so that the caller may overwrite it; copies belong to
 * the open scope. NULL: computes the shape only. */
bool tarn__tree_add(tarn__tree *tree, tarn_tensor *leaf);

/* Adds the last own leaf, which the caller does not overwrite before the sum: nothing is copied. */
bool tarn__tree_end(tarn__tree *tree, tarn_tensor *leaf);

/* Sums the trees of all ranks, which have equal shares of the leaves, into `sum` on each of them, which may be the last
 * leaf. comm may be NULL: the tree has all leaves. False with an error. */
bool tarn__tree_sum(const char *function, tarn__tree *tree, tarn_comm *comm, tarn_tensor *sum);

#endif
