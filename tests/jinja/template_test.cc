// What the template language refuses, and in which words. That it writes what jinja2 writes is
// tested over stored results (tests/text/chat_template_test.cc) and against jinja2 itself
// (compare_templates.py).
#include "jinja/template.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/json.h"
#include "tests/support/cpu_time.h"

namespace loopspec::jinja {
namespace {

std::string ErrorOf(const std::string& source) {
  try {
    Template(source).Render({{"messages", OrderedJson::array()}}, Limits(), 0);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Template, IsParsedOnceAndRenderedOften) {
  const Template greeting("{% for name in names %}Hello {{ name }}!{% endfor %}");
  const Template copy = greeting;
  EXPECT_EQ(greeting.Render({{"names", {"A", "B"}}}, Limits(), 0), "Hello A!Hello B!");
  EXPECT_EQ(copy.Render({{"names", OrderedJson::array()}}, Limits(), 0), "");
}

TEST(Template, SaysWhatTheTemplateSays) {
  EXPECT_EQ(ErrorOf("{{ raise_exception('Roles must alternate') }}"),
            "chat template: Roles must alternate");
}

TEST(Template, NamesTheLineOfASyntaxError) {
  EXPECT_NE(ErrorOf("a\n{% if x %}\n{% endfor %}").find("line 3"), std::string::npos);
}

TEST(Template, NamesTheBlockThatIsNotClosed) {
  EXPECT_EQ(
      ErrorOf("a\n{% for x in messages %}\n{{ x }}\n"),
      "chat template line 2: the 'for' that begins here is not closed, expected {% endfor %}");
  EXPECT_EQ(ErrorOf("{% if a %}\n{% for x in messages %}b{% endfor %}"),
            "chat template line 1: the 'if' that begins here is not closed, expected {% endif %}");
  EXPECT_EQ(ErrorOf("{% macro f() %}"),
            "chat template line 1: the 'macro' that begins here is not closed, expected "
            "{% endmacro %}");
}

TEST(Template, RefusesChangingLists) {
  EXPECT_NE(
      ErrorOf("{% set x = [1] %}{{ x.append(2) }}").find("'append' of 'list' object is unsafe"),
      std::string::npos);
}

// Filters, functions and methods that no chat template uses are named when a template calls one;
// where it is not reached, the template runs.
TEST(Template, NamesWhatIsLeftOutOfJinja2) {
  for (const std::string filter :
       {"batch", "center", "filesizeformat", "forceescape", "groupby", "pprint", "random", "slice",
        "striptags", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"}) {
    const std::string sentence =
        "chat template: the filter '" + filter + "' of jinja2 is not supported";
    EXPECT_EQ(ErrorOf("{{ 'x'|" + filter + " }}"), sentence);
    EXPECT_EQ(ErrorOf("{{ ['x']|map('" + filter + "')|list }}"), sentence);
    EXPECT_EQ(ErrorOf("{% if false %}{{ 'x'|" + filter + " }}{% endif %}"), "");
  }
  for (const std::string function : {"cycler", "joiner", "lipsum"}) {
    EXPECT_EQ(ErrorOf("{{ " + function + "('a') }}"),
              "chat template: the function '" + function + "' of jinja2 is not supported");
  }
  for (const std::string method :
       {"casefold", "center", "expandtabs", "format_map", "isdecimal", "isidentifier", "isnumeric",
        "isprintable", "istitle", "ljust", "rjust", "swapcase", "zfill"}) {
    EXPECT_NE(ErrorOf("{{ 'x'." + method + "() }}")
                  .find("the method '" + method + "' of str is not supported"),
              std::string::npos)
        << method;
  }
  for (const std::string test : {"escaped", "filter", "test"}) {
    EXPECT_EQ(ErrorOf("{{ 'x' is " + test + " }}"),
              "chat template line 1: no test named '" + test + "'");
  }
}

// Each would run or grow for ages; all end in an Error, in a fraction of a second each without
// sanitizers.
TEST(Template, HostileTemplatesEndSoon) {
  const std::string deep(100000, '(');
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  const std::string hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] "
      "%}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = ns.l|map('string') "
      "%}{% endfor %}{{ ns.l|list }}",
      "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}",
      "{{ 'x' * 9999999999 }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ '%*d' % (999999999, 1) }}",
      "{{ [1] * 999999999999 }}",
      "{{ range(999999999999) }}",
      "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
      "{{ 9 ** 9 ** 9 }}",
      "{% for x in [[[]]] recursive %}{{ loop([x]) }}{% endfor %}",
      "{{ " + deep,
      sum + " }}",
      "{{ x" + std::string(100000, '!') + " }}",
      std::string("{{ '\xff' }}"),
  };
  for (const std::string& source : hostile) {
    const double start = CpuSeconds();
    EXPECT_NE(ErrorOf(source), "") << source.substr(0, 80);
    EXPECT_LT(CpuSeconds() - start, 60) << source.substr(0, 80);
  }
}

}  // namespace
}  // namespace loopspec::jinja
