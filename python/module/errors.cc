#include "errors.h"

#include <array>
#include <exception>
#include <utility>

#include "base/error.h"
#include "loopspec/loopspec.h"

namespace loopspec::python {
namespace nb = nanobind;

namespace {

// As the commands call them, and as they are called here.
constexpr std::array<std::pair<const char*, const char*>, 10> kNames = {{
    {"--model", "model"},
    {"--device", "device"},
    {"--set", "config"},
    {"--recurrences", "recurrences"},
    {"--recurrence", "recurrence"},
    {"--depths", "depths"},
    {"--threads", "threads"},
    {"max-tokens is", "max_tokens is"},
    {"max-rows is", "max_rows is"},
    {"stop token ", "stop_token_ids has "},
}};

void Raise(PyObject* kind, const std::exception& error) {
  PyErr_SetString(kind, InPython(error.what()).c_str());
}

}  // namespace

std::string InPython(std::string message) {
  for (const auto& [from, to] : kNames) {
    const std::string_view name = from;
    for (size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
      const size_t end = at + name.size();
      const bool whole = (at == 0 || message[at - 1] == ' ' || message[at - 1] == '(') &&
                         (end == message.size() || message[end] != '-');
      if (whole) message.replace(at, name.size(), to);
    }
  }
  return message;
}

void RegisterErrors(nb::module_& module) {
  nb::object full = nb::exception<QueueFull>(module, "QueueFull", PyExc_RuntimeError);
  full.attr("__doc__") =
      "Too many requests wait already (Engine's max_queued): try again later. The request itself "
      "is "
      "sound. generate() and chat() wait for room instead.";
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const FileMissing& error) {
          Raise(PyExc_FileNotFoundError, error);
        } catch (const Error& error) {
          Raise(PyExc_ValueError, error);
        } catch (const TooManyTokens& error) {
          Raise(PyExc_ValueError, error);
        } catch (const ClosedError& error) {
          Raise(PyExc_RuntimeError, error);
        } catch (const ForkedError& error) {
          Raise(PyExc_RuntimeError, error);
        }
      },
      nullptr);
}

}  // namespace loopspec::python
