/* template_match.c: which of the common chat templates a template is. Templates are programs (Jinja); tarn does not run
 * them, but knows the expressions that the published ones of each family consist of, and takes only a template that has
 * these. Texts in them that differ from model to model are read out of it.
 *
 * Templates differ in their spacing and quotes, so they are brought into one form first: no spaces between the parts of
 * an expression, single quotes, with \' inside, line ends in texts as \n, and message['content'] for message.content.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/chat/chat.h"

/* ---- one form ---------------------------------------------------------------------------------------------------- */

static bool add(tarn__buffer *out, const char *text)
{
    return tarn__buffer_add(out, text, strlen(text), 1);
}

/* A text in quotes, from the quote on; *at is then behind it. */
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

/* message.content and message.role with brackets, as others write them. */
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

/* Without what stands outside of {{ }} and {% %}: prints_by_tags_only() sees that nothing is left of it. */
static bool add_form(tarn__buffer *out, const char *text)
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

/* ---- what is printed as it stands -------------------------------------------------------------------------------- */

static const char *skip_quoted(const char *at)
{
    char quote = *at++;
    while (*at && *at != quote)
        at += at[0] == '\\' && at[1] ? 2 : 1;
    return at + (*at != 0);
}

tarn__chat_tag tarn__chat_next_tag(const char *at)
{
    while (*at && !(at[0] == '{' && at[1] && strchr("{%#", at[1])))
        at++;
    if (!*at)
        return (tarn__chat_tag){0};
    char closing = at[1] == '{' ? '}' : at[1];
    tarn__chat_tag found = {.begin = at, .takes_before = at[2] == '-', .is_block = closing != '}'};
    for (at += 2; *at && !(at[0] == closing && at[1] == '}');)
        at = closing != '#' && (*at == '\'' || *at == '"') ? skip_quoted(at) : at + 1;
    found.takes_behind = at[-1] == '-';
    found.end = at + (*at ? 2 : 0);
    return found;
}

/* Whether nothing is left of the text between two tags. */
static bool is_left_out(const char *begin, const char *end, const tarn__chat_tag *before, const tarn__chat_tag *behind)
{
    static const char spaces[] = " \t\r\n\f\v";
    bool at_line = !before->end;
    if (before->takes_behind)
        begin += strspn(begin, spaces);
    else if (before->is_block && begin < end && *begin == '\n')
        begin++, at_line = true;
    if (begin >= end || (behind->takes_before && (size_t)(end - begin) <= strspn(begin, spaces)))
        return true;
    const char *line = end;
    while (line > begin && (line[-1] == ' ' || line[-1] == '\t'))
        line--;
    if (behind->is_block && (line == begin ? at_line : line[-1] == '\n'))
        end = line;
    if (!behind->begin && end[-1] == '\n') /* of the whole template */
        end--;
    return begin == end;
}

/* Whether a template prints nothing but what its tags say. */
static bool prints_by_tags_only(const char *text)
{
    tarn__chat_tag before = {0};
    for (const char *at = text;;) {
        tarn__chat_tag behind = tarn__chat_next_tag(at);
        if (!is_left_out(at, behind.begin ? behind.begin : at + strlen(at), &before, &behind))
            return false;
        if (!behind.begin)
            return true;
        at = behind.end;
        before = behind;
    }
}

/* ---- reading texts out of it ------------------------------------------------------------------------------------- */

static bool has(const char *form, const char *part)
{
    return strstr(form, part) != NULL;
}

/* A text of the template, between two places, without its escapes. False where there is no room for it. */
static bool take_text(char *to, size_t room, const char *begin, const char *end)
{
    size_t used = 0;
    for (; begin < end && used + 1 < room; begin++) {
        bool escaped = *begin == '\\' && begin + 1 < end;
        begin += escaped;
        to[used++] = escaped && *begin == 'n' ? '\n' : *begin;
    }
    to[used] = 0;
    return begin == end;
}

/* The text in quotes that ends at a quote, or begins at one. */
static bool take_before(char *to, size_t room, const char *form, const char *quote)
{
    const char *begin = quote;
    while (begin > form && begin[-1] != '\'')
        begin--;
    return take_text(to, room, begin, quote);
}

static bool take_behind(char *to, size_t room, const char *quote)
{
    const char *end = strchr(quote + 1, '\'');
    return end && take_text(to, room, quote + 1, end);
}

/* ---- the families ------------------------------------------------------------------------------------------------ */

#define TURN "'<|im_start|>'+message['role']+'\\n'+"

static bool begins_with(const char *text, const char *part)
{
    return strncmp(text, part, strlen(part)) == 0;
}

/* A system's text that stands in the template itself. One that is put together otherwise would be lost in silence: then
 * it is false. */
static bool read_default(const char *form, tarn__chat_template *found)
{
    static const char begin[] = "'<|im_start|>system\\n";
    for (const char *at = form; (at = strstr(at, begin)) != NULL;) {
        at += strlen(begin);
        const char *end = strstr(at, "<|im_end|>"), *quote = strchr(at, '\'');
        /* of the messages; or a part alone, as where Qwen's templates list tools */
        if (!end || !quote || quote < end) {
            if (quote != at || (at[1] == '+' && !begins_with(at, "'+messages[0]['content']") &&
                                !begins_with(at, "'+message['content']")))
                return false;
            continue;
        }
        found->has_default = true;
        return take_text(found->system, sizeof(found->system), at, end);
    }
    return true;
}

static bool read_chatml(const char *form, tarn__chat_template *found)
{
    bool plain = has(form, TURN "message['content']+'<|im_end|>"),
         trims = has(form, TURN "message['content']|trim+'<|im_end|>");
    found->kind = TARN__CHATML;
    found->thinks = has(form, "content.split('</think>')") && has(form, "last_query_index");
    found->trims = trims;
    found->always_prompts = !has(form, "add_generation_prompt");
    found->begins = begins_with(form, "{{bos_token}}");
    /* a system's text is left out */
    if (has(form, "message['role']!='system'") && !has(form, "'<|im_start|>system\\n"))
        return false;
    if (has(form + (found->begins ? strlen("{{bos_token}}") : 0), "bos_token") || has(form, "eos_token"))
        return false;
    /* Qwen3's first form has message.content there */
    bool thinks = found->thinks && (plain || has(form, TURN "content+'<|im_end|>"));
    return (found->thinks ? thinks && !trims : plain != trims) && has(form, "'<|im_start|>assistant\\n'") &&
           read_default(form, found);
}

/* Whether a template has a system's text of its own: these families have none. */
static bool has_own_system(const char *form)
{
    static const char set[] = "setsystem_message='";
    const char *at = strstr(form, set);
    return at && at[strlen(set)] != '\'';
}

static bool read_llama2(const char *form, tarn__chat_template *found)
{
    found->kind = TARN__CHAT_LLAMA2;
    found->trims = true;
    return !has_own_system(form) && has(form, "bos_token+'[INST] '+content.strip()+' [/INST]'") &&
           has(form, "' '+content.strip()+' '+eos_token") &&
           has(form, "'<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message['content']");
}

/* Dates are "26 Jul 2024" unless a template asks for today's. */
static bool read_dates(const char *form, tarn__chat_template *found)
{
    static const char set[] = "setdate_string=";
    const char *at = strstr(form, set);
    found->has_dates = has(form, "'Cutting Knowledge Date: December 2023\\n'");
    if (!found->has_dates)
        return !has(form, "Today Date") && !has(form, "date_string");
    if (!has(form, "'Today Date: '+date_string+'\\n\\n'") || !at)
        return false;
    return has(form, "strftime_now(") || take_behind(found->date, sizeof(found->date), at + strlen(set));
}

static bool read_llama3(const char *form, tarn__chat_template *found)
{
    found->kind = TARN__CHAT_LLAMA3;
    found->trims = true;
    found->always_prompts = !has(form, "add_generation_prompt");
    return has(form, "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_"
                     "id|>'") &&
           has(form, "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'") && has(form, "bos_token") &&
           read_dates(form, found);
}

/* What stands before and behind a user's text. */
static bool read_user(const char *form, tarn__chat_template *found)
{
    static const char content[] = "'+message['content']+'";
    for (const char *at = form; (at = strstr(at, content)) != NULL; at += strlen(content)) {
        const char *behind = at + strlen(content) - 1;
        if (take_before(found->open, sizeof(found->open), form, at) && strstr(found->open, "[INST]") &&
            take_behind(found->close, sizeof(found->close), behind) && strstr(found->close, "[/INST]"))
            return true;
    }
    return false;
}

/* What stands before and behind an answer. */
static bool read_answer(const char *form, tarn__chat_template *found)
{
    const char *plain = strstr(form, "message['content']+eos_token"),
               *trimmed = strstr(form, "message['content']|trim+eos_token");
    const char *at = trimmed ? trimmed : plain, *behind = at ? strstr(at, "eos_token") + strlen("eos_token") : NULL;
    if (!at || (plain && trimmed))
        return false;
    found->trims = trimmed != NULL;
    if (at > form && at[-1] == '+' &&
        !(at - form > 2 && at[-2] == '\'' && take_before(found->answer, sizeof(found->answer), form, at - 2)))
        return false;
    return behind[0] != '+' || (behind[1] == '\'' && take_behind(found->behind, sizeof(found->behind), behind + 1));
}

static bool read_mistral(const char *form, tarn__chat_template *found)
{
    bool first = has(form, "loop.firstandsystem_messageisdefined"),
         last = has(form, "loop.lastandsystem_messageisdefined");
    found->kind = TARN__CHAT_MISTRAL;
    found->place = first ? TARN__SYSTEM_FIRST : last ? TARN__SYSTEM_LAST : TARN__SYSTEM_UNSUPPORTED;
    return !has_own_system(form) && !(first && last) && (has(form, "system_message") == (first || last)) &&
           has(form, "bos_token") && read_user(form, found) && read_answer(form, found) &&
           (!(first || last) || has(form, "+system_message+'\\n\\n'+message['content']+"));
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool read_any(const char *form, tarn__chat_template *found)
{
    if (has(form, "<|im_start|>"))
        return read_chatml(form, found);
    if (has(form, "<|start_header_id|>"))
        return read_llama3(form, found);
    if (has(form, "<<SYS>>"))
        return read_llama2(form, found);
    return has(form, "[INST]") && read_mistral(form, found);
}

bool tarn__chat_template_match(const char *function, const char *text, tarn__chat_template *found)
{
    tarn__buffer form = {0};
    *found = (tarn__chat_template){0};
    bool good = add_form(&form, text);
    if (good &&
        (!prints_by_tags_only(text) || !read_any(form.data, found) || !tarn__chat_template_check(found, form.data)))
        good =
            tarn__raise(TARN_ERROR_UNSUPPORTED,
                        "%s: the chat template that begins '%.60s' is none that tarn knows: ChatML (with Qwen's "
                        "forms), Llama 2, Llama 3 and Mistral "
                        "as they are published; tarn_tokenizer_set_chat() (--template) puts one of these in its place",
                        function, text);
    tarn__buffer_free(&form, 1);
    return good;
}
