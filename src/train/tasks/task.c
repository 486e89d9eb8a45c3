/* task.c: the table of training tasks, and the choice of a run's.
 *
 * A task is found by its name, by the data of a new run, by the data spec of a run that is opened, or by a model's
 * name; each lookup is for callers that know no more than that. */
#include "train/tasks/task.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "core/device/device.h"
#include "models/lm/arch.h"

/* In the order in which they are asked for data. */
static const tarn__task *const tasks[] = {&tarn__task_chat, &tarn__task_lm, &tarn__task_classify, &tarn__task_regress};
enum { TASKS = sizeof(tasks) / sizeof(tasks[0]) };

const tarn__task *tarn__task_named(const char *name)
{
    for (int i = 0; i < TASKS; i++)
        if (strcmp(tasks[i]->name, name) == 0)
            return tasks[i];
    return NULL;
}

/* The first one that accepts the data; classifying has no such function and takes the rest, so regression is never
 * found here: a table's target tells it once it is open. */
const tarn__task *tarn__task_of_data(const char *data)
{
    int i = 0;
    while (tasks[i]->accepts && !tasks[i]->accepts(data))
        i++;
    return tasks[i];
}

const tarn__task *tarn__task_of_spec(const tarn__data_spec *spec, const char *data)
{
    if (tarn__data_spec_is_regression(spec))
        return &tarn__task_regress;
    if (spec->classes)
        return &tarn__task_classify;
    return tarn__task_of_text(data);
}

const tarn__task *tarn__task_of_text(const char *data)
{
    return tarn__task_chat.accepts(data) ? &tarn__task_chat : &tarn__task_lm;
}

const tarn__task *tarn__task_of_model(const char *model)
{
    return tarn__arch_find_trainable(model) ? &tarn__task_lm : &tarn__task_classify;
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static double value_of(const tarn__metric *m, const tarn_train_report *report)
{
    return *(const double *)((const char *)report + m->offset);
}

/* Puts the report's unit before a name: "tokens" and "_per_second". */
static void put_unit(const char *unit, char *name, size_t size)
{
    char own[32];
    snprintf(own, sizeof(own), "%s", name);
    snprintf(name, size, "%s%s", unit, own);
}

void tarn__task_set_metrics(const tarn__task *task, tarn_train_report *report)
{
    report->metric_count = 0;
    for (const tarn__metric *m = report->kind == TARN_REPORT_EVALUATION ? task->evaluation_lines : task->training_lines;
         m->key; m++) {
        if (!m->shown.name[0])
            continue;
        tarn_train_metric *shown = &report->metrics[report->metric_count++];
        *shown = m->shown;
        shown->value = value_of(m, report);
        if (m->is_speed) {
            put_unit(report->unit, shown->name, sizeof(shown->name));
            put_unit(report->unit, shown->unit, sizeof(shown->unit));
        }
    }
}

tarn_train_report tarn__report_of_evaluation(const tarn__evaluation *e)
{
    return (tarn_train_report){.kind = TARN_REPORT_EVALUATION,
                               .loss = e->loss,
                               .accuracy = e->accuracy,
                               .rmse = e->rmse,
                               .mae = e->mae,
                               .r2 = e->r2};
}

/* By the last metric of the task's lines, and by the ones before it where that is equal or not a number. */
bool tarn__task_is_better(const tarn__task *task, const tarn__evaluation *a, const tarn__evaluation *b)
{
    const tarn_train_report x = tarn__report_of_evaluation(a), y = tarn__report_of_evaluation(b);
    int count = 0;
    while (task->evaluation_lines[count].key)
        count++;
    for (const tarn__metric *m = task->evaluation_lines + count; m-- > task->evaluation_lines;) {
        double sign = m->shown.higher_is_better ? 1 : -1, more = sign * (value_of(m, &x) - value_of(m, &y));
        if (more > 0 || more < 0)
            return more > 0;
    }
    return false;
}

void tarn__eval_data_free(tarn__eval_data *data)
{
    tarn__chat_dataset_close(data->chats);
    tarn__corpus_free(&data->corpus);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

bool tarn_train_option_applies(const char *name, const char *task)
{
    const char *function = "train_option_applies";
    if (tarn_failed())
        return false;
    const tarn__task *known = task ? tarn__task_named(task) : NULL;
    if (!known)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown task '%.100s'; must be classify, regress, lm or chat",
                           function, task ? task : "NULL");
    if (!name || !tarn__train_option_applies(name, TARN__TASKS_ALL))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown option '%.100s'", function, name ? name : "NULL");
    return tarn__train_option_applies(name, known->bit);
}

/* A model without a name is chosen later, and fits. */
bool tarn__task_check(const char *function, const tarn__task *task, const tarn_train_options *o)
{
    if (!tarn__train_options_apply(function, o, task->bit))
        return false;
    bool is_language = tarn__arch_find_trainable(o->model) != NULL;
    tarn__task_set of_model = is_language ? TARN__TASKS_LANGUAGE : TARN__TASKS_SAMPLES;
    return !o->model[0] || (of_model & task->bit) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model %s needs %s, but the data is '%.200s'", function, o->model,
                       is_language ? "text (text:FILE, shards:FOLDER or FILE.jsonl)" : "samples with labels", o->data);
}

/* "auto" is bf16 only where the task gains by it and the backend computes in it. */
void tarn__precision_resolve(tarn_train_options *options, tarn_device device, const tarn__task *task)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    bool has_bf16 = backend && backend->has_bf16;
    if (strcmp(options->precision, "auto") == 0)
        snprintf(options->precision, sizeof(options->precision), "%s",
                 task && task->prefers_bf16 && has_bf16 ? "bf16" : "f32");
}
