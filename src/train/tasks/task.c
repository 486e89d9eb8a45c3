/* task.c: the table of training tasks, and the choice of a run's. */
#include "train/tasks/task.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "core/device/device.h"
#include "models/lm/arch.h"

static const tarn__task *const tasks[] = {&tarn__task_chat, &tarn__task_lm, &tarn__task_classify};
enum { TASKS = sizeof(tasks) / sizeof(tasks[0]) };

const tarn__task *tarn__task_of_data(const char *data)
{
    for (int i = 0; i < TASKS; i++)
        if (tasks[i]->accepts(data))
            return tasks[i];
    return &tarn__task_classify;
}

const tarn__task *tarn__task_of_spec(const tarn__data_spec *spec, const char *data)
{
    if (spec->classes)
        return &tarn__task_classify;
    return tarn__task_chat.accepts(data) ? &tarn__task_chat : &tarn__task_lm;
}

const tarn__task *tarn__task_of_model(const char *model)
{
    return tarn__arch_find_trainable(model) ? &tarn__task_lm : &tarn__task_classify;
}

bool tarn__task_check(const char *function, const tarn__task *task, const tarn_train_options *o)
{
    if (!tarn__train_options_apply(function, o, task->bit))
        return false;
    bool is_language = tarn__arch_find_trainable(o->model) != NULL;
    tarn__task_set of_model = is_language ? TARN__TASKS_LANGUAGE : TARN__TASK_CLASSIFY;
    return !o->model[0] || (of_model & task->bit) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model %s needs %s, but the data is '%.200s'", function, o->model,
                       is_language ? "text (text:FILE, shards:FOLDER or FILE.jsonl)" : "samples with labels", o->data);
}

void tarn__precision_resolve(tarn_train_options *options, tarn_device device, const tarn__task *task)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    bool has_bf16 = backend && backend->has_bf16;
    if (strcmp(options->precision, "auto") == 0)
        snprintf(options->precision, sizeof(options->precision), "%s",
                 task && task->prefers_bf16 && has_bf16 ? "bf16" : "f32");
}
