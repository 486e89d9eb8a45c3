/* targets_files.c: JSON files, tensor files, options, metrics and the run log. */
#include <math.h>
#include <sys/stat.h>
#include <tarn/convert.h>
#include <tarn/model.h>
#include <tarn/safetensors.h>
#include <tarn/train.h>

#include "formats/json_file.h"
#include "fuzz/targets.h"
#include "support/files.h"
#include "support/gguf_shards.h"
#include "train/report/report.h"

static void give_text(const char *text, fuzz_seed_fn use, void *ctx)
{
    use(text, strlen(text), ctx);
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static bool see_member(const char *name, const char *text, void *ctx)
{
    *(size_t *)ctx += strlen(name) + strlen(text);
    return true;
}

/* Asks for every kind of value under every key; most are refused, which is no failure of the document. */
static void ask(const tarn__json_file *d, const char *key)
{
    int64_t whole;
    double real;
    bool yes;
    size_t count = 0;
    tarn__json_file_string(d, key), tarn_clear_error();
    tarn__json_file_int(d, key, -5, 5, &whole), tarn_clear_error();
    tarn__json_file_real(d, key, &real), tarn_clear_error();
    tarn__json_file_bool(d, key, &yes), tarn_clear_error();
    if (!tarn__json_file_count(d, key, 20, &count))
        count = 0;
    tarn_clear_error();
    for (size_t i = 0; i < count + 1; i++) {
        tarn__json_file_string_at(d, key, i), tarn_clear_error();
        tarn__json_file_int_at(d, key, i, -5, 5, &whole), tarn_clear_error();
        tarn__json_file_real_at(d, key, i, &real), tarn_clear_error();
    }
    tarn__json_file_each(d, key, see_member, &count), tarn_clear_error();
}

static bool take_document(const void *from, size_t count)
{
    static const char *const keys[] = {"", "a", "a.b", "a.c", "d", "e", "a.b.c", "."};
    tarn__json_file *d = tarn__json_file_open("fuzz", fuzz_write("fuzz.json", from, count));
    for (size_t i = 0; d && i < sizeof(keys) / sizeof(keys[0]); i++)
        ask(d, keys[i]);
    tarn__json_file_free(d);
    return d != NULL;
}

static void document_seeds(fuzz_seed_fn use, void *ctx)
{
    give_text("{\"a\": {\"b\": [1, 2.5, \"x\", -9], \"c\": true}, \"d\": null, \"e\": \"\\u00e9\\\\n\"}", use, ctx);
    give_text("{\"a\": 9223372036854775807, \"d\": 1e308, \"e\": {\"x\": {\"y\": []}}}", use, ctx);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool take_safetensors(const void *from, size_t count)
{
    tarn_safetensors *file = tarn_safetensors_open(fuzz_write("fuzz.safetensors", from, count));
    tarn_safetensors_entry entry;
    if (!file)
        return false;
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        tarn_scope *scope = tarn_scope_open();
        const char *name = tarn_safetensors_name(file, i);
        fuzz_must(name && tarn_safetensors_info(file, i, &entry), "a tensor of a good file has a name and a place");
        tarn_tensor *x = tarn_safetensors_read(file, name, tarn_device_cpu());
        fuzz_must(x || tarn_error_code() == TARN_ERROR_UNSUPPORTED,
                  "a tensor of a good file is read, but for a dtype that tarn lacks");
        tarn_clear_error();
        tarn_scope_close(scope);
    }
    tarn_safetensors_close(file);
    return true;
}

static void safetensors_seeds(fuzz_seed_fn use, void *ctx)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors_writer *writer = tarn_safetensors_create(scratch("good.safetensors"));
    fuzz_must(tarn_safetensors_add(writer, "x", tarn_arange(0, 6, 1, TARN_F32, tarn_device_cpu())) &&
                  tarn_safetensors_add(writer, "layer.0.weight",
                                       tarn_zeros(TARN_SHAPE(2, 0, 3), TARN_BF16, tarn_device_cpu())) &&
                  tarn_safetensors_add_metadata(writer, "format", "pt") && tarn_safetensors_finish(writer),
              "a file of tensors is written");
    tarn_scope_close(scope);
    fuzz_seed_file("good.safetensors", use, ctx);
}

/* Asks for every key as every type; most are refused, which is no failure of the file. */
static void ask_gguf(const tarn_gguf *file, const tarn_gguf_value *v)
{
    int64_t whole, wholes[8];
    double real, reals[8];
    bool yes;
    size_t length;
    tarn_gguf_int(file, v->key, -5, 5, &whole), tarn_clear_error();
    tarn_gguf_real(file, v->key, &real), tarn_clear_error();
    tarn_gguf_bool(file, v->key, &yes), tarn_clear_error();
    const char *text = tarn_gguf_string(file, v->key, &length);
    fuzz_must(!text || text[length] == 0, "a text ends in a zero byte");
    tarn_clear_error();
    tarn_gguf_ints(file, v->key, wholes, v->count < 8 ? v->count : 8), tarn_clear_error();
    tarn_gguf_reals(file, v->key, reals, v->count < 8 ? v->count : 8), tarn_clear_error();
    for (int64_t i = 0; i < v->count && i < 8; i++) {
        text = tarn_gguf_string_at(file, v->key, i, &length);
        for (size_t k = 0; text && k < length; k++)
            whole += text[k]; /* touches every byte */
        tarn_clear_error();
    }
}

static bool take_gguf(const void *from, size_t count)
{
    tarn_gguf *file = tarn_gguf_open(fuzz_write("fuzz.gguf", from, count));
    tarn_gguf_value value;
    if (!file)
        return false;
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++) {
        fuzz_must(tarn_gguf_metadata_at(file, i, &value) && tarn_gguf_has(file, value.key, NULL),
                  "a key of a good file is found");
        ask_gguf(file, &value);
    }
    tarn_gguf_writer *writer = tarn_gguf_create(scratch("again.gguf"));
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        fuzz_must(tarn_gguf_add_from(writer, file, i), "metadata of a good file can be handed on");
    tarn_scope *scope = tarn_scope_open();
    for (int i = 0; i < tarn_gguf_count(file); i++) {
        tarn_tensor *x = tarn_gguf_tensor(file, i, tarn_device_cpu());
        fuzz_must(x || tarn_error_code() == TARN_ERROR_UNSUPPORTED,
                  "a tensor of a good file is there, but for a type that tarn lacks");
        tarn_clear_error();
        fuzz_must(!x || tarn_gguf_add(writer, tarn_gguf_name(file, i), x), "a tensor of a good file can be handed on");
    }
    tarn_gguf_close(file);
    fuzz_must(tarn_gguf_finish(writer), "what was read can be written");
    tarn_scope_close(scope);
    file = tarn_gguf_open(scratch("again.gguf"));
    fuzz_must(file != NULL, "what was written can be read");
    tarn_gguf_close(file);
    scope = tarn_scope_open();
    tarn_model_convert(scratch("fuzz.gguf"), scratch("other.gguf"), NULL,
                       &(tarn_convert_options){.quantize = true, .replace = true});
    tarn_clear_error(); /* NaN, or a type that tarn lacks */
    tarn_module_free(tarn_model_open(scratch("fuzz.gguf"), tarn_device_cpu(), NULL));
    tarn_clear_error();
    tarn_scope_close(scope);
    return true;
}

static void write_gguf(void)
{
    const char *const texts[] = {"<s>", "", "\xe2\x96\x81the"};
    const float scores[] = {0, -1, -2};
    tarn_scope *scope = tarn_scope_open();
    tarn_gguf_writer *w = tarn_gguf_create(scratch("good.gguf"));
    fuzz_must(tarn_gguf_add_string(w, "general.architecture", "llama", 5) &&
                  tarn_gguf_add_value(w, "general.alignment", TARN_GGUF_U32, &(uint32_t){16}) &&
                  tarn_gguf_add_value(w, "b", TARN_GGUF_BOOL, &(uint8_t){1}) &&
                  tarn_gguf_add_value(w, "f", TARN_GGUF_F64, &(double){0.5}) &&
                  tarn_gguf_add_strings(w, "tokenizer.ggml.tokens", texts, NULL, 3) &&
                  tarn_gguf_add_array(w, "s", TARN_GGUF_F32, scores, 3) &&
                  tarn_gguf_add(w, "x", tarn_arange(0, 6, 1, TARN_F32, tarn_device_cpu())) &&
                  tarn_gguf_add(w, "blk.0.ffn_up.weight",
                                tarn_from((const char[68]){0}, TARN_SHAPE(2, 32), TARN_Q8_0, tarn_device_cpu())) &&
                  tarn_gguf_add(w, "output_norm.weight",
                                tarn_from((const char[34]){0}, TARN_SHAPE(32), TARN_Q8_0, tarn_device_cpu())) &&
                  tarn_gguf_finish(w),
              "a GGUF file is written");
    tarn_scope_close(scope);
}

static void gguf_seeds(fuzz_seed_fn use, void *ctx)
{
    write_gguf();
    fuzz_seed_file("good.gguf", use, ctx);
}

/* Opens a model of two shards by the one that is good. */
static bool use_shards(const char *path)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_scope *scope = file ? tarn_scope_open() : NULL;
    for (int i = 0; file && i < tarn_gguf_count(file); i++) {
        fuzz_must(tarn_gguf_tensor(file, i, tarn_device_cpu()) || tarn_error_code() == TARN_ERROR_UNSUPPORTED,
                  "a tensor of good shards is there, but for a type that tarn lacks");
        tarn_clear_error();
    }
    tarn_scope_close(scope);
    tarn_gguf_close(file);
    return file != NULL;
}

/* As the first shard of one model and as the second of another, each with a good one. */
static bool take_gguf_shard(const void *from, size_t count)
{
    fuzz_write("one-00001-of-00002.gguf", from, count);
    fuzz_write("two-00002-of-00002.gguf", from, count);
    bool first = use_shards(shard_path("one", 1, 2));
    tarn_clear_error();
    bool second = use_shards(shard_path("two", 0, 2));
    if (first)
        tarn_clear_error();
    return first || second;
}

static void gguf_shard_seeds(fuzz_seed_fn use, void *ctx)
{
    write_gguf();
    split_gguf(scratch("good.gguf"), "good", 2);
    split_gguf(scratch("good.gguf"), "one", 2);
    split_gguf(scratch("good.gguf"), "two", 2);
    fuzz_seed_file("good-00001-of-00002.gguf", use, ctx);
    fuzz_seed_file("good-00002-of-00002.gguf", use, ctx);
}

/* ---- of runs ----------------------------------------------------------------------------------------------------- */

static bool take_options(const void *from, size_t count)
{
    tarn_train_options options = {0};
    return tarn_train_options_load(&options, fuzz_write("fuzz.json", from, count));
}

static void options_seeds(fuzz_seed_fn use, void *ctx)
{
    give_text("{\"model\": \"gpt2\", \"data\": \"text:x\", \"epochs\": 3, \"lr\": 0.001, \"hidden\": [3, 4], "
              "\"augment\": false, \"seed\": 7}",
              use, ctx);
    give_text("{\"format\": 1, \"train\": {\"model\": \"lenet\", \"hidden\": \"3,4\", \"precision\": \"bf16\"}}", use,
              ctx);
}

static bool take_metrics(const void *from, size_t count)
{
    const tarn__report report = {
        .title = "fuzz", .settings = &(tarn__report_setting){"name", "<value>"}, .setting_count = 1};
    return tarn__report_write_metrics(scratch("report.html"), &report, fuzz_write("metrics.jsonl", from, count));
}

static void metrics_seeds(fuzz_seed_fn use, void *ctx)
{
    give_text("{\"step\": 5, \"epoch\": 1, \"loss\": 2.5, \"lr\": 0.01, \"seconds\": 0.5}\n{\"step\": 10, "
              "\"val_loss\": null, \"best\": true}\n"
              "{\"step\": 10, \"other\": -1e300}\n{\"step\": 7, \"loss\": 1",
              use, ctx);
}

static void see_run(const tarn_logged_run *run, void *ctx)
{
    *(double *)ctx += run->seconds + (double)strlen(run->folder);
}

static bool take_log(const void *from, size_t count)
{
    double sum = 0;
    mkdir(scratch("logged"), 0777);
    fuzz_write("logged/log.jsonl", from, count);
    return tarn_runs_read(scratch("logged"), see_run, &sum);
}

static void log_seeds(fuzz_seed_fn use, void *ctx)
{
    give_text("{\"date\": \"2026-11-15T15:34:25Z\", \"end\": \"finished\", \"folder\": \"runs/x\", \"model\": "
              "\"gpt2\", \"data\": \"text:a\", \"device\": "
              "\"cpu\", \"processor\": \"\", \"precision\": \"f32\", \"parameters\": 9, \"batch_size\": 12, "
              "\"steps_in_epoch\": 13, \"first_step\": 0, "
              "\"step\": 150, \"steps\": 150, \"seconds\": 14.5, \"seconds_per_1000_steps\": 99.2, "
              "\"seconds_per_epoch\": null, \"loss\": 2.5, "
              "\"val_loss\": 2.5, \"best_step\": 150, \"best_loss\": 2.5, \"best_accuracy\": null, \"version\": "
              "\"0.1.0\"}\n\n{\"date\"",
              use, ctx);
}

const fuzz_target fuzz_file_targets[] = {
    {"document", fuzz_has_json, document_seeds, take_document},
    {"safetensors", fuzz_has_json, safetensors_seeds, take_safetensors},
    {"gguf", NULL, gguf_seeds, take_gguf},
    {"gguf_shard", NULL, gguf_shard_seeds, take_gguf_shard},
    {"train_options", fuzz_has_json, options_seeds, take_options},
    {"metrics", fuzz_has_json, metrics_seeds, take_metrics},
    {"log", fuzz_has_json, log_seeds, take_log},
    {0},
};
