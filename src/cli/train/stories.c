/* stories.c: a grammar of small stories.
 *
 * A story has a child, a friend, a thing with a colour, a place, a plot and a mood of the day, drawn from the seed and
 * the number by a counter-based generator, so that story n needs no story before it. A plot is a problem, an attempt,
 * a solution and an ending; its sentences name only what the story has, so that every ending follows from its
 * beginning, and the answers to its questions are true in the story. Sentences are templates: {n} the child, {e} and
 * {E} she or he, {h} her or his, {m} her or him, {f} the friend, {c} the colour, {t} the thing, {p} the place with its
 * preposition, {s} the place alone, {w} where the thing was found.
 *
 * All sentences are tarn's own. */
#include "cli/train/stories.h"

#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const struct {
    const char *name;
    bool girl;
} children[] = {{"Mia", true},  {"Tom", false},   {"Lily", true}, {"Ben", false}, {"Ana", true}, {"Sam", false},
                {"Nora", true}, {"Max", false},   {"Ella", true}, {"Leo", false}, {"Zoe", true}, {"Finn", false},
                {"Ruth", true}, {"Oscar", false}, {"Ida", true},  {"Hugo", false}};

static const char *const friends[] = {"dog", "cat", "rabbit", "bird", "fox", "duck", "horse", "frog", "mouse", "owl"};

static const char *const colours[] = {"red", "blue", "green", "yellow", "white", "brown"};

static const char *const things[] = {"kite", "ball", "boat", "drum", "hat", "book", "bell", "cup", "box", "lamp"};

static const struct {
    const char *at, *name, *found;
} places[] = {
    {"in the park", "park", "under a bench"},         {"on the beach", "beach", "behind a rock"},
    {"in the garden", "garden", "between the roses"}, {"in the forest", "forest", "under a tall tree"},
    {"on the hill", "hill", "in the long grass"},     {"on the farm", "farm", "behind the barn"},
    {"by the river", "river", "near the bridge"},     {"in the village", "village", "next to the well"},
};

static const char *const days[] = {"One sunny day", "One windy day", "One morning",
                                   "One cold day",  "One afternoon", "After breakfast"};

static const char *const beginnings[] = {
    "Once upon a time there was a {k} named {n}. {n} had a {c} {t}.",
    "There was once a little {k} called {n}, who had a {c} {t}.",
    "{n} was a {k} who lived near the {s}. {E} loved {h} {c} {t}.",
};

static const char *const endings[] = {
    "They played together until the evening.",
    "Then they went home and ate warm bread.",
    "From that day on they were best friends.",
    "That night {n} slept well and dreamed of the {s}.",
};

/* Parts of a plot, and three questions with their answers. */
static const struct plot {
    const char *problem[2], *attempt[2], *solution[2], *feeling;
    const char *question[3], *answer[3];
} plots[] = {
    {{"{d} {n} went to play {p}, but then the {t} was gone.",
      "{d} {e} took the {t} with {m} to play {p}, and lost it there."},
     {"{n} looked everywhere and could not find it. {E} was sad.", "{E} searched for a long time. {E} began to cry."},
     {"A {f} came and helped {m}. The {f} found the {t} {w}.",
      "\"I can help you,\" said a {f}. It looked {w}, and there was the {t}."},
     "{n} was happy again and thanked the {f}.",
     {"Who found the {t}?", "Where was the {t}?", "What did {n} lose?"},
     {"The {f} found it.", "It was {w}.", "{n} lost a {c} {t}."}},
    {{"{d} {n} was {p} when the {t} fell down and broke.", "{d} {e} dropped the {t} {p}, and it broke."},
     {"{n} tried to repair it, but it was too hard.", "{E} did not know how to repair it, and {e} was sad."},
     {"A {f} brought some glue. Together they repaired the {t}.",
      "Then a {f} came with some glue, and they repaired the {t} together."},
     "The {t} was as good as new, and {n} smiled.",
     {"What did the {f} bring?", "What broke?", "Who helped {n}?"},
     {"The {f} brought some glue.", "The {c} {t} broke.", "A {f} helped {m}."}},
    {{"{d} {n} met a {f} {p}. The {f} was sad because it had nothing to play with.",
      "{d} {e} saw a {f} {p}. It was alone and had nothing to play with."},
     {"{n} thought about it for a while.", "At first {n} did not want to share."},
     {"Then {e} gave the {t} to the {f}, and they took turns.", "Then {e} said, \"You can play with my {t}.\""},
     "The {f} was happy, and {n} was happy too.",
     {"Why was the {f} sad?", "What did {n} share?", "Where did {n} meet the {f}?"},
     {"It had nothing to play with.", "{n} shared the {c} {t}.", "They met {p}."}},
    {{"{d} {n} was {p} when it began to rain. {E} was afraid of the thunder.",
      "{d} {e} was playing {p} when a storm came. {E} was afraid of the thunder."},
     {"{n} held the {t} and did not know where to go.", "{E} hid under a roof with the {t} and closed {h} eyes."},
     {"A {f} sat down next to {m} and sang a song. Soon the storm was over.",
      "\"Do not be afraid,\" said a {f}, and it sang a song until the storm was over."},
     "{n} was not afraid any more.",
     {"What was {n} afraid of?", "What did the {f} do?", "Where was {n}?"},
     {"{n} was afraid of the thunder.", "The {f} sang a song.", "{n} was {p}."}},
    {{"{d} {n} heard a {f} call for help {p}. The {f} was stuck in a hole.",
      "{d} {e} found a {f} {p}. It had fallen into a hole and could not get out."},
     {"{n} pulled, but the {f} was too heavy.", "{E} could not reach it with {h} hands."},
     {"Then {e} used the {t} to help, and the {f} climbed out.",
      "{E} had an idea. With the {t} the {f} could climb out."},
     "The {f} was glad and said, \"Thank you, {n}!\"",
     {"Who was in the hole?", "What did {n} use?", "Who helped the {f}?"},
     {"The {f} was in the hole.", "{n} used the {c} {t}.", "{n} helped it."}},
    {{"{d} a {f} had its birthday {p}, and {n} had no gift.", "{d} {n} was asked to a birthday {p}. It was for a {f}."},
     {"{n} wanted to find something nice.", "{E} thought about what the {f} would like."},
     {"{E} put the {t} in paper and gave it to the {f}.", "Then {e} gave the {f} the {c} {t}."},
     "The {f} had never had such a fine gift, and {n} was proud.",
     {"Whose birthday was it?", "What was the gift?", "Where was the birthday?"},
     {"It was the birthday of the {f}.", "The gift was a {c} {t}.", "It was {p}."}},
    {{"{d} {n} and a {f} had a race {p}. The {f} was very fast.", "{d} a {f} said to {n}, \"Let us have a race {p}!\""},
     {"{n} ran as fast as {e} could, but {e} fell.", "{E} was behind, and then {e} fell."},
     {"The {f} stopped and came back to help {m}. They reached the end together.",
      "The {f} turned around, and hand in hand they reached the end together."},
     "{n} gave {h} {t} to the {f} as a prize.",
     {"Who was fast?", "Who fell?", "What was the prize?"},
     {"The {f} was very fast.", "{n} fell.", "The prize was the {c} {t}."}},
    {{"{d} {n} could not find the way home. {E} was lost {p}.", "{d} {e} walked too far and was lost {p}."},
     {"{n} sat down and waited. It became dark.", "{E} called, but no one heard {m}."},
     {"A {f} saw the {c} {t} and came. It knew the way and took {m} home.",
      "Then a {f} came. \"I saw your {c} {t},\" it said, and it took {m} home."},
     "{n} thanked the {f} many times.",
     {"Who took {n} home?", "What did the {f} see?", "Where was {n} lost?"},
     {"The {f} took {m} home.", "The {f} saw the {c} {t}.", "{n} was lost {p}."}},
};

/* What a story is made of: indices into the lists above, and which of its sentences are used. */
typedef struct story {
    uint64_t random;
    size_t child, friend, colour, thing, place, day, plot, beginning, ending, problem, attempt, solution;
} story;

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Mixes a counter into 64 bits, of which each depends on all of its own. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

/* Below `count`. */
static size_t draw(story *s, size_t count)
{
    s->random += 0x9E3779B97F4A7C15u;
    return (size_t)((mix(s->random) >> 32) * count >> 32);
}

static story draw_story(uint64_t seed, uint64_t number)
{
    story s = {.random = mix(seed + 1) ^ mix(number + 0x5851F42D4C957F2Du)};
    s.child = draw(&s, COUNT(children));
    s.friend = draw(&s, COUNT(friends));
    s.colour = draw(&s, COUNT(colours));
    s.thing = draw(&s, COUNT(things));
    s.place = draw(&s, COUNT(places));
    s.day = draw(&s, COUNT(days));
    s.plot = draw(&s, COUNT(plots));
    s.beginning = draw(&s, COUNT(beginnings));
    s.ending = draw(&s, COUNT(endings));
    s.problem = draw(&s, 2);
    s.attempt = draw(&s, 2);
    s.solution = draw(&s, 2);
    return s;
}

double tarn__story_millions(void)
{
    return 1e-6 * (double)(COUNT(children) * COUNT(friends) * COUNT(colours) * COUNT(things) * COUNT(places)) *
           (double)(COUNT(days) * COUNT(plots) * COUNT(beginnings) * COUNT(endings) * 8);
}

/* ---- sentences --------------------------------------------------------------------------------------------------- */

/* What stands for a letter in braces. */
static const char *word_of(const story *s, char letter)
{
    bool girl = children[s->child].girl;
    switch (letter) {
    case 'n': return children[s->child].name;
    case 'k': return girl ? "girl" : "boy";
    case 'e': return girl ? "she" : "he";
    case 'E': return girl ? "She" : "He";
    case 'h': return girl ? "her" : "his";
    case 'm': return girl ? "her" : "him";
    case 'f': return friends[s->friend];
    case 'c': return colours[s->colour];
    case 't': return things[s->thing];
    case 'p': return places[s->place].at;
    case 's': return places[s->place].name;
    case 'w': return places[s->place].found;
    case 'd': return days[s->day];
    default: return NULL; /* a letter without a meaning: the grammar is wrong */
    }
}

/* Appends one character, in JSON escaped. */
static bool put_letter(tarn__input *text, char letter, bool is_json)
{
    return (!is_json || (letter != '"' && letter != '\\') || tarn__input_add(text, "\\", 1)) &&
           tarn__input_add(text, &letter, 1);
}

/* "a" before a vowel is "an": the owl. */
static bool needs_n(const char *template, const char *at, const char *word)
{
    return at - template >= 2 && at[-1] == ' ' && (at[-2] == 'a' || at[-2] == 'A') &&
           (at - template == 2 || at[-3] == ' ' || at[-3] == '"') && strchr("aeiou", word[0]);
}

/* Appends a template with its words. */
static bool put(tarn__input *text, const story *s, const char *template, bool is_json)
{
    bool good = true;
    for (const char *at = template; good && *at; at++) {
        const char *word = at[0] == '{' && at[1] && at[2] == '}' ? word_of(s, at[1]) : NULL;
        if (!word) {
            good = put_letter(text, *at, is_json);
            continue;
        }
        if (needs_n(template, at, word)) {
            text->length--; /* the space before it */
            good = tarn__input_add(text, "n ", 2);
        }
        good = good && tarn__input_add(text, word, strlen(word));
        at += 2;
    }
    return good;
}

/* Appends the story, with spaces between its sentences. */
static bool put_story(tarn__input *text, const story *s, bool is_json)
{
    const struct plot *p = &plots[s->plot];
    const char *const parts[] = {
        beginnings[s->beginning], p->problem[s->problem], p->attempt[s->attempt], p->solution[s->solution], p->feeling,
        endings[s->ending]};
    bool good = true;
    for (size_t i = 0; good && i < COUNT(parts); i++)
        good = (i == 0 || tarn__input_add(text, " ", 1)) && put(text, s, parts[i], is_json);
    return good;
}

bool tarn__story_write(tarn__input *text, uint64_t seed, uint64_t number)
{
    const story s = draw_story(seed, number);
    return put_story(text, &s, false) && tarn__input_add(text, "\n", 1);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static const char *const requests[] = {
    "Tell me a story about {n}.",
    "Tell me a story about a {f}.",
    "Tell me a story about {n} and a {f}.",
    "Tell me a story about a {c} {t}.",
    "Can you tell me a story {p}?",
    "Tell me a story.",
    "I want a story about {n} and a {c} {t}.",
    "Please tell me a story about a {f} {p}.",
};

/* What is said before or after a story, with its answer. */
static const char *const remarks[][2] = {
    {"Hello!", "Hello! Shall I tell you a story?"},
    {"Hi", "Hello! Shall I tell you a story?"},
    {"Who are you?", "I am a small model that tells stories."},
    {"What can you do?", "I can tell you a story, and answer questions about it."},
    {"Thank you!", "You are welcome!"},
    {"How are you?", "I am well, thank you. Shall I tell you a story?"},
    {"That was nice.", "I am glad that you liked it."},
    {"Goodbye", "Goodbye!"},
};

/* A message; the content is a template, or the story for NULL. */
static bool put_message(tarn__input *text, const story *s, const char *role, const char *content, bool is_first)
{
    return tarn__input_add(text, is_first ? "" : ", ", is_first ? 0 : 2) &&
           tarn__input_add(text, "{\"role\": \"", 10) && tarn__input_add(text, role, strlen(role)) &&
           tarn__input_add(text, "\", \"content\": \"", 15) &&
           (content ? put(text, s, content, true) : put_story(text, s, true)) && tarn__input_add(text, "\"}", 2);
}

static bool put_turn(tarn__input *text, const story *s, const char *question, const char *answer, bool is_first)
{
    return put_message(text, s, "user", question, is_first) && put_message(text, s, "assistant", answer, false);
}

/* A remark in one of four conversations before the story and in one of four after it, and one to three questions
 * between. */
bool tarn__conversation_write(tarn__input *text, uint64_t seed, uint64_t number)
{
    story s = draw_story(seed, number);
    bool has_remark = draw(&s, 4) == 0, good = tarn__input_add(text, "{\"messages\": [", 14);
    size_t before = draw(&s, COUNT(remarks)), request = draw(&s, COUNT(requests)), first = draw(&s, 3);
    size_t questions = 1 + draw(&s, 3);
    if (has_remark)
        good = good && put_turn(text, &s, remarks[before][0], remarks[before][1], true);
    good = good && put_turn(text, &s, requests[request], NULL, !has_remark);
    for (size_t i = 0; i < questions; i++)
        good = good && put_turn(text, &s, plots[s.plot].question[(first + i) % 3],
                                plots[s.plot].answer[(first + i) % 3], false);
    if (draw(&s, 4) == 0) {
        size_t after = draw(&s, COUNT(remarks));
        good = good && put_turn(text, &s, remarks[after][0], remarks[after][1], false);
    }
    return good && tarn__input_add(text, "]}\n", 3);
}
