// The Python module of a candidate: its functions are registered with pybind11 itself, whose generic half (overloads,
// messages, docstrings) does not depend on C++ types; the typed half, the casters, is picked here by type code.

namespace {

namespace pyd = pybind11::detail;

// One argument of one call: loads a Python object with the real caster, then points a value at the result.
struct Slot {
  virtual ~Slot() = default;
  virtual bool load(py::handle source, bool convert) = 0;
  virtual void fill(SpecgenValue& out) = 0;
};

template <class T>
void point_at(SpecgenValue& out, T& value, std::vector<void*>& handles) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    out.tag = SPECGEN_TENSOR;
    out.p = value.defined() ? value.unsafeGetTensorImpl() : nullptr;
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.tag = SPECGEN_STRING;
    out.p = value.data();
    out.n = static_cast<int64_t>(value.size());
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    for (const at::Tensor& t : value) {
      handles.push_back(t.defined() ? t.unsafeGetTensorImpl() : nullptr);
    }
    out.tag = SPECGEN_TENSORS;
    out.p = handles.data();
    out.n = static_cast<int64_t>(handles.size());
  } else if constexpr (std::is_same_v<T, at::Device>) {
    out.tag = SPECGEN_DEVICE;
    out.i = static_cast<int64_t>(value.type());
    out.n = value.index();
  } else if constexpr (std::is_same_v<T, bool>) {
    out.tag = SPECGEN_BOOL;
    out.i = value ? 1 : 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    out.tag = SPECGEN_DOUBLE;
    out.d = value;
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    out.tag = SPECGEN_INT;
    out.i = static_cast<int64_t>(value);
  } else { // vectors of numbers, IntArrayRef
    out.tag = SPECGEN_ARRAY;
    out.p = const_cast<void*>(static_cast<const void*>(value.data()));
    out.n = static_cast<int64_t>(value.size());
  }
}

template <class T>
struct TypedSlot final : Slot {
  bool load(py::handle source, bool convert) override {
    return caster.load(source, convert);
  }
  void fill(SpecgenValue& out) override {
    point_at(out, pyd::cast_op<T&>(caster), handles);
  }
  pyd::make_caster<T> caster;
  std::vector<void*> handles;
};

template <class T>
struct TypedSlot<std::optional<T>> final : Slot {
  bool load(py::handle source, bool convert) override {
    return caster.load(source, convert);
  }
  void fill(SpecgenValue& out) override {
    auto& value = pyd::cast_op<std::optional<T>&>(caster);
    if (value.has_value()) {
      point_at(out, *value, handles);
    } else {
      out.tag = SPECGEN_NONE;
    }
  }
  pyd::make_caster<std::optional<T>> caster;
  std::vector<void*> handles;
};

struct ArgumentType {
  std::function<std::unique_ptr<Slot>()> make;
  std::string text; // as pybind11 writes it into signatures
};

template <class T>
void add_type(std::unordered_map<std::string, ArgumentType>& types, const std::string& code) {
  types[code] = {[] { return std::make_unique<TypedSlot<T>>(); }, pyd::make_caster<T>::name.text};
}
template <class T>
void add_with_optional(std::unordered_map<std::string, ArgumentType>& types, const std::string& code) {
  add_type<T>(types, code);
  add_type<std::optional<T>>(types, "optional<" + code + ">");
}

const std::unordered_map<std::string, ArgumentType>& argument_types() {
  static const auto* types = [] {
    auto* t = new std::unordered_map<std::string, ArgumentType>();
    add_with_optional<at::Tensor>(*t, "tensor");
    add_with_optional<bool>(*t, "bool");
    add_with_optional<int8_t>(*t, "int8");
    add_with_optional<int16_t>(*t, "int16");
    add_with_optional<int32_t>(*t, "int32");
    add_with_optional<int64_t>(*t, "int64");
    add_with_optional<uint8_t>(*t, "uint8");
    add_with_optional<uint16_t>(*t, "uint16");
    add_with_optional<uint32_t>(*t, "uint32");
    add_with_optional<uint64_t>(*t, "uint64");
    add_with_optional<float>(*t, "float");
    add_with_optional<double>(*t, "double");
    add_with_optional<std::string>(*t, "string");
    add_with_optional<at::ScalarType>(*t, "dtype");
    add_type<at::Device>(*t, "device");
    add_type<at::IntArrayRef>(*t, "int_array_ref");
    add_with_optional<std::vector<at::Tensor>>(*t, "vector<tensor>");
    add_with_optional<std::vector<int64_t>>(*t, "vector<int64>");
    add_with_optional<std::vector<int32_t>>(*t, "vector<int32>");
    add_with_optional<std::vector<float>>(*t, "vector<float>");
    add_with_optional<std::vector<double>>(*t, "vector<double>");
    return t;
  }();
  return *types;
}

// The text of a result type, composed as pybind11 composes it: `list[…]`, `tuple[…, …]`, `… | None` or older spellings.
std::string result_text(const std::string& code);

std::vector<std::string> type_parameters(const std::string& code) {
  std::vector<std::string> parts;
  size_t start = code.find('<') + 1;
  int depth = 0;
  for (size_t k = start; k < code.size(); ++k) {
    depth += (code[k] == '<') - (code[k] == '>');
    if ((code[k] == ',' && depth == 0) || depth < 0) {
      parts.push_back(code.substr(start, k - start));
      start = k + 1;
    }
  }
  return parts;
}

// `sample` is the text for bool parameters; each "bool" is replaced by the text of a parameter in turn.
std::string fill_in(std::string sample, const std::vector<std::string>& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    const std::string text = result_text(part);
    at = sample.find("bool", at);
    sample.replace(at, 4, text);
    at += text.size();
  }
  return sample;
}

std::string result_text(const std::string& code) {
  if (code == "none") {
    return "None";
  }
  const auto parts = type_parameters(code);
  if (code.rfind("list<", 0) == 0) {
    return fill_in(pyd::make_caster<std::vector<bool>>::name.text, parts);
  }
  if (code.rfind("optional<", 0) == 0) {
    return fill_in(pyd::make_caster<std::optional<bool>>::name.text, parts);
  }
  if (code.rfind("tuple<", 0) == 0) {
    const std::string one = pyd::make_caster<std::tuple<bool>>::name.text;
    std::string all = "bool";
    for (size_t k = 1; k < parts.size(); ++k) {
      all += ", bool";
    }
    return fill_in(std::string(one).replace(one.find("bool"), 4, all), parts);
  }
  return argument_types().at(code).text;
}

// Takes over what the value owns.
py::object to_python(const SpecgenValue& v) {
  switch (v.tag) {
    case SPECGEN_TENSOR:
      return py::cast(adopt(v.p));
    case SPECGEN_INT:
      return v.n != 0 ? py::object(py::int_(static_cast<uint64_t>(v.i))) : py::object(py::int_(v.i));
    case SPECGEN_DOUBLE:
      return py::float_(v.d);
    case SPECGEN_BOOL:
      return py::bool_(v.i != 0);
    case SPECGEN_STRING: {
      const std::unique_ptr<char[]> text(static_cast<char*>(v.p));
      return py::cast(std::string(text.get(), static_cast<size_t>(v.n)));
    }
    case SPECGEN_LIST:
    case SPECGEN_TUPLE: {
      const std::unique_ptr<SpecgenValue[]> items(static_cast<SpecgenValue*>(v.p));
      py::list list;
      for (int64_t k = 0; k < v.n; ++k) {
        list.append(to_python(items[static_cast<size_t>(k)]));
      }
      return v.tag == SPECGEN_TUPLE ? py::object(py::tuple(list)) : py::object(list);
    }
    default:
      return py::none();
  }
}

struct Function {
  std::vector<const ArgumentType*> arguments;
  SpecgenThunk thunk;
  void* function;
  void (*destroy)(void*);
  int32_t wrap;

  void run(const SpecgenValue* in, SpecgenValue* out) const {
    if (wrap == 0) {
      thunk(function, in, out);
    } else {
      run_wrapped(in, out);
    }
  }
  void run_wrapped(const SpecgenValue* in, SpecgenValue* out) const {
    HANDLE_TH_ERRORS
    std::optional<py::gil_scoped_release> no_gil;
    if (wrap == 2) {
      no_gil.emplace();
    }
    thunk(function, in, out);
    END_HANDLE_TH_ERRORS_PYBIND
  }
  ~Function() {
    destroy(function);
  }
};

py::handle call_function(pyd::function_call& call) {
  const auto& f = *static_cast<Function*>(call.func.data[0]);
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<SpecgenValue> values(f.arguments.size());
  for (size_t k = 0; k < f.arguments.size(); ++k) {
    slots.push_back(f.arguments[k]->make());
    if (!slots.back()->load(call.args[k], call.args_convert[k])) {
      return PYBIND11_TRY_NEXT_OVERLOAD;
    }
  }
  for (size_t k = 0; k < slots.size(); ++k) {
    slots[k]->fill(values[k]);
  }
  SpecgenValue result{SPECGEN_NONE, {0}, 0};
  f.run(values.data(), &result);
  return to_python(result).release();
}

// pybind11's function object, made from a description at run time instead of from C++ types.
class DescribedFunction : public py::cpp_function {
 public:
  DescribedFunction(py::module_& scope, const char* name, const char* doc, const std::string& text, Function* f) {
    auto record = make_function_record();
    record->data[0] = f;
    record->free_data = [](pyd::function_record* r) { delete static_cast<Function*>(r->data[0]); };
    record->impl = call_function;
    record->nargs_pos = static_cast<std::uint16_t>(f->arguments.size());
    const auto count = f->arguments.size();
    const py::object sibling = py::getattr(scope, name, py::none());
    pyd::process_attributes<py::name, py::scope, py::sibling>::init(
        py::name(name), py::scope(scope), py::sibling(sibling), record.get());
    if (doc != nullptr) {
      pyd::process_attribute<const char*>::init(doc, record.get());
    }
    static const std::type_info* const no_types[] = {nullptr};
    initialize_generic(std::move(record), text.c_str(), no_types, count);
  }
};

} // namespace

void* specgen_create_module(const char* name, void (*fill)(void* module)) {
  try {
    auto* definition = new py::module_::module_def(); // belongs to the module, which is never unloaded
    auto module = py::module_::create_extension_module(name, nullptr, definition);
    fill(&module);
    return module.release().ptr();
  } catch (py::error_already_set& error) {
    py::raise_from(error, PyExc_ImportError, "initialization failed");
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
  }
  return nullptr;
}
void specgen_define(
    void* module,
    const char* name,
    const char* arguments,
    const char* result,
    SpecgenThunk thunk,
    void* function,
    void (*destroy)(void* function),
    int32_t wrap,
    const char* doc) {
  auto* f = new Function{{}, thunk, function, destroy, wrap};
  std::string text = "(";
  std::istringstream codes(arguments);
  for (std::string code; std::getline(codes, code, ';');) {
    f->arguments.push_back(&argument_types().at(code));
    text += (text.size() > 1 ? ", {" : "{") + f->arguments.back()->text + "}";
  }
  text += ") -> " + result_text(result);
  auto& scope = *static_cast<py::module_*>(module);
  scope.add_object(name, DescribedFunction(scope, name, doc, text, f), true /* overloads are chained by pybind11 */);
}
void specgen_set_doc(void* module, const char* doc) {
  static_cast<py::module_*>(module)->doc() = doc;
}
