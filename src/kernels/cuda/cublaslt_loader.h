// cuBLASLt, loaded when it is first needed: the program starts, and serves on a CPU, on machines
// that do not have it.
//
// cublaslt_loader.cc defines the library's functions that are called here (lt_matmul.cc, probe.cc);
// each hands on to the one in libcublasLt. Requires: load_cublaslt() was ok. Thread safety: plain
// functions.
#pragma once

#include "base/status.h"

namespace tenon {

// Errors: kUnsupported with the loader's words when there is no libcublasLt.
[[nodiscard]] Status load_cublaslt();

}  // namespace tenon
