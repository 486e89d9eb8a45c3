/* template_match.c: recognizes the family of a chat template.
 *
 * Templates are Jinja programs; tarn does not run them, but knows the expressions of the published ones and accepts
 * only templates that consist of these. Strings that differ between models are read out of the template.
 *
 * Templates differ in spacing and quotes, so they are normalized first: no spaces inside expressions, single quotes
 * with \' inside, newlines in strings as \n, and message['content'] for message.content. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/chat/chat.h"

/* ---- normalization ----------------------------------------------------------------------------------------------- */

static bool add(tarn__buffer *out, const char *text)
{
    return tarn__buffer_add(out, text, strlen(text), 1);
}

/* Appends a quoted string; *at moves from its opening quote to after the closing one. */
static bool add_quoted(tarn__buffer *out, const char **at)
{
    char quote = *(*at)++;
    bool good = add(out, "'");
    for (; good && **at && **at != quote; ++*at) {
        if (**at == '\\' && (*at)[1])
            good = tarn__buffer_add(out, (*at)++, 1, 1);
        else if (**at == '\'')
            good = add(out, "\\");
        good = good && (**at == '\n' ? add(out, "\\n") : tarn__buffer_add(out, *at, 1, 1));
    }
    *at += **at != 0;
    return good && add(out, "'");
}

/* Appends .content and .role as subscripts, and any other character as it is. */
static bool add_member(tarn__buffer *out, const char **at)
{
    static const char *const members[][2] = {{".content", "['content']"}, {".role", "['role']"}};
    for (int i = 0; i < 2; i++)
        if (strncmp(*at, members[i][0], strlen(members[i][0])) == 0) {
            *at += strlen(members[i][0]);
            return add(out, members[i][1]);
        }
    return tarn__buffer_add(out, (*at)++, 1, 1);
}

/* Appends the normalized template. Whitespace outside of tags is dropped: prints_only_tags() checks that none is
 * printed. */
static bool normalize(tarn__buffer *out, const char *text)
{
    bool inside = false, good = true;
    for (const char *at = text; good && *at;) {
        bool opens = at[0] == '{' && (at[1] == '{' || at[1] == '%'),
             closes = (at[0] == '}' || at[0] == '%') && at[1] == '}';
        inside = (inside || opens) && !closes;
        if (inside && (*at == '\'' || *at == '"'))
            good = add_quoted(out, &at);
        else if (strchr(" \t\r\n-", *at))
            at++;
        else
            good = *at == '.' ? add_member(out, &at) : tarn__buffer_add(out, at++, 1, 1);
    }
    return good && tarn__buffer_add(out, "", 1, 1);
}

/* ---- text outside of tags ---------------------------------------------------------------------------------------- */

static const char *skip_quoted(const char *at)
{
    char quote = *at++;
    while (*at && *at != quote)
        at += at[0] == '\\' && at[1] ? 2 : 1;
    return at + (*at != 0);
}

/* Quotes inside a tag may contain its closing characters: they are skipped as a whole. */
tarn__chat_tag tarn__chat_next_tag(const char *at)
{
    while (*at && !(at[0] == '{' && at[1] && strchr("{%#", at[1])))
        at++;
    if (!*at)
        return (tarn__chat_tag){0};
    char closing = at[1] == '{' ? '}' : at[1];
    tarn__chat_tag found = {.begin = at, .trims_before = at[2] == '-', .is_block = closing != '}'};
    for (at += 2; *at && !(at[0] == closing && at[1] == '}');)
        at = closing != '#' && (*at == '\'' || *at == '"') ? skip_quoted(at) : at + 1;
    found.trims_after = at[-1] == '-';
    found.end = at + (*at ? 2 : 0);
    return found;
}

/* True if Jinja removes all text between two tags. */
static bool is_removed(const char *begin, const char *end, const tarn__chat_tag *before, const tarn__chat_tag *after)
{
    static const char spaces[] = " \t\r\n\f\v";
    bool at_line = !before->end;
    if (before->trims_after)
        begin += strspn(begin, spaces);
    else if (before->is_block && begin < end && *begin == '\n')
        begin++, at_line = true;
    if (begin >= end || (after->trims_before && (size_t)(end - begin) <= strspn(begin, spaces)))
        return true;
    const char *line = end;
    while (line > begin && (line[-1] == ' ' || line[-1] == '\t'))
        line--;
    if (after->is_block && (line == begin ? at_line : line[-1] == '\n'))
        end = line;
    if (!after->begin && end[-1] == '\n') /* Jinja drops one newline at the template's end */
        end--;
    return begin == end;
}

/* True if a template prints nothing outside of its tags. */
static bool prints_only_tags(const char *text)
{
    tarn__chat_tag before = {0};
    for (const char *at = text;;) {
        tarn__chat_tag after = tarn__chat_next_tag(at);
        if (!is_removed(at, after.begin ? after.begin : at + strlen(at), &before, &after))
            return false;
        if (!after.begin)
            return true;
        at = after.end;
        before = after;
    }
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static bool has(const char *normalized, const char *part)
{
    return strstr(normalized, part) != NULL;
}

/* Copies a string of the template and resolves its escapes. False if it does not fit. */
static bool copy_string(char *to, size_t capacity, const char *begin, const char *end)
{
    size_t used = 0;
    for (; begin < end && used + 1 < capacity; begin++) {
        bool escaped = *begin == '\\' && begin + 1 < end;
        begin += escaped;
        to[used++] = escaped && *begin == 'n' ? '\n' : *begin;
    }
    to[used] = 0;
    return begin == end;
}

/* Copies the quoted string that ends at a quote; copy_after(): that begins at one. */
static bool copy_before(char *to, size_t capacity, const char *normalized, const char *quote)
{
    const char *begin = quote;
    while (begin > normalized && begin[-1] != '\'')
        begin--;
    return copy_string(to, capacity, begin, quote);
}

static bool copy_after(char *to, size_t capacity, const char *quote)
{
    const char *end = strchr(quote + 1, '\'');
    return end && copy_string(to, capacity, quote + 1, end);
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

#define TURN "'<|im_start|>'+message['role']+'\\n'+"

static bool begins_with(const char *text, const char *part)
{
    return strncmp(text, part, strlen(part)) == 0;
}

/* Reads a default system message. False if one is composed in another way: it would be lost silently. */
static bool read_default(const char *normalized, tarn__chat_template *found)
{
    static const char begin[] = "'<|im_start|>system\\n";
    for (const char *at = normalized; (at = strstr(at, begin)) != NULL;) {
        at += strlen(begin);
        const char *end = strstr(at, "<|im_end|>"), *quote = strchr(at, '\'');
        /* the messages' own, or a part, as where Qwen lists tools */
        if (!end || !quote || quote < end) {
            if (quote != at || (at[1] == '+' && !begins_with(at, "'+messages[0]['content']") &&
                                !begins_with(at, "'+message['content']")))
                return false;
            continue;
        }
        found->has_default = true;
        return copy_string(found->system, sizeof(found->system), at, end);
    }
    return true;
}

/* ChatML, with the variants of Qwen 2, 2.5 and 3. */
static bool read_chatml(const char *normalized, tarn__chat_template *found)
{
    bool is_plain = has(normalized, TURN "message['content']+'<|im_end|>"),
         trims = has(normalized, TURN "message['content']|trim+'<|im_end|>");
    found->kind = TARN__CHATML;
    found->thinks = has(normalized, "content.split('</think>')") && has(normalized, "last_query_index");
    found->trims = trims;
    found->always_prompts = !has(normalized, "add_generation_prompt");
    found->adds_bos = begins_with(normalized, "{{bos_token}}");
    /* the system message is dropped */
    if (has(normalized, "message['role']!='system'") && !has(normalized, "'<|im_start|>system\\n"))
        return false;
    if (has(normalized + (found->adds_bos ? strlen("{{bos_token}}") : 0), "bos_token") || has(normalized, "eos_token"))
        return false;
    /* the first Qwen3 template has message.content here */
    bool thinks = found->thinks && (is_plain || has(normalized, TURN "content+'<|im_end|>"));
    return (found->thinks ? thinks && !trims : is_plain != trims) && has(normalized, "'<|im_start|>assistant\\n'") &&
           read_default(normalized, found);
}

/* True if a template sets a system message of its own, which Llama 2 and Mistral do not. */
static bool has_own_system(const char *normalized)
{
    static const char set[] = "setsystem_message='";
    const char *at = strstr(normalized, set);
    return at && at[strlen(set)] != '\'';
}

/* Llama 2: the system message is wrapped in <<SYS>> inside the first user message. */
static bool read_llama2(const char *normalized, tarn__chat_template *found)
{
    found->kind = TARN__CHAT_LLAMA2;
    found->trims = true;
    return !has_own_system(normalized) && has(normalized, "bos_token+'[INST] '+content.strip()+' [/INST]'") &&
           has(normalized, "' '+content.strip()+' '+eos_token") &&
           has(normalized, "'<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message['content']");
}

/* Reads the date of Llama 3.1: a constant, or today's with strftime_now(). */
static bool read_dates(const char *normalized, tarn__chat_template *found)
{
    static const char set[] = "setdate_string=";
    const char *at = strstr(normalized, set);
    found->has_dates = has(normalized, "'Cutting Knowledge Date: December 2023\\n'");
    if (!found->has_dates)
        return !has(normalized, "Today Date") && !has(normalized, "date_string");
    if (!has(normalized, "'Today Date: '+date_string+'\\n\\n'") || !at)
        return false;
    return has(normalized, "strftime_now(") || copy_after(found->date, sizeof(found->date), at + strlen(set));
}

/* Llama 3, with the dates of 3.1. */
static bool read_llama3(const char *normalized, tarn__chat_template *found)
{
    found->kind = TARN__CHAT_LLAMA3;
    found->trims = true;
    found->always_prompts = !has(normalized, "add_generation_prompt");
    return has(normalized,
               "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_"
               "id|>'") &&
           has(normalized, "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'") && has(normalized, "bos_token") &&
           read_dates(normalized, found);
}

/* Reads the strings around a user message. */
static bool read_user(const char *normalized, tarn__chat_template *found)
{
    static const char content[] = "'+message['content']+'";
    for (const char *at = normalized; (at = strstr(at, content)) != NULL; at += strlen(content)) {
        const char *after = at + strlen(content) - 1;
        if (copy_before(found->before_user, sizeof(found->before_user), normalized, at) &&
            strstr(found->before_user, "[INST]") && copy_after(found->after_user, sizeof(found->after_user), after) &&
            strstr(found->after_user, "[/INST]"))
            return true;
    }
    return false;
}

/* Reads the strings around a completion. */
static bool read_completion(const char *normalized, tarn__chat_template *found)
{
    const char *untrimmed = strstr(normalized, "message['content']+eos_token"),
               *trimmed = strstr(normalized, "message['content']|trim+eos_token");
    const char *at = trimmed ? trimmed : untrimmed, *after = at ? strstr(at, "eos_token") + strlen("eos_token") : NULL;
    if (!at || (untrimmed && trimmed))
        return false;
    found->trims = trimmed != NULL;
    if (at > normalized && at[-1] == '+' &&
        !(at - normalized > 2 && at[-2] == '\'' &&
          copy_before(found->before_completion, sizeof(found->before_completion), normalized, at - 2)))
        return false;
    return after[0] != '+' ||
           (after[1] == '\'' && copy_after(found->after_completion, sizeof(found->after_completion), after + 1));
}

/* Mistral: spacing and the position of the system message vary between releases and are read from the template. */
static bool read_mistral(const char *normalized, tarn__chat_template *found)
{
    bool first = has(normalized, "loop.firstandsystem_messageisdefined"),
         last = has(normalized, "loop.lastandsystem_messageisdefined");
    found->kind = TARN__CHAT_MISTRAL;
    found->system_position = first ? TARN__SYSTEM_FIRST : last ? TARN__SYSTEM_LAST : TARN__SYSTEM_UNSUPPORTED;
    return !has_own_system(normalized) && !(first && last) && (has(normalized, "system_message") == (first || last)) &&
           has(normalized, "bos_token") && read_user(normalized, found) && read_completion(normalized, found) &&
           (!(first || last) || has(normalized, "+system_message+'\\n\\n'+message['content']+"));
}

/* ---- entry point ------------------------------------------------------------------------------------------------- */

/* Selects the family by its most telling token. */
static bool read_any(const char *normalized, tarn__chat_template *found)
{
    if (has(normalized, "<|im_start|>"))
        return read_chatml(normalized, found);
    if (has(normalized, "<|start_header_id|>"))
        return read_llama3(normalized, found);
    if (has(normalized, "<<SYS>>"))
        return read_llama2(normalized, found);
    return has(normalized, "[INST]") && read_mistral(normalized, found);
}

bool tarn__chat_template_match(const char *function, const char *text, tarn__chat_template *found)
{
    tarn__buffer normalized = {0};
    *found = (tarn__chat_template){0};
    bool good = normalize(&normalized, text);
    if (good && (!prints_only_tags(text) || !read_any(normalized.data, found) ||
                 !tarn__chat_template_check(found, normalized.data)))
        good = tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "%s: the chat template that begins '%.60s' is not supported: it must be ChatML (or Qwen's variants), Llama "
            "2, Llama 3 or Mistral as published; tarn_tokenizer_set_chat() (--template) replaces it by one of these",
            function, text);
    tarn__buffer_free(&normalized, 1);
    return good;
}
