// The façade: what a candidate includes in place of torch/extension.h, ATen/… and c10/….
//
// It declares the part of torch's C++ interface that kernels use, with the same names and meanings, over the C
// interface of the support library. Anything it does not declare does not compile, and the stock route builds it.
// Everything lives in versioned inline namespaces and is hidden, so two candidates in one process never meet.
#pragma once

#include <specgen/prelude.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

#pragma GCC visibility push(hidden)
#include <specgen/binding.h>
#pragma GCC visibility pop
