/* recurrent.c: LSTM and GRU, with several layers and two directions, by torch's equations and parameter names.
 *
 * The products of all steps with the inputs are one matmul per layer and direction; a step is one matmul with the
 * hidden state and element-wise operations on its gates. Everything is composed of operations that have gradients, so
 * that every backend runs it. Inside, sequences are [T, B, features].
 *
 * Gates lie behind one another in the rows of the weights: input, forget, cell, output of an LSTM; reset, update, new
 * of a GRU. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"
#include "ops/op.h"

typedef struct settings {
    const char *function; /* for errors: a literal */
    int64_t in, hidden;
    tarn_recurrent_options options; /* .layers resolved */
    bool is_lstm;
} settings;

/* One direction of one layer. */
typedef struct cell {
    const settings *s;
    tarn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* borrowed; biases may be NULL */
    bool is_reverse;
} cell;

static int directions(const settings *s)
{
    return s->options.bidirectional ? 2 : 1;
}

static int gates(const settings *s)
{
    return s->is_lstm ? 4 : 3;
}

/* "weight_ih_l0_reverse" */
static const char *name_of(char *name, size_t size, const char *part, int64_t layer, bool is_reverse)
{
    snprintf(name, size, "%s_l%lld%s", part, (long long)layer, is_reverse ? "_reverse" : "");
    return name;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Gates `first` to `last` of [B, gates · hidden]. */
static tarn_tensor *gate(tarn_tensor *all, const settings *s, int first, int last)
{
    return tarn_slice(all, 1, first * s->hidden, last * s->hidden);
}

/* c ← forget · c + input · cell; h ← output · tanh(c). The inputs' share has both biases already. */
static bool step_lstm(const cell *l, tarn_tensor *inputs, tarn_recurrent_state *state)
{
    const settings *s = l->s;
    tarn_tensor *all = tarn_add(inputs, tarn_linear_apply(state->h, l->weight_hh, NULL));
    tarn_tensor *both = tarn_sigmoid(gate(all, s, 0, 2)), *cell_gate = tarn_tanh(gate(all, s, 2, 3));
    tarn_tensor *output = tarn_sigmoid(gate(all, s, 3, 4));
    state->c = tarn_add(tarn_mul(gate(both, s, 1, 2), state->c), tarn_mul(gate(both, s, 0, 1), cell_gate));
    state->h = tarn_mul(output, tarn_tanh(state->c));
    return state->h != NULL;
}

/* new = tanh(inputs + reset · hidden); h ← (1 - update) · new + update · h. */
static bool step_gru(const cell *l, tarn_tensor *inputs, tarn_recurrent_state *state)
{
    const settings *s = l->s;
    tarn_tensor *hidden = tarn_linear_apply(state->h, l->weight_hh, l->bias_hh);
    tarn_tensor *both = tarn_sigmoid(tarn_add(gate(inputs, s, 0, 2), gate(hidden, s, 0, 2)));
    tarn_tensor *fresh =
        tarn_tanh(tarn_add(gate(inputs, s, 2, 3), tarn_mul(gate(both, s, 0, 1), gate(hidden, s, 2, 3))));
    state->h = tarn_add(fresh, tarn_mul(gate(both, s, 1, 2), tarn_sub(state->h, fresh)));
    return state->h != NULL;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* The products of all steps with x [T, B, features]: [T, B, gates · hidden]. The biases of an LSTM are added at once;
 * that of a GRU's hidden state is scaled by the reset gate. */
static tarn_tensor *project(const cell *l, tarn_tensor *x)
{
    tarn_tensor *bias = l->s->is_lstm && l->bias_ih ? tarn_add(l->bias_ih, l->bias_hh) : l->bias_ih;
    return tarn_linear_apply(x, l->weight_ih, bias);
}

/* Runs one direction over x, from the state, which it advances. The hidden states of all steps, stacked at `axis`. */
static tarn_tensor *run_cell(const cell *l, tarn_tensor *x, int axis, tarn_recurrent_state *state)
{
    int64_t steps = x->view.shape[0];
    size_t bytes = sizeof(tarn_tensor *) * (size_t)steps;
    tarn_tensor *inputs = project(l, x), **hidden = inputs ? tarn__alloc(bytes) : NULL;
    bool good = hidden != NULL;
    for (int64_t i = 0; good && i < steps; i++) {
        int64_t t = l->is_reverse ? steps - 1 - i : i;
        tarn_tensor *now = tarn_squeeze(tarn_slice(inputs, 0, t, t + 1), 0);
        good = (l->s->is_lstm ? step_lstm : step_gru)(l, now, state);
        hidden[t] = state->h;
    }
    tarn_tensor *all = good ? tarn_stack(hidden, (int)steps, axis) : NULL;
    tarn__release(hidden, bytes);
    return all;
}

/* Row `row` of a state [rows, B, hidden]; zeros without one. */
static tarn_tensor *initial(tarn_tensor *state, int64_t row, const settings *s, const tarn_tensor *x)
{
    return state ? tarn_squeeze(tarn_slice(state, 0, row, row + 1), 0)
                 : tarn_zeros(TARN_SHAPE(x->view.shape[1], s->hidden), x->view.dtype, tarn__device(x));
}

static cell cell_of(const tarn_module *module, const settings *s, int64_t layer, bool is_reverse)
{
    char name[64];
    return (cell){.s = s,
                  .weight_ih = tarn__module_own(module, name_of(name, sizeof(name), "weight_ih", layer, is_reverse)),
                  .weight_hh = tarn__module_own(module, name_of(name, sizeof(name), "weight_hh", layer, is_reverse)),
                  .bias_ih = tarn__module_own(module, name_of(name, sizeof(name), "bias_ih", layer, is_reverse)),
                  .bias_hh = tarn__module_own(module, name_of(name, sizeof(name), "bias_hh", layer, is_reverse)),
                  .is_reverse = is_reverse};
}

/* Both directions of a layer; their last states become rows of `last`. */
static tarn_tensor *run_layer(const tarn_module *module, const settings *s, int64_t layer, tarn_tensor *x,
                              const tarn_recurrent_state *first, tarn_recurrent_state *last)
{
    tarn_tensor *result[2] = {NULL};
    int axis = s->options.batch_first && layer + 1 == s->options.layers ? 1 : 0;
    for (int d = 0; d < directions(s); d++) {
        int64_t row = layer * directions(s) + d;
        cell l = cell_of(module, s, layer, d == 1);
        tarn_recurrent_state state = {.h = initial(first->h, row, s, x),
                                      .c = s->is_lstm ? initial(first->c, row, s, x) : NULL};
        if (!(result[d] = run_cell(&l, x, axis, &state)))
            return NULL;
        last[row] = state;
    }
    return directions(s) == 2 ? tarn_concat(result, 2, 2) : result[0];
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static bool check_state(const settings *s, const tarn_tensor *state, int64_t batch, const char *what)
{
    int64_t rows = s->options.layers * directions(s);
    return !state ||
           (state->view.rank == 3 && state->view.shape[0] == rows && state->view.shape[1] == batch &&
            state->view.shape[2] == s->hidden) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: the initial %s state is %s; must be [%lld, %lld, %lld]", s->function,
                       what, TARN__SHAPE_STRING(state), (long long)rows, (long long)batch, (long long)s->hidden);
}

static bool check_input(const settings *s, const tarn_tensor *x, const tarn_recurrent_state *first)
{
    int steps = s->options.batch_first ? 1 : 0;
    if (!tarn__check(s->function, x, "x"))
        return false;
    if (x->view.rank != 3 || x->view.shape[2] != s->in || x->view.shape[steps] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: x is %s; must be %s with %lld features and at least one step",
                           s->function, TARN__SHAPE_STRING(x), steps ? "[B, T, features]" : "[T, B, features]",
                           (long long)s->in);
    if (!s->is_lstm && first->c)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: an initial cell state is given; a GRU has none", s->function);
    return check_state(s, first->h, x->view.shape[1 - steps], "hidden") &&
           check_state(s, first->c, x->view.shape[1 - steps], "cell");
}

/* The last states of all layers, [layers · directions, B, hidden]. */
static bool stack_states(const settings *s, const tarn_recurrent_state *last, int rows, tarn_recurrent_state *final)
{
    size_t bytes = sizeof(tarn_tensor *) * (size_t)rows;
    tarn_tensor **list = tarn__alloc(bytes);
    for (int i = 0; list && i < rows; i++)
        list[i] = last[i].h;
    *final = (tarn_recurrent_state){.h = list ? tarn_stack(list, rows, 0) : NULL};
    for (int i = 0; list && s->is_lstm && i < rows; i++)
        list[i] = last[i].c;
    if (list && s->is_lstm)
        final->c = tarn_stack(list, rows, 0);
    tarn__release(list, bytes);
    return !tarn_failed();
}

static tarn_tensor *run(const tarn_module *module, const settings *s, tarn_tensor *x, const tarn_recurrent_state *first,
                        tarn_recurrent_state *final)
{
    int rows = (int)s->options.layers * directions(s);
    size_t bytes = sizeof(tarn_recurrent_state) * (size_t)rows;
    if (!check_input(s, x, first))
        return NULL;
    tarn_recurrent_state *last = tarn__alloc(bytes);
    tarn_tensor *y = !last ? NULL : s->options.batch_first ? tarn_transpose(x, 0, 1) : x;
    for (int64_t layer = 0; y && layer < s->options.layers; layer++) {
        if (layer > 0 && s->options.dropout > 0 && module->training)
            y = tarn_dropout(y, s->options.dropout);
        y = y ? run_layer(module, s, layer, y, first, last) : NULL;
    }
    if (y && final && !stack_states(s, last, rows, final))
        y = NULL;
    tarn__release(last, bytes);
    if (!y)
        tarn__raise_within(s->function);
    return y;
}

static tarn_tensor *recurrent_forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    return run(module, ctx, x, &(tarn_recurrent_state){NULL, NULL}, NULL);
}

tarn_tensor *tarn_recurrent_forward(tarn_module *module, tarn_tensor *x, const tarn_recurrent_state *first,
                                    tarn_recurrent_state *last)
{
    static const tarn_recurrent_state zeros = {NULL, NULL};
    if (tarn_failed() || !tarn__check_module("recurrent_forward", module))
        return NULL;
    if (module->forward != recurrent_forward) {
        tarn__raise(TARN_ERROR_ARGUMENT, "recurrent_forward: the module is of kind %s; must be an lstm or a gru",
                    module->kind);
        return NULL;
    }
    return tarn__observe_output(module, run(module, module->ctx, x, first ? first : &zeros, last));
}

/* ---- creating ---------------------------------------------------------------------------------------------------- */

static bool check_settings(const settings *s)
{
    const tarn_recurrent_options *o = &s->options;
    if (s->in < 1 || s->hidden < 1 || s->hidden > (INT64_C(1) << 40))
        return tarn__raise(TARN_ERROR_SHAPE, "%s: from %lld features to %lld hidden ones; both must be at least 1",
                           s->function, (long long)s->in, (long long)s->hidden);
    if (o->layers < 1 || o->layers > 1024)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .layers is %lld; must be from 1 to 1024", s->function,
                           (long long)o->layers);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .dropout is %g; must be at least 0 and below 1", s->function,
                           o->dropout);
    if (o->dropout > 0 && o->layers == 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .dropout is %g, but is applied between layers, and .layers is 1",
                           s->function, o->dropout);
    return tarn__check_parameter_dtype(s->function, o->dtype);
}

static bool add_parameters(tarn_module *module, const settings *s, int64_t layer, bool is_reverse, tarn_device device)
{
    char name[64];
    double bound = 1 / sqrt((double)s->hidden);
    int64_t features = layer ? directions(s) * s->hidden : s->in, rows = gates(s) * s->hidden;
    const struct {
        const char *part;
        tarn_shape shape;
    } parts[] = {{"weight_ih", TARN_SHAPE(rows, features)},
                 {"weight_hh", TARN_SHAPE(rows, s->hidden)},
                 {"bias_ih", TARN_SHAPE(rows)},
                 {"bias_hh", TARN_SHAPE(rows)}};
    for (int i = 0; i < (s->options.no_bias ? 2 : 4); i++)
        if (!tarn__add_uniform(module, name_of(name, sizeof(name), parts[i].part, layer, is_reverse), parts[i].shape,
                               bound, s->options.dtype, device))
            return false;
    return true;
}

static tarn_module *create(const char *kind, bool is_lstm, int64_t in, int64_t hidden, tarn_device device,
                           const tarn_recurrent_options *options, size_t options_size)
{
    settings s = {.function = is_lstm ? "lstm_layer" : "gru_layer", .in = in, .hidden = hidden, .is_lstm = is_lstm};
    if (options)
        memcpy(&s.options, options, options_size < sizeof(s.options) ? options_size : sizeof(s.options));
    s.options.layers = s.options.layers ? s.options.layers : 1;
    if (tarn_failed() || !check_settings(&s))
        return NULL;
    tarn_module *module = tarn__module_new_with(s.function, kind, recurrent_forward, &s, sizeof(s));
    bool good = module != NULL;
    for (int64_t row = 0; good && row < s.options.layers * directions(&s); row++)
        good = add_parameters(module, &s, row / directions(&s), row % directions(&s) == 1, device);
    if (good)
        return module;
    tarn__raise_within(s.function);
    tarn_module_free(module);
    return NULL;
}

tarn_module *tarn_lstm_layer_with_sized(int64_t in, int64_t hidden, tarn_device device,
                                        const tarn_recurrent_options *options, size_t options_size)
{
    return create("lstm", true, in, hidden, device, options, options_size);
}

tarn_module *tarn_gru_layer_with_sized(int64_t in, int64_t hidden, tarn_device device,
                                       const tarn_recurrent_options *options, size_t options_size)
{
    return create("gru", false, in, hidden, device, options, options_size);
}

tarn_module *tarn_lstm_layer(int64_t in, int64_t hidden, tarn_device device)
{
    return tarn_lstm_layer_with(in, hidden, device, NULL);
}

tarn_module *tarn_gru_layer(int64_t in, int64_t hidden, tarn_device device)
{
    return tarn_gru_layer_with(in, hidden, device, NULL);
}
