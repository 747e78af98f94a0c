#include "grammar/formats.h"

#include <map>

namespace loopspec::grammar {
namespace {

// Days that exist in their month; the 29th of February only in leap years.
std::string Date() {
  const std::string leap =
      "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
  return "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|"
         "30)|02-(?:0[1-9]|1\\d|2[0-8]))|" +
         leap + ")";
}

// Without leap seconds, which many parsers refuse.
std::string Time() {
  return "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]"
         "\\d)";
}

std::string Hostname() {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  // Labels of at most 63 characters, 253 in all.
  return "(?=.{1,253}$)" + label + "(?:\\." + label + ")*";
}

std::string Email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return atom + "(?:\\." + atom + ")*@" + label + "(?:\\." + label + ")*";
}

std::string Ipv4() {
  const std::string part = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return part + "(?:\\." + part + "){3}";
}

std::string Ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}";
  const std::string last = "(?:" + h + ":" + h + "|" + Ipv4() + ")";
  return "(?:(?:" + h + ":){6}" + last + "|::(?:" + h + ":){5}" + last + "|(?:" + h +
         ")?::(?:" + h + ":){4}" + last + "|(?:(?:" + h + ":){0,1}" + h + ")?::(?:" + h + ":){3}" +
         last + "|(?:(?:" + h + ":){0,2}" + h + ")?::(?:" + h + ":){2}" + last + "|(?:(?:" + h +
         ":){0,3}" + h + ")?::" + h + ":" + last + "|(?:(?:" + h + ":){0,4}" + h + ")?::" + last +
         "|(?:(?:" + h + ":){0,5}" + h + ")?::" + h + "|(?:(?:" + h + ":){0,6}" + h + ")?::)";
}

// RFC 3986. `other`: further characters, for IRIs.
struct Uri {
  explicit Uri(const std::string& other) {
    const std::string c = "(?:[A-Za-z0-9._~!$&'()*+,;=:@" + other + "-]|%[0-9A-Fa-f]{2})";
    const std::string user = "(?:[A-Za-z0-9._~!$&'()*+,;=:" + other + "-]|%[0-9A-Fa-f]{2})*@";
    const std::string name = "(?:[A-Za-z0-9._~!$&'()*+,;=" + other + "-]|%[0-9A-Fa-f]{2})*";
    const std::string authority =
        "(?:" + user + ")?(?:\\[" + Ipv6() + "\\]|" + name + ")(?::\\d*)?";
    const std::string no_colon = "(?:[A-Za-z0-9._~!$&'()*+,;=@" + other + "-]|%[0-9A-Fa-f]{2})+";
    const std::string path = "(?:/" + c + "*)*";
    const std::string absolute = "/(?:" + c + "+" + path + ")?";
    const std::string tail = "(?:\\?(?:" + c + "|[/?])*)?(?:#(?:" + c + "|[/?])*)?";
    const std::string hier =
        "(?://" + authority + path + "|" + absolute + "|" + c + "+" + path + ")?";
    whole = "[A-Za-z][A-Za-z0-9+.-]*:" + hier + tail;
    reference = "(?:" + whole + "|(?://" + authority + path + "|" + absolute + "|" + no_colon +
                path + ")?" + tail + ")";
  }
  std::string whole, reference;
};

std::map<std::string, std::string, std::less<>> MakePatterns() {
  const Uri uri("");
  const Uri iri("\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{1FFFD}");
  const std::string duration =
      "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)"
      "?|"
      "\\d+M(?:\\d+S)?|\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))";
  const std::string pointer = "(?:/(?:[^/~]|~[01])*)*";
  return {
      {"date", Date()},
      {"time", Time()},
      {"date-time", Date() + "[Tt]" + Time()},
      {"duration", duration},
      {"email", Email()},
      {"hostname", Hostname()},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
      {"uri", uri.whole},
      {"uri-reference", uri.reference},
      {"iri", iri.whole},
      {"iri-reference", iri.reference},
      {"json-pointer", pointer},
      {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" + pointer + ")"},
  };
}

}  // namespace

std::optional<std::string> FormatPattern(std::string_view name) {
  static const auto kPatterns = MakePatterns();
  const auto found = kPatterns.find(name);
  if (found == kPatterns.end()) return std::nullopt;
  return found->second;
}

}  // namespace loopspec::grammar
