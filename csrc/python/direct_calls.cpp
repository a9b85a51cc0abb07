// Calls of our operators from Python without the conversions of pybind11.
//
// torch converts the arguments of a custom operator one at a time and asks of each number whether
// it is a tensor, 0.3 us every time: 5 of the 8 us that add_rms_norm_quant_dynamic takes for a tiny
// row on a CPU. A DirectCall reads the arguments by their exact types and goes through the dispatcher
// to the kernel for their device. Whatever is not plain (a subclass, a mode, a gradient, a profiler,
// keywords, an argument of another type, an error) is left to torch's own caller, so that only the
// time differs.
#include <torch/csrc/python_headers.h>
// Python wants to be first.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <vector>

namespace mi300 {
namespace {

using c10::IValue;

// What a tensor's keys may be, on one device or the other. No kernel of ours is for autograd or
// autocast.
constexpr c10::DispatchKeySet kPlainKeys({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                                          c10::DispatchKey::AutocastCPU, c10::DispatchKey::CUDA,
                                          c10::DispatchKey::AutogradCUDA,
                                          c10::DispatchKey::AutocastCUDA,
                                          c10::DispatchKey::ADInplaceOrView});

bool is_within(c10::DispatchKeySet keys, c10::DispatchKeySet allowed) {
  return (keys.raw_repr() & ~allowed.raw_repr()) == 0;
}

// Whether nothing but the kernel wants to see a call: no mode, no tracer, no profiler.
bool is_plain_thread() {
  return is_within(c10::impl::tls_local_dispatch_key_set().included_, c10::default_included_set) &&
         !at::impl::torch_function_mode_enabled() &&
         !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

// The tensor in a Python object, null if a call with it is not plain.
const at::Tensor* plain_tensor(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const bool needs_grad = tensor.requires_grad() && c10::GradMode::is_enabled();
  return is_within(tensor.key_set(), kPlainKeys) && !needs_grad ? &tensor : nullptr;
}

// The arguments of a call so far.
struct Given {
  torch::jit::Stack stack;
  bool has_gpu_tensor = false;  // such a call has no others; else the kernel says so

  c10::DispatchKeySet kernel_key() const {
    return c10::DispatchKeySet(has_gpu_tensor ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  }
};

enum class Kind : uint8_t { kTensor, kTensors, kInt, kFloat, kBool, kString };

struct Argument {
  Kind kind;
  bool is_optional;

  // Appends the value that torch would make of a Python object; false if that is left to torch.
  bool push(PyObject* object, Given& given) const {
    torch::jit::Stack& stack = given.stack;
    if (is_optional && object == Py_None) {
      stack.emplace_back();
      return true;
    }
    switch (kind) {
      case Kind::kTensor: {
        const at::Tensor* tensor = plain_tensor(object);
        if (tensor == nullptr) return false;
        given.has_gpu_tensor |= tensor->is_cuda();
        stack.emplace_back(*tensor);
        return true;
      }
      case Kind::kTensors:
        return push_tensors(object, given);
      case Kind::kInt:
        return push_int(object, stack);
      case Kind::kFloat:
        if (!PyFloat_CheckExact(object)) return false;
        stack.emplace_back(PyFloat_AS_DOUBLE(object));
        return true;
      case Kind::kBool:
        if (!PyBool_Check(object)) return false;
        stack.emplace_back(object == Py_True);
        return true;
      default:
        return push_string(object, stack);
    }
  }

 private:
  static bool push_tensors(PyObject* object, Given& given) {
    if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return false;
    PyObject* const* items = PySequence_Fast_ITEMS(object);
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    c10::List<at::Tensor> tensors;
    tensors.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const at::Tensor* tensor = plain_tensor(items[i]);
      if (tensor == nullptr) return false;
      given.has_gpu_tensor |= tensor->is_cuda();
      tensors.push_back(*tensor);
    }
    given.stack.emplace_back(std::move(tensors));
    return true;
  }

  static bool push_int(PyObject* object, torch::jit::Stack& stack) {
    if (THPDtype_Check(object)) {
      const auto dtype = reinterpret_cast<THPDtype*>(object)->scalar_type;
      stack.emplace_back(static_cast<int64_t>(dtype));
      return true;
    }
    if (!PyLong_CheckExact(object)) return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    stack.emplace_back(static_cast<int64_t>(value));
    return overflow == 0;
  }

  static bool push_string(PyObject* object, torch::jit::Stack& stack) {
    if (!PyUnicode_CheckExact(object)) return false;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) return false;
    stack.emplace_back(std::string(text, static_cast<size_t>(size)));
    return true;
  }
};

std::optional<Argument> argument_of(c10::TypePtr type) {
  const bool is_optional = type->kind() == c10::TypeKind::OptionalType;
  if (is_optional) type = type->expectRef<c10::OptionalType>().getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Argument{Kind::kTensor, is_optional};
    case c10::TypeKind::IntType:
      return Argument{Kind::kInt, is_optional};
    case c10::TypeKind::FloatType:
      return Argument{Kind::kFloat, is_optional};
    case c10::TypeKind::BoolType:
      return Argument{Kind::kBool, is_optional};
    case c10::TypeKind::StringType:
      return Argument{Kind::kString, is_optional};
    case c10::TypeKind::ListType:
      if (type->expectRef<c10::ListType>().getElementType()->kind() != c10::TypeKind::TensorType) {
        return std::nullopt;
      }
      return Argument{Kind::kTensors, is_optional};
    default:
      return std::nullopt;
  }
}

// A new reference, null with a Python error if there is no memory.
PyObject* as_object(const IValue& value) {
  if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
  const std::vector<at::Tensor> tensors = value.toTensorVector();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(tensors.size()));
  for (size_t i = 0; list != nullptr && i < tensors.size(); ++i) {
    PyObject* item = THPVariable_Wrap(tensors[i]);
    if (item == nullptr) Py_CLEAR(list);
    if (list != nullptr) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return list;
}

PyObject* as_object(const torch::jit::Stack& results) {
  if (results.size() == 1) return as_object(results[0]);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  for (size_t i = 0; tuple != nullptr && i < results.size(); ++i) {
    PyObject* item = as_object(results[i]);
    if (item == nullptr) Py_CLEAR(tuple);
    if (tuple != nullptr) PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
  }
  return tuple;
}

// Lets other Python threads run for as long as it lives.
class ReleasedLock {
 public:
  ReleasedLock() : thread_(PyEval_SaveThread()) {}
  ~ReleasedLock() { PyEval_RestoreThread(thread_); }
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  PyThreadState* thread_;
};

struct Operator {
  c10::OperatorHandle handle;
  std::vector<Argument> arguments;

  // The results of a plain call; null, without a Python error, if torch has to do it.
  PyObject* call(PyObject* const* objects) const {
    try {
      Given given;
      given.stack.reserve(arguments.size());
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (!arguments[i].push(objects[i], given)) return nullptr;
      }
      {
        const ReleasedLock others_may_run;
        handle.redispatchBoxed(given.kernel_key(), &given.stack);
      }
      if (PyObject* results = as_object(given.stack)) return results;
    } catch (...) {
      // The operators are functional: torch calls them again and says what was wrong.
    }
    PyErr_Clear();
    return nullptr;
  }
};

// The Python object that takes the place of torch's caller.
struct DirectCall {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* usual;
  Operator* target;
};

PyObject* call(PyObject* self, PyObject* const* given, size_t flags, PyObject* keywords) {
  const auto* direct = reinterpret_cast<const DirectCall*>(self);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  const bool is_positional = keywords == nullptr || PyTuple_GET_SIZE(keywords) == 0;
  const auto arity = static_cast<Py_ssize_t>(direct->target->arguments.size());
  if (is_positional && count == arity && is_plain_thread()) {
    if (PyObject* results = direct->target->call(given)) return results;
  }
  return PyObject_Vectorcall(direct->usual, given, static_cast<size_t>(count), keywords);
}

void destroy(PyObject* self) {
  auto* direct = reinterpret_cast<DirectCall*>(self);
  PyTypeObject* type = Py_TYPE(self);
  delete direct->target;
  Py_DECREF(direct->usual);
  type->tp_free(self);
  Py_DECREF(type);
}

// An operator is found in dictionaries by the hash of its caller.
Py_hash_t hash(PyObject* self) {
  return PyObject_Hash(reinterpret_cast<DirectCall*>(self)->usual);
}

PyObject* attribute(PyObject* self, PyObject* name) {
  return PyObject_GetAttr(reinterpret_cast<DirectCall*>(self)->usual, name);
}

PyTypeObject* direct_call_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(DirectCall, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_members, members},
                                {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                {Py_tp_hash, reinterpret_cast<void*>(&hash)},
                                {Py_tp_getattro, reinterpret_cast<void*>(&attribute)},
                                {0, nullptr}};
  static PyType_Spec spec = {"mi300_python.DirectCall", sizeof(DirectCall), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// direct_call(name, usual): a DirectCall, or `usual` where the schema has a type not known here.
PyObject* direct_call(PyObject*, PyObject* args) {
  const char* name = nullptr;
  PyObject* usual = nullptr;
  if (!PyArg_ParseTuple(args, "sO", &name, &usual)) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchema({name, ""});
  std::vector<Argument> arguments;
  if (handle) {
    for (const c10::Argument& argument : handle->schema().arguments()) {
      if (const auto known = argument_of(argument.type())) arguments.push_back(*known);
    }
  }
  if (!handle || arguments.size() != handle->schema().arguments().size()) {
    return Py_NewRef(usual);
  }
  PyTypeObject* type = direct_call_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto* direct = reinterpret_cast<DirectCall*>(self);
  direct->vectorcall = &call;
  direct->usual = Py_NewRef(usual);
  direct->target = new Operator{*handle, std::move(arguments)};
  return self;
}

}  // namespace
}  // namespace mi300

PyMODINIT_FUNC PyInit_mi300_python() {
  static PyMethodDef methods[] = {
      {"direct_call", &mi300::direct_call, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "mi300_python", nullptr, -1, methods,
                               nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
