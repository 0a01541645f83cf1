// Checks and times the prefill kernel without the rest of Tenon, on shapes of the batch grammar.
//
//   flash_prefill_bench [check] [time] [probe]    (all of them without arguments)
//
// check: many shapes against a plain f64 kernel, on sampled tokens; unused cache cells hold NaN.
// time:  TFLOP/s of visible keys. probe: the matrix instructions and their operand layouts alone.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention/backends/flash/prefill.h"
#include "attention/backends/flash/prefill_config.h"
#include "attention/backends/flash/prefill_launch.cuh"

namespace tenon::flash {
namespace {

#define CHECK_CUDA(call)                                                                    \
  do {                                                                                      \
    const cudaError_t status = (call);                                                      \
    if (status != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (false)

template <class T>
struct DeviceArray {
  T* data = nullptr;
  size_t size = 0;
  explicit DeviceArray(size_t n) : size(n) {
    CHECK_CUDA(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    CHECK_CUDA(cudaMemcpy(data, host.data(), size * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> out(size);
    CHECK_CUDA(cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
};

__device__ float to_float(uint16_t bits, bool bf16) {
  if (bf16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  return __half2float(__ushort_as_half(bits));
}
float to_float_host(uint16_t bits, bool bf16) {
  if (bf16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  return __half2float(__ushort_as_half(bits));
}

// About normal: the sum of four uniform numbers, times `scale`.
__global__ void fill_random(uint16_t* data, size_t n, uint64_t seed, float scale, bool bf16) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = seed + i * 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
    float sum = 0;
    for (int k = 0; k < 4; ++k)
      sum += static_cast<float>((x >> (16 * k)) & 0xFFFF) / 65536.0F - 0.5F;
    sum *= 1.732F * scale;
    data[i] =
        bf16 ? __bfloat16_as_ushort(__float2bfloat16(sum)) : __half_as_ushort(__float2half(sum));
  }
}

struct Case {
  std::string name;
  int q_heads, kv_heads, dim, page_size;
  bool bf16, nhd, causal;
  std::vector<std::pair<int, int>> rows;  // query length, keys
  int source;                             // 0 pages, 1 ragged, 2 alternating
  bool lse = true;
  float scale_q = 1.0F;
};

// Element i of a cell's K, then V, as KvView::element() has it.
__device__ int64_t content(const PrefillPages& pages, int token, int64_t i) {
  return pages.swizzled ? i ^ token % 8 * 8 : i;
}

// Copies a row's activations k, v into its pages; cells that no key takes keep the poison.
struct PageFill {
  const uint16_t *k, *v;
  uint16_t* pool;
  PrefillPages pages;
  int page_size, kv_heads, dim;
  int64_t stride;
};

// One block a (sampled token, head).
struct ReferenceParams {
  const uint16_t *q, *k_rows, *v_rows, *pool;
  const int32_t *page_indices, *sample_token, *sample_row;
  const int32_t* rows;  // q_begin, q_len, kv_len, kv_begin, ragged
  PrefillPages pages;
  int q_heads, kv_heads, dim, page_size;
  int64_t q_stride, kv_stride;
  bool bf16, causal;
  double scale;
  float* out;  // [samples, q_heads, dim]
  float* lse;
};
__global__ void reference_kernel(ReferenceParams p) {
  extern __shared__ float scores[];
  __shared__ double part[128];
  const int head = blockIdx.y;
  const int token = p.sample_token[blockIdx.x];
  const int32_t* row = p.rows + 5 * p.sample_row[blockIdx.x];
  const int t = token - row[0];
  const int kv_len = row[2];
  const int visible = p.causal ? max(0, kv_len - row[1] + t + 1) * (kv_len > 0) : kv_len;
  const int kv_head = head / (p.q_heads / p.kv_heads);
  auto load = [&](int key, bool is_v, int d) {
    if (row[4] != 0) {
      const uint16_t* rows = is_v ? p.v_rows : p.k_rows;
      return to_float(rows[(row[3] + key) * p.kv_stride + kv_head * p.dim + d], p.bf16);
    }
    const int64_t page = p.page_indices[row[3] + key / p.page_size];
    const int token = key % p.page_size;
    const int64_t cell =
        page * p.pages.page_stride + kv_head * p.pages.head_stride + token * p.pages.token_stride;
    return to_float(p.pool[cell + content(p.pages, token, (is_v ? p.pages.v_offset : 0) + d)],
                    p.bf16);
  };
  const uint16_t* q = p.q + token * p.q_stride + head * p.dim;
  double best = -INFINITY;
  for (int key = threadIdx.x; key < visible; key += blockDim.x) {
    double sum = 0;
    for (int d = 0; d < p.dim; ++d) {
      sum += static_cast<double>(to_float(q[d], p.bf16)) * load(key, false, d);
    }
    scores[key] = static_cast<float>(sum * p.scale);
    best = fmax(best, static_cast<double>(scores[key]));
  }
  part[threadIdx.x] = best;
  __syncthreads();
  for (int i = 0; i < blockDim.x; ++i) best = fmax(best, part[i]);
  __syncthreads();
  double sum = 0;
  for (int key = threadIdx.x; key < visible; key += blockDim.x) sum += exp(scores[key] - best);
  part[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < blockDim.x; ++i) sum += part[i];
  const int64_t at = blockIdx.x * static_cast<int64_t>(p.q_heads) + head;
  for (int d = threadIdx.x; d < p.dim; d += blockDim.x) {
    double value = 0;
    for (int key = 0; key < visible; ++key) {
      value += exp(scores[key] - best) * load(key, true, d);
    }
    p.out[at * p.dim + d] = visible > 0 ? static_cast<float>(value / sum) : 0.0F;
  }
  if (threadIdx.x == 0) p.lse[at] = visible > 0 ? static_cast<float>(best + log(sum)) : -INFINITY;
}

__global__ void fill_pages(
    PageFill p, const int32_t* page_indices, int page_begin, int token_begin, int kv_len) {
  const int64_t n = static_cast<int64_t>(kv_len) * p.kv_heads * p.dim;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int d = static_cast<int>(i % p.dim);
    const int head = static_cast<int>(i / p.dim % p.kv_heads);
    const int key = static_cast<int>(i / p.dim / p.kv_heads);
    const int64_t page = page_indices[page_begin + key / p.page_size];
    const int token = key % p.page_size;
    uint16_t* cell = p.pool + page * p.pages.page_stride + head * p.pages.head_stride +
                     token * p.pages.token_stride;
    const int64_t from = (token_begin + key) * p.stride + head * p.dim + d;
    cell[content(p.pages, token, d)] = p.k[from];
    cell[content(p.pages, token, p.pages.v_offset + d)] = p.v[from];
  }
}

using Launch = std::function<cudaError_t(const PrefillParams&, cudaStream_t)>;
struct Variant {
  const char* name;
  Launch launch;
  int tile_rows = 0;  // 0: as the default's
  bool wide = false;  // pages only
};
template <class Traits>
Variant variant(const char* name) {
  return {name, launch_prefill_as<Traits>, Traits::kRows, Traits::kWide};
}

// Inputs, pages and the plan of a case, on the device.
struct Setup {
  const Case& test;
  PrefillParams params;
  std::vector<PrefillRow> rows;
  int tokens = 0;
  double flops = 0;
  std::vector<std::function<void()>> owned;  // keeps arrays alive, frees them
  DeviceArray<uint16_t>*q, *kv, *pool, *out;
  DeviceArray<float>* lse;
  DeviceArray<int32_t>*indices, *counters;
  int64_t num_pages = 0;

  template <class T, class A>
  DeviceArray<T>* keep(const A& a) {
    auto* array = new DeviceArray<T>(a);
    owned.push_back([array] { delete array; });
    return array;
  }
  ~Setup() {
    for (auto& release : owned) release();
  }

  Setup(const Case& c, uint64_t seed) : test(c) {
    std::mt19937_64 random(seed);
    int64_t kv_tokens = 0;
    std::vector<int32_t> pages;
    for (auto [q_len, kv_len] : c.rows) {
      num_pages += (kv_len + c.page_size - 1) / c.page_size;
      kv_tokens += kv_len;
    }
    num_pages += 3;
    std::vector<int32_t> order(num_pages);
    for (int64_t i = 0; i < num_pages; ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    // k and v have kv_tokens rows (ragged rows may see more keys than queries here).
    size_t next_page = 0;
    int64_t next_key = 0;
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const auto [q_len, kv_len] = c.rows[i];
      const bool ragged = c.source == 1 || (c.source == 2 && i % 2 == 0);
      PrefillRow row{tokens, q_len, kv_len, 0, ragged};
      row.kv_begin = ragged ? static_cast<int32_t>(next_key) : static_cast<int32_t>(pages.size());
      for (int p = 0; p < (kv_len + c.page_size - 1) / c.page_size; ++p) {
        pages.push_back(order[next_page++]);
      }
      rows.push_back(row);
      tokens += q_len;
      next_key += kv_len;
      for (int t = 0; t < q_len; ++t) {
        const int visible = kv_len == 0 ? 0 : c.causal ? kv_len - q_len + t + 1 : kv_len;
        flops += 4.0 * c.q_heads * c.dim * visible;
      }
    }
    const int64_t all = std::max<int64_t>(kv_tokens, tokens);
    const int64_t row_stride = (c.q_heads + 2 * c.kv_heads) * c.dim;
    q = keep<uint16_t>(static_cast<size_t>(all * row_stride));
    kv = q;  // slices of one fused activation
    fill_random<<<1024, 256>>>(q->data, q->size, seed, c.scale_q, c.bf16);
    PrefillShape shape{c.q_heads, c.kv_heads, c.dim, c.page_size, c.bf16};
    params.shape = shape;
    params.causal = c.causal;
    params.scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
    params.num_tokens = static_cast<int32_t>(all);
    params.q = q->data;
    params.q_stride = row_stride;
    params.k = q->data + c.q_heads * c.dim;
    params.v = q->data + (c.q_heads + c.kv_heads) * c.dim;
    params.k_stride = params.v_stride = row_stride;
    const int64_t cell = 2 * c.dim;
    pool = keep<uint16_t>(static_cast<size_t>(num_pages * c.page_size * c.kv_heads * cell));
    CHECK_CUDA(cudaMemset(pool->data, 0xFF, pool->size * 2));  // NaN in both types
    params.pages.base = pool->data;
    params.pages.num_pages = num_pages;
    params.pages.page_stride = c.page_size * c.kv_heads * cell;
    params.pages.head_stride = c.nhd ? cell : c.page_size * cell;
    params.pages.token_stride = c.nhd ? c.kv_heads * cell : cell;
    params.pages.v_offset = c.dim;
    // As the engine has it where it can.
    params.pages.swizzled = !c.nhd && c.dim % 64 == 0 && c.page_size % 16 == 0;
    indices = keep<int32_t>(pages);
    PageFill fill{static_cast<const uint16_t*>(params.k),
                  static_cast<const uint16_t*>(params.v),
                  pool->data,
                  params.pages,
                  c.page_size,
                  c.kv_heads,
                  c.dim,
                  row_stride};
    next_key = 0;
    for (const PrefillRow& row : rows) {
      if (!row.ragged && row.kv_len > 0) {
        fill_pages<<<1024, 256>>>(fill, indices->data, row.kv_begin, static_cast<int>(next_key),
                                  row.kv_len);
      }
      next_key += row.kv_len;
    }
    out = keep<uint16_t>(static_cast<size_t>(tokens) * c.q_heads * c.dim);
    lse = keep<float>(static_cast<size_t>(tokens) * c.q_heads);
    params.out = out->data;
    params.out_stride = c.q_heads * c.dim;
    params.lse = c.lse ? lse->data : nullptr;
    params.page_indices = indices->data;
    counters = keep<int32_t>(std::vector<int32_t>(2, 0));
    params.counters = counters->data;
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  PrefillParams planned(const Variant& variant) {
    std::vector<PrefillTile> host(static_cast<size_t>(
        max_prefill_tiles(params.shape, tokens, static_cast<int64_t>(rows.size()))));
    std::vector<PrefillRow> sorted = rows;
    const int tile_tokens = variant.tile_rows == 0 ? prefill_tile_tokens(params.shape)
                                                   : variant.tile_rows / prefill_pack(params.shape);
    PrefillParams out = params;
    out.plan = plan_prefill_tiles(params.shape, tile_tokens, params.causal, sorted, host);
    host.resize(static_cast<size_t>(out.plan.num_tiles));
    out.tiles = keep<PrefillTile>(host)->data;
    return out;
  }
};

// Relative error of the sampled outputs; false and a line when it is too large.
bool check(const Case& c, const Variant& variant, bool print_always) {
  if (variant.wide && c.source != 0) return true;
  Setup setup(c, 1234);
  const PrefillParams params = setup.planned(variant);
  const size_t out_size = setup.out->size;
  CHECK_CUDA(cudaMemset(setup.out->data, 0xFF, out_size * 2));
  CHECK_CUDA(cudaMemset(setup.lse->data, 0xFF, setup.lse->size * 4));
  CHECK_CUDA(variant.launch(params, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> got = setup.out->host();
  const std::vector<float> got_lse = setup.lse->host();
  // A second launch: the counters must be ready again, the bits the same.
  CHECK_CUDA(cudaMemset(setup.out->data, 0xFF, out_size * 2));
  CHECK_CUDA(variant.launch(params, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  const bool same = std::memcmp(setup.out->host().data(), got.data(), out_size * 2) == 0;

  std::mt19937 random(7);
  std::vector<int32_t> sample_token, sample_row, flat_rows;
  int max_kv = 1;
  for (size_t i = 0; i < setup.rows.size(); ++i) {
    const PrefillRow& row = setup.rows[i];
    for (int value : {row.q_begin, row.q_len, row.kv_len, row.kv_begin, row.ragged ? 1 : 0})
      flat_rows.push_back(value);
    max_kv = std::max(max_kv, row.kv_len);
    for (int t = 0; t < row.q_len; ++t) {
      const bool edge = t < 2 || t + 2 >= row.q_len || t % 128 == 127 || t % 128 == 0;
      if (edge || row.q_len <= 160 || random() % (1 + row.q_len / 100) == 0) {
        sample_token.push_back(row.q_begin + t);
        sample_row.push_back(static_cast<int32_t>(i));
      }
    }
  }
  DeviceArray<int32_t> d_token(sample_token), d_row(sample_row), d_rows(flat_rows);
  DeviceArray<float> ref_out(sample_token.size() * c.q_heads * c.dim),
      ref_lse(sample_token.size() * c.q_heads);
  ReferenceParams ref{setup.q->data,
                      static_cast<const uint16_t*>(setup.params.k),
                      static_cast<const uint16_t*>(setup.params.v),
                      setup.pool->data,
                      setup.indices->data,
                      d_token.data,
                      d_row.data,
                      d_rows.data,
                      setup.params.pages,
                      c.q_heads,
                      c.kv_heads,
                      c.dim,
                      c.page_size,
                      setup.params.q_stride,
                      setup.params.k_stride,
                      c.bf16,
                      c.causal,
                      setup.params.scale,
                      ref_out.data,
                      ref_lse.data};
  CHECK_CUDA(cudaFuncSetAttribute(reference_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  200 * 1024));
  reference_kernel<<<dim3(static_cast<unsigned>(sample_token.size()), c.q_heads), 128,
                     max_kv * 4>>>(ref);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  const std::vector<float> want = ref_out.host(), want_lse = ref_lse.host();
  double diff = 0, norm = 0, lse_diff = 0, worst = 0;
  std::string where;
  int bad_rows = 0;
  for (size_t i = 0; i < sample_token.size(); ++i) {
    for (int h = 0; h < c.q_heads; ++h) {
      double row_diff = 0, row_norm = 0;
      for (int d = 0; d < c.dim; ++d) {
        const double a = to_float_host(
            got[(static_cast<size_t>(sample_token[i]) * c.q_heads + h) * c.dim + d], c.bf16);
        const double b = want[(i * c.q_heads + h) * c.dim + d];
        row_diff += (a - b) * (a - b);
        row_norm += b * b;
      }
      diff += row_diff;
      norm += row_norm;
      const double relative = std::sqrt(row_diff / std::max(row_norm, 1e-30));
      if (!(relative <= 0.05)) ++bad_rows;
      if (!(relative <= worst) && where.size() < 100) {
        worst = relative;
        where = "row " + std::to_string(sample_row[i]) + " token " +
                std::to_string(sample_token[i] - setup.rows[sample_row[i]].q_begin) + " head " +
                std::to_string(h);
      }
      if (c.lse) {
        const float a = got_lse[static_cast<size_t>(sample_token[i]) * c.q_heads + h],
                    b = want_lse[i * c.q_heads + h];
        if (a != b)
          lse_diff = std::isfinite(a) ? std::max(lse_diff, std::fabs(static_cast<double>(a) - b))
                                      : INFINITY;
      }
    }
  }
  const double relative = norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
  const bool ok =
      relative <= (c.bf16 ? 6e-3 : 1e-3) && (!c.lse || lse_diff <= 2e-3) && same && bad_rows == 0;
  if (!ok || print_always) {
    std::printf("%-4s %-10s %-26s rel %.2e lse %.1e worst row %.1e at %s (%d of %zu bad)%s\n",
                ok ? "ok" : "BAD", variant.name, c.name.c_str(), relative, lse_diff, worst,
                where.c_str(), bad_rows, sample_token.size() * c.q_heads,
                same ? "" : " DIFFERS BETWEEN LAUNCHES");
    std::fflush(stdout);
  }
  return ok;
}

std::vector<Case> check_cases(bool all) {
  std::vector<Case> cases;
  auto add = [&](std::string name, int hq, int hkv, int d, int page, bool bf16, bool nhd,
                 std::vector<std::pair<int, int>> rows, int source, bool causal = true,
                 bool lse = true, float scale_q = 1) {
    cases.push_back({std::move(name), hq, hkv, d, page, bf16, nhd, causal, std::move(rows), source,
                     lse, scale_q});
  };
  const std::vector<std::pair<int, int>> mixed = {{300, 300}, {1, 1},      {17, 500}, {128, 128},
                                                  {5, 2000},  {257, 1025}, {33, 0}};
  if (!all) {
    add("one block ragged", 1, 1, 128, 16, true, true, {{128, 128}}, 1, false);
    add("one block paged", 1, 1, 128, 16, true, true, {{128, 128}}, 0, false);
    add("two blocks", 1, 1, 128, 16, true, true, {{128, 256}}, 1, false);
    add("causal 512", 4, 1, 128, 16, true, true, {{512, 512}}, 0);
    add("mixed", 8, 2, 128, 16, true, true, mixed, 2);
    add("mixed paged", 8, 2, 128, 16, true, true, mixed, 0);
    add("mixed paged hnd", 8, 2, 128, 32, true, false, mixed, 0);
    add("mixed d64", 8, 2, 64, 16, true, true, mixed, 2);
    return cases;
  }
  for (int d : {64, 80, 96, 128, 192, 256, 72, 160}) {
    for (int source : {0, 1, 2}) {
      add("d" + std::to_string(d) + " mixed src " + std::to_string(source), 8, 2, d, 16, true, true,
          mixed, source);
    }
    add("d" + std::to_string(d) + " f16", 8, 2, d, 16, false, false, mixed, 2);
    add("d" + std::to_string(d) + " page 1", 8, 2, d, 1, true, true, mixed, 2);
  }
  for (int page : {1, 5, 8, 24, 32, 64, 96, 128, 256}) {
    add("page " + std::to_string(page) + " nhd", 8, 2, 128, page, true, true, mixed, 0);
    add("page " + std::to_string(page) + " hnd f16", 8, 2, 128, page, false, false, mixed, 2);
  }
  for (int group : {1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128}) {
    add("group " + std::to_string(group), 2 * group, 2, 128, 16, true, true, mixed, 2);
    add("group " + std::to_string(group) + " d64", group, 1, 64, 16, true, true, mixed, 2);
  }
  add("full", 8, 2, 128, 16, true, true, mixed, 2, false);
  add("no lse", 8, 2, 128, 16, true, true, mixed, 2, true, false);
  add("large scores", 8, 2, 128, 16, true, true, mixed, 2, true, true, 8.0F);
  add("2q2k", 32, 8, 128, 16, true, true, {{2048, 2048}, {2048, 2048}}, 0);
  add("512q8k", 32, 8, 128, 16, true, true, {{512, 8192}, {512, 8192}, {100, 7777}}, 0);
  add("many short", 32, 8, 128, 16, true, true, std::vector<std::pair<int, int>>(200, {19, 19}), 2);
  add("long 16k", 8, 2, 128, 16, true, true, {{16384, 16384}}, 0);
  return cases;
}

// Median seconds of each variant; they take turns, so that a warmer chip hits all of them.
std::vector<double> time_launches(Setup& setup, const std::vector<Variant>& variants, int repeats) {
  std::vector<PrefillParams> params;
  for (const Variant& v : variants) params.push_back(setup.planned(v));
  constexpr int kRounds = 7;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<std::vector<float>> times(variants.size());
  for (int round = -1; round < kRounds; ++round) {  // the first warms up
    for (size_t i = 0; i < variants.size(); ++i) {
      CHECK_CUDA(cudaEventRecord(begin));
      for (int k = 0; k < repeats; ++k) CHECK_CUDA(variants[i].launch(params[i], nullptr));
      CHECK_CUDA(cudaEventRecord(end));
      CHECK_CUDA(cudaEventSynchronize(end));
      float ms = 0;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
      if (round >= 0) times[i].push_back(ms / static_cast<float>(repeats));
    }
  }
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::vector<double> medians;
  for (auto& of : times) {
    std::sort(of.begin(), of.end());
    medians.push_back(of[kRounds / 2] * 1e-3);
  }
  return medians;
}

// ---- probe: S = Q K^T and O = S V of one tile, operands written by hand ----

template <int N, int D>
__global__ void probe_kernel(
    const uint16_t* q, const uint16_t* k, const uint16_t* v, float* s_out, float* o_out) {
  extern __shared__ uint8_t raw[];
  const uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  uint8_t* bytes = raw + (base - ptx::shared_address(raw));
  const int q_at = 0, k_at = 64 * D * 2, v_at = k_at + N * D * 2;
  auto put = [&](int at, int rows, const uint16_t* from) {
    for (int i = threadIdx.x; i < rows * D; i += 128) {
      const int row = i / D, d = i % D;
      const int offset = at + (d / 64) * rows * 128 + row * 128 +
                         ((((d % 64) / 8) ^ (row & 7)) << 4) + (d % 8) * 2;
      *reinterpret_cast<uint16_t*>(bytes + offset) = from[i];
    }
  };
  put(q_at, 64, q);
  put(k_at, N, k);
  put(v_at, N, v);
  ptx::fence_async_shared();
  __syncthreads();
  float s[N / 2], o[D / 2];
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    ptx::Wgmma<N, true>::ss(
        s,
        ptx::k_major_operand(base + q_at, 1024) + (((step / 4) * 64 * 128 + (step % 4) * 32) >> 4),
        ptx::k_major_operand(base + k_at, 1024) + (((step / 4) * N * 128 + (step % 4) * 32) >> 4),
        step != 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(s);
  uint32_t p[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) p[i] = ptx::pack_16<true>(s[2 * i], s[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0;
  ptx::pin(o);
  ptx::pin(p);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < N / 16; ++step) {
    ptx::Wgmma<D, true>::rs(
        o, &p[4 * step], ptx::mn_major_operand(base + v_at, 1024, N * 128) + ((step * 2048) >> 4),
        true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(o);
  const int row = (threadIdx.x / 32) * 16 + (threadIdx.x % 32) / 4;
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    for (int e = 0; e < 4; ++e) {
      s_out[(row + 8 * (e / 2)) * N + 8 * j + 2 * (threadIdx.x % 4) + e % 2] = s[4 * j + e];
    }
  }
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    for (int e = 0; e < 4; ++e) {
      o_out[(row + 8 * (e / 2)) * D + 8 * j + 2 * (threadIdx.x % 4) + e % 2] = o[4 * j + e];
    }
  }
}

template <int N, int D>
void probe() {
  DeviceArray<uint16_t> q(64 * D), k(N * D), v(N * D);
  fill_random<<<64, 256>>>(q.data, q.size, 1, 1, true);
  fill_random<<<64, 256>>>(k.data, k.size, 2, 1, true);
  fill_random<<<64, 256>>>(v.data, v.size, 3, 1, true);
  DeviceArray<float> s(64 * N), o(64 * D);
  CHECK_CUDA(cudaFuncSetAttribute(probe_kernel<N, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  220 * 1024));
  probe_kernel<N, D><<<1, 128, 220 * 1024>>>(q.data, k.data, v.data, s.data, o.data);
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto hq = q.host(), hk = k.host(), hv = v.host();
  const auto hs = s.host(), ho = o.host();
  double s_diff = 0, s_norm = 0, o_diff = 0, o_norm = 0;
  std::string bad_s, bad_o;
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < N; ++c) {
      double want = 0;
      for (int d = 0; d < D; ++d)
        want += double(to_float_host(hq[r * D + d], true)) * to_float_host(hk[c * D + d], true);
      const double e = hs[r * N + c] - want;
      s_diff += e * e;
      s_norm += want * want;
      if (!(std::fabs(e) < 1e-2) && bad_s.size() < 200)
        bad_s += " (" + std::to_string(r) + "," + std::to_string(c) + ")";
    }
    for (int d = 0; d < D; ++d) {
      double want = 0;
      for (int c = 0; c < N; ++c) {
        const float p = __bfloat162float(__float2bfloat16(hs[r * N + c]));
        want += double(p) * to_float_host(hv[c * D + d], true);
      }
      const double e = ho[r * D + d] - want;
      o_diff += e * e;
      o_norm += want * want;
      if (!(std::fabs(e) < 1e-1) && bad_o.size() < 200)
        bad_o += " (" + std::to_string(r) + "," + std::to_string(d) + ")";
    }
  }
  std::printf("probe N %d D %d: scores rel %.1e%s outputs rel %.1e%s\n", N, D,
              std::sqrt(s_diff / s_norm), bad_s.c_str(), std::sqrt(o_diff / o_norm), bad_o.c_str());
  std::fflush(stdout);
}

int run(bool do_check, bool do_time, bool do_probe) {
  if (do_probe) {
    probe<128, 128>();
    probe<64, 256>();
    probe<96, 192>();
    probe<128, 64>();
  }
  constexpr auto kBulk = PrefillCopy::kBulk;
  constexpr auto kWide = PrefillCopy::kWide;
  constexpr auto kGather = PrefillCopy::kGather;
  //                        dim  keys wg  bf16  copy   turns overlap stages
  const std::vector<Variant> d128 = {
      {"default", launch_prefill},
      variant<PrefillTraits<128, 128, 2, true, kBulk, false, true, 2>>("overlap"),
      variant<PrefillTraits<128, 128, 2, true, kBulk, true, true, 3>>("3st"),
      variant<PrefillTraits<128, 160, 2, true, kBulk, false, true, 2>>("160 overlap"),
      variant<PrefillTraits<128, 64, 3, true, kBulk, false, true, 3>>("3wg overlap"),
      variant<PrefillTraits<128, 128, 2, true, kBulk, true, true, 2>>("narrow"),
      variant<PrefillTraits<128, 128, 2, true, kWide, false, true, 2>>("wide overlap"),
      variant<PrefillTraits<128, 128, 2, true, kWide, true, false, 2>>("wide turns"),
      variant<PrefillTraits<128, 128, 2, true, kWide, true, true, 3>>("wide 3st"),
      variant<PrefillTraits<128, 160, 2, true, kWide, true, true, 2>>("wide 160"),
      variant<PrefillTraits<128, 64, 3, true, kWide, true, true, 3>>("wide 3wg"),
  };
  const std::vector<Variant> d128_gather = {
      variant<PrefillTraits<128, 128, 2, true, kGather, false, true, 2>>("gather overlap"),
      variant<PrefillTraits<128, 128, 2, true, kGather, true, true, 2>>("gather"),
      variant<PrefillTraits<128, 128, 2, true, kGather, true, true, 3>>("gather 3stages")};
  const std::vector<Variant> d64 = {
      {"default", launch_prefill},
      variant<PrefillTraits<64, 128, 2, true, kBulk, false, true, 2>>("overlap"),
      variant<PrefillTraits<64, 128, 2, true, kBulk, true, false, 2>>("turns"),
      variant<PrefillTraits<64, 192, 2, true, kBulk, true, true, 2>>("192"),
      variant<PrefillTraits<64, 192, 2, true, kBulk, false, true, 2>>("192 overlap"),
      variant<PrefillTraits<64, 128, 3, true, kBulk, true, true, 2>>("3wg")};
  const std::vector<Variant> d192 = {
      {"default", launch_prefill},
      variant<PrefillTraits<192, 96, 2, true, kBulk, false, true>>("overlap")};
  const std::vector<Variant> d256 = {
      {"default", launch_prefill},
      variant<PrefillTraits<256, 64, 2, true, kBulk, false, true>>("overlap")};
  int bad = 0;
  if (do_check) {
    for (const Case& c : check_cases(false)) {
      for (const Variant& v : d64) bad += c.dim == 64 && !check(c, v, false) ? 1 : 0;
      if (c.dim != 128) continue;
      for (const Variant& v : d128) bad += check(c, v, false) ? 0 : 1;
      for (const Variant& v : d128_gather) bad += check(c, v, false) ? 0 : 1;
    }
    const std::vector<Case> cases = check_cases(true);
    for (const Case& c : cases) bad += check(c, {"default", launch_prefill}, false) ? 0 : 1;
    std::printf("check: %zu cases, %d bad\n", cases.size(), bad);
  }
  if (do_time) {
    struct Timed {
      const char* name;
      int q_heads, kv_heads, dim;
      std::vector<std::pair<int, int>> rows;
      int repeats;
      const std::vector<Variant>* variants;
      int sources = 3;  // bit 0: pages NHD, 1: ragged, 2: pages HND
    };
    const auto rows = [](int n, int q, int k) {
      return std::vector<std::pair<int, int>>(n, {q, k});
    };
    const std::vector<Timed> timed = {
        {"1x2048", 32, 8, 128, rows(1, 2048, 2048), 20, &d128, 7},
        {"8x8192", 32, 8, 128, rows(8, 8192, 8192), 2, &d128, 7},
        {"2x1024+2x3072",
         32,
         8,
         128,
         {{1024, 1024}, {1024, 1024}, {3072, 3072}, {3072, 3072}},
         10,
         &d128,
         1},
        {"16x1024", 32, 8, 128, rows(16, 1024, 1024), 10, &d128},
        {"32x512", 32, 8, 128, rows(32, 512, 512), 10, &d128},
        {"1x16384", 32, 8, 128, rows(1, 16384, 16384), 3, &d128},
        {"4x512q8k", 32, 8, 128, rows(4, 512, 8192), 10, &d128},
        {"64x16q2k", 32, 8, 128, rows(64, 16, 2048), 20, &d128},
        {"4x4096", 32, 8, 128, rows(4, 4096, 4096), 5, &d128_gather, 5},
        {"8x4096 d64", 32, 8, 64, rows(8, 4096, 4096), 5, &d64},
        {"8x4096 d96", 32, 8, 96, rows(8, 4096, 4096), 5, nullptr},
        {"8x4096 d192", 16, 16, 192, rows(8, 4096, 4096), 5, &d192},
        {"8x4096 d256", 16, 8, 256, rows(8, 4096, 4096), 5, &d256},
    };
    const std::vector<Variant> standard = {{"default", launch_prefill}};
    for (const Timed& t : timed) {
      for (int source : {0, 1, 2}) {
        if ((t.sources >> source & 1) == 0) continue;
        if (source == 1 && t.rows[0].first != t.rows[0].second) continue;
        const Case c{t.name, t.q_heads, t.kv_heads,          t.dim, 16, true, source == 0,
                     true,   t.rows,    source == 1 ? 1 : 0, false};
        Setup setup(c, 99);
        std::printf("%-12s %-6s", t.name, source == 0 ? "nhd" : source == 1 ? "ragged" : "hnd");
        std::vector<Variant> variants = t.variants != nullptr ? *t.variants : standard;
        std::erase_if(variants, [&](const Variant& v) { return v.wide && source == 1; });
        const std::vector<double> seconds = time_launches(setup, variants, t.repeats);
        for (size_t i = 0; i < variants.size(); ++i) {
          std::printf(" %s %.0f", variants[i].name, setup.flops / seconds[i] * 1e-12);
        }
        std::printf(" (%.1f us)", seconds[0] * 1e6);
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tenon::flash

int main(int argc, char** argv) {
  bool check = argc == 1, time = argc == 1, probe = argc == 1;
  for (int i = 1; i < argc; ++i) {
    check |= std::strcmp(argv[i], "check") == 0;
    time |= std::strcmp(argv[i], "time") == 0;
    probe |= std::strcmp(argv[i], "probe") == 0;
  }
  return tenon::flash::run(check, time, probe);
}
