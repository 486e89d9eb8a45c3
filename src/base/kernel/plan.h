/* plan.h: what prepare() finds out about a call, and run() then uses: the described job, the bytes of scratch, and a
 * library's plan where there is one.
 *
 * A plan depends on shapes, strides, dtypes, params and the alignment of addresses. It holds no address of the call:
 * run() reads views, params and scratch from the call. So a plan is plain data, which may be copied with its `used`
 * bytes, and serves every later call of the same description.
 *
 * The job lies right behind the header. A composed kernel prepares its parts into the same memory, behind its own
 * job: parts know their plan by an offset. */
#ifndef TARN__PLAN_H
#define TARN__PLAN_H

#include "base/kernel/call.h"

struct tarn__kernel_row;

typedef enum tarn__plan_status {
    TARN__PLAN_READY,
    TARN__PLAN_DECLINED, /* this row cannot run the call after all: the next one is tried */
    TARN__PLAN_FAILED    /* the backend's failure() says why */
} tarn__plan_status;

typedef struct tarn__plan {
    size_t scratch_bytes; /* of the call; 0: none */
    const void *shared;   /* a cached plan of a library, borrowed from the backend; NULL: none */
    uint32_t room, used;  /* bytes behind this header, and those reserved so far */
} tarn__plan;

/* Memory for a plan, its job and its parts. */
#define TARN__PLAN_BYTES 4096
typedef struct tarn__plan_buffer {
    tarn__plan plan;
    char job[TARN__PLAN_BYTES - sizeof(tarn__plan)];
} tarn__plan_buffer;

/* An empty plan. The job's memory stays uninitialized: clearing it would cost more than most calls. */
static inline tarn__plan *tarn__plan_begin(tarn__plan_buffer *memory)
{
    memory->plan.scratch_bytes = 0;
    memory->plan.shared = NULL;
    memory->plan.room = sizeof(memory->job);
    memory->plan.used = 0;
    return &memory->plan;
}

/* Reserves the next bytes of the plan, 8-byte aligned, uninitialized. The first reservation is the job. NULL: no room,
 * which prepare() answers with TARN__PLAN_FAILED; jobs are small, so that only a composition too deep gets there. */
static inline void *tarn__plan_reserve(tarn__plan *plan, size_t size)
{
    uint32_t rounded = (uint32_t)((size + 7) / 8 * 8);
    if (rounded > plan->room - plan->used)
        return NULL;
    void *at = (char *)(plan + 1) + plan->used;
    plan->used += rounded;
    return at;
}

/* The job that prepare() reserved. */
static inline const void *tarn__plan_job(const tarn__plan *plan)
{
    return plan + 1;
}

/* ---- parts of a composed kernel ---------------------------------------------------------------------------------- */

/* One kernel call inside another; part of the composed kernel's job. */
typedef struct tarn__part {
    const struct tarn__kernel_row *row; /* the one that runs */
    size_t scratch_bytes;               /* the composed kernel's plan includes them */
    uint32_t plan;                      /* offset of its plan from the composed kernel's; 0: it has none */
} tarn__part;

/* Chooses the row of a part, from `row` on, and prepares it. DECLINED: none supports the call. */
tarn__plan_status tarn__part_prepare(tarn__plan *plan, tarn__part *part, const struct tarn__kernel_row *row,
                                     const tarn__call *call);

/* Runs a prepared part of `composed`. The call is the one it was prepared with, with scratch set by the caller. */
void tarn__part_run(const tarn__call *composed, const tarn__part *part, tarn__call *call);

#endif
