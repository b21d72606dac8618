// The part of the façade that is the same for every candidate: standard headers, and what does not depend on the
// methods of Tensor. g++ takes it precompiled where the candidate's flags are among the prepared ones.
#pragma once

#ifndef SPECGEN_LEAN // nvcc reads every header three times; a source that needs none of these is spared a third
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#endif
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(hidden)
#include <specgen/accessor.h>
#include <specgen/scalar.h>
#pragma GCC visibility pop
