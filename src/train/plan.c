/* plan.c: what is known of a run before it begins. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "train/trainer.h"

static void plan_chats(const tarn__chat_dataset *chats, tarn_train_plan *plan)
{
    tarn__chat_dataset_summary summary;
    tarn__chat_dataset_counts(chats, &summary);
    plan->is_chat = true;
    plan->training_documents = summary.documents[TARN__CHAT_TRAINING];
    plan->validation_documents = summary.documents[TARN__CHAT_VALIDATION];
    plan->completion_tokens = summary.completion_tokens[TARN__CHAT_TRAINING];
    plan->documents_truncated = summary.truncated;
}

bool tarn_trainer_plan(const tarn_trainer *trainer, tarn_train_plan *plan)
{
    if (tarn_failed())
        return false;
    if (!trainer || !plan)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_plan: the %s is NULL", trainer ? "result" : "trainer");
    *plan = (tarn_train_plan){
        .options = trainer->options,
        .input = trainer->description.input,
        .classes = trainer->description.is_text ? trainer->options.vocab_size : trainer->description.classes,
        .is_text = trainer->description.is_text,
        .training_tokens = trainer->description.training_tokens,
        .validation_tokens = trainer->description.validation_tokens,
        .training_samples = tarn_dataset_count(trainer->training),
        .validation_samples = tarn_dataset_count(trainer->validation),
        .memory_needed = trainer->memory_needed,
        .weight_bytes = trainer->weight_bytes,
        .gradient_bytes = trainer->gradient_bytes,
        .state_bytes = trainer->state_bytes,
        .activation_bytes = trainer->activation_bytes,
        .memory_min = trainer->memory_min,
        .memory_free = trainer->memory_free,
        .first_step = trainer->place.step,
        .steps = trainer->steps,
        .steps_in_epoch = trainer->steps_in_epoch,
        .captures = trainer->captured.is_wanted,
    };
    tarn__weight_counts counts = tarn__count_weights(trainer->model);
    plan->trained = counts.trained;
    plan->frozen = counts.frozen;
    memcpy(plan->fits, trainer->fits, sizeof(plan->fits));
    plan->fit_count = trainer->fit_count;
    if (trainer->chats)
        plan_chats(trainer->chats, plan);
    snprintf(plan->device, sizeof(plan->device), "%s", trainer->options.device);
    snprintf(plan->chosen, sizeof(plan->chosen), "%s", trainer->chosen);
    snprintf(plan->folder, sizeof(plan->folder), "%s", trainer->options.out);
    return !tarn_failed();
}
