// The support library: the façade's C interface, implemented once against the real ATen and pybind11.
//
// One translation unit, because parsing torch's headers is nearly all of its compile time (about half a minute).
// Each part is in its own file. It is a Python extension module (so that loading it needs no search path), whose
// symbols the candidates' libraries find through their dependency on it.
#include <torch/extension.h>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "../include/specgen/abi.h"

#include "tensors.inl"
#include "operators.inl"
#include "python.inl"
#ifdef SPECGEN_SUPPORT_CUDA
#include "cuda.inl"
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Support library of the build façade; nothing to call from Python.";
}
