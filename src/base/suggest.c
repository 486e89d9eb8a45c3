/* suggest.c: the name a user most likely meant when the given one does not exist ("did you mean --lr?"). Three
 * rules, in this order: the same word but for case, dashes and underscores; a synonym from the table below, which
 * has the words of PyTorch, transformers, nanoGPT and llama.cpp; the smallest edit distance. */
#include <ctype.h>
#include <string.h>
#include <tarn/base.h>

/* A longer name is no typo of an option. */
enum { MAX_LENGTH = 64 }; /* characters compared */

typedef struct synonym {
    const char *typed; /* in lower case, with dashes */
    const char *meant; /* several rows may have the same `typed`: the first whose `meant` exists here counts */
} synonym;

static const synonym synonyms[] = {
    /* sizes of a model */
    {"n-layer", "layers"},
    {"n-layers", "layers"},
    {"num-layers", "layers"},
    {"num-hidden-layers", "layers"},
    {"depth", "layers"},
    {"n-head", "heads"},
    {"n-heads", "heads"},
    {"num-heads", "heads"},
    {"num-attention-heads", "heads"},
    {"n-head-kv", "kv-heads"},
    {"n-kv-heads", "kv-heads"},
    {"num-kv-heads", "kv-heads"},
    {"num-key-value-heads", "kv-heads"},
    {"n-embd", "hidden-size"},
    {"n-embed", "hidden-size"},
    {"d-model", "hidden-size"},
    {"dim", "hidden-size"},
    {"hidden-dim", "hidden-size"},
    {"embed-dim", "hidden-size"},
    {"embedding-size", "hidden-size"},
    {"ffn-dim", "ffn-size"},
    {"intermediate-size", "ffn-size"},
    {"d-ff", "ffn-size"},
    {"n-inner", "ffn-size"},
    {"block-size", "context"},
    {"seq-len", "context"},
    {"seq-length", "context"},
    {"sequence-length", "context"},
    {"max-seq-len", "context"},
    {"max-seq-length", "context"},
    {"ctx", "context"},
    {"n-ctx", "context"},
    {"ctx-size", "context"},
    {"context-length", "context"},
    {"context-size", "context"},
    {"context-window", "context"},
    {"max-position-embeddings", "context"},
    {"n-positions", "context"},
    {"n-vocab", "vocab-size"},
    {"vocab-size", "train"},
    {"hidden-sizes", "mlp-sizes"},
    /* training */
    {"learning-rate", "lr"},
    {"max-lr", "lr"},
    {"learningrate", "lr"},
    {"rate", "lr"},
    {"lr-min", "min-lr"},
    {"final-lr", "min-lr"},
    {"min-learning-rate", "min-lr"},
    {"max-iters", "steps"},
    {"max-steps", "steps"},
    {"iters", "steps"},
    {"iterations", "steps"},
    {"num-steps", "steps"},
    {"n-iters", "steps"},
    {"train-iters", "steps"},
    {"num-iterations", "steps"},
    {"num-train-steps", "steps"},
    {"num-epochs", "epochs"},
    {"n-epochs", "epochs"},
    {"num-train-epochs", "epochs"},
    {"max-epochs", "epochs"},
    {"batch", "batch-size"},
    {"bs", "batch-size"},
    {"bsz", "batch-size"},
    {"batchsize", "batch-size"},
    {"train-batch-size", "batch-size"},
    {"per-device-train-batch-size", "batch-size"},
    {"batch-size", "batch"},
    {"micro-batch-size", "micro-batch"},
    {"gradient-accumulation-steps", "micro-batch"},
    {"grad-accum", "micro-batch"},
    {"gradient-accumulation", "micro-batch"},
    {"ubatch-size", "micro-batch"},
    {"ubatch-size", "prefill-chunk"},
    {"grad-clip", "clip-norm"},
    {"max-grad-norm", "clip-norm"},
    {"clip-grad", "clip-norm"},
    {"clip-grad-norm", "clip-norm"},
    {"gradient-clip", "clip-norm"},
    {"clip", "clip-norm"},
    {"warmup-iters", "warmup"},
    {"warmup-steps", "warmup"},
    {"num-warmup-steps", "warmup"},
    {"scheduler", "schedule"},
    {"lr-scheduler", "schedule"},
    {"lr-schedule", "schedule"},
    {"lr-scheduler-type", "schedule"},
    {"decay-lr", "schedule"},
    {"step-size", "lr-step"},
    {"gamma", "lr-gamma"},
    {"optim", "optimizer"},
    {"opt", "optimizer"},
    {"wd", "weight-decay"},
    {"decay", "weight-decay"},
    {"l2", "weight-decay"},
    {"betas", "beta2"},
    {"adam-beta2", "beta2"},
    {"eval-interval", "eval-every"},
    {"eval-steps", "eval-every"},
    {"val-every", "eval-every"},
    {"validate-every", "eval-every"},
    {"save-every", "eval-every"},
    {"save-steps", "eval-every"},
    {"eval-iters", "eval-batches"},
    {"log-interval", "log-every"},
    {"logging-steps", "log-every"},
    {"early-stopping", "patience"},
    {"save-total-limit", "keep"},
    {"num-workers", "workers"},
    {"random-seed", "seed"},
    {"manual-seed", "seed"},
    {"gradient-checkpointing", "recompute"},
    {"activation-checkpointing", "recompute"},
    {"checkpointing", "recompute"},
    {"dtype", "precision"},
    {"mixed-precision", "precision"},
    {"amp", "precision"},
    {"bf16", "precision"},
    {"fp16", "precision"},
    {"fp32", "precision"},
    {"tf32", "precision"},
    {"precision", "dtype"},
    {"torch-dtype", "dtype"},
    {"bf16", "dtype"},
    {"fp16", "dtype"},
    {"half", "dtype"},
    {"compile", "capture"},
    {"cuda-graph", "capture"},
    {"dataset", "data"},
    {"data-path", "data"},
    {"data-dir", "data"},
    {"train-data", "data"},
    {"train-file", "data"},
    {"input", "data"},
    {"file", "data"},
    {"validation", "val"},
    {"validation-file", "val"},
    {"val-file", "val"},
    {"val-data", "val"},
    {"val-split", "val-fraction"},
    {"output-dir", "out"},
    {"out-dir", "out"},
    {"output", "out"},
    {"save-dir", "out"},
    {"run-name", "out"},
    {"o", "out"},
    {"resume-from", "resume"},
    {"resume-from-checkpoint", "resume"},
    {"continue", "resume"},
    {"model-name", "model"},
    {"model-name-or-path", "model"},
    {"arch", "model"},
    {"architecture", "model"},
    {"pretrained", "model"},
    {"init-from", "model"},
    {"base-model", "model"},
    {"m", "model"},
    {"lora-r", "lora"},
    {"lora-rank", "lora"},
    {"rank", "lora"},
    {"target-modules", "lora-targets"},
    {"lora-target-modules", "lora-targets"},
    {"lora-scaled", "adapter"},
    {"lora", "adapter"},
    {"chat-template", "template"},
    {"load-in-4bit", "quantize"},
    {"load-in-8bit", "quantize"},
    {"quantization", "quantize"},
    {"quant", "quantize"},
    {"quantization", "type"},
    {"quant", "type"},
    {"ftype", "type"},
    {"merge-lora", "merge"},
    /* devices and sampling */
    {"gpu", "device"},
    {"cuda", "device"},
    {"gpus", "device"},
    {"accelerator", "device"},
    {"cpu", "device"},
    {"ngl", "gpu-layers"},
    {"n-gpu-layers", "gpu-layers"},
    {"ts", "tensor-split"},
    {"device-split", "tensor-split"},
    {"dev", "device"},
    {"num-threads", "threads"},
    {"t", "threads"},
    {"j", "threads"},
    {"max-new-tokens", "max-tokens"},
    {"max-new-tokens", "tokens"},
    {"max-tokens", "tokens"},
    {"n-predict", "max-tokens"},
    {"n-predict", "tokens"},
    {"num-predict", "max-tokens"},
    {"num-predict", "tokens"},
    {"predict", "max-tokens"},
    {"predict", "tokens"},
    {"num-tokens", "max-tokens"},
    {"num-tokens", "tokens"},
    {"max-length", "max-tokens"},
    {"max-length", "tokens"},
    {"length", "max-tokens"},
    {"length", "tokens"},
    {"max-length", "context"},
    {"temp", "temperature"},
    {"repetition-penalty", "repeat-penalty"},
    {"num-return-sequences", "n"},
    {"num-samples", "n"},
    {"samples", "n"},
    {"sequences", "n"},
    {"num-samples", "sample"},
    {"stop-string", "stop"},
    {"stop-strings", "stop"},
    {"stop-sequence", "stop"},
    {"reverse-prompt", "stop"},
    {"kv-cache", "kv-type"},
    {"cache-type", "kv-type"},
    {"cache-type-k", "kv-type"},
    {"cache-type-v", "kv-type"},
    {"system-prompt", "system"},
    {"sys", "system"},
    {"f", "prompt-file"},
    {"file", "prompt-file"},
    {"overwrite", "force"},
    {"silent", "quiet"},
    {"yes", "force"},
    {"y", "force"},
    {"top-n", "top"},
    {"usage", "help"},
    {"v", "version"},
    /* commands */
    {"finetune", "train"},
    {"fine-tune", "train"},
    {"fit", "train"},
    {"learn", "train"},
    {"evaluate", "eval"},
    {"test", "eval"},
    {"validate", "eval"},
    {"perplexity", "eval"},
    {"ppl", "eval"},
    {"infer", "generate"},
    {"inference", "generate"},
    {"sample", "generate"},
    {"complete", "generate"},
    {"completion", "generate"},
    {"write", "generate"},
    {"gen", "generate"},
    {"run", "generate"},
    {"talk", "chat"},
    {"interactive", "chat"},
    {"list", "runs"},
    {"ls", "runs"},
    {"log", "runs"},
    {"devices", "info"},
    {"status", "info"},
    {"env", "info"},
    {"doctor", "info"},
    {"encode", "tokenize"},
    {"tokenizer", "tokenize"},
    {"prepare", "tokenize"},
    {"show", "inspect"},
    {"cat", "inspect"},
    {"dump", "inspect"},
    {"export", "convert"},
    {"import", "convert"},
    {"classify", "predict"},
    {"operations", "ops"},
    {"kernels", "ops"},
    {"bench-ops", "bench ops"},
    {"bench-decode", "bench decode"},
    {"bench-train", "bench train"},
    {"bench generate", "bench decode"},
    {"bench inference", "bench decode"},
    {"bench training", "bench train"},
    {"bench gemm", "bench matmul"},
    /* models and data */
    {"gpt2-small", "gpt2-124m"},
    {"gpt2-medium", "gpt2-350m"},
    {"gpt2-355m", "gpt2-350m"},
    {"gpt2-large", "gpt2-774m"},
    {"gpt2-xl", "gpt2-1.5b"},
    {"gpt", "gpt2"},
    {"nanogpt", "gpt2"},
    {"transformer", "gpt2"},
    {"resnet", "resnet20"},
    {"cnn", "lenet"},
    {"convnet", "lenet"},
    {"tinyllama", "llama"},
    {"cifar", "cifar10"},
    {"txt", "text"},
    {"jsonl", "chats"},
    {"chat", "chats"},
    {"numpy", "npy"},
};
#define SYNONYMS ((int)(sizeof(synonyms) / sizeof(synonyms[0])))

/* "Batch_Size" → "batch-size" */
static void simplify(const char *name, char *plain)
{
    int length = 0;
    for (; name[length] && length < MAX_LENGTH - 1; length++)
        plain[length] = name[length] == '_' ? '-' : (char)tolower((unsigned char)name[length]);
    plain[length] = 0;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Damerau-Levenshtein distance: the number of characters to change, insert, delete or swap with their neighbour.
 * Three rows of the usual table suffice. */
static int distance(const char *a, const char *b)
{
    int rows[3][MAX_LENGTH + 1], *before = rows[0], *last = rows[1], *now = rows[2], n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        last[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            now[j] = min_int(min_int(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = min_int(now[j], before[j - 2] + 1);
        }
        int *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[n];
}

/* The largest distance that still counts as a typo, by the word's length; more would be a guess. */
static int max_distance(const char *plain)
{
    size_t length = strlen(plain);
    return length < 3 ? 0 : length < 5 ? 1 : length < 9 ? 2 : 3;
}

/* The name that is the same but for case, dashes and underscores. */
static const char *find(const char *plain, const char *const *names, int count)
{
    char name[MAX_LENGTH];
    for (int i = 0; i < count; i++) {
        simplify(names[i], name);
        if (strcmp(name, plain) == 0)
            return names[i];
    }
    return NULL;
}

/* The meaning of a synonym within `far` edits that begins with the same character; NULL: none. */
static const char *find_synonym(const char *plain, int far, const char *const *names, int count)
{
    for (int i = 0; i < SYNONYMS; i++) {
        const char *typed = synonyms[i].typed;
        bool is_near = strcmp(typed, plain) == 0 ||
                       (far > 0 && strlen(typed) > 4 && typed[0] == plain[0] && distance(plain, typed) <= far);
        const char *meant = is_near ? find(synonyms[i].meant, names, count) : NULL;
        if (meant)
            return meant;
    }
    return NULL;
}

/* The nearest by its letters; of two as near, the one that begins with the same letter. */
static const char *find_nearest(const char *plain, const char *const *names, int count)
{
    const char *best = NULL;
    /* Two points an edit and one for another first letter: distance decides, the first letter breaks ties. */
    int best_score = 2 * max_distance(plain) + 2;
    for (int i = 0; i < count; i++) {
        char name[MAX_LENGTH];
        simplify(names[i], name);
        int far = distance(plain, name), score = 2 * far + (name[0] != plain[0]);
        if (far <= max_distance(plain) && far < (int)strlen(name) && score < best_score) {
            best = names[i];
            best_score = score;
        }
    }
    return best;
}

/* The only name that begins so: "temp" for "temperature". */
static const char *find_longer(const char *plain, const char *const *names, int count)
{
    const char *found = NULL;
    for (int i = 0; i < count; i++) {
        char name[MAX_LENGTH];
        simplify(names[i], name);
        if (strncmp(name, plain, strlen(plain)) != 0)
            continue;
        if (found)
            return NULL;
        found = names[i];
    }
    return found;
}

/* The result is one of `names`, borrowed; NULL: nothing close enough. Leading dashes are ignored. */
const char *tarn_suggest(const char *typed, const char *const *names, int count)
{
    char plain[MAX_LENGTH];
    const char *found = NULL;
    if (!typed || !names)
        return NULL;
    typed += strspn(typed, "-");
    simplify(typed, plain);
    if (!plain[0] || strlen(typed) >= MAX_LENGTH)
        return NULL;
    if ((found = find(plain, names, count)) || (found = find_synonym(plain, 0, names, count)) ||
        (found = find_nearest(plain, names, count)))
        return found;
    if (strlen(plain) > 2 && (found = find_longer(plain, names, count)))
        return found;
    return find_synonym(plain, max_distance(plain) / 2, names, count);
}
