/* generate.c: streaming text generation from a prompt.
 *
 *   build/release/examples/generate MODEL "Once upon a time"
 *
 * MODEL is a folder with config.json, weights and a tokenizer, or a GGUF file. Without it a small model with random
 * weights generates random bytes. */
#include <stdio.h>
#include <string.h>
#include <tarn/tarn.h>

/* A generator without a file: a GPT-2 with random weights, whose tokens are bytes. */
static tarn_generator *make_noise(tarn_device device, tarn_module **model, tarn_tokenizer **tokenizer)
{
    const tarn_gpt2_config config = {.vocab_size = 256, .context = 128, .layers = 2, .heads = 2, .hidden_size = 32};
    *model = tarn_model_gpt2(&config, device, 1);
    *tokenizer = tarn_tokenizer_bytes();
    return tarn_generator_new(*model, *tokenizer, NULL);
}

int main(int count, char **words)
{
    const char *prompt = count > 2 ? words[2] : "Once upon a time";
    tarn_device device = tarn_device_auto();
    tarn_module *model = NULL;
    tarn_tokenizer *tokenizer = NULL;
    tarn_generator *generator =
        count > 1 ? tarn_generator_open(words[1], device, NULL) : make_noise(device, &model, &tokenizer);

    /* Prefill happens here. A second call with a longer prompt would compute only its new tokens. */
    tarn_generator_prompt_text(generator, 0, prompt, strlen(prompt),
                               &(tarn_generate_options){.max_tokens = 64,
                                                        .temperature = 0.8,
                                                        .top_k = 40,
                                                        .seed = 7,
                                                        .stop_strings = (const char *[]){"\n\n"},
                                                        .stop_string_count = 1});
    printf("%s", prompt);

    /* Outputs are whole characters; a stop string is never output, not even its beginning. */
    tarn_output output;
    while (tarn_generator_next(generator, &output)) {
        printf("%.*s", (int)output.length, output.text);
        fflush(stdout);
    }
    printf("\n");

    bool failed = tarn_failed();
    if (failed)
        fprintf(stderr, "%s\n", tarn_error());
    tarn_generator_free(generator);
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
    return failed;
}
