// Operators by name through the dispatcher, boxed; grad mode; ATen's thread pool.

namespace {

c10::IValue to_ivalue(const SpecgenValue& v) {
  const auto size = static_cast<size_t>(v.n);
  switch (v.tag) {
    case SPECGEN_NONE:
      return c10::IValue();
    case SPECGEN_TENSOR:
      return borrow(v.p);
    case SPECGEN_INT:
      return v.i;
    case SPECGEN_DOUBLE:
      return v.d;
    case SPECGEN_BOOL:
      return v.i != 0;
    case SPECGEN_INTS:
      return c10::IValue(at::IntArrayRef(static_cast<const int64_t*>(v.p), size));
    case SPECGEN_DOUBLES:
      return c10::IValue(at::ArrayRef<double>(static_cast<const double*>(v.p), size).vec());
    case SPECGEN_BOOLS: {
      c10::List<bool> list;
      for (size_t k = 0; k < size; ++k) {
        list.push_back(static_cast<const bool*>(v.p)[k]);
      }
      return list;
    }
    case SPECGEN_TENSORS: {
      c10::List<at::Tensor> list;
      list.reserve(size);
      for (size_t k = 0; k < size; ++k) {
        list.push_back(borrow(static_cast<void**>(v.p)[k]));
      }
      return list;
    }
    case SPECGEN_STRING:
      return std::string(static_cast<const char*>(v.p), size);
    case SPECGEN_DEVICE:
      return c10::Device(static_cast<c10::DeviceType>(v.i), static_cast<c10::DeviceIndex>(v.n));
    default:
      TORCH_INTERNAL_ASSERT(false, "façade: an argument of kind ", static_cast<int>(v.tag));
  }
}

SpecgenValue from_ivalue(const c10::IValue& value) {
  SpecgenValue v{SPECGEN_NONE, {0}, 0};
  if (value.isTensor()) {
    v.tag = SPECGEN_TENSOR;
    v.p = give(value.toTensor());
  } else if (value.isInt() || value.isSymInt()) {
    v.tag = SPECGEN_INT;
    v.i = value.toInt();
  } else if (value.isDouble()) {
    v.tag = SPECGEN_DOUBLE;
    v.d = value.toDouble();
  } else if (value.isBool()) {
    v.tag = SPECGEN_BOOL;
    v.i = value.toBool() ? 1 : 0;
  } else if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    v.tag = SPECGEN_TENSORS;
    v.n = static_cast<int64_t>(list.size());
    auto** handles = new void*[list.size() + 1];
    for (size_t k = 0; k < list.size(); ++k) {
      handles[k] = give(list[k]);
    }
    v.p = handles;
  } else {
    TORCH_CHECK(value.isNone(), "façade: a result of type ", value.tagKind());
    v.tag = SPECGEN_TENSOR; // an undefined tensor
  }
  return v;
}

} // namespace

void* specgen_operator(const char* name, const char* overload) {
  // Handles live as long as the dispatcher; one is kept for each operator that was ever asked for.
  return new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}
void specgen_call(void* op, const SpecgenValue* arguments, size_t count, SpecgenValue* results, size_t result_count) {
  torch::jit::Stack stack;
  stack.reserve(count > result_count ? count : result_count);
  for (size_t k = 0; k < count; ++k) {
    stack.push_back(to_ivalue(arguments[k]));
  }
  static_cast<c10::OperatorHandle*>(op)->callBoxed(stack);
  TORCH_INTERNAL_ASSERT(stack.size() >= result_count, "façade: an operator left ", stack.size(), " results");
  for (size_t k = 0; k < result_count; ++k) {
    results[k] = from_ivalue(stack[k]);
  }
}
void specgen_free_array(void* array) {
  delete[] static_cast<void**>(array);
}
void* specgen_grad_mode_enter(bool enabled) {
  return new at::AutoGradMode(enabled);
}
void specgen_grad_mode_leave(void* guard) {
  delete static_cast<at::AutoGradMode*>(guard);
}
void specgen_parallel_for(
    int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  at::parallel_for(begin, end, grain, [&](int64_t b, int64_t e) { body(context, b, e); });
}
int32_t specgen_get_num_threads() {
  return at::get_num_threads();
}
int32_t specgen_get_thread_num() {
  return at::get_thread_num();
}
bool specgen_in_parallel_region() {
  return at::in_parallel_region();
}
void* specgen_device_guard_enter(int32_t type, int32_t index) {
  return new c10::DeviceGuard(c10::Device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)));
}
void specgen_device_guard_leave(void* guard) {
  delete static_cast<c10::DeviceGuard*>(guard);
}
