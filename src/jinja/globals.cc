#include "jinja/globals.h"

#include <ctime>

#include "jinja/arguments.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

Value MakeRange(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("chat template: range() takes no keyword arguments");
  const Bound bound("range()", arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = !bound.Given(1);
  return MakeRange(only_stop ? 0 : bound.Int(0, 0), bound.Int(only_stop ? 0 : 1, 0),
                   bound.Int(2, 1), interpreter.budget());
}

// dict(mapping or pairs, **named)
Dict BuildDict(Interpreter& interpreter, const Arguments& arguments) {
  Budget& budget = interpreter.budget();
  if (arguments.positional.size() > 1) {
    Fail("chat template: dict expected at most 1 argument, got {}", arguments.positional.size());
  }
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.dict() != nullptr) {
      budget.ChargeItems(source.dict()->items.size());
      dict = *source.dict();
    } else {
      for (const Value& pair : Collect(source, budget)) {
        const std::vector<Value> parts = Collect(pair, budget);
        if (parts.size() != 2) Fail("chat template: dict expected pairs of a key and a value");
        dict.Set(parts[0], parts[1], budget);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return dict;
}

Value MakeDict(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  return Value::Of(BuildDict(interpreter, arguments));
}

Value MakeNamespace(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  auto result = std::make_shared<Namespace>();
  result->attributes = BuildDict(interpreter, arguments);
  interpreter.KeepUntilEnd(result);
  interpreter.budget().Charge(10);
  return Value::Of(std::shared_ptr<Object>(std::move(result)));
}

// Globals of jinja2 that no chat template uses.
constexpr std::string_view kLeftOutFunctions[] = {"cycler", "joiner", "lipsum"};

template <size_t kIndex>
Value LeftOut(Interpreter&, const Value&, const Arguments&) {
  Fail("chat template: the function '{}' of jinja2 is not supported", kLeftOutFunctions[kIndex]);
}

Value RaiseException(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Bound bound("raise_exception()", arguments, {"message"}, 1);
  Fail("chat template: {}", ToText(bound[0], interpreter.budget()));
}

Value StrftimeNow(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Bound bound("strftime_now()", arguments, {"format"}, 1);
  const std::string& format = RequireText(bound[0], "strftime_now()");
  if (format.size() > 1000) Fail("chat template: a date format of {} bytes", format.size());
  const std::time_t now = static_cast<std::time_t>(interpreter.now_unix());
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) Fail("chat template: the clock is out of range");
  // A width such as %999999d would make strftime write that much; Python's has no use for widths
  // either.
  for (size_t i = 0; i + 1 < format.size(); ++i) {
    if (format[i] == '%' &&
        ((format[i + 1] >= '0' && format[i + 1] <= '9') || format[i + 1] == '+')) {
      Fail("chat template: the date format {} is not supported", ReprText(format));
    }
    if (format[i] == '%') ++i;
  }
  std::string buffer(format.size() * 64 + 64, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), format.c_str(), &local));
  if (!IsValidUtf8(buffer)) Fail("chat template: strftime_now() gave invalid text");
  return Value::Of(std::move(buffer));
}

}  // namespace

std::string Namespace::Repr(Budget& budget) const {
  return "<Namespace " + ToText(Value::Of(attributes), budget) + ">";
}

std::optional<Value> Namespace::Attribute(std::string_view name) {
  const Value* found = attributes.Find(name);
  return found == nullptr ? std::nullopt : std::optional<Value>(*found);
}

std::vector<std::pair<std::string, Value>> Globals() {
  return {
      {"range", MakeFunction("range", MakeRange)},
      {"dict", MakeFunction("dict", MakeDict)},
      {"namespace", MakeFunction("namespace", MakeNamespace)},
      {"cycler", MakeFunction("cycler", LeftOut<0>)},
      {"joiner", MakeFunction("joiner", LeftOut<1>)},
      {"lipsum", MakeFunction("lipsum", LeftOut<2>)},
      {"raise_exception", MakeFunction("raise_exception", RaiseException)},
      {"strftime_now", MakeFunction("strftime_now", StrftimeNow)},
  };
}

}  // namespace loopspec::jinja
