#include "errors.h"

#include <exception>

#include "base/field_error.h"
#include "loopspec/loopspec.h"

namespace loopspec::python {
namespace nb = nanobind;

namespace {

void Raise(PyObject* kind, const std::string& message) {
  PyErr_SetString(kind, message.c_str());
}

}  // namespace

std::string InPython(const Error& error) {
  const auto* field = dynamic_cast<const FieldError*>(&error);
  if (field == nullptr) return error.what();
  if (field->kind() == ErrorKind::kUnavailable && !LOOPSPEC_HAS_CUDA) {
    return fmt::format(
        "{} is '{}', and the package loopspec-cuda is not installed (see GPUs in "
        "docs/python.md)",
        field->field(), field->found());
  }
  return field->Worded(field->field() == "compute" ? "dtype" : field->field());
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
          Raise(PyExc_FileNotFoundError, error.what());
        } catch (const FieldError& error) {
          Raise(error.kind() == ErrorKind::kMissing ? PyExc_FileNotFoundError : PyExc_ValueError,
                InPython(error));
        } catch (const Error& error) {
          Raise(PyExc_ValueError, error.what());
        } catch (const TooManyTokens& error) {
          Raise(PyExc_ValueError, error.what());
        } catch (const ClosedError& error) {
          Raise(PyExc_RuntimeError, error.what());
        } catch (const ForkedError& error) {
          Raise(PyExc_RuntimeError, error.what());
        }
      },
      nullptr);
}

}  // namespace loopspec::python
