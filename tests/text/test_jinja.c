/* test_jinja.c: templates are run as jinja2 runs them, within limits, and say where their bytes come from. make parity
 * compares with jinja2 itself. */
#include "text/jinja/jinja.h"

#include "support/check.h"
#include "support/files.h"

static const char *const context_text =
    "{\"s\": \"Hello, W\\u00f6rld\", \"n\": 7, \"f\": 2.5, \"yes\": true, \"nil\": null, \"l\": [3, 1, 2], "
    "\"d\": {\"b\": 1, \"a\": [1, \"x\"], \"items\": \"own\"}, \"messages\": [{\"role\": \"user\", \"content\": "
    "\"hi\"}, "
    "{\"role\": \"assistant\", \"content\": \" yo \", \"tool_calls\": [{\"name\": \"f\"}]}]}";

/* Renders with the context above, or fails and returns NULL. Freed by the caller. */
static char *rendered(const char *template, tarn__jinja_masks *masks)
{
    tarn__buffer output = {0};
    tarn__jinja_program *program = tarn__jinja_compile("test", "chat", template, strlen(template));
    tarn__jinja_context *context =
        program ? tarn__jinja_context_json("test", context_text, strlen(context_text)) : NULL;
    char *text = NULL;
    if (context && tarn__jinja_render(program, context, &output, masks)) {
        text = calloc(output.count + 1, 1);
        memcpy(text, output.data, output.count);
    }
    tarn__buffer_free(&output, 1);
    tarn__jinja_context_free(context);
    tarn__jinja_program_free(program);
    return text;
}

static void expect_text(const char *template, const char *expected)
{
    char *text = rendered(template, NULL);
    assert_ok();
    assert_string_equal(text, expected);
    free(text);
}

static void expect_failure(const char *template, const char *part, const char *other)
{
    assert_null(rendered(template, NULL));
    assert_true(tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_FORMAT ||
                tarn_error_code() == TARN_ERROR_MEMORY);
    assert_error_about(tarn_error_code(), part, other);
}

static void whitespace_is_removed_as_transformers_sets_it(void **state)
{
    (void)state;
    expect_text("a\n  {% if yes %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    expect_text("a {%- if yes -%}  b  {%- endif %} c", "ab c");
    expect_text("  {%+ if yes %}b{% endif +%}\nc", "  b\nc");
    expect_text("{# note #}\n x {#- note -#} y {{- 1 -}} z", " xy1z");
    expect_text("{% raw %}{{ x }}{% endraw %}\r\nb\r\n", "{{ x }}b");
}

static void statements_are_run(void **state)
{
    (void)state;
    expect_text("{% for i in l if i != 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }}{% else %}-{% endfor %}",
                "1/2:32/2:2");
    expect_text("{% for i in [] %}x{% else %}none{% endfor %}", "none");
    expect_text("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif "
                "%}{{ i }}{% endfor %}",
                "02");
    expect_text("{% for i in l %}{{ i }}{% break %}{% else %}!{% endfor %}", "3!");
    expect_text("{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1");
    expect_text("{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = i %}{% endfor %}{{ ns.x }}", "2");
    expect_text("{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}"
                "{% call f(4) %}!{% endcall %}",
                "121342!");
    expect_text("{% set x | upper %}a{{ n }}b{% endset %}{{ x }}{% filter trim %} y {% endfilter %}", "A7By");
    expect_text("{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}", "8False");
    expect_text(
        "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is sequence else i }}{% endfor %}{{ n if l else f }}",
        "1237");
    expect_text("{% print 1, 'a', (2,) %}{% print %}", "1a(2,)");
}

static void break_and_continue_leave_blocks_inside_a_loop(void **state)
{
    (void)state;
    expect_text("{% for i in l %}{% with a = i %}{{ a }}{% continue %}{% endwith %}!{% endfor %}", "312");
    expect_text("{% for i in l %}{% filter upper %}a{% break %}{% endfilter %}!{% endfor %}|", "|");
    expect_text("{% for i in l %}{% set x %}a{% if i == 1 %}{% continue %}{% endif %}{% endset %}{{ x }}{{ i }}"
                "{% endfor %}",
                "a3a2");
}

static void integers_of_a_context_are_exact(void **state)
{
    (void)state;
    static const char numbers[] = "{\"a\": [1234567890123456789, -123456789012345678, -9223372036854775808, "
                                  "9223372036854775807, 9223372036854775808]}",
                      expected[] = "[1234567890123456789, -123456789012345678, -9223372036854775808, "
                                   "9223372036854775807, 9.223372036854776e+18]";
    tarn__buffer output = {0};
    tarn__jinja_program *program = tarn__jinja_compile("test", "chat", "{{ a }}", 7);
    tarn__jinja_context *context = tarn__jinja_context_json("test", numbers, strlen(numbers));
    assert_true(tarn__jinja_render(program, context, &output, NULL));
    assert_int_equal(output.count, strlen(expected));
    assert_memory_equal(output.data, expected, output.count);
    tarn__buffer_free(&output, 1);
    tarn__jinja_context_free(context);
    tarn__jinja_program_free(program);
}

static void a_variable_assigned_later_hides_the_caller_s(void **state)
{
    (void)state;
    expect_text("{% for i in [1] %}{{ n }}{% endfor %}{% set n = 1 %}", "");
    expect_text("{% for i in [1] %}{{ n }}{% endfor %}{% if yes %}{% set n = 1 %}{% endif %}", "7");
    expect_text("{{ n }}{% for i in [1] %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}", "771");
}

static void expressions_are_evaluated(void **state)
{
    (void)state;
    expect_text("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 ~ 'a' ~ none }}",
                "3 -4 2 3.5 1024 1aNone");
    expect_text("{{ 1 < 2 < 3 }} {{ 'a' in 'abc' }} {{ 4 not in l }} {{ 'x' if false }}|{{ missing }}",
                "True True True |");
    expect_text("{{ s[1:4] }} {{ s[::-1] }} {{ l[-1] }} {{ s[-4] }} {{ l[9] }}|",
                "ell dlr\xC3\xB6W ,olleH 2 \xC3\xB6 |");
    expect_text("{{ d.b }} {{ d['a'][1] }} {{ d.items() | list | length }} {{ d['items'] }} {{ d.get('z', 0) }}",
                "1 x 3 own 0");
    expect_text("{{ {'k': [1.0, none, 'it\\'s', \"q\\\"\\n\"]} }}", "{'k': [1.0, None, \"it's\", 'q\"\\n']}");
    expect_text("{{ ' a b '.strip().split(' ') }} {{ 'a,b'.replace(',', ';').upper() }} {{ '-'.join(['x', 'y']) }}",
                "['a', 'b'] A;B x-y");
    expect_text("{{ -0.0 // 5 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 0.0 // -6 }}", "-0.0 3.0 0.5 -0.0");
    expect_text("{{ '%s=%05.1f' % ('x', 2.25) }} {{ '{:>4}|{}'.format(n, s) }}", "x=002.2    7|Hello, W\xC3\xB6rld");
}

static void values_are_formatted_as_python_formats_them(void **state)
{
    (void)state;
    expect_text("{{ '%#x %#o %#06x %c%c|%-5s|%05s' % (255, 8, 255, 65, 'b', 'c', 'd') }}",
                "0xff 0o10 0x00ff Ab|c    |    d");
    expect_text("{{ '{:#x} {:#b} {:_} {:_x} {:,.2f}'.format(-255, 5, 1234567, 196605, 1234.5) }}",
                "-0xff 0b101 1_234_567 2_fffd 1,234.50");
    expect_text("{{ '{:=+5}|{:*=8}|{:<06}|{:^06}|{:05}'.format(3, -5, 7, 9, 'a') }}",
                "+   3|-******5|700000|009000|a0000");
    expect_text("{{ '{:5}|{:d}|{}|{:+}|{:08}|{:3c}'.format(yes, yes, yes, 1.5, -2.5, 65) }}",
                "    1|1|True|+1.5|-00002.5|  A");
    expect_failure("{{ '{:d}'.format(1.5) }}", "'d'", "'float'");
    expect_failure("{{ '{:,x}'.format(1) }}", "',x'", "'int'");
    expect_text(
        "{{ '{:010,}|{:08,.1f}|{:_b}|{:.3}|{:.3}|{:#}|{:z.1f}'.format(1234, 1.5, 37, 12.0, 123.0, 1e20, -0.04) }}",
        "00,001,234|00,001.5|10_0101|12.0|1.23e+02|1.e+20|0.0");
    expect_text("{{ '%+.3d|%#.3x|%-*d|%*.*f|%.1s|%ld|%d|%a|%#.5g' % (5, 5, 4, 7, 8, 2, 0.5, 'ab', 3, 1e20, '\xC3\xB6', "
                "99999.5) }}",
                "+005|0x005|7   |    0.50|a|3|100000000000000000000|'\\xf6'|1.0000e+05");
    expect_text("{{ '{0[b]:>{w}}|{{{n:{w}.{p}f}}}'.format(d, n=f, w=6, p=1) }}", "     1|{   2.5}");
    expect_text("{{ '%(a(b))s %(n)05.1f' % {'a(b)': 'x', 'n': 2} }} {{ ('<%s>' | safe) % '<' }}", "x 002.0 <&lt;>");
    expect_failure("{{ '{} {0}'.format(1) }}", "{} and {0}", "one format");
    expect_failure("{{ '{:{:{}}}'.format(1, 2, 3) }}", "nested", "deep");
    expect_failure("{{ '%*d' % ('a', 1) }}", "wants", "int");
    expect_failure("{{ '%5%' % 1 }}", "format", "'int'");
    expect_failure("{{ '%.200000d' % 1 }}", "precision", "200000");
}

static void filters_and_tests_are_there(void **state)
{
    (void)state;
    expect_text("{{ d | tojson }} {{ [1, 'ö'] | tojson(ensure_ascii=true, separators=(',', ':')) }}",
                "{\"b\": 1, \"a\": [1, \"x\"], \"items\": \"own\"} [1,\"\\u00f6\"]");
    expect_text("{{ {'a': []} | tojson(indent=2) }}", "{\n  \"a\": []\n}");
    expect_text("{{ l | sort | join(',') }} {{ l | map('string') | list }} {{ d | dictsort | first }}",
                "1,2,3 ['3', '1', '2'] ('a', [1, 'x'])");
    expect_text("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join }}", "hi");
    expect_text("{{ '3.9' | int }} {{ 2.675 | round(2) }} {{ 'a b' | title }} {{ missing | default('x') }}",
                "3 2.67 A B x");
    expect_text("{{ [1, 2] | slice(2, 'x') | list }} {{ '0b11' | int(base=2) }} {{ '0x_1f' | int(base=16) }} "
                "{{ '1_0.5' | float }}",
                "[[1, 'x'], [2, 'x']] 3 31 10.5");
    expect_text("{{ 25 | round(-1) }} {{ -35 | round(-1) }} {{ 9223372036854775807 | round(-2) }} "
                "{{ 123456789012345678 | round(-2) }}",
                "20 -40 9223372036854775800 123456789012345700");
    expect_failure("{{ 9223372036854775807 | round(-1) }}", "integer", "too large");
    expect_text(
        "{% for g in messages | groupby('role') %}{{ g.grouper }}:{{ g.list | length }}={{ g[0] }} {% endfor %}",
        "assistant:1=assistant user:1=user ");
    expect_text("{{ n is odd }} {{ s is string }} {{ nil is none }} {{ d is mapping }} {{ zz is defined }}",
                "True True True True False");
}

static void what_jinja_refuses_is_refused(void **state)
{
    (void)state;
    expect_failure("a\n{{ zz.y }}", "test: chat, line 2", "'zz' is undefined");
    expect_failure("{{ raise_exception('no ' ~ n) }}", "line 1", "the template says: no 7");
    expect_failure("{{ l.append(1) }}", "append", "undefined");
    expect_failure("{% if yes %}", "endif", "missing");
    expect_failure("{{ 1 | nofilter }}", "nofilter", "not found");
    expect_failure("{{ 'a' + 1 }}", "'str' and 'int'", "+");
    expect_failure("{{ x", "line 1", "does not end");
    expect_failure("{% break %}", "break", "outside");
    expect_failure("{% set d.x = 1 %}", "namespace", "line 1");
    expect_failure("{{ range(1000000) }}", "range", "100000");
    expect_failure("{% aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg %}", "statement 'aaaa",
                   "ffff'");
}

static void templates_without_end_are_stopped(void **state)
{
    (void)state;
    expect_failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested", "levels");
    expect_failure("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "line 1",
                   "the template");
    expect_failure("{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
                   "{% endfor %}",
                   "chat", "MiB");
    expect_failure("{{ 9223372036854775807 + 1 }}", "integer", "too large");
    expect_failure("{% set a = 'a' * 200000 %}{% set b = a ~ 'b' %}{{ b in a ~ a }}", "line 1", "runs too long");
    expect_failure("{% set a = 'a' * 200000 %}{% set b = 'ab' ~ a %}{{ (a ~ a).rfind(b) }}", "line 1", "runs too long");
    char deep[4096];
    memset(deep, '(', sizeof(deep));
    memcpy(deep, "{{ ", 3);
    deep[sizeof(deep) - 1] = 0;
    expect_failure(deep, "line 1", "nested");
}

/* Bytes of generation blocks, and of strings of assistant messages, whatever is done with them. */
static void origins_follow_the_bytes(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}{% generation %}<{% endgeneration %}{{ m.role }}:"
                                   "{{ (m.content + '!')|trim }}{% endfor %}{{ messages[1].tool_calls | tojson }}";
    static const char expected[] = "<user:hi!<assistant:yo ![{\"name\": \"f\"}]";
    static const char origins[] = "G     22 G          333    3333    3   ";
    tarn__jinja_masks masks = {{0}};
    char *text = rendered(template, &masks);
    assert_ok();
    assert_string_equal(text, expected);
    assert_int_equal(masks.origins.count, strlen(expected));
    for (size_t i = 0; i < masks.origins.count; i++) {
        int wanted = origins[i] == 'G' ? TARN__JINJA_GENERATION : origins[i] == ' ' ? 0 : origins[i] - '0';
        assert_int_equal((uint8_t)masks.origins.data[i], wanted);
    }
    tarn__buffer_free(&masks.origins, 1);
    free(text);
}

static void messages_and_the_date_make_a_context(void **state)
{
    (void)state;
    static const tarn_chat_message talk[] = {{"user", "a"}, {"assistant", "b"}};
    static const char template[] = "{% for m in messages %}{{ m.role[0] ~ m['content'] }}{% endfor %}"
                                   "{{ add_generation_prompt }}{{ bos }}{{ strftime_now('%d %b %Y %-H %-j') }}";
    const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 9, .tm_yday = 6};
    tarn__buffer output = {0};
    tarn__jinja_program *program = tarn__jinja_compile("test", "chat", template, strlen(template));
    tarn__jinja_context *context = tarn__jinja_context_messages("test", talk, 2, true);
    assert_true(tarn__jinja_context_set(context, "bos", "<s>", 3));
    tarn__jinja_context_set_time(context, &now);
    assert_true(tarn__jinja_render(program, context, &output, NULL));
    assert_int_equal(output.count, strlen("uaabTrue<s>26 Jul 2024 9 7"));
    assert_memory_equal(output.data, "uaabTrue<s>26 Jul 2024 9 7", output.count);
    assert_false(tarn__jinja_has_generation(program));
    tarn__buffer_free(&output, 1);
    tarn__jinja_context_free(context);
    tarn__jinja_program_free(program);
    assert_null(tarn__jinja_context_json("test", "{\"a\": [1, }", 11));
    assert_error_about(TARN_ERROR_FORMAT, "byte", "expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(whitespace_is_removed_as_transformers_sets_it),
                                       in_scope(statements_are_run),
                                       in_scope(break_and_continue_leave_blocks_inside_a_loop),
                                       in_scope(values_are_formatted_as_python_formats_them),
                                       in_scope(integers_of_a_context_are_exact),
                                       in_scope(a_variable_assigned_later_hides_the_caller_s),
                                       in_scope(expressions_are_evaluated),
                                       in_scope(filters_and_tests_are_there),
                                       in_scope(what_jinja_refuses_is_refused),
                                       in_scope(templates_without_end_are_stopped),
                                       in_scope(origins_follow_the_bytes),
                                       in_scope(messages_and_the_date_make_a_context)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
