/* template_check.c: whether a template prints what its family prints, and nothing else. template_match.c finds the
 * expressions of a family in it; a template may have these and more, and what it does with them would be lost in
 * silence. So every {{ }} is looked at where it stands: in a branch that is taken without tools and without settings of
 * its own, and in a loop over the messages in their order. */
#include <string.h>

#include "text/chat/chat.h"

#define MOST_BLOCKS 64 /* in each other */

/* An open {% if %} or {% for %}. */
typedef struct block {
    const char *condition; /* of the branch; behind {% else %} that of the last before it */
    size_t length;
    bool is_skipped; /* never taken here */
    bool has_all;    /* a branch before took all messages without tools */
    bool is_odd;     /* a loop over something else than the messages */
} block;

static bool is_text(const char *at, size_t length, const char *text)
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

/* A branch for what is without tools: of a condition that names them. */
static bool is_without_tools(const char *condition, size_t length)
{
    bool is_negated = begins(condition, length, "not") && !begins(condition, length, "nottoolsisnone");
    return contains(condition, length, "tool") && (is_negated || contains(condition, length, "'user'"));
}

/* A branch for tools, or for a setting that nobody gives. */
static bool is_never_taken(const char *condition, size_t length)
{
    return begins(condition, length, "enable_thinkingisdefinedand") ||
           (contains(condition, length, "tool") && !is_without_tools(condition, length));
}

/* Takes the condition of a branch; `is_around`: what is around it is skipped already. */
static void take_branch(block *b, const char *condition, size_t length, bool is_around)
{
    b->condition = condition;
    b->length = length;
    b->is_skipped = is_around || b->has_all || is_never_taken(condition, length);
    b->has_all = b->has_all || is_without_tools(condition, length);
}

/* "message in messages", or in what they were put into. */
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

/* Follows {% %}. False where blocks do not fit into each other. */
static bool follow(block *open, int *count, const char *tag, size_t length)
{
    bool is_if = begins(tag, length, "if"), is_for = begins(tag, length, "for");
    if (begins(tag, length, "endif") || begins(tag, length, "endfor"))
        return (*count)-- > 0;
    if (is_text(tag, length, "else") || begins(tag, length, "elif")) {
        if (*count < 1)
            return false;
        block *top = &open[*count - 1];
        bool is_around = *count > 1 && open[*count - 2].is_skipped;
        if (tag[2] == 'i')
            take_branch(top, tag + 4, length - 4, is_around);
        else
            top->is_skipped = is_around || top->has_all;
        return true;
    }
    if (!is_if && !is_for)
        return true;
    if (*count == MOST_BLOCKS)
        return false;
    size_t word = is_if ? 2 : 3;
    open[*count] = (block){.is_odd = is_for && !is_over_messages(tag + word, length - word)};
    take_branch(&open[*count], tag + word, length - word, *count > 0 && open[*count - 1].is_skipped);
    (*count)++;
    return true;
}

/* The messages may lose the system's, where there is one, and nothing else, and get none. */
static bool keeps_messages(const char *tag, size_t length, const block *around)
{
    const char *value = begins(tag, length, "set") ? memchr(tag, '=', length) : NULL;
    if (!value)
        return true;
    length -= (size_t)(++value - tag);
    if (contains(value, length, "+messages") || contains(value, length, "messages+"))
        return false;
    if (!begins(value, length, "messages[") || begins(value, length, "messages[0]"))
        return true;
    return is_text(value, length, "messages[1:]") && around && contains(around->condition, around->length, "'system'");
}

/* ---- what is printed --------------------------------------------------------------------------------------------- */

#define ROLE "'<|im_start|>'+message['role']+"
#define PROMPT "'<|im_start|>assistant\\n'"
#define HEAD(role) "'<|start_header_id|>" role "<|end_header_id|>\\n\\n'"

static const char *const of_chatml[] = {PROMPT,
                                        ROLE "'\\n'+message['content']+'<|im_end|>'+'\\n'",
                                        ROLE "'\\n'+message['content']+'<|im_end|>\\n'",
                                        ROLE "'\\n'+message['content']|trim+'<|im_end|>'+'\\n'",
                                        ROLE "'\\n'+message['content']|trim+'<|im_end|>\\n'",
                                        NULL};
static const char *const of_thoughts[] = {
    ROLE "'\\n'+content+'<|im_end|>'+'\\n'",
    ROLE "'\\n'+content+'<|im_end|>\\n'",
    ROLE "'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</think>\\n\\n'+content.lstrip('\\n')",
    ROLE "'\\n'+content",
    "'<|im_end|>\\n'",
    NULL};
static const char *const of_llama2[] = {"bos_token+'[INST] '+content.strip()+' [/INST]'",
                                        "' '+content.strip()+' '+eos_token",
                                        "'<<SYS>>\\n'+content.strip()+'\\n<</SYS>>\\n\\n'", NULL};
static const char *const of_llama3[] = {
    "content",
    "system_message",
    "'<|eot_id|>'",
    HEAD("system"),
    HEAD("assistant"),
    "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'",
    "'Cutting Knowledge Date: December 2023\\n'",
    "'Today Date: '+date_string+'\\n\\n'",
    NULL};

static bool is_among(const char *const *texts, const char *print, size_t length)
{
    for (; *texts; texts++)
        if (is_text(print, length, *texts))
            return true;
    return false;
}

/* A system's text: that of the messages, or one that stands there where they have none. */
static bool is_system(const char *print, size_t length, const block *around)
{
    static const char begin[] = "'<|im_start|>system\\n";
    if (!begins(print, length, begin) ||
        !(ends(print, length, "<|im_end|>\\n'") || ends(print, length, "'<|im_end|>'+'\\n'")))
        return false;
    return around && contains(around->condition, around->length, "'system'");
}

/* Mistral's have their texts read out of them: a user's, with a system's or without, and an answer. */
static bool is_mistral(const char *print, size_t length)
{
    bool is_user = contains(print, length, "[INST]") && contains(print, length, "[/INST]");
    bool is_answer = contains(print, length, "eos_token");
    return (is_user || is_answer) && contains(print, length, "message['content']");
}

static bool is_known(const tarn__chat_template *form, const char *print, size_t length, const block *around)
{
    if (begins(print, length, "raise_exception(") || is_text(print, length, "''"))
        return true;
    if (is_text(print, length, "bos_token"))
        return form->kind != TARN__CHAT_LLAMA2;
    switch (form->kind) {
    case TARN__CHATML:
        return is_among(of_chatml, print, length) || (form->thinks && is_among(of_thoughts, print, length)) ||
               is_system(print, length, around);
    case TARN__CHAT_LLAMA2: return is_among(of_llama2, print, length);
    case TARN__CHAT_LLAMA3: return is_among(of_llama3, print, length);
    default: return is_mistral(print, length);
    }
}

/* The token that begins a text is printed once, before the messages; the beginning of an answer always, or where it is
 * asked for. */
static bool is_in_place(const char *print, size_t length, const block *open, int count)
{
    bool is_begin = is_text(print, length, "bos_token"),
         is_prompt = is_text(print, length, PROMPT) || is_text(print, length, HEAD("assistant"));
    if (is_prompt && count > 0 && !contains(open[count - 1].condition, open[count - 1].length, "add_generation_prompt"))
        return false;
    for (int i = 0; i < count; i++)
        if (open[i].is_odd || (is_begin && is_over_messages(open[i].condition, open[i].length)))
            return false;
    return true;
}

bool tarn__chat_template_check(const tarn__chat_template *form, const char *text)
{
    block open[MOST_BLOCKS];
    int count = 0;
    for (tarn__chat_tag tag = tarn__chat_next_tag(text); tag.begin; tag = tarn__chat_next_tag(tag.end)) {
        if (tag.end - tag.begin < 4)
            return false;
        const char *inside = tag.begin + 2;
        size_t length = (size_t)(tag.end - tag.begin) - 4;
        if (tag.begin[1] == '%' && !follow(open, &count, inside, length))
            return false;
        const block *around = count ? &open[count - 1] : NULL;
        if (around && around->is_skipped)
            continue;
        if (tag.begin[1] == '%' && !keeps_messages(inside, length, around))
            return false;
        if (tag.begin[1] == '{' &&
            !(is_known(form, inside, length, around) && is_in_place(inside, length, open, count)))
            return false;
    }
    return count == 0;
}
