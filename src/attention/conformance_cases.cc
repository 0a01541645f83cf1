// The cases; conformance.cc runs them.
#include "attention/conformance.h"

namespace tenon {
namespace {

constexpr int32_t kHeadDims[] = {32, 64, 72, 80, 96, 128, 192, 256, 512};
constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64};
constexpr int32_t kBlockSizes[] = {1, 8, 16, 32, 256};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8};
constexpr KvLayout kLayouts[] = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC};
// Around a vector, a tile, a page.
constexpr int32_t kWindows[] = {1, 7, 16, 64, 100};
const char* const kMixed = "3q1s70_q5s37_q20s41_q33";
// Decode, prefill, chunked prefill, mixed, rows without keys or queries, rows long enough to split.
const char* const kBatches[] = {"q1s1",
                                "q1",
                                "q0",
                                "q2s0",
                                "16q1s100",
                                "q1s512_q1s513",
                                "q1s1400",
                                "q65",
                                "q130",
                                "q64s64_q1s64",
                                "q63s200",
                                "q2s600_q4s1100",
                                "q40s1060",
                                "q1s4_q2s0_q1s7_q0s4",
                                "q1s2000_8q1s5_q30"};

// Rows that share prefixes: all of them, some, groups side by side and nested, prefixes that end
// inside a page or a tile, a row of several queries, rows whose prefix is all they have.
const char* const kPrefixBatches[] = {
    "4q1s300p256",
    "6q1s150p128_2q1s90_q33",
    "3q1s1100p1024_5q1s700p640_q1s700",
    "3q1s600p64+448_4q1s700p64+576_2q1s70p64_q20s90",
    "8q1s65p64_2q1s81p80",
    "20q1s230p192_3q1s20p16",
};

std::vector<ConformanceCase> quick_cases() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](auto&& change) {
    ConformanceCase c;
    c.batch = kMixed;
    change(c);
    cases.push_back(c);
  };
  for (const char* batch : kBatches) {
    add([&](ConformanceCase& c) { c.batch = batch; });
  }
  for (const int32_t dim : kHeadDims) {
    add([&](ConformanceCase& c) { c.head_dim_qk = c.head_dim_v = dim; });
  }
  for (const int32_t dim : {1, 3, 17}) {
    add([&](ConformanceCase& c) { c.head_dim_qk = c.head_dim_v = dim; });
  }
  add([](ConformanceCase& c) { c.head_dim_qk = 192, c.head_dim_v = 128; });
  add([](ConformanceCase& c) { c.head_dim_qk = 24, c.head_dim_v = 72, c.kv_dtype = DType::kF32; });
  for (const int32_t group : kGroups) {
    add([&](ConformanceCase& c) { c.num_q_heads = 2 * group; });
  }
  add([](ConformanceCase& c) { c.num_q_heads = 40, c.num_kv_heads = 1; });
  for (const DType dtype : kDTypes) {
    for (const int32_t block_size : kBlockSizes) {
      add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.block_size = block_size; });
    }
    for (const KvLayout layout : kLayouts) {
      add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.layout = layout, c.head_dim_qk = 72; });
    }
  }
  for (const int32_t window : kWindows) {
    add([&](ConformanceCase& c) {
      c.batch = "q1s1100_q1s90_q30s85_q140", c.sliding_window = window;
    });
  }
  add([](ConformanceCase& c) { c.soft_cap = 2.0F; });
  add([](ConformanceCase& c) { c.soft_cap = 20.0F, c.sliding_window = 33; });
  add([](ConformanceCase& c) { c.causal = false; });
  add([](ConformanceCase& c) { c.k_scale = 0.5F, c.v_scale = 4.0F, c.kv_dtype = DType::kBF16; });
  add([](ConformanceCase& c) { c.alibi = true; });
  add([](ConformanceCase& c) { c.sinks = true; });
  add([](ConformanceCase& c) {
    c.sinks = c.alibi = true, c.soft_cap = 10.0F, c.sliding_window = 40;
  });
  add([](ConformanceCase& c) { c.causal = false, c.sinks = c.alibi = true; });
  add([](ConformanceCase& c) { c.shares_kv = true; });
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    add([&](ConformanceCase& c) {
      c.kv_dtype = dtype, c.batch = "q1s1100_q1s90_q30s85_q140", c.head_scales = true;
      c.k_scale = 0.7F, c.v_scale = 1.3F;
    });
    add([&](ConformanceCase& c) {
      c.kv_dtype = dtype, c.sinks = c.alibi = true, c.sliding_window = 50, c.head_dim_qk = 72;
    });
    add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.head_dim_v = 24, c.block_size = 7; });
    add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.shares_kv = true; });
  }
  for (const char* batch : kPrefixBatches) {
    for (const DType dtype : kDTypes) {
      add([&](ConformanceCase& c) { c.batch = batch, c.kv_dtype = dtype; });
    }
    add([&](ConformanceCase& c) {
      c.batch = batch, c.cascade = CascadeMode::kAuto, c.num_kv_heads = 6;
    });
    add([&](ConformanceCase& c) { c.batch = batch, c.sinks = true, c.soft_cap = 12.0F; });
    add([&](ConformanceCase& c) { c.batch = batch, c.alibi = true, c.block_size = 64; });
    add([&](ConformanceCase& c) { c.batch = batch, c.sliding_window = 200, c.block_size = 1; });
    add([&](ConformanceCase& c) {
      c.batch = batch, c.kv_dtype = DType::kI8, c.head_scales = true, c.num_q_heads = 14;
    });
  }
  return cases;
}

std::vector<ConformanceCase> full_cases() {
  std::vector<ConformanceCase> cases = quick_cases();
  int turn = 0;  // walks through the small axes while the large ones are multiplied
  for (const int32_t dim : kHeadDims) {
    for (const int32_t group : kGroups) {
      for (const char* batch : kBatches) {
        ConformanceCase c;
        c.batch = batch;
        c.head_dim_qk = c.head_dim_v = dim;
        c.num_q_heads = 2 * group;
        const int pick = turn++;
        c.kv_dtype = kDTypes[pick % 3];
        c.block_size = kBlockSizes[pick / 3 % 4];
        c.layout = kLayouts[pick / 5 % 3];
        if (pick % 4 == 1) c.sliding_window = kWindows[pick / 4 % 5];
        if (pick % 5 == 2) c.soft_cap = 15.0F;
        if (pick % 7 == 3 && !c.sliding_window) c.causal = false;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// On a GPU: 16-bit types, the head sizes and groups of models that people run, steps as an engine
// makes them.
constexpr int32_t kCudaHeadDims[] = {64, 80, 96, 128, 192, 256};
constexpr int32_t kCudaGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
constexpr int32_t kCudaBlockSizes[] = {1, 16, 64};
constexpr DType kCudaDTypes[] = {DType::kBF16, DType::kF16};
const char* const kCudaMixed = "3q1s170_q5s137_q20s141_q133";
const char* const kCudaBatches[] = {
    "q1s1",
    "q1",
    "q0",
    "q2s0",
    "16q1s100",
    "q1s512_q1s513_q1s511",
    "q1s5000",
    "q1s16_q1s17_q1s3000_q1s1_q1s64",
    "q65",
    "q300",
    "q64_q128_q129_q127_q1_q17",
    "q64s64_q1s64",
    "q63s200",
    "q2s600_q4s1100_q16s900",
    "q40s1060",
    "q130s1500",
    "q1s4_q2s0_q1s7_q70",
    "q1s2000_8q1s5_q30",
    "q1s9_q0s4_q7",
    "64q1s33_q200s260_q40",
    "300q1s20",
};

// Groups of fewer and of more rows than a tile, side by side and nested, prefixes of one page and
// of many pieces, rows behind them of any length, steps that prefill, too.
const char* const kCudaPrefixBatches[] = {
    "2q1s300p256",
    "6q1s150p128_2q1s90_q33",
    "40q1s1100p1024_5q1s700p640_q1s700",
    "3q1s600p64+448_4q1s700p64+576_2q1s70p64_q20s90",
    "20q1s230p192_3q1s20p16",
    "2q1s5000p4992_16q1s2000p1984",
    "130q1s90p64_2q2s90p64",
};

ConformanceCase cuda_case() {
  ConformanceCase c;
  c.batch = kCudaMixed;
  c.num_q_heads = 8;
  c.head_dim_qk = c.head_dim_v = 128;
  c.q_dtype = c.kv_dtype = DType::kBF16;
  c.layout.reset();
  return c;
}

// What a GPU's kernels do for one key at a time: windows, caps, slopes, sinks, cells of 8 bits.
// Each meets decode, extends of all sizes, prefill and graphs.
constexpr DType kQuantised[] = {DType::kF8E4M3, DType::kI8};
constexpr int32_t kCudaWindows[] = {1, 7, 16, 100, 1000};
const char* const kExtraBatches[] = {
    "5q1s700_q1s17_q1s1",          "q1s3000_2q1s90_q1s2048", "q2s600_q4s1100_q16s900_q7s7",
    "q30s85_q140_q200s1500_q1s64", "q300_q65_q129s400",      "40q1s300_q64s700_q33",
};

// Calls `add` with what changes a case to one with a feature, and with all of them at once.
template <typename Add>
void add_extras(const Add& add) {
  for (const int32_t window : kCudaWindows) {
    add([=](ConformanceCase& c) { c.sliding_window = window; });
  }
  add([](ConformanceCase& c) { c.soft_cap = 2.0F; });
  add([](ConformanceCase& c) { c.alibi = true; });
  add([](ConformanceCase& c) { c.sinks = true; });
  add([](ConformanceCase& c) { c.shares_kv = true; });
  add([](ConformanceCase& c) {
    c.sinks = c.alibi = c.head_scales = true, c.soft_cap = 15.0F, c.sliding_window = 130;
    c.k_scale = 0.7F, c.v_scale = 1.3F;
  });
}

void add_cuda_feature_cases(std::vector<ConformanceCase>& cases) {
  const auto add = [&](const char* batch, auto&& change) {
    ConformanceCase c = cuda_case();
    c.batch = batch;
    change(c);
    cases.push_back(c);
  };
  for (const char* batch : kExtraBatches) {
    add_extras([&](auto&& change) { add(batch, change); });
  }
  // All of them by head size, type, page and group; no page of 1 takes bulk copies.
  const auto everything = [](ConformanceCase& c) {
    c.sinks = c.alibi = true, c.soft_cap = 15.0F, c.sliding_window = 90;
  };
  for (const int32_t dim : kCudaHeadDims) {
    for (const DType dtype : kCudaDTypes) {
      for (const int32_t block_size : {1, 16}) {
        add(kCudaMixed, [&](ConformanceCase& c) {
          everything(c);
          c.head_dim_qk = c.head_dim_v = dim, c.q_dtype = c.kv_dtype = dtype;
          c.block_size = block_size;
        });
      }
    }
  }
  for (const int32_t group : {1, 3, 8, 12, 16}) {
    add(kCudaMixed, [&](ConformanceCase& c) { everything(c), c.num_q_heads = 2 * group; });
  }
  add(kCudaMixed, [](ConformanceCase& c) { c.causal = false, c.sinks = c.alibi = true; });
  add(kCudaMixed, [](ConformanceCase& c) { c.k_scale = 0.5F, c.v_scale = 4.0F; });
  add(kCudaMixed, [](ConformanceCase& c) { c.head_scales = true; });
  for (const AttentionSplit split : {AttentionSplit::kUnified, AttentionSplit::kSplit}) {
    add(kCudaMixed, [&](ConformanceCase& c) { everything(c), c.split = split; });
  }
  add("5q1s700_3q1s9",
      [&](ConformanceCase& c) { everything(c), c.graph_rows = 8, c.max_seq_len = 8192; });
}

void add_cuda_quantised_cases(std::vector<ConformanceCase>& cases) {
  for (const DType dtype : kQuantised) {
    const auto add = [&](const char* batch, auto&& change) {
      ConformanceCase c = cuda_case();
      c.batch = batch;
      c.kv_dtype = dtype;
      c.k_scale = dtype == DType::kF8E4M3 ? 0.05F : 1.0F;
      change(c);
      cases.push_back(c);
    };
    for (const char* batch : kCudaBatches) add(batch, [](ConformanceCase&) {});
    for (const char* batch : {kExtraBatches[0], kExtraBatches[3]}) {
      add_extras([&](auto&& change) { add(batch, change); });
    }
    for (const int32_t dim : kCudaHeadDims) {
      for (const DType q_dtype : kCudaDTypes) {
        for (const int32_t block_size : kCudaBlockSizes) {
          add(kCudaMixed, [&](ConformanceCase& c) {
            c.head_dim_qk = c.head_dim_v = dim, c.q_dtype = q_dtype, c.block_size = block_size;
          });
        }
      }
    }
    for (const int32_t group : kCudaGroups) {
      add(kCudaMixed, [&](ConformanceCase& c) { c.num_q_heads = 2 * group; });
    }
    for (const KvLayout layout : kLayouts) {
      add(kCudaMixed, [&](ConformanceCase& c) { c.layout = layout; });
    }
    add(kCudaMixed, [](ConformanceCase& c) { c.head_scales = true, c.v_scale = 3.0F; });
    add(kCudaMixed, [](ConformanceCase& c) { c.causal = false; });
    add(kCudaMixed, [](ConformanceCase& c) { c.lse = false; });
    add(kCudaMixed, [](ConformanceCase& c) { c.split = AttentionSplit::kUnified; });
    for (const bool interleaved : {false, true}) {
      add(kCudaMixed, [&](ConformanceCase& c) {
        c.rope = {interleaved ? 64 : 128, interleaved}, c.head_scales = interleaved;
      });
      add("17q1s40_q2s0", [&](ConformanceCase& c) {
        c.head_dim_qk = c.head_dim_v = 96, c.rope = {96, interleaved};
        c.q_dtype = DType::kF16, c.block_size = 1;
      });
    }
    for (const int32_t dim : {64, 128, 256}) {
      add("3q1s900_q1s1", [&](ConformanceCase& c) {
        c.head_dim_qk = c.head_dim_v = dim, c.graph_rows = 8, c.max_seq_len = 4096;
      });
    }
    add("33q1s200", [](ConformanceCase& c) { c.graph_rows = 64, c.max_seq_len = 8192; });
    // Long enough for every warp of a block to go round its ring.
    for (const int32_t dim : kCudaHeadDims) {
      for (const int32_t group : {4, 16}) {
        add("30q1s640_q1s2100", [&](ConformanceCase& c) {
          c.head_dim_qk = c.head_dim_v = dim, c.num_kv_heads = 4, c.num_q_heads = 4 * group;
        });
      }
    }
    add("6q1s700_q100s228_q90",
        [](ConformanceCase& c) { c.num_q_heads = 32, c.num_kv_heads = 8, c.max_seq_len = 131072; });
  }
}

std::vector<ConformanceCase> cuda_quick_cases() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](auto&& change) {
    ConformanceCase c = cuda_case();
    change(c);
    cases.push_back(c);
  };
  for (const char* batch : kCudaBatches) {
    add([&](ConformanceCase& c) { c.batch = batch; });
  }
  for (const int32_t dim : kCudaHeadDims) {
    for (const DType dtype : kCudaDTypes) {
      for (const int32_t block_size : kCudaBlockSizes) {
        add([&](ConformanceCase& c) {
          c.head_dim_qk = c.head_dim_v = dim;
          c.q_dtype = c.kv_dtype = dtype;
          c.block_size = block_size;
        });
      }
    }
  }
  for (const int32_t group : kCudaGroups) {
    add([&](ConformanceCase& c) { c.num_q_heads = 2 * group; });
    add([&](ConformanceCase& c) {
      c.num_q_heads = group, c.num_kv_heads = 1, c.head_dim_qk = c.head_dim_v = 64;
    });
  }
  for (const KvLayout layout : kLayouts) {
    if (layout == KvLayout::kBLHNC) continue;  // an engine asks for it only to swap blocks faster
    add([&](ConformanceCase& c) { c.layout = layout; });
    add([&](ConformanceCase& c) {
      c.layout = layout, c.block_size = 1, c.head_dim_qk = c.head_dim_v = 64;
    });
  }
  for (const AttentionSplit split : {AttentionSplit::kUnified, AttentionSplit::kSplit}) {
    add([&](ConformanceCase& c) { c.split = split; });
    add([&](ConformanceCase& c) { c.split = split, c.batch = "20q1s700_q100s164_q90"; });
    add([&](ConformanceCase& c) { c.split = split, c.batch = "20q1s700"; });
  }
  add([](ConformanceCase& c) { c.lse = false; });
  add([](ConformanceCase& c) { c.lse = false, c.batch = "q1s3000_4q1s90"; });
  // 8B and 7B shapes, and limits far above the batch.
  add([](ConformanceCase& c) {
    c.num_q_heads = 32, c.num_kv_heads = 8, c.batch = "6q1s700_q100s228_q90";
    c.max_seq_len = 131072;
  });
  add([](ConformanceCase& c) {
    c.num_q_heads = c.num_kv_heads = 32, c.batch = "4q1s300_q70", c.max_seq_len = 4096;
  });
  // The rotation of a token by its position, in the engine's two conventions.
  for (const int32_t dim : {64, 96, 128}) {
    for (const bool interleaved : {false, true}) {
      add([&](ConformanceCase& c) {
        c.head_dim_qk = c.head_dim_v = dim;
        c.rope = {interleaved ? dim / 2 : dim, interleaved};
        if (dim == 96) c.q_dtype = c.kv_dtype = DType::kF16;
      });
    }
  }
  add([](ConformanceCase& c) {
    c.batch = "17q1s40_q2s0", c.rope = {128, false}, c.block_size = 1;
  });
  for (const char* batch : kCudaPrefixBatches) {
    add([&](ConformanceCase& c) { c.batch = batch; });
    add([&](ConformanceCase& c) { c.batch = batch, c.cascade = CascadeMode::kAuto; });
    add([&](ConformanceCase& c) { c.batch = batch, c.num_q_heads = 6, c.lse = false; });
    add([&](ConformanceCase& c) {
      c.batch = batch, c.num_q_heads = 2, c.head_dim_qk = c.head_dim_v = 64;
      c.q_dtype = c.kv_dtype = DType::kF16;
    });
  }
  for (const int32_t dim : kCudaHeadDims) {
    for (const int32_t block_size : kCudaBlockSizes) {
      add([&](ConformanceCase& c) {
        c.batch = "9q1s400p256_3q1s200p128_q50";
        c.head_dim_qk = c.head_dim_v = dim, c.block_size = block_size;
        if (dim % 128 == 0) c.q_dtype = c.kv_dtype = DType::kF16;
      });
    }
  }
  for (const int32_t group : {5, 12, 16, 40}) {
    add([&](ConformanceCase& c) { c.batch = "30q1s300p256", c.num_q_heads = 2 * group; });
  }
  add([](ConformanceCase& c) { c.batch = "30q1s300p256", c.layout = KvLayout::kLBNHC; });
  add([](ConformanceCase& c) { c.batch = "30q1s300p256_3q1s700p16+512", c.sinks = true; });
  add([](ConformanceCase& c) { c.batch = "30q1s300p256", c.k_scale = 0.5F, c.v_scale = 3.0F; });
  // Graphs of uniform decode: full, padded, long limits, large heads and groups.
  const auto graph = [&](const char* batch, int32_t rows, int32_t max_seq_len, auto&& change) {
    add([&](ConformanceCase& c) {
      c.batch = batch, c.graph_rows = rows, c.max_seq_len = max_seq_len;
      change(c);
    });
  };
  const auto nothing = [](ConformanceCase&) {};
  graph("q1s1000", 1, 0, nothing);
  graph("q1s3", 1, 131072, nothing);
  graph("q1s3000", 8, 8192, nothing);
  graph("5q1s700_3q1s9", 8, 8192, nothing);
  graph("33q1s200", 64, 8192, nothing);
  graph("200q1s30_q1s2000", 256, 8192, nothing);
  for (const int32_t dim : kCudaHeadDims) {
    graph("3q1s900_q1s1", 8, 4096, [&](ConformanceCase& c) { c.head_dim_qk = c.head_dim_v = dim; });
  }
  graph("3q1s900", 4, 4096, [](ConformanceCase& c) { c.num_q_heads = 32, c.block_size = 1; });
  graph("3q1s900", 4, 4096, [](ConformanceCase& c) {
    c.num_q_heads = 10, c.block_size = 64, c.q_dtype = c.kv_dtype = DType::kF16;
  });
  graph("3q1s900", 4, 4096, [](ConformanceCase& c) { c.split = AttentionSplit::kSplit; });
  add_cuda_feature_cases(cases);
  add_cuda_quantised_cases(cases);
  return cases;
}

// The features of a case by its number, each meeting every value of the other axes in time.
void add_feature(ConformanceCase& c, int pick) {
  if (pick % 2 == 1) {
    c.kv_dtype = kQuantised[pick / 2 % 2];
    c.k_scale = 0.6F;
    c.head_scales = pick % 3 == 0;
  }
  if (pick % 4 == 1) c.sliding_window = kCudaWindows[pick / 4 % 5];
  if (pick % 5 == 2) c.soft_cap = 15.0F;
  c.alibi = pick % 7 == 3;
  c.sinks = pick % 3 == 1;
}

std::vector<ConformanceCase> cuda_full_cases() {
  std::vector<ConformanceCase> cases = cuda_quick_cases();
  int turn = 0;
  for (const int32_t dim : kCudaHeadDims) {
    for (const int32_t group : kCudaGroups) {
      for (const char* batch : kCudaBatches) {
        const int pick = turn++;
        if (pick % 4 != 0) continue;
        ConformanceCase c = cuda_case();
        c.batch = batch;
        c.head_dim_qk = c.head_dim_v = dim;
        c.num_q_heads = 2 * group;
        c.q_dtype = c.kv_dtype = kCudaDTypes[pick / 4 % 2];
        c.block_size = kCudaBlockSizes[pick / 4 % 3];
        c.lse = pick / 4 % 5 != 0;
        cases.push_back(c);
        add_feature(c, pick / 4);
        cases.push_back(c);
      }
    }
  }
  return cases;
}

std::vector<ConformanceCase> smoke_cases(DeviceType device) {
  std::vector<ConformanceCase> cases;
  for (const char* batch : {"2q1s70_q5s37_q33", "q1s300", "q70s100"}) {
    ConformanceCase c;
    if (device == DeviceType::kCuda) c = cuda_case();
    c.batch = batch;
    c.num_q_heads = 4;
    cases.push_back(c);
  }
  if (device == DeviceType::kCpu) return cases;
  ConformanceCase c = cases.front();
  c.head_dim_qk = c.head_dim_v = 64;
  c.block_size = 1;
  c.rope = {64, false};
  cases.push_back(c);
  c.head_dim_qk = c.head_dim_v = 80;
  c.rope = {};
  c.block_size = 16;
  c.q_dtype = c.kv_dtype = DType::kF16;
  cases.push_back(c);
  c = cuda_case();
  c.batch = "3q1s150";
  c.graph_rows = 4;
  c.max_seq_len = 2048;
  cases.push_back(c);
  return cases;
}

}  // namespace

std::vector<ConformanceCase> conformance_cases(ConformanceLevel level, DeviceType device) {
  if (level == ConformanceLevel::kSmoke) return smoke_cases(device);
  const bool quick = level == ConformanceLevel::kQuick;
  if (device == DeviceType::kCuda) return quick ? cuda_quick_cases() : cuda_full_cases();
  return quick ? quick_cases() : full_cases();
}

std::string describe_case(const ConformanceCase& c) {
  std::string text =
      fmt::format("{} heads {}/{} dim {}/{} {} {} block {}", c.batch, c.num_q_heads, c.num_kv_heads,
                  c.head_dim_qk, c.head_dim_v, dtype_traits(c.kv_dtype).name,
                  c.layout ? kv_layout_name(*c.layout) : "own layout", c.block_size);
  if (!c.causal) text += " non-causal";
  if (!c.lse) text += " no lse";
  if (c.sliding_window) text += fmt::format(" window {}", *c.sliding_window);
  if (c.soft_cap > 0) text += fmt::format(" cap {}", c.soft_cap);
  if (c.k_scale != 1 || c.v_scale != 1) text += fmt::format(" scales {}/{}", c.k_scale, c.v_scale);
  if (c.head_scales) text += " and by head";
  if (c.alibi) text += " alibi";
  if (c.sinks) text += " sinks";
  if (c.shares_kv) text += " shared kv";
  if (c.cascade == CascadeMode::kAuto) text += " cascade auto";
  if (c.cascade == CascadeMode::kOff) text += " cascade off";
  if (c.split == AttentionSplit::kUnified) text += " unified";
  if (c.split == AttentionSplit::kSplit) text += " split";
  if (c.rope.rotary_dim > 0) {
    text += fmt::format(" rope {}{}", c.rope.rotary_dim, c.rope.interleaved ? " interleaved" : "");
  }
  if (c.graph_rows > 0) text += fmt::format(" graph of {} rows", c.graph_rows);
  if (c.max_seq_len > 0) text += fmt::format(" limit {}", c.max_seq_len);
  return text;
}

}  // namespace tenon
