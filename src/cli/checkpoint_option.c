/* checkpoint_option.c: --checkpoint: resolves which weights of a run a command uses, in one place, and prints it.
 *
 * The default is the best weights; a run without an evaluation yet has only the last ones, which are used with a
 * notice. Paths in tarn_run_weights are its own. */
#include <string.h>

#include "cli/cli.h"
#include "cli/train/train.h"

/* NULL, not given, means best. */
static bool parse(const char *word, tarn_run_checkpoint *checkpoint)
{
    *checkpoint = word && strcmp(word, "last") == 0 ? TARN_RUN_LAST : TARN_RUN_BEST;
    return !word || strcmp(word, "best") == 0 || strcmp(word, "last") == 0;
}

int tarn__checkpoint_find(const char *command, const tarn__options *o, tarn_run_weights *w)
{
    tarn_run_checkpoint checkpoint;
    if (!parse(o->checkpoint, &checkpoint))
        return tarn__rank_misuse(command, o->train.comm, "--checkpoint: '%s' must be best or last", o->checkpoint);
    if (!tarn_run_weights_find(o->words[0], checkpoint, w))
        return tarn__rank_reports(o->train.comm) ? tarn__print_error(command) : TARN__FAILED;
    if (o->checkpoint && !w->is_run)
        return tarn__rank_misuse(command, o->train.comm,
                                 "--checkpoint: '%s' is not a run of tarn train and has one set of weights",
                                 o->words[0]);
    return TARN__DONE;
}

/* As typed with --checkpoint. */
static const char *name_of(const tarn_run_weights *w)
{
    return w->checkpoint == TARN_RUN_BEST ? "best" : "last";
}

int tarn__checkpoint_use(const char *command, const tarn__options *o, tarn_run_weights *w)
{
    int status = tarn__checkpoint_find(command, o, w);
    if (status != TARN__DONE || !w->is_run || o->json || o->quiet)
        return status;
    /* last weights although best ones were asked for, or by default */
    bool is_instead = w->checkpoint == TARN_RUN_LAST && !(o->checkpoint && strcmp(o->checkpoint, "last") == 0);
    char average[64] = "";
    if (w->ema > 0)
        snprintf(average, sizeof(average), "; a moving average with decay %.9g", w->ema);
    fprintf(stderr, "(%s weights of the run, step %lld%s%s)\n", name_of(w), (long long)w->step,
            is_instead ? "; no evaluation yet" : "", average);
    return status;
}

void tarn__checkpoint_json(tarn__json *json, const tarn__options *o)
{
    /* found again instead of passed along: JSON is printed far from where the weights were opened; no error is raised
     * here */
    tarn_run_weights w;
    tarn_run_checkpoint checkpoint;
    if (!parse(o->checkpoint, &checkpoint) || !tarn_run_weights_find(o->words[0], checkpoint, &w) || !w.is_run)
        return;
    tarn__json_string(json, "checkpoint", name_of(&w));
    tarn__json_int(json, "checkpoint_step", w.step);
    if (w.ema > 0)
        tarn__json_real(json, "ema", w.ema, 9);
}
