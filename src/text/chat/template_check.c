/* template_check.c: checks that a template prints what its family prints, and nothing else.
 *
 * template_match.c finds the expressions of a family in a template; a template may have these and more, which would be
 * lost silently. So every {{ }} is checked in its context: a branch that is taken without tools and without extra
 * settings, and a loop over the messages in order. */
#include <string.h>

#include "text/chat/chat.h"

#define MAX_DEPTH 64 /* nested blocks */

/* An open {% if %} or {% for %}. */
typedef struct block {
    const char *condition; /* of the branch; after {% else %} that of the branch before */
    size_t length;
    bool is_skipped;    /* the branch is never taken */
    bool took_all;      /* an earlier branch covers all input without tools */
    bool is_other_loop; /* a loop over anything but the messages */
} block;

static bool is_string(const char *at, size_t length, const char *text)
{
    return strlen(text) == length && memcmp(at, text, length) == 0;
}

static bool begins(const char *at, size_t length, const char *text)
{
    return strlen(text) <= length && memcmp(at, text, strlen(text)) == 0;
}

static bool ends(const char *at, size_t length, const char *text)
{
    return strlen(text) <= length && memcmp(at + length - strlen(text), text, strlen(text)) == 0;
}

static bool contains(const char *at, size_t length, const char *text)
{
    for (; strlen(text) <= length; at++, length--)
        if (begins(at, length, text))
            return true;
    return false;
}

/* ---- branches and loops ------------------------------------------------------------------------------------------ */

/* True for a condition that mentions tools and holds without them. */
static bool is_without_tools(const char *condition, size_t length)
{
    bool is_negated = begins(condition, length, "not") && !begins(condition, length, "nottoolsisnone");
    return contains(condition, length, "tool") && (is_negated || contains(condition, length, "'user'"));
}

/* True for a branch that needs tools, or a setting that tarn never passes. */
static bool is_dead_branch(const char *condition, size_t length)
{
    return begins(condition, length, "enable_thinkingisdefinedand") ||
           (contains(condition, length, "tool") && !is_without_tools(condition, length));
}

/* Enters a branch with its condition; `is_outer_skipped`: the enclosing block is skipped. */
static void take_branch(block *b, const char *condition, size_t length, bool is_outer_skipped)
{
    b->condition = condition;
    b->length = length;
    b->is_skipped = is_outer_skipped || b->took_all || is_dead_branch(condition, length);
    b->took_all = b->took_all || is_without_tools(condition, length);
}

/* True for "message in NAME": the messages, or a variable they were assigned to. */
static bool is_over_messages(const char *loop, size_t length)
{
    static const char begin[] = "messagein";
    if (!begins(loop, length, begin))
        return false;
    for (size_t i = strlen(begin); i < length; i++)
        if (loop[i] != '_' && (loop[i] < 'a' || loop[i] > 'z'))
            return false;
    return true;
}

/* Updates the stack of blocks for a {% %} tag. False if blocks do not nest. */
static bool track_block(block *open, int *count, const char *tag, size_t length)
{
    bool is_if = begins(tag, length, "if"), is_for = begins(tag, length, "for");
    if (begins(tag, length, "endif") || begins(tag, length, "endfor"))
        return (*count)-- > 0;
    if (is_string(tag, length, "else") || begins(tag, length, "elif")) {
        if (*count < 1)
            return false;
        block *top = &open[*count - 1];
        bool is_outer_skipped = *count > 1 && open[*count - 2].is_skipped;
        if (tag[2] == 'i')
            take_branch(top, tag + 4, length - 4, is_outer_skipped);
        else
            top->is_skipped = is_outer_skipped || top->took_all;
        return true;
    }
    if (!is_if && !is_for)
        return true;
    if (*count == MAX_DEPTH)
        return false;
    size_t word = is_if ? 2 : 3;
    open[*count] = (block){.is_other_loop = is_for && !is_over_messages(tag + word, length - word)};
    take_branch(&open[*count], tag + word, length - word, *count > 0 && open[*count - 1].is_skipped);
    (*count)++;
    return true;
}

/* Checks a {% set %}: messages may drop the system message, under a condition on it; any other change is unknown. */
static bool keeps_messages(const char *tag, size_t length, const block *enclosing)
{
    const char *value = begins(tag, length, "set") ? memchr(tag, '=', length) : NULL;
    if (!value)
        return true;
    length -= (size_t)(++value - tag);
    if (contains(value, length, "+messages") || contains(value, length, "messages+"))
        return false;
    if (!begins(value, length, "messages[") || begins(value, length, "messages[0]"))
        return true;
    return is_string(value, length, "messages[1:]") && enclosing &&
           contains(enclosing->condition, enclosing->length, "'system'");
}

/* ---- printed expressions ----------------------------------------------------------------------------------------- */

#define ROLE "'<|im_start|>'+message['role']+"
#define PROMPT "'<|im_start|>assistant\\n'"
#define HEAD(role) "'<|start_header_id|>" role "<|end_header_id|>\\n\\n'"

static const char *const chatml_prints[] = {PROMPT,
                                            ROLE "'\\n'+message['content']+'<|im_end|>'+'\\n'",
                                            ROLE "'\\n'+message['content']+'<|im_end|>\\n'",
                                            ROLE "'\\n'+message['content']|trim+'<|im_end|>'+'\\n'",
                                            ROLE "'\\n'+message['content']|trim+'<|im_end|>\\n'",
                                            NULL};
static const char *const thinking_prints[] = {
    ROLE "'\\n'+content+'<|im_end|>'+'\\n'",
    ROLE "'\\n'+content+'<|im_end|>\\n'",
    ROLE "'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</think>\\n\\n'+content.lstrip('\\n')",
    ROLE "'\\n'+content",
    "'<|im_end|>\\n'",
    NULL};
static const char *const llama2_prints[] = {"bos_token+'[INST] '+content.strip()+' [/INST]'",
                                            "' '+content.strip()+' '+eos_token",
                                            "'<<SYS>>\\n'+content.strip()+'\\n<</SYS>>\\n\\n'", NULL};
static const char *const llama3_prints[] = {
    "content",
    "system_message",
    "'<|eot_id|>'",
    HEAD("system"),
    HEAD("assistant"),
    "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'",
    "'Cutting Knowledge Date: December 2023\\n'",
    "'Today Date: '+date_string+'\\n\\n'",
    NULL};

static bool is_listed(const char *const *texts, const char *expression, size_t length)
{
    for (; *texts; texts++)
        if (is_string(expression, length, *texts))
            return true;
    return false;
}

/* True for a printed system message: the first message's, or a default one under a condition on it. */
static bool is_system(const char *expression, size_t length, const block *enclosing)
{
    static const char begin[] = "'<|im_start|>system\\n";
    if (!begins(expression, length, begin) ||
        !(ends(expression, length, "<|im_end|>\\n'") || ends(expression, length, "'<|im_end|>'+'\\n'")))
        return false;
    return enclosing && contains(enclosing->condition, enclosing->length, "'system'");
}

/* Mistral's strings vary and are read out of the template: a user message, with or without the system's, or a
 * completion. */
static bool is_mistral(const char *expression, size_t length)
{
    bool is_user = contains(expression, length, "[INST]") && contains(expression, length, "[/INST]");
    bool is_answer = contains(expression, length, "eos_token");
    return (is_user || is_answer) && contains(expression, length, "message['content']");
}

/* True if a family prints this expression. Errors raised by a template and empty strings print nothing. */
static bool is_known(const tarn__chat_template *template, const char *expression, size_t length, const block *enclosing)
{
    if (begins(expression, length, "raise_exception(") || is_string(expression, length, "''"))
        return true;
    if (is_string(expression, length, "bos_token"))
        return template->kind != TARN__CHAT_LLAMA2;
    switch (template->kind) {
    case TARN__CHATML:
        return is_listed(chatml_prints, expression, length) ||
               (template->thinks && is_listed(thinking_prints, expression, length)) ||
               is_system(expression, length, enclosing);
    case TARN__CHAT_LLAMA2: return is_listed(llama2_prints, expression, length);
    case TARN__CHAT_LLAMA3: return is_listed(llama3_prints, expression, length);
    default: return is_mistral(expression, length);
    }
}

/* Checks the position: BOS is printed outside of the loop over messages; the generation prompt unconditionally, or
 * under add_generation_prompt. */
static bool is_in_place(const char *expression, size_t length, const block *open, int count)
{
    bool is_begin = is_string(expression, length, "bos_token"),
         is_prompt = is_string(expression, length, PROMPT) || is_string(expression, length, HEAD("assistant"));
    if (is_prompt && count > 0 && !contains(open[count - 1].condition, open[count - 1].length, "add_generation_prompt"))
        return false;
    for (int i = 0; i < count; i++)
        if (open[i].is_other_loop || (is_begin && is_over_messages(open[i].condition, open[i].length)))
            return false;
    return true;
}

bool tarn__chat_template_check(const tarn__chat_template *template, const char *text)
{
    block open[MAX_DEPTH];
    int count = 0;
    for (tarn__chat_tag tag = tarn__chat_next_tag(text); tag.begin; tag = tarn__chat_next_tag(tag.end)) {
        if (tag.end - tag.begin < 4)
            return false;
        const char *inside = tag.begin + 2;
        size_t length = (size_t)(tag.end - tag.begin) - 4;
        if (tag.begin[1] == '%' && !track_block(open, &count, inside, length))
            return false;
        const block *enclosing = count ? &open[count - 1] : NULL;
        if (enclosing && enclosing->is_skipped)
            continue;
        if (tag.begin[1] == '%' && !keeps_messages(inside, length, enclosing))
            return false;
        if (tag.begin[1] == '{' &&
            !(is_known(template, inside, length, enclosing) && is_in_place(inside, length, open, count)))
            return false;
    }
    return count == 0;
}
