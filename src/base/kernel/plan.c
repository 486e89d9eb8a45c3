/* plan.c: choosing and preparing rows: of a call, and of the parts of a composed kernel. */
#include "base/kernel/plan.h"

#include "base/kernel/backend.h"

const tarn__kernel_row *tarn__prepare(const tarn__kernel_row *row, const tarn__call *call, tarn__plan *plan,
                                      tarn__plan_status *status)
{
    uint32_t used = plan->used;
    *status = TARN__PLAN_DECLINED;
    while ((row = tarn__find_row(row, call)) != NULL) {
        *status = row->prepare ? row->prepare(call, plan) : TARN__PLAN_READY;
        if (!row->prepare && row->scratch)
            plan->scratch_bytes = row->scratch(call);
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
