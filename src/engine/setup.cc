#include "engine/setup.h"

#include <algorithm>
#include <utility>

#include "attention/registry.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "engine/memory_plan.h"
#include "models/inspect.h"

namespace tenon {
namespace {

ModelLoadOptions::Format load_format(LoadFormat format) {
  switch (format) {
    case LoadFormat::kAuto: return ModelLoadOptions::Format::kAuto;
    case LoadFormat::kGguf: return ModelLoadOptions::Format::kGguf;
    case LoadFormat::kSafetensors: return ModelLoadOptions::Format::kSafetensors;
    case LoadFormat::kDummy: return ModelLoadOptions::Format::kDummy;
  }
  return ModelLoadOptions::Format::kAuto;
}

// What differs between devices when the flags leave it open.
struct DeviceDefaults {
  int32_t max_num_seqs;
  int32_t max_num_batched_tokens;
  int32_t logits_slice;
};
constexpr DeviceDefaults kCpuDefaults = {64, 512, 64};
// A step of a GPU should be long enough to fill it with prefill work; its logits are read where
// they are made, so all rows of a step are taken at once.
constexpr DeviceDefaults kGpuDefaults = {256, 8192, 256};

// For work memory that is taken after the KV pool: graphs, library handles.
constexpr int64_t kGpuReserve = int64_t{512} << 20;

bool is_gpu(const Device& device) {
  return device.type() == DeviceType::kCuda;
}

Result<EngineConfig> with_defaults(const EngineConfig& from, const Device& device) {
  EngineConfig config = from;
  const DeviceDefaults& defaults = is_gpu(device) ? kGpuDefaults : kCpuDefaults;
  if (config.max_num_seqs == 0) config.max_num_seqs = defaults.max_num_seqs;
  if (config.max_num_batched_tokens == 0) {
    config.max_num_batched_tokens = std::max(defaults.max_num_batched_tokens, config.max_num_seqs);
  }
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    return invalid_argument(
        "--max-num-batched-tokens {} is below --max-num-seqs {}: a step could not give every "
        "running request a token",
        config.max_num_batched_tokens, config.max_num_seqs);
  }
  return config;
}

// The type of activations and weights. Errors: kUnsupported.
Result<DType> activation_dtype(ModelDType dtype, const Device& device) {
  const bool gpu = is_gpu(device);
  switch (dtype) {
    case ModelDType::kAuto: return gpu ? DType::kBF16 : DType::kF32;
    case ModelDType::kFloat32:
      if (gpu) return unsupported("--dtype float32 runs on the CPU only (--device cpu)");
      return DType::kF32;
    case ModelDType::kBFloat16:
    case ModelDType::kFloat16: break;
  }
  if (!gpu) {
    return unsupported(
        "--dtype {} needs a GPU; on the CPU there are auto (weights as stored) and float32",
        dtype == ModelDType::kFloat16 ? "float16" : "bfloat16");
  }
  return dtype == ModelDType::kFloat16 ? DType::kF16 : DType::kBF16;
}

DType kv_dtype(const EngineConfig& config, DType activations) {
  switch (config.kv_cache_dtype) {
    case KvCacheDType::kF32: return DType::kF32;
    case KvCacheDType::kF16: return DType::kF16;
    case KvCacheDType::kBF16: return DType::kBF16;
    case KvCacheDType::kFp8: return DType::kF8E4M3;
    case KvCacheDType::kInt8: return DType::kI8;
    case KvCacheDType::kAuto: break;
  }
  if (activations != DType::kF32) return activations;
  return config.dtype == ModelDType::kFloat32 ? DType::kF32 : DType::kF16;
}

// What `auto` preemption weighs. Orders of magnitude are enough: the choice only flips where the
// two costs are near each other.
PreemptionCosts preemption_costs(const Model& model, int64_t bytes_per_block, bool gpu) {
  // Prefill reuses each weight for many tokens.
  const double weight_bytes_per_second = gpu ? 300e12 : 40e9;
  const double copy_bytes_per_second = gpu ? 40e9 : 5e9;  // out and back in
  PreemptionCosts costs;
  costs.seconds_per_token = static_cast<double>(model.weight_bytes()) / weight_bytes_per_second;
  costs.seconds_per_block = 2.0 * static_cast<double>(bytes_per_block) / copy_bytes_per_second;
  return costs;
}

std::string describe(const AttentionRequirements& wanted) {
  return fmt::format(
      "{} query heads on {} KV heads, head size {}, {} queries, {} KV cache, blocks of {} tokens",
      wanted.num_q_heads, wanted.num_kv_heads, wanted.head_dim_qk,
      dtype_traits(wanted.q_dtype).name, dtype_traits(wanted.kv_dtype).name, wanted.block_size);
}

AttentionSplit attention_split(AttentionSplitMode mode) {
  switch (mode) {
    case AttentionSplitMode::kUnified: return AttentionSplit::kUnified;
    case AttentionSplitMode::kSplit: return AttentionSplit::kSplit;
    case AttentionSplitMode::kAuto: break;
  }
  return AttentionSplit::kAuto;
}

CascadeMode cascade_mode(CascadePolicy policy) {
  switch (policy) {
    case CascadePolicy::kOn: return CascadeMode::kOn;
    case CascadePolicy::kOff: return CascadeMode::kOff;
    case CascadePolicy::kAuto: break;
  }
  return CascadeMode::kAuto;
}

Result<BackendContext> attention_context(const ModelConfig& model,
                                         const EngineConfig& config,
                                         Device& device) {
  BackendContext context;
  context.device = &device;
  context.isa = config.cpu_isa;
  context.split = attention_split(config.attention_split);
  context.cascade = cascade_mode(config.cascade);
  AttentionRequirements& wanted = context.requirements;
  wanted.device = device.type();
  TENON_ASSIGN_OR_RETURN(wanted.q_dtype, activation_dtype(config.dtype, device));
  wanted.kv_dtype = kv_dtype(config, wanted.q_dtype);
  wanted.head_dim_qk = model.head_dim;
  wanted.head_dim_v = model.head_dim;
  wanted.num_q_heads = model.num_heads;
  wanted.num_kv_heads = model.num_kv_heads;
  wanted.block_size = config.block_size;
  wanted.cascade = config.cascade == CascadePolicy::kOn;
  return context;
}

// What the pool may take.
MemoryFacts memory_facts(const EngineConfig& config, const EngineParts& parts, int64_t workspace) {
  MemoryFacts facts;
  facts.model_max_len = parts.model->config().max_position;
  const Device& device = *parts.device;
  facts.available_bytes = device.available_bytes();
  if (is_gpu(device)) {
    const int64_t total = device.info().total_bytes;
    const auto others =
        static_cast<int64_t>((1.0 - config.gpu_memory_utilization) * static_cast<double>(total));
    facts.available_bytes -= others + workspace + kGpuReserve;
    facts.available_bytes = std::max<int64_t>(0, facts.available_bytes);
    facts.host_bytes = available_memory_bytes() / 2;  // pinned memory cannot be paged out
    facts.take_all = true;
  }
  return facts;
}

// Activations and the sampler's state.
Status take_work_memory(const EngineConfig& config,
                        const AttentionLimits& limits,
                        EngineParts& parts) {
  const bool gpu = is_gpu(*parts.device);
  parts.logits_slice =
      gpu ? std::max(kGpuDefaults.logits_slice, limits.max_num_seqs) : kCpuDefaults.logits_slice;
  TENON_RETURN_IF_ERROR(parts.model->reserve(limits.max_num_batched_tokens, parts.logits_slice));
  BatchSamplerLimits sampler;
  sampler.max_rows = std::max(limits.max_num_seqs, parts.logits_slice);
  sampler.max_states = limits.max_num_seqs;
  sampler.vocab_size = parts.model->config().vocab_size;
  sampler.max_steps = gpu && config.async_scheduling ? 2 : 1;
  parts.scheduler.max_steps_in_flight = sampler.max_steps;
  TENON_ASSIGN_OR_RETURN(parts.sampler,
                         make_batch_sampler(sampler, parts.ops.get(), parts.threads.get()));
  return ok_status();
}

}  // namespace

Result<EngineParts> build_engine(const EngineConfig& requested, const LoadProgress& progress) {
  const double start = now_seconds();
  // What needs only the configuration comes first: a mistake must not cost a model load.
  EngineParts parts;
  TENON_ASSIGN_OR_RETURN(parts.device, make_device(requested.device));
  TENON_ASSIGN_OR_RETURN(const EngineConfig config, with_defaults(requested, *parts.device));
  const bool gpu = is_gpu(*parts.device);
  parts.threads =
      std::make_unique<ThreadPool>(config.threads > 0 ? config.threads : default_num_threads());
  OpsOptions ops;
  ops.device = parts.device.get();
  ops.pool = parts.threads.get();
  ops.cpu_isa = config.cpu_isa;
  TENON_ASSIGN_OR_RETURN(ops.activation_dtype, activation_dtype(config.dtype, *parts.device));
  TENON_ASSIGN_OR_RETURN(parts.ops, make_ops(ops));

  ModelLoadOptions load;
  load.path = config.model;
  load.format = load_format(config.load_format);
  load.exact = config.dtype == ModelDType::kFloat32;
  load.max_position = config.max_model_len;
  load.dummy_seed = static_cast<uint64_t>(config.seed);
  load.progress = progress;
  TENON_ASSIGN_OR_RETURN(parts.model, load_model(load, parts.ops.get()));
  const ModelConfig& model = parts.model->config();
  std::vector<LayerParams> layers = parts.model->layers();

  TENON_ASSIGN_OR_RETURN(BackendContext context, attention_context(model, config, *parts.device));
  context.pool = parts.threads.get();
  AttentionRegistry registry;
  register_attention_backends(registry);
  TENON_ASSIGN_OR_RETURN(BackendChoice choice,
                         get_attention_backend(registry, config.attention_backend, context));
  parts.attention = std::move(choice.backend);

  // Everything else that takes memory of the device comes before the pool, which takes the rest.
  AttentionLimits limits;
  limits.max_num_seqs = config.max_num_seqs;
  limits.max_num_batched_tokens = config.max_num_batched_tokens;
  limits.max_seq_len = config.max_model_len > 0 ? config.max_model_len : model.max_position;
  if (!config.enable_chunked_prefill && limits.max_num_batched_tokens < limits.max_seq_len && gpu) {
    limits.max_num_batched_tokens = limits.max_seq_len;
  }
  if (gpu) TENON_RETURN_IF_ERROR(take_work_memory(config, limits, parts));

  KvCacheSpec spec;
  spec.num_layers = model.num_layers;
  spec.num_kv_heads = model.num_kv_heads;
  spec.head_dim_k = context.requirements.head_dim_qk;
  spec.head_dim_v = context.requirements.head_dim_v;
  spec.block_size = config.block_size;
  spec.dtype = context.requirements.kv_dtype;
  MemoryFacts facts = memory_facts(config, parts, parts.attention->workspace_size(limits));
  facts.bytes_per_block = spec.bytes_per_block();
  TENON_ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(config, facts));
  if (memory.context_reduced) {
    log_warning(
        "the KV cache holds {} tokens, so the context is limited to that instead of the model's {}",
        memory.max_model_len, model.max_position);
  }
  const KvLayout layout = resolve_kv_layout(*parts.attention);
  TENON_ASSIGN_OR_RETURN(
      KvPool kv, KvPool::create(spec, layout, memory.num_blocks,
                                [&](size_t bytes) { return parts.device->allocate(bytes); }));
  parts.kv = std::make_unique<KvPool>(std::move(kv));
  if (memory.num_host_blocks > 0 && config.preemption_mode != PreemptionMode::kRecompute) {
    TENON_ASSIGN_OR_RETURN(KvPool host,
                           KvPool::create(spec, layout, memory.num_host_blocks, [&](size_t bytes) {
                             return parts.device->allocate_host(bytes);
                           }));
    parts.kv_host = std::make_unique<KvPool>(std::move(host));
  }

  parts.scheduler.num_blocks = static_cast<int32_t>(memory.num_blocks);
  parts.scheduler.num_host_blocks =
      parts.kv_host != nullptr ? static_cast<int32_t>(memory.num_host_blocks) : 0;
  parts.scheduler.block_size = config.block_size;
  parts.scheduler.prefix_caching = config.enable_prefix_caching;
  parts.scheduler.policy = config.scheduling_policy;
  parts.scheduler.preemption_mode = config.preemption_mode;
  parts.scheduler.costs = preemption_costs(*parts.model, facts.bytes_per_block, gpu);
  parts.scheduler.budget = {config.max_num_batched_tokens, config.max_num_seqs,
                            config.enable_chunked_prefill};
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < memory.max_model_len) {
    // A whole prompt has to fit into one step.
    log_info("chunked prefill is off: the token budget of a step is raised to the context, {}",
             memory.max_model_len);
    parts.scheduler.budget.max_num_batched_tokens = memory.max_model_len;
  }
  TENON_RETURN_IF_ERROR(Scheduler::validate(parts.scheduler));

  limits.max_num_batched_tokens = parts.scheduler.budget.max_num_batched_tokens;
  limits.max_seq_len = memory.max_model_len;
  TENON_RETURN_IF_ERROR(parts.attention->prepare(limits));
  if (!gpu) TENON_RETURN_IF_ERROR(take_work_memory(config, limits, parts));
  std::vector<std::unique_ptr<AttentionImpl>> impls;
  for (LayerParams& layer : layers) {
    layer.kv = parts.kv->view(layer.layer);
    impls.push_back(parts.attention->make_impl(layer));
  }
  parts.model->attach_attention(std::move(impls));

  ModelInfo& info = parts.info;
  info.architecture = model.architecture;
  info.weights = parts.model->weight_summary();
  info.vocab_size = model.vocab_size;
  info.max_model_len = memory.max_model_len;
  info.eos_token_ids = model.eos_token_ids;
  info.device = parts.device->info().name;
  info.isa = parts.ops->isa();
  info.threads = parts.threads->num_threads();
  info.attention_backend = parts.attention->info().name;
  info.attention_reason = choice.reason;
  info.block_size = config.block_size;
  info.num_kv_blocks = memory.num_blocks;
  info.kv_cache_dtype = dtype_traits(spec.dtype).name;
  info.kv_cache_bytes = parts.kv->bytes();
  info.weight_bytes = parts.model->weight_bytes();
  info.prefix_caching = config.enable_prefix_caching;
  info.load_seconds = now_seconds() - start;
  parts.profile = config.profile;
  parts.cascade = config.cascade != CascadePolicy::kOff &&
                  parts.attention->info().has(AttentionFeature::kCascade);
  parts.graphs = gpu && !config.enforce_eager && !config.profile &&
                 parts.attention->info().graphs != GraphSupport::kNever;
  TENON_RETURN_IF_ERROR(parts.device->synchronize());
  if (progress) progress(1.0, "ready");
  return parts;
}

Result<AttentionReport> report_attention_backends(const EngineConfig& config) {
  TENON_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, make_device(config.device));
  TENON_ASSIGN_OR_RETURN(const ModelSummary summary, inspect_model(config.model));
  if (!summary.config) return summary.why_not;
  TENON_ASSIGN_OR_RETURN(const BackendContext context,
                         attention_context(*summary.config, config, *device));
  AttentionRegistry registry;
  register_attention_backends(registry);
  AttentionReport report;
  report.wanted = describe(context.requirements);
  for (BackendVerdict& verdict : attention_backend_table(registry, context)) {
    report.backends.push_back({std::move(verdict.name), std::move(verdict.summary),
                               verdict.preference, std::move(verdict.reasons)});
  }
  TENON_ASSIGN_OR_RETURN(const BackendChoice choice,
                         get_attention_backend(registry, config.attention_backend, context));
  report.chosen = choice.backend->info().name;
  report.reason = choice.reason;
  return report;
}

}  // namespace tenon
