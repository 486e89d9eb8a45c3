/* test_ranks.c: data-parallel runs, with threads as ranks: checkpoints are bitwise identical for 1, 2 and 4 ranks, runs
 * are stopped and resumed on another number of ranks, and ranks that do not match are errors. */
#include <pthread.h>
#include <sys/socket.h>
#include <tarn/model.h>
#include <tarn/parallel.h>
#include <tarn/train.h>
#include <unistd.h>

#include "support/files.h"
#include "support/reversal.h"
#include "tarn_features.h"

enum { MAX_RANKS = 4, LEAVES = 4, STEPS = 4 };

/* ---- runs on threads --------------------------------------------------------------------------------------------- */

typedef struct rank_run {
    pthread_t thread;
    tarn_train_options options;
    const char *resume;        /* folder; NULL: a new run */
    int64_t stop_at;           /* 0: never */
    unsigned delay;            /* microseconds from opening the trainer to the run */
    double val_loss, accuracy; /* of the last evaluation */
    bool is_dry_run;           /* gives the plan alone: */
    tarn_train_plan plan;
    tarn_trainer *trainer;
    double loss; /* of the last step */
    bool good;
    char error[1024];
} rank_run;

static void on_report(const tarn_train_report *report, void *ctx)
{
    rank_run *r = ctx;
    if (report->kind == TARN_REPORT_EVALUATION) {
        r->val_loss = report->loss;
        r->accuracy = report->accuracy;
    }
    if (report->kind != TARN_REPORT_TRAINING)
        return;
    r->loss = report->loss;
    if (r->stop_at && report->step >= r->stop_at)
        tarn_trainer_stop(r->trainer);
}

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    r->trainer = r->is_dry_run ? tarn_trainer_dry_run(NULL, &r->options)
                 : r->resume   ? tarn_trainer_resume(r->resume, &r->options)
                               : tarn_trainer_new(&r->options);
    usleep(r->delay);
    r->good = r->trainer && (r->is_dry_run ? tarn_trainer_plan(r->trainer, &r->plan)
                                           : tarn_trainer_run(r->trainer, on_report, r, NULL));
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    tarn_clear_error();
    tarn_trainer_free(r->trainer);
    return NULL;
}

static bool has_sockets; /* the ranks are connected by sockets */

static void connect_ranks(int size, tarn_comm **comms)
{
    int sockets[MAX_RANKS][MAX_RANKS][2];
    if (!has_sockets) {
        assert_true(tarn_comm_threads(size, comms));
        return;
    }
    for (int a = 0; a < size; a++)
        for (int b = a + 1; b < size; b++)
            for (int kind = 0; kind < 2; kind++) {
                int pair[2];
                assert_int_equal(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair), 0);
                sockets[a][b][kind] = pair[0];
                sockets[b][a][kind] = pair[1];
            }
    for (int i = 0; i < size; i++)
        assert_non_null(comms[i] = tarn_comm_sockets(i, size, &sockets[i][0][0]));
}

/* Runs all ranks to their end. `ranks` has options and the rest of a run of each. */
static void run_ranks(rank_run *ranks, int size)
{
    tarn_comm *comms[MAX_RANKS];
    connect_ranks(size, comms);
    for (int i = 0; i < size; i++) {
        ranks[i].options.comm = size > 1 ? comms[i] : NULL;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++)
        tarn_comm_free(comms[i]);
}

/* A run on `size` ranks with the same options. Returns the loss of the last step. */
static double run_on(int size, const tarn_train_options *options, const char *resume, int64_t stop_at)
{
    rank_run ranks[MAX_RANKS];
    for (int i = 0; i < size; i++)
        ranks[i] = (rank_run){.options = *options, .resume = resume, .stop_at = i == 0 ? stop_at : 0};
    run_ranks(ranks, size);
    for (int i = 0; i < size; i++)
        if (!ranks[i].good)
            fail_msg("rank %d of %d: %s", i, size, ranks[i].error);
    return ranks[0].loss;
}

/* ---- what is trained --------------------------------------------------------------------------------------------- */

static tarn_train_options options_of(const char *model, const char *data, const char *folder)
{
    tarn_train_options o = {.steps = STEPS,
                            .batch_size = 16,
                            .virtual_ranks = LEAVES,
                            .clip_norm = 0.5,
                            .eval_every = STEPS,
                            .log_every = 1,
                            .seed = 3,
                            .device = "cpu"};
    snprintf(o.model, sizeof(o.model), "%s", model);
    snprintf(o.data, sizeof(o.data), "%s", data);
    snprintf(o.out, sizeof(o.out), "%s", scratch(folder));
    return o;
}

static const char *text_data(void)
{
    static char data[1100], text[4000];
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = "the cat sat on a mat. "[(i * i / 7 + i) % 22];
    snprintf(data, sizeof(data), "text:%s", write_text("text.txt", text));
    return data;
}

static tarn_train_options gpt2(const char *folder)
{
    tarn_train_options o = options_of("gpt2", text_data(), folder);
    o.layers = 2;
    o.heads = 2;
    o.hidden_size = 16;
    o.context = 16;
    o.micro_batch = 2;
    o.dropout = 0.1;
    o.eval_batches = 1;
    o.ema = 0.6;
    return o;
}

/* A new Llama is the base of an adapter. */
static tarn_train_options llama_lora(const char *folder)
{
    static char base[1100];
    if (!base[0]) {
        tarn_train_options o = gpt2("base");
        snprintf(o.model, sizeof(o.model), "llama");
        o.dropout = 0;
        o.virtual_ranks = 0;
        o.steps = 1;
        run_on(1, &o, NULL, 0);
        snprintf(base, sizeof(base), "%s", scratch("base/best"));
    }
    tarn_train_options o = gpt2(folder);
    memset(o.model, 0, sizeof(o.model));
    snprintf(o.base, sizeof(o.base), "%s", base);
    o.layers = o.heads = o.hidden_size = 0;
    o.dropout = 0;
    o.lora = 2;
    o.lora_dropout = 0.2;
    return o;
}

/* 48 images of 3 × 8 × 8 in the files of NumPy. */
static const char *image_data(void)
{
    enum { IMAGES = 48, BYTES = 3 * 8 * 8 };
    static char data[2400], header[128];
    static unsigned char file[128 + IMAGES * BYTES];
    for (int is_label = 0; is_label < 2; is_label++) {
        int length = snprintf(header, sizeof(header), "{'descr': '|u1', 'fortran_order': False, 'shape': (%d%s), }",
                              IMAGES, is_label ? "," : ", 3, 8, 8");
        memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
        memset(file + 10, ' ', 117);
        memcpy(file + 10, header, (size_t)length);
        file[127] = '\n';
        for (int i = 0; i < IMAGES * BYTES; i++)
            file[128 + i] = (unsigned char)(is_label ? i % 4 : i * 37 + i / 7 * 11);
        write_file(is_label ? "labels.npy" : "images.npy", file, 128 + (size_t)IMAGES * (is_label ? 1 : BYTES));
    }
    char *images = strdup(scratch("images.npy"));
    snprintf(data, sizeof(data), "npy:%s,%s", images, scratch("labels.npy"));
    free(images);
    return data;
}

/* Batchnorms: their statistics are means over virtual ranks. */
static tarn_train_options resnet(const char *folder)
{
    tarn_train_options o = options_of("resnet20", image_data(), folder);
    o.augment = true;
    o.ema = 0.6;
    return o;
}

/* Completions differ in length: micro-batches have weights. */
static tarn_train_options chat(const char *folder)
{
    static char base[1100];
    if (!base[0])
        snprintf(base, sizeof(base), "%s", reversal_random("chat base"));
    tarn_train_options o = options_of("", reversal_chats("trained.jsonl", false), folder);
    snprintf(o.base, sizeof(o.base), "%s", base);
    snprintf(o.val, sizeof(o.val), "%s", reversal_chats("asked.jsonl", true));
    snprintf(o.chat_template, sizeof(o.chat_template), "chatml");
    o.context = 64;
    o.micro_batch = 2;
    return o;
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void assert_same_weights(const char *folder, const char *other, bool has_adapters)
{
    char own[1100], average[1200];
    snprintf(own, sizeof(own), "%s", scratch(folder));
    assert_same_file(own, scratch(other), has_adapters ? "adapter_model.safetensors" : "model.safetensors");
    assert_same_file(own, scratch(other), "optimizer.safetensors");
    snprintf(average, sizeof(average), "%s/ema.safetensors", own);
    if (access(average, F_OK) == 0)
        assert_same_file(own, scratch(other), "ema.safetensors");
}

/* Sums during the backward pass, in buckets of a few parameters. */
static void overlap(tarn_train_options *o)
{
    snprintf(o->overlap, sizeof(o->overlap), "on");
    o->bucket_size = 0.002;
}

static void checkpoints_are_bitwise_identical_for_any_number_of_ranks(void **state)
{
    (void)state;
    tarn_train_options (*const kinds[])(const char *) = {gpt2, llama_lora, resnet, chat};
    static const char *const names[] = {"gpt2", "lora", "resnet", "chat"};
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        char one[32], other[32];
        snprintf(one, sizeof(one), "%s-1", names[k]);
        tarn_train_options o = kinds[k](one);
        double loss = run_on(1, &o, NULL, 0);
        for (int size = 2; size <= MAX_RANKS; size *= 2)
            for (int zero = 0; zero < 2; zero++) {
                snprintf(other, sizeof(other), "%s-%d%s", names[k], size, zero ? "-zero" : "");
                o = kinds[k](other);
                snprintf(o.zero, sizeof(o.zero), "%s", zero ? "1" : "off");
                if (zero == (size == 2))
                    overlap(&o);
                if (run_on(size, &o, NULL, 0) != loss)
                    fail_msg("%s: another loss on %d ranks", other, size);
                assert_same_weights(one, other, o.lora > 0);
            }
    }
}

/* Layers that are recomputed in the backward pass, and parameters that are used in several places. */
static void recomputed_layers_give_the_same_checkpoints_with_overlap(void **state)
{
    (void)state;
    static const char *const kinds[] = {"selective", "full"};
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int i = 0; i < 2; i++) {
        tarn_train_options o = gpt2(kinds[i]);
        snprintf(o.recompute, sizeof(o.recompute), "%s", kinds[i]);
        run_on(1, &o, NULL, 0);
        snprintf(o.out, sizeof(o.out), "%s", scratch("overlapped"));
        o.overwrite = i > 0;
        overlap(&o);
        run_on(4 >> i, &o, NULL, 0);
        assert_same_weights(kinds[i], "overlapped", false);
    }
}

/* Gradients of a device are exchanged through host memory. */
static void a_device_with_memory_of_its_own_gives_the_same_checkpoints(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = gpt2("mirror-1");
    snprintf(o.device, sizeof(o.device), "mirror:0");
    run_on(1, &o, NULL, 0);
    snprintf(o.out, sizeof(o.out), "%s", scratch("mirror-2"));
    snprintf(o.overlap, sizeof(o.overlap), "off");
    run_on(2, &o, NULL, 0);
    assert_same_weights("mirror-1", "mirror-2", false);
    snprintf(o.out, sizeof(o.out), "%s", scratch("mirror-4"));
    overlap(&o);
    run_on(4, &o, NULL, 0);
    assert_same_weights("mirror-1", "mirror-4", false);
}

/* Two ranks with a device each, with captured and with eager steps, and one rank: the same checkpoints. */
static void captured_ranks_give_the_same_checkpoints(void **state)
{
    (void)state;
    static tarn_train_options (*const kinds[])(const char *folder) = {gpt2, llama_lora, resnet, chat};
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int kind = 0; kind < 4; kind++) {
        char folder[32];
        snprintf(folder, sizeof(folder), "captured-%d", kind);
        tarn_train_options one = kinds[kind](folder), o = one;
        one.steps = o.steps = one.eval_every = o.eval_every = STEPS + 2;
        snprintf(one.device, sizeof(one.device), "mirror:0");
        snprintf(one.capture, sizeof(one.capture), "off");
        run_on(1, &one, NULL, 0);
        for (int captured = 0; captured < 2; captured++) {
            rank_run ranks[2];
            char both[32];
            snprintf(both, sizeof(both), "captured-%d-%d", kind, captured);
            snprintf(o.out, sizeof(o.out), "%s", scratch(both));
            snprintf(o.capture, sizeof(o.capture), "%s", captured ? "on" : "off");
            snprintf(o.zero, sizeof(o.zero), "%s", captured ? "1" : "off");
            for (int i = 0; i < 2; i++) {
                ranks[i] = (rank_run){.options = o};
                snprintf(ranks[i].options.device, sizeof(o.device), "mirror:%d", i);
            }
            has_sockets = true;
            run_ranks(ranks, 2);
            has_sockets = false;
            for (int i = 0; i < 2; i++)
                if (!ranks[i].good)
                    fail_msg("rank %d: %s", i, ranks[i].error);
            assert_same_weights(folder, both, one.lora > 0);
        }
    }
}

/* A stop on rank 0 reaches all ranks at the same step. */
static void a_run_is_stopped_and_resumed_on_another_number_of_ranks(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = gpt2("whole");
    run_on(1, &o, NULL, 0);
    o = gpt2("cut");
    run_on(4, &o, NULL, 1);
    run_on(2, &(tarn_train_options){0}, scratch("cut"), 3);
    run_on(1, &(tarn_train_options){0}, scratch("cut"), 0);
    assert_same_weights("whole", "cut", false);
}

/* Rank 0 writes the whole state when ZeRO-1 is turned off, and ranges of it when it is on. */
static void a_run_is_resumed_with_zero_on_and_off(void **state)
{
    (void)state;
    static const struct {
        int size;
        const char *zero;
    } parts[] = {{4, "1"}, {2, "off"}, {2, "1"}, {1, "1"}};
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = gpt2("without zero");
    o.keep = 2;
    o.eval_every = 2;
    run_on(1, &o, NULL, 0);
    o = gpt2("with zero");
    o.keep = 2;
    o.eval_every = 2;
    for (int i = 0; i < 4; i++) {
        snprintf(o.zero, sizeof(o.zero), "%s", parts[i].zero);
        run_on(parts[i].size, &o, i ? scratch("with zero") : NULL, i + 1);
        o = (tarn_train_options){0};
    }
    assert_same_weights("without zero", "with zero", false);
    assert_same_weights("without zero/step-2", "with zero/step-2", false);
}

/* A rank reads its checkpoint at its own speed: the others, whose messages do not wait for it, do. */
static void a_rank_that_begins_late_is_waited_for_longer_than_in_a_step(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run ranks[2] = {{.options = gpt2("late")}, {.options = gpt2("late"), .delay = 4000000}};
    ranks[0].options.rank_timeout = ranks[1].options.rank_timeout = 2;
    has_sockets = true;
    run_ranks(ranks, 2);
    has_sockets = false;
    for (int i = 0; i < 2; i++)
        if (!ranks[i].good)
            fail_msg("rank %d: %s", i, ranks[i].error);
}

/* State is a quarter on each of four ranks. */
static void zero_divides_the_state_of_the_optimizer(void **state)
{
    (void)state;
    int64_t state_bytes[2];
    static rank_run ranks[4];
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int zero = 0; zero < 2; zero++) {
        for (int i = 0; i < 4; i++) {
            ranks[i] = (rank_run){.options = gpt2("planned"), .is_dry_run = true};
            snprintf(ranks[i].options.zero, sizeof(ranks[i].options.zero), "%s", zero ? "1" : "off");
        }
        run_ranks(ranks, 4);
        for (int i = 0; i < 4; i++)
            if (!ranks[i].good || ranks[i].plan.is_sharded != (zero == 1))
                fail_msg("rank %d: %s", i, ranks[i].error);
        state_bytes[zero] = ranks[0].plan.state_bytes;
    }
    if (state_bytes[1] * 4 < state_bytes[0] - 4096 || state_bytes[1] * 4 > state_bytes[0] + 4096)
        fail_msg("%lld bytes of state, with zero %lld", (long long)state_bytes[0], (long long)state_bytes[1]);
}

/* They need as much each: free memory is that of the machine, which four ranks share. */
static void ranks_of_a_machine_share_its_memory(void **state)
{
    (void)state;
    static rank_run ranks[4];
    if (!TARN__HAVE_JANSSON)
        skip();
    ranks[0] = (rank_run){.options = gpt2("memory"), .is_dry_run = true};
    run_ranks(ranks, 1);
    assert_true(ranks[0].good);
    int64_t alone = ranks[0].plan.memory_free;
    for (int i = 0; i < 4; i++)
        ranks[i] = (rank_run){.options = gpt2("memory"), .is_dry_run = true};
    run_ranks(ranks, 4);
    for (int i = 0; i < 4; i++)
        if (!ranks[i].good || ranks[i].plan.memory_free > alone / 2 || ranks[i].plan.memory_free < alone / 8)
            fail_msg("rank %d: %lld of %lld bytes: %s", i, (long long)ranks[i].plan.memory_free, (long long)alone,
                     ranks[i].error);
}

/* On as many ranks as virtual ranks the statistics are those of the whole batch: the run is that of one virtual rank.
 */
static void synchronized_batchnorms_train_as_the_whole_batch_does(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = resnet("whole batch");
    o.augment = false;
    o.virtual_ranks = 0;
    double whole = run_on(1, &o, NULL, 0), split[3];
    for (int i = 0; i < 3; i++) {
        char folder[32];
        snprintf(folder, sizeof(folder), "synchronized-%d", i);
        o = resnet(folder);
        o.augment = false;
        o.sync_batchnorm = i > 0;
        split[i] = run_on(4, &o, NULL, 0);
    }
    if (!(fabs(split[1] - whole) < 2e-4 && fabs(split[0] - whole) > 2e-3))
        fail_msg("loss %.9g, synchronized %.9g, not %.9g", whole, split[1], split[0]);
    assert_same_weights("synchronized-1", "synchronized-2", false);
}

static tarn_train_options regression(const char *folder)
{
    static char data[1100], text[8000];
    size_t used = (size_t)snprintf(text, sizeof(text), "a,b,y\n");
    for (int i = 0; i < 200; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%d.5,%d,%.3f\n", i * 37 % 101, i * i % 53,
                                 0.37 * (i * 37 % 101) + 0.001 * (i * 7919 % 997));
    snprintf(data, sizeof(data), "%s", write_text("numbers.csv", text));
    return options_of("", data, folder);
}

/* All ranks share the batches of the validation set, more of them than ranks and not a multiple. */
static void evaluations_are_bitwise_identical_for_any_number_of_ranks(void **state)
{
    (void)state;
    tarn_train_options (*const kinds[])(const char *) = {gpt2, resnet, regression};
    if (!TARN__HAVE_JANSSON)
        skip();
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        double loss = NAN, accuracy = NAN;
        for (int size = 1; size <= MAX_RANKS; size *= 2) {
            static rank_run ranks[MAX_RANKS];
            char folder[40];
            snprintf(folder, sizeof(folder), "evaluated-%d-%d", (int)k, size);
            for (int i = 0; i < size; i++) {
                ranks[i] = (rank_run){.options = kinds[k](folder)};
                ranks[i].options.eval_batches = k == 0 ? 7 : 0;
            }
            run_ranks(ranks, size);
            for (int i = 0; i < size; i++)
                if (!ranks[i].good)
                    fail_msg("rank %d of %d: %s", i, size, ranks[i].error);
            if (size > 1 && (ranks[0].val_loss != loss || ranks[0].accuracy != accuracy))
                fail_msg("%s on %d ranks: loss %.17g and %.17g, accuracy %g and %g", folder, size, loss,
                         ranks[0].val_loss, accuracy, ranks[0].accuracy);
            loss = ranks[0].val_loss;
            accuracy = ranks[0].accuracy;
        }
    }
}

/* The mean over virtual ranks is the mean over the batch. */
static void a_split_step_is_the_step_of_the_whole_batch_up_to_rounding(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = gpt2("plain");
    o.dropout = 0;
    o.virtual_ranks = 0;
    double whole = run_on(1, &o, NULL, 0);
    o = gpt2("split");
    o.dropout = 0;
    double split = run_on(2, &o, NULL, 0);
    if (!(fabs(whole - split) < 1e-4))
        fail_msg("losses %.9g and %.9g", whole, split);
}

/* ---- fast reduction ---------------------------------------------------------------------------------------------- */

static tarn_train_options fast(tarn_train_options o)
{
    snprintf(o.reduce, sizeof(o.reduce), "fast");
    return o;
}

/* 3 ranks have 1, 1 and 2 of 4 virtual ranks. */
static void a_fast_reduction_is_bitwise_identical_for_one_number_of_ranks(void **state)
{
    (void)state;
    tarn_train_options (*const kinds[])(const char *) = {gpt2, resnet};
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int k = 0; k < 2; k++) {
        char folder[2][32];
        double exact = NAN, loss[2];
        for (int i = 0; i < 2; i++) {
            snprintf(folder[i], sizeof(folder[i]), "fast-%d-%d", k, i);
            tarn_train_options o = fast(kinds[k](folder[i]));
            o.steps = o.eval_every = 2;
            snprintf(o.zero, sizeof(o.zero), "%s", i ? "1" : "off");
            if (i)
                overlap(&o);
            loss[i] = run_on(3, &o, NULL, 0);
        }
        tarn_train_options o = kinds[k]("exact");
        o.steps = o.eval_every = 2;
        o.overwrite = k > 0;
        exact = run_on(1, &o, NULL, 0);
        if (loss[0] != loss[1] || !(fabs(loss[0] - exact) < 1e-4 * fabs(exact)))
            fail_msg("losses %.9g, %.9g and of a tree %.9g", loss[0], loss[1], exact);
        assert_same_weights(folder[0], folder[1], false);
    }
}

static char warning[512];

static void hear(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TARN_LOG_WARNING && strstr(text, "reduce fast"))
        snprintf(warning, sizeof(warning), "%s", text);
}

/* Without virtual ranks there are as many as ranks. */
static void a_fast_run_is_resumed_on_another_number_of_ranks_with_a_warning(void **state)
{
    (void)state;
    static rank_run ranks[3];
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_train_options o = fast(gpt2("fast resumed"));
    o.batch_size = 12;
    o.virtual_ranks = 0;
    for (int i = 0; i < 3; i++)
        ranks[i] = (rank_run){.options = o, .is_dry_run = true};
    run_ranks(ranks, 3);
    assert_true(ranks[0].good);
    assert_int_equal(ranks[0].plan.virtual_ranks, 3);
    run_on(3, &o, NULL, 1);
    tarn_set_log(hear, NULL);
    run_on(3, &(tarn_train_options){0}, scratch("fast resumed"), 2);
    assert_string_equal(warning, "");
    run_on(2, &(tarn_train_options){0}, scratch("fast resumed"), 3);
    tarn_set_log(tarn_log_stderr, NULL);
    if (!strstr(warning, "was on 3 ranks; on 2 it will not be bitwise identical"))
        fail_msg("'%s'", warning);
    run_on(1, &(tarn_train_options){0}, scratch("fast resumed"), 0);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Runs options that must fail on all ranks; the error of rank 0 has this text. */
static void expect_failure(rank_run *ranks, int size, const char *text)
{
    run_ranks(ranks, size);
    for (int i = 0; i < size; i++)
        assert_false(ranks[i].good);
    if (!strstr(ranks[0].error, text))
        fail_msg("'%s' lacks '%s'", ranks[0].error, text);
}

static void ranks_that_do_not_divide_the_virtual_ranks_are_an_error(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run ranks[3] = {{.options = gpt2("three")}, {.options = gpt2("three")}, {.options = gpt2("three")}};
    expect_failure(ranks, 3, "3 ranks do not divide the run's virtual_ranks, 4; start 1, 2 or 4");
    rank_run uneven = {.options = gpt2("uneven")};
    uneven.options.batch_size = 18;
    expect_failure(&uneven, 1, "a batch_size of 18 cannot be divided among 4 virtual_ranks");
    uneven = (rank_run){.options = gpt2("uneven")};
    uneven.options.micro_batch = 8;
    expect_failure(&uneven, 1, "a micro_batch of 8 does not divide the 4 samples of a virtual rank");
}

static void zero_without_anything_to_divide_is_an_error(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run one = {.options = gpt2("undivided")};
    snprintf(one.options.zero, sizeof(one.options.zero), "1");
    one.options.virtual_ranks = 0;
    expect_failure(&one, 1, "zero is 1, but the run has one virtual rank");
    one = (rank_run){.options = gpt2("undivided")};
    snprintf(one.options.zero, sizeof(one.options.zero), "1");
    snprintf(one.options.optimizer, sizeof(one.options.optimizer), "sgd");
    one.options.ema = 0;
    expect_failure(&one, 1, "zero is 1, but sgd without momentum has no state to divide");
}

static void fast_reductions_that_are_impossible_are_errors(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run one = {.options = fast(gpt2("alone"))};
    one.options.virtual_ranks = 0;
    expect_failure(&one, 1, "reduce is fast, but the run has one virtual rank");
    rank_run three[3];
    for (int i = 0; i < 3; i++) {
        three[i] = (rank_run){.options = fast(gpt2("many"))};
        three[i].options.virtual_ranks = 2;
    }
    expect_failure(three, 3, "3 ranks exceed the run's virtual_ranks, 2; start at most that many");
    for (int i = 0; i < 3; i++) {
        three[i] = (rank_run){.options = fast(resnet("synchronized"))};
        three[i].options.sync_batchnorm = true;
    }
    expect_failure(three, 3, "sync_batchnorm is set, but 3 ranks do not divide the run's virtual_ranks, 4");
}

static void overlap_that_is_impossible_is_an_error(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run one = {.options = gpt2("alone")};
    overlap(&one.options);
    one.options.virtual_ranks = 0;
    expect_failure(&one, 1, "overlap is on, but the run has one virtual rank");
    rank_run two[2] = {{.options = resnet("synchronized")}, {.options = resnet("synchronized")}};
    for (int i = 0; i < 2; i++) {
        overlap(&two[i].options);
        two[i].options.sync_batchnorm = true;
    }
    expect_failure(two, 2, "overlap is on, but with sync_batchnorm the backward pass itself exchanges statistics");
}

static void ranks_with_other_data_or_options_are_an_error(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run ranks[2] = {{.options = gpt2("differs")}, {.options = gpt2("differs")}};
    char other[3000];
    memset(other, 'x', sizeof(other));
    memcpy(other, "the cat sat on a mat. ", 22);
    other[sizeof(other) - 1] = 0;
    snprintf(ranks[1].options.data, sizeof(ranks[1].options.data), "text:%s", write_text("other.txt", other));
    expect_failure(ranks, 2, "the data of rank 1 on ");
    rank_run rates[2] = {{.options = gpt2("differs")}, {.options = gpt2("differs")}};
    rates[1].options.lr = 0.5;
    expect_failure(rates, 2, "the options of rank 1 on ");
}

/* The others have not failed themselves: they hear of it instead of waiting. */
static void options_that_are_invalid_on_one_rank_end_all(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run ranks[2] = {{.options = gpt2("invalid")}, {.options = gpt2("invalid")}};
    ranks[1].options.workers = 100;
    run_ranks(ranks, 2);
    for (int i = 0; i < 2; i++)
        if (ranks[i].good || !strstr(ranks[i].error, "workers") || (i == 0 && !strstr(ranks[i].error, "rank 1 on ")))
            fail_msg("rank %d: '%s'", i, ranks[i].error);
}

/* All ranks find it, and name the same layer. */
static void a_loss_that_is_not_finite_ends_all_ranks(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    rank_run ranks[2] = {{.options = gpt2("burst")}, {.options = gpt2("burst")}};
    for (int i = 0; i < 2; i++) {
        snprintf(ranks[i].options.optimizer, sizeof(ranks[i].options.optimizer), "sgd");
        ranks[i].options.lr = 1e6;
        ranks[i].options.clip_norm = 0;
        ranks[i].options.steps = 20;
    }
    expect_failure(ranks, 2, "is not finite");
    assert_string_equal(ranks[0].error, ranks[1].error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_bitwise_identical_for_any_number_of_ranks),
        cmocka_unit_test(recomputed_layers_give_the_same_checkpoints_with_overlap),
        cmocka_unit_test(a_device_with_memory_of_its_own_gives_the_same_checkpoints),
        cmocka_unit_test(captured_ranks_give_the_same_checkpoints),
        cmocka_unit_test(a_run_is_stopped_and_resumed_on_another_number_of_ranks),
        cmocka_unit_test(a_run_is_resumed_with_zero_on_and_off),
        cmocka_unit_test(a_rank_that_begins_late_is_waited_for_longer_than_in_a_step),
        cmocka_unit_test(zero_divides_the_state_of_the_optimizer),
        cmocka_unit_test(ranks_of_a_machine_share_its_memory),
        cmocka_unit_test(synchronized_batchnorms_train_as_the_whole_batch_does),
        cmocka_unit_test(evaluations_are_bitwise_identical_for_any_number_of_ranks),
        cmocka_unit_test(a_split_step_is_the_step_of_the_whole_batch_up_to_rounding),
        cmocka_unit_test(ranks_that_do_not_divide_the_virtual_ranks_are_an_error),
        cmocka_unit_test(zero_without_anything_to_divide_is_an_error),
        cmocka_unit_test(a_fast_reduction_is_bitwise_identical_for_one_number_of_ranks),
        cmocka_unit_test(a_fast_run_is_resumed_on_another_number_of_ranks_with_a_warning),
        cmocka_unit_test(fast_reductions_that_are_impossible_are_errors),
        cmocka_unit_test(overlap_that_is_impossible_is_an_error),
        cmocka_unit_test(ranks_with_other_data_or_options_are_an_error),
        cmocka_unit_test(options_that_are_invalid_on_one_rank_end_all),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
