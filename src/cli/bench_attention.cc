// tenon bench attention: plan and run times of attention backends on batches of the batch grammar.
//
// Keys and values are random and their pages shuffled. A measurement runs the batch once on each of
// several layers, each with keys and values of its own, as an engine does: together they are
// several times larger than the caches, so that none of them is found there. On a GPU the layers
// are one graph.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/registry.h"
#include "attention/synthetic_batch.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "cli/bench_load.h"
#include "cli/commands.h"
#include "kernels/ceilings.h"
#include "kv_cache/pool.h"
#include "tensor/device.h"

namespace tenon::cli {
namespace {

// What the layers' keys and values take together: several times the caches (L2 of an H200: 50 MB).
constexpr double kGpuCacheBytes = 192e6;
constexpr double kCpuCacheBytes = 64e6;
constexpr int64_t kMaxLayers = 64;
constexpr int64_t kLargeKv = int64_t{512} << 20;  // of one layer: no cache holds a part that counts
constexpr int kPlansARound = 20;
constexpr int kMinGpuRuns = 5;  // a round
constexpr int kMinCpuRuns = 1;
constexpr int64_t kFillTokens = 16384;

// A backend and how it is to work: "flash", "flashinfer:unified", "cpu:plain:int8".
struct Contender {
  std::string name;
  AttentionSplit split = AttentionSplit::kAuto;
  CascadeMode cascade = CascadeMode::kAuto;
  std::optional<DType> kv_dtype;
  std::string label;
};

constexpr std::pair<std::string_view, AttentionSplit> kSplits[] = {
    {"auto", AttentionSplit::kAuto},
    {"unified", AttentionSplit::kUnified},
    {"split", AttentionSplit::kSplit}};
constexpr std::pair<std::string_view, CascadeMode> kCascades[] = {{"plain", CascadeMode::kOff},
                                                                  {"cascade", CascadeMode::kOn}};
constexpr std::pair<std::string_view, DType> kKvDTypes[] = {{"f32", DType::kF32},
                                                            {"f16", DType::kF16},
                                                            {"bf16", DType::kBF16},
                                                            {"fp8", DType::kF8E4M3},
                                                            {"int8", DType::kI8}};

template <typename T, size_t N>
const T* find_word(const std::pair<std::string_view, T> (&words)[N], std::string_view word) {
  for (const auto& [name, value] : words) {
    if (name == word) return &value;
  }
  return nullptr;
}

// What follows the colons after a backend's name.
Status apply_words(std::string_view words, Contender& contender) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(':'), words.size());
    const std::string_view word = words.substr(0, end);
    if (const auto* split = find_word(kSplits, word)) {
      contender.split = *split;
    } else if (const auto* cascade = find_word(kCascades, word)) {
      contender.cascade = *cascade;
    } else if (const auto* dtype = find_word(kKvDTypes, word)) {
      contender.kv_dtype = *dtype;
    } else {
      return invalid_argument(
          "'{}' after a backend's name: expected auto, unified, split, plain, cascade, f32, f16, "
          "bf16, fp8 or int8",
          word);
    }
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return ok_status();
}

Result<std::vector<Contender>> parse_contenders(const AttentionBenchOptions& options,
                                                const AttentionRegistry& registry,
                                                DeviceType device) {
  std::vector<std::string> names;
  for (const std::string& list : options.backends) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      if (end > begin) names.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  if (names.empty()) {
    for (const BackendEntry& entry : registry.entries()) {
      const std::vector<DeviceType> devices = entry.make({})->info().devices;
      const bool can = std::find(devices.begin(), devices.end(), device) != devices.end();
      if (can && entry.name != "reference") names.push_back(entry.name);
    }
  }
  std::vector<Contender> contenders;
  for (const std::string& text : names) {
    Contender contender;
    const size_t colon = std::min(text.find(':'), text.size());
    contender.name = text.substr(0, colon);
    contender.label = text;
    if (options.split != "auto" && colon == text.size()) contender.label += ":" + options.split;
    std::string_view words = contender.label;
    words.remove_prefix(std::min(contender.name.size() + 1, words.size()));
    TENON_RETURN_IF_ERROR(apply_words(words, contender).with_context("--backends"));
    const auto& entries = registry.entries();
    if (std::none_of(entries.begin(), entries.end(),
                     [&](const BackendEntry& entry) { return entry.name == contender.name; })) {
      return invalid_argument("--backends: unknown attention backend '{}'", contender.name);
    }
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

// What the batch costs at least.
struct Work {
  double kv_bytes = 0;  // of one layer
  double bytes = 0;     // those, queries and output
  double flops = 0;     // of scores and weighted sums over visible keys
};

Work count_work(const std::vector<BatchSpecRow>& rows, const AttentionRequirements& r) {
  Work work;
  double tokens = 0;
  double keys = 0;
  for (const BatchSpecRow& row : rows) {
    const double q = row.query_len;
    const double context = row.seq_len - q;
    if (row.seq_len == 0) continue;
    tokens += q;
    keys += row.seq_len;
    work.flops +=
        2.0 * (r.head_dim_qk + r.head_dim_v) * r.num_q_heads * (q * context + q * (q + 1) / 2);
  }
  // What rows share has to be read once.
  const bool shared = std::any_of(rows.begin(), rows.end(),
                                  [](const BatchSpecRow& row) { return row.term_prefix > 0; });
  if (shared) keys = static_cast<double>((blocks_needed(rows, r.block_size) - 1) * r.block_size);
  const int64_t cell = int64_t{r.num_kv_heads} * (r.head_dim_qk + r.head_dim_v);
  work.kv_bytes = keys * static_cast<double>(dtype_bytes(r.kv_dtype, cell));
  work.bytes = work.kv_bytes + tokens * r.num_q_heads * (r.head_dim_qk + r.head_dim_v) *
                                   static_cast<double>(dtype_bytes(r.q_dtype, 1));
  return work;
}

// Everything of one batch and block size that the contenders share.
class Workload {
 public:
  struct Shape {
    AttentionRequirements requirements;
    std::vector<BatchSpecRow> rows;
  };

  static Result<std::unique_ptr<Workload>> create(Device& device, Shape shape) {
    auto workload = std::unique_ptr<Workload>(new Workload(device, std::move(shape)));
    TENON_RETURN_IF_ERROR(workload->fill());
    return workload;
  }

  [[nodiscard]] const std::vector<BatchSpecRow>& rows() const { return shape_.rows; }
  [[nodiscard]] int64_t layers() const { return layers_; }
  [[nodiscard]] const AttentionRequirements& requirements() const { return shape_.requirements; }
  // The same rows on other pages, so that no plan is the last one.
  [[nodiscard]] const BatchView& view(size_t i) const { return batches_[i % 2].view; }
  [[nodiscard]] AttentionLimits limits() const {
    const BatchView& b = batches_[0].view;
    return {std::max(1, b.num_rows()), std::max(1, b.num_tokens()), std::max(1, b.max_seq_len)};
  }
  [[nodiscard]] bool uniform_decode() const {
    return std::all_of(shape_.rows.begin(), shape_.rows.end(),
                       [](const BatchSpecRow& row) { return row.query_len == 1; });
  }
  [[nodiscard]] AttentionInput input() const {
    const AttentionRequirements& r = requirements();
    const int64_t q = int64_t{r.num_q_heads} * r.head_dim_qk;
    const int64_t k = int64_t{r.num_kv_heads} * r.head_dim_qk;
    const int64_t v = int64_t{r.num_kv_heads} * r.head_dim_v;
    const int64_t tokens = batches_[0].view.num_tokens();
    const TensorView all = TensorView::dense(activations_.data(), r.q_dtype, {tokens, q + k + v});
    AttentionInput in;
    in.q = all.columns(0, q);
    in.k = all.columns(q, k);
    in.v = all.columns(q + k, v);
    in.out =
        TensorView::dense(out_.data(), r.q_dtype, {tokens, int64_t{r.num_q_heads} * r.head_dim_v});
    return in;
  }
  // The cells for a layout; new ones get random keys and values through `write`.
  using Writer = std::function<void(
      int32_t layer, const TensorView& k, const TensorView& v, std::span<const int64_t> slots)>;
  Result<const KvPool*> pool(KvLayout layout, DType kv_dtype) {
    const std::pair key(layout, kv_dtype);
    if (const auto found = pools_.find(key); found != pools_.end()) return &found->second;
    const AttentionRequirements& r = requirements();
    const KvCacheSpec spec = {static_cast<int32_t>(layers_),
                              r.num_kv_heads,
                              r.head_dim_qk,
                              r.head_dim_v,
                              r.block_size,
                              kv_dtype};
    TENON_ASSIGN_OR_RETURN(KvPool made,
                           KvPool::create(spec, layout, num_blocks_,
                                          [&](size_t bytes) { return device_.allocate(bytes); }));
    return &pools_.emplace(key, std::move(made)).first->second;
  }
  Status fill_pool(const KvPool& pool, const Writer& write);

 private:
  Workload(Device& device, Shape shape) : device_(device), shape_(std::move(shape)) {
    work_ = count_work(shape_.rows, shape_.requirements);
    const double cache = device.type() == DeviceType::kCpu ? kCpuCacheBytes : kGpuCacheBytes;
    const auto wanted = static_cast<int64_t>(std::ceil(cache / std::max(1.0, work_.kv_bytes)));
    layers_ = work_.kv_bytes >= static_cast<double>(kLargeKv)
                  ? 1
                  : std::clamp(wanted, int64_t{2}, kMaxLayers);
    const int32_t block_size = shape_.requirements.block_size;
    num_blocks_ = blocks_needed(shape_.rows, block_size);
    batches_[0] = make_batch(shape_.rows, block_size, num_blocks_, 1);
    batches_[1] = make_batch(shape_.rows, block_size, num_blocks_, 2);
    for (SyntheticBatch& batch : batches_) share_prefixes(batch, block_size);
  }
  Status fill();

  Device& device_;
  const Shape shape_;
  Work work_;
  int64_t layers_ = 1;
  int64_t num_blocks_ = 0;
  SyntheticBatch batches_[2];
  Buffer activations_, out_;
  std::map<std::pair<KvLayout, DType>, KvPool> pools_;
};

// Random numbers of `dtype` in device memory.
Result<Buffer> random_buffer(Device& device, DType dtype, int64_t count) {
  TENON_ASSIGN_OR_RETURN(Buffer buffer,
                         device.allocate(static_cast<size_t>(dtype_bytes(dtype, count))));
  // One stretch of them, again and again.
  const std::vector<float> values =
      random_floats(static_cast<size_t>(std::min<int64_t>(count, int64_t{1} << 22)), 3);
  const auto width = static_cast<size_t>(dtype_bytes(dtype, 1));
  std::vector<std::byte> bytes(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * width], &values[i], width);
    } else {
      const uint16_t bits = dtype == DType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      std::memcpy(&bytes[i * width], &bits, width);
    }
  }
  for (size_t begin = 0; begin < buffer.size(); begin += bytes.size()) {
    device.write(buffer.data() + begin, bytes.data(),
                 std::min(bytes.size(), buffer.size() - begin));
  }
  return buffer;
}

Status Workload::fill() {
  const AttentionRequirements& r = requirements();
  const int64_t tokens = batches_[0].view.num_tokens();
  const int64_t kv = int64_t{r.num_kv_heads} * (r.head_dim_qk + r.head_dim_v);
  const int64_t qkv = int64_t{r.num_q_heads} * r.head_dim_qk + kv;
  TENON_ASSIGN_OR_RETURN(
      activations_, random_buffer(device_, r.q_dtype, std::max(tokens * qkv, kFillTokens * kv)));
  TENON_ASSIGN_OR_RETURN(out_, device_.allocate(static_cast<size_t>(
                                   dtype_bytes(r.q_dtype, tokens * r.num_q_heads * r.head_dim_v))));
  return ok_status();
}

Status Workload::fill_pool(const KvPool& pool, const Writer& write) {
  const AttentionRequirements& r = requirements();
  const int64_t k = int64_t{r.num_kv_heads} * r.head_dim_qk;
  const int64_t v = int64_t{r.num_kv_heads} * r.head_dim_v;
  const int64_t cells = num_blocks_ * r.block_size;
  std::vector<int64_t> slots(static_cast<size_t>(std::min(cells, kFillTokens)));
  for (int64_t begin = 0; begin < cells; begin += kFillTokens) {
    const int64_t count = std::min(kFillTokens, cells - begin);
    for (int64_t i = 0; i < count; ++i) slots[static_cast<size_t>(i)] = begin + i;
    TENON_ASSIGN_OR_RETURN(
        const Buffer on_device,
        to_device<int64_t>(device_, std::span(slots).first(static_cast<size_t>(count))));
    const TensorView kv = TensorView::dense(activations_.data(), r.q_dtype, {count, k + v});
    for (int32_t layer = 0; layer < pool.spec().num_layers; ++layer) {
      write(layer, kv.columns(0, k), kv.columns(k, v),
            {on_device.as<const int64_t>(), static_cast<size_t>(count)});
    }
    TENON_RETURN_IF_ERROR(device_.synchronize());
  }
  return ok_status();
}

// One contender on one workload.
class Entrant {
 public:
  static Result<std::unique_ptr<Entrant>> create(const AttentionRegistry& registry,
                                                 const Contender& contender,
                                                 Workload& workload,
                                                 BackendContext context) {
    context.split = contender.split;
    context.cascade = contender.cascade;
    context.requirements = workload.requirements();
    context.requirements.cascade = contender.cascade == CascadeMode::kOn;
    if (contender.kv_dtype) context.requirements.kv_dtype = *contender.kv_dtype;
    auto entrant = std::unique_ptr<Entrant>(new Entrant(*context.device, workload));
    entrant->kv_dtype_ = context.requirements.kv_dtype;
    entrant->work_ = count_work(workload.rows(), context.requirements);
    for (const BackendEntry& entry : registry.entries()) {
      if (entry.name == contender.name) entrant->backend_ = entry.make(context);
    }
    const std::vector<std::string> reasons = entrant->backend_->check(context.requirements);
    if (!reasons.empty()) return unsupported("{}", reasons.front());
    TENON_RETURN_IF_ERROR(entrant->prepare());
    return entrant;
  }

  Status run_round(double seconds) {
    for (size_t i = kPlansARound; i-- > 0;) {  // ends with plan 0, which the graph was made for
      TENON_RETURN_IF_ERROR(device_.synchronize());
      const double start = now_seconds();
      TENON_ASSIGN_OR_RETURN(metadata_, backend_->build_metadata(workload_.view(i), bounds()));
      plan_seconds.push_back(now_seconds() - start);
    }
    double spent = 0;
    const int min_runs = device_.type() == DeviceType::kCpu ? kMinCpuRuns : kMinGpuRuns;
    for (int i = 0; i < min_runs || spent < seconds; ++i) {
      timer_->start();
      if (graph_ != nullptr) {
        graph_->launch();
      } else {
        enqueue();
      }
      timer_->stop();
      TENON_RETURN_IF_ERROR(device_.synchronize());
      run_seconds.push_back(timer_->seconds() / static_cast<double>(layers_.size()));
      spent += timer_->seconds();
    }
    return ok_status();
  }

  [[nodiscard]] std::string describe() const { return metadata_->describe(); }
  [[nodiscard]] const Work& work() const { return work_; }
  [[nodiscard]] KvLayout layout() const { return resolve_kv_layout(*backend_); }
  std::vector<double> plan_seconds, run_seconds;  // the latter of one layer

 private:
  Entrant(Device& device, Workload& workload) : device_(device), workload_(workload) {}

  Status prepare() {
    TENON_RETURN_IF_ERROR(backend_->prepare(workload_.limits()));
    TENON_ASSIGN_OR_RETURN(const KvPool* pool, workload_.pool(layout(), kv_dtype_));
    const AttentionRequirements& r = workload_.requirements();
    for (int32_t layer = 0; layer < workload_.layers(); ++layer) {
      LayerParams params;
      params.layer = layer;
      params.num_q_heads = r.num_q_heads;
      params.num_kv_heads = r.num_kv_heads;
      params.head_dim_qk = r.head_dim_qk;
      params.head_dim_v = r.head_dim_v;
      params.scale = 1.0F / std::sqrt(static_cast<float>(r.head_dim_qk));
      params.kv = pool->view(layer);
      layers_.push_back(backend_->make_impl(params));
    }
    TENON_RETURN_IF_ERROR(
        workload_.fill_pool(*pool, [&](int32_t layer, const TensorView& k, const TensorView& v,
                                       std::span<const int64_t> slots) {
          layers_[static_cast<size_t>(layer)]->write_kv(k, v, slots);
        }));
    if (workload_.uniform_decode() && device_.type() == DeviceType::kCuda &&
        backend_->info().graphs != GraphSupport::kNever) {
      bounds_.num_rows = workload_.view(0).num_rows();
    }
    timer_ = device_.make_timer();
    auto planned = backend_->build_metadata(workload_.view(0), bounds());
    if (!planned.ok() && planned.status().code() == StatusCode::kFailedPrecondition) {
      bounds_.num_rows = 0;  // the engine runs such steps without a graph
      planned = backend_->build_metadata(workload_.view(0), bounds());
    }
    TENON_ASSIGN_OR_RETURN(metadata_, std::move(planned));
    enqueue();
    TENON_RETURN_IF_ERROR(device_.synchronize());
    if (device_.type() == DeviceType::kCpu) return ok_status();
    TENON_RETURN_IF_ERROR(device_.begin_capture());
    enqueue();
    TENON_ASSIGN_OR_RETURN(graph_, device_.end_capture());
    return ok_status();
  }

  void enqueue() {
    const AttentionInput in = workload_.input();
    for (const auto& layer : layers_) layer->forward(in, *metadata_);
  }
  [[nodiscard]] const GraphBounds* bounds() const {
    return bounds_.num_rows > 0 ? &bounds_ : nullptr;
  }

  Device& device_;
  Workload& workload_;
  Work work_;
  DType kv_dtype_ = DType::kF16;
  std::unique_ptr<AttentionBackend> backend_;
  std::vector<std::unique_ptr<AttentionImpl>> layers_;
  GraphBounds bounds_;  // as the engine plans steps of single tokens
  const AttentionMetadata* metadata_ = nullptr;
  std::unique_ptr<DeviceGraph> graph_;
  std::unique_ptr<StreamTimer> timer_;
};

Result<AttentionRequirements> make_requirements(const AttentionBenchOptions& options,
                                                DeviceType device) {
  AttentionRequirements r;
  const bool gpu = device == DeviceType::kCuda;
  r.device = device;
  switch (options.dtype) {
    case ModelDType::kAuto: r.q_dtype = gpu ? DType::kBF16 : DType::kF32; break;
    case ModelDType::kFloat32: r.q_dtype = DType::kF32; break;
    case ModelDType::kBFloat16: r.q_dtype = DType::kBF16; break;
    case ModelDType::kFloat16: r.q_dtype = DType::kF16; break;
  }
  switch (options.kv_cache_dtype) {
    case KvCacheDType::kAuto: r.kv_dtype = gpu ? r.q_dtype : DType::kF16; break;
    case KvCacheDType::kF32: r.kv_dtype = DType::kF32; break;
    case KvCacheDType::kF16: r.kv_dtype = DType::kF16; break;
    case KvCacheDType::kBF16: r.kv_dtype = DType::kBF16; break;
    case KvCacheDType::kFp8: r.kv_dtype = DType::kF8E4M3; break;
    case KvCacheDType::kInt8: r.kv_dtype = DType::kI8; break;
  }
  r.head_dim_qk = r.head_dim_v = options.head_dim;
  r.num_q_heads = options.num_heads;
  r.num_kv_heads = options.num_kv_heads;
  if (options.num_heads % options.num_kv_heads != 0) {
    return invalid_argument("--num-heads {} is not a multiple of --num-kv-heads {}",
                            options.num_heads, options.num_kv_heads);
  }
  return r;
}

class Report {
 public:
  Report(const AttentionBenchOptions& options, const Ceilings& ceilings, const Device& device)
      : ceilings_(ceilings), quiet_(options.json == "-") {
    const bool gpu = device.type() == DeviceType::kCuda;
    json_ = {{"device", device.info().name},
             {"read_bytes_per_second", ceilings.read_bytes_per_second},
             {"flops_name", ceilings.flops_name},
             {"flops_per_second", ceilings.flops_per_second},
             {"num_heads", options.num_heads},
             {"num_kv_heads", options.num_kv_heads},
             {"head_dim", options.head_dim},
             {"rows", nlohmann::ordered_json::array()}};
    if (quiet_) return;
    std::printf("%s, %d/%d heads of %d | ceilings: %.1f GB/s read, %s %.2f TFLOP/s\n",
                device.info().name.c_str(), options.num_heads, options.num_kv_heads,
                options.head_dim, ceilings.read_bytes_per_second * 1e-9,
                ceilings.flops_name.c_str(), ceilings.flops_per_second * 1e-12);
    std::printf("%s\n", gpu ? "Medians; the layers of a graph replayed, each with keys of its own."
                            : "Medians of wall time.");
    std::printf("| %-18s | %5s | %-18s | %8s | %8s | %10s | %-21s | %8s | %8s | %6s |\n", "batch",
                "block", "backend", "plan us", "max", "run us", "min .. max", "GB/s", "TFLOP/s",
                "limit");
    std::printf(
        "| ------------------ | ----: | ------------------ | -------: | -------: | "
        "---------: | --------------------- | -------: | -------: | -----: |\n");
  }

  void refused(const std::string& batch,
               int32_t block_size,
               const std::string& backend,
               const std::string& reason) {
    json_["rows"].push_back(
        {{"batch", batch}, {"block_size", block_size}, {"backend", backend}, {"refused", reason}});
    if (quiet_) return;
    std::printf("| %-18s | %5d | %-18s | not possible: %s\n", batch.c_str(), block_size,
                backend.c_str(), reason.c_str());
  }

  void add(const std::string& batch,
           const Workload& workload,
           const std::string& backend,
           const Entrant& entrant) {
    const Work& work = entrant.work();
    const double run = median(entrant.run_seconds);
    const auto [low, high] =
        std::minmax_element(entrant.run_seconds.begin(), entrant.run_seconds.end());
    const double plan = median(entrant.plan_seconds);
    const double plan_max =
        *std::max_element(entrant.plan_seconds.begin(), entrant.plan_seconds.end());
    const double limit = std::max(work.bytes / ceilings_.read_bytes_per_second,
                                  work.flops / ceilings_.flops_per_second);
    json_["rows"].push_back({{"batch", batch},
                             {"block_size", workload.requirements().block_size},
                             {"backend", backend},
                             {"layout", kv_layout_name(entrant.layout())},
                             {"layers", workload.layers()},
                             {"plan_us", plan * 1e6},
                             {"plan_us_max", plan_max * 1e6},
                             {"run_us", run * 1e6},
                             {"run_us_min", *low * 1e6},
                             {"run_us_max", *high * 1e6},
                             {"bytes", work.bytes},
                             {"kv_bytes", work.kv_bytes},
                             {"flops", work.flops},
                             {"bytes_per_second", work.bytes / run},
                             {"flops_per_second", work.flops / run},
                             {"limit_us", limit * 1e6},
                             {"share_of_limit", limit / run},
                             {"plan", entrant.describe()}});
    if (quiet_) return;
    std::printf(
        "| %-18s | %5d | %-18s | %8.1f | %8.1f | %10.2f | %9.2f .. %8.2f | %8.1f | %8.3f | "
        "%5.1f%% |\n",
        batch.c_str(), workload.requirements().block_size, backend.c_str(), plan * 1e6,
        plan_max * 1e6, run * 1e6, *low * 1e6, *high * 1e6, work.bytes / run * 1e-9,
        work.flops / run * 1e-12, 100 * limit / run);
    std::fflush(stdout);
  }

  Status write(const std::string& path) const {
    if (path.empty()) return ok_status();
    if (path == "-") {
      std::printf("%s\n", json_.dump(2).c_str());
      return ok_status();
    }
    std::ofstream file(path);
    file << json_.dump(2) << '\n';
    file.close();
    return file ? ok_status() : internal_error("{}: cannot be written", path);
  }

 private:
  const Ceilings ceilings_;
  const bool quiet_;
  nlohmann::ordered_json json_;
};

Status run_all(const AttentionBenchOptions& options) {
  TENON_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, make_device(options.device));
  ThreadPool pool(options.threads > 0 ? options.threads : default_num_threads());
  AttentionRegistry registry;
  register_attention_backends(registry);
  TENON_ASSIGN_OR_RETURN(const std::vector<Contender> contenders,
                         parse_contenders(options, registry, device->type()));
  TENON_ASSIGN_OR_RETURN(AttentionRequirements requirements,
                         make_requirements(options, device->type()));
  std::vector<std::vector<BatchSpecRow>> batches;
  for (const std::string& spec : options.batches) {
    TENON_ASSIGN_OR_RETURN(std::vector<BatchSpecRow> rows, parse_batch_spec(spec));
    batches.push_back(std::move(rows));
  }
  TENON_ASSIGN_OR_RETURN(const Ceilings ceilings, measure_ceilings(*device, pool));
  Report report(options, ceilings, *device);
  BackendContext context;
  context.device = device.get();
  context.pool = &pool;
  context.isa = options.cpu_isa;
  for (size_t i = 0; i < batches.size(); ++i) {
    const std::string& spec = options.batches[i];
    for (const int32_t block_size : options.block_sizes) {
      requirements.block_size = block_size;
      TENON_ASSIGN_OR_RETURN(const auto workload,
                             Workload::create(*device, {requirements, batches[i]}));
      std::vector<std::pair<std::string, std::unique_ptr<Entrant>>> entrants;
      for (const Contender& contender : contenders) {
        auto entrant = Entrant::create(registry, contender, *workload, context);
        if (!entrant.ok() && entrant.status().code() == StatusCode::kUnsupported) {
          report.refused(spec, block_size, contender.label, entrant.status().message());
          continue;
        }
        if (!entrant.ok()) return entrant.status().with_context(contender.label + " on " + spec);
        entrants.emplace_back(contender.label, std::move(*entrant));
      }
      for (int32_t round = 0; round < options.rounds; ++round) {
        for (auto& [label, entrant] : entrants) {
          TENON_RETURN_IF_ERROR(
              entrant->run_round(options.seconds / options.rounds).with_context(label));
        }
      }
      for (auto& [label, entrant] : entrants) report.add(spec, *workload, label, *entrant);
    }
  }
  return report.write(options.json);
}

}  // namespace

int bench_attention_command(const AttentionBenchOptions& options) {
  const Status status = run_all(options);
  return status.ok() ? 0 : fail(status);
}

}  // namespace tenon::cli
