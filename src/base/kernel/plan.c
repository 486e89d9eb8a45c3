/* plan.c: choosing and preparing rows: of a call, and of the parts of a composed kernel. */
#include "base/kernel/plan.h"

#include "base/kernel/backend.h"

/* The dtypes a row must support: that of the first operand, and all quantized ones, because a kernel that does not list
 * them would read blocks as elements. */
static uint32_t dtypes_of(const tarn__call *call)
{
    const tarn__view *first = call->inputs > 0 && call->in[0] ? call->in[0] : call->outputs > 0 ? call->out[0] : NULL;
    uint32_t all = 0;
    for (int i = 0; i < call->inputs; i++)
        all |= call->in[i] ? TARN__BIT(call->in[i]->dtype) : 0;
    for (int i = 0; i < call->outputs; i++)
        all |= call->out[i] ? TARN__BIT(call->out[i]->dtype) : 0;
    for (int i = 0; !first && i < call->inputs; i++)
        first = call->in[i];
    return (all & TARN__QUANTIZED) | (first ? TARN__BIT(first->dtype) : 0);
}

const tarn__kernel_row *tarn__find_row(const tarn__kernel_row *row, const tarn__call *call)
{
    uint32_t used = dtypes_of(call);
    while (row && (!row->run || (used & ~row->dtypes) != 0 || (row->fits && !row->fits(call))))
        row = row->next;
    return row;
}

void tarn__push_row(tarn__kernel_row *rows, tarn__kernel kernel, tarn__kernel_row row, tarn__kernel_row *storage)
{
    *storage = rows[kernel];
    row.next = storage->run ? storage : NULL;
    rows[kernel] = row;
}

const tarn__kernel_row *tarn__prepare(const tarn__kernel_row *row, const tarn__call *call, tarn__plan *plan,
                                      tarn__plan_status *status)
{
    uint32_t used = plan->used;
    *status = TARN__PLAN_DECLINED;
    while ((row = tarn__find_row(row, call)) != NULL) {
        *status = row->prepare ? row->prepare(call, plan) : TARN__PLAN_READY;
        if (*status != TARN__PLAN_DECLINED)
            return row;
        plan->used = used;
        plan->scratch_bytes = 0;
        plan->shared = NULL;
        row = row->next;
    }
    return NULL;
}

/* The part's plan takes all the room that is left, then returns what it does not use. */
tarn__plan_status tarn__part_prepare(tarn__plan *plan, tarn__part *part, const tarn__kernel_row *row,
                                     const tarn__call *call)
{
    tarn__plan *own = tarn__plan_reserve(plan, sizeof(*own));
    tarn__plan_status status;
    if (!own)
        return TARN__PLAN_FAILED;
    *own = (tarn__plan){.room = plan->room - plan->used};
    *part = (tarn__part){.plan = (uint32_t)((char *)own - (char *)plan)};
    part->row = tarn__prepare(row, call, own, &status);
    part->scratch_bytes = own->scratch_bytes;
    own->room = own->used;
    plan->used += own->used;
    return status;
}

void tarn__part_run(const tarn__call *composed, const tarn__part *part, tarn__call *call)
{
    call->plan = (const tarn__plan *)(const void *)((const char *)composed->plan + part->plan);
    call->scratch_bytes = part->scratch_bytes;
    part->row->run(call);
}
