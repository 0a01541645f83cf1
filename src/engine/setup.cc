#include "engine/setup.h"

#include <algorithm>
#include <utility>

#include "attention/registry.h"
#include "base/clock.h"
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

DType kv_dtype(const EngineConfig& config) {
  switch (config.kv_cache_dtype) {
    case KvCacheDType::kF32: return DType::kF32;
    case KvCacheDType::kF16: return DType::kF16;
    case KvCacheDType::kBF16: return DType::kBF16;
    case KvCacheDType::kAuto: break;
  }
  return config.dtype == ModelDType::kFloat32 ? DType::kF32 : DType::kF16;
}

// What `auto` preemption weighs. Orders of magnitude of one CPU core pair are enough: the choice
// only flips where the two costs are near each other.
PreemptionCosts preemption_costs(const Model& model, int64_t bytes_per_block) {
  constexpr double kWeightBytesPerSecond = 40e9;  // prefill reuses each weight for many tokens
  constexpr double kCopyBytesPerSecond = 5e9;     // out and back in
  PreemptionCosts costs;
  costs.seconds_per_token = static_cast<double>(model.weight_bytes()) / kWeightBytesPerSecond;
  costs.seconds_per_block = 2.0 * static_cast<double>(bytes_per_block) / kCopyBytesPerSecond;
  return costs;
}

Status check_device(const std::string& device) {
  if (device == "auto" || device == "cpu") return ok_status();
  if (device == "cuda")
    return unsupported("--device cuda: this build of Tenon has no CUDA support");
  return invalid_argument("--device {}: expected auto, cpu or cuda", device);
}

std::string describe(const AttentionRequirements& wanted) {
  return fmt::format(
      "{} query heads on {} KV heads, head size {}, {} queries, {} KV cache, blocks of {} tokens",
      wanted.num_q_heads, wanted.num_kv_heads, wanted.head_dim_qk,
      dtype_traits(wanted.q_dtype).name, dtype_traits(wanted.kv_dtype).name, wanted.block_size);
}

AttentionRequirements attention_requirements(const ModelConfig& model, const EngineConfig& config) {
  AttentionRequirements wanted;
  wanted.kv_dtype = kv_dtype(config);
  wanted.head_dim_qk = model.head_dim;
  wanted.head_dim_v = model.head_dim;
  wanted.num_q_heads = model.num_heads;
  wanted.num_kv_heads = model.num_kv_heads;
  wanted.block_size = config.block_size;
  return wanted;
}

}  // namespace

Result<EngineParts> build_engine(const EngineConfig& config, const LoadProgress& progress) {
  const double start = now_seconds();
  // What needs only the configuration comes first: a mistake must not cost a model load.
  TENON_RETURN_IF_ERROR(check_device(config.device));
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    return invalid_argument(
        "--max-num-batched-tokens {} is below --max-num-seqs {}: a step could not give every "
        "running request a token",
        config.max_num_batched_tokens, config.max_num_seqs);
  }
  EngineParts parts;
  parts.threads =
      std::make_unique<ThreadPool>(config.threads > 0 ? config.threads : default_num_threads());
  TENON_ASSIGN_OR_RETURN(parts.ops, make_cpu_ops(parts.threads.get(), config.cpu_isa));

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

  BackendContext context;
  context.requirements = attention_requirements(model, config);
  context.pool = parts.threads.get();
  context.isa = config.cpu_isa;
  AttentionRegistry registry;
  register_attention_backends(registry);
  TENON_ASSIGN_OR_RETURN(BackendChoice choice,
                         get_attention_backend(registry, config.attention_backend, context));
  parts.attention = std::move(choice.backend);

  KvCacheSpec spec;
  spec.num_layers = model.num_layers;
  spec.num_kv_heads = model.num_kv_heads;
  spec.head_dim_k = context.requirements.head_dim_qk;
  spec.head_dim_v = context.requirements.head_dim_v;
  spec.block_size = config.block_size;
  spec.dtype = context.requirements.kv_dtype;
  MemoryFacts facts;
  facts.bytes_per_block = spec.bytes_per_block();
  facts.model_max_len = model.max_position;
  facts.available_bytes = available_memory_bytes();
  TENON_ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(config, facts));
  if (memory.context_reduced) {
    log_warning(
        "the KV cache holds {} tokens, so the context is limited to that instead of the model's {}",
        memory.max_model_len, model.max_position);
  }
  const KvLayout layout = resolve_kv_layout(*parts.attention);
  TENON_ASSIGN_OR_RETURN(KvPool kv, KvPool::create(spec, layout, memory.num_blocks));
  parts.kv = std::make_unique<KvPool>(std::move(kv));
  if (memory.num_host_blocks > 0 && config.preemption_mode != PreemptionMode::kRecompute) {
    TENON_ASSIGN_OR_RETURN(KvPool host, KvPool::create(spec, layout, memory.num_host_blocks));
    parts.kv_host = std::make_unique<KvPool>(std::move(host));
  }

  parts.scheduler.num_blocks = static_cast<int32_t>(memory.num_blocks);
  parts.scheduler.num_host_blocks =
      parts.kv_host != nullptr ? static_cast<int32_t>(memory.num_host_blocks) : 0;
  parts.scheduler.block_size = config.block_size;
  parts.scheduler.prefix_caching = config.enable_prefix_caching;
  parts.scheduler.policy = config.scheduling_policy;
  parts.scheduler.preemption_mode = config.preemption_mode;
  parts.scheduler.costs = preemption_costs(*parts.model, facts.bytes_per_block);
  parts.scheduler.budget = {config.max_num_batched_tokens, config.max_num_seqs,
                            config.enable_chunked_prefill};
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < memory.max_model_len) {
    // A whole prompt has to fit into one step.
    log_info("chunked prefill is off: the token budget of a step is raised to the context, {}",
             memory.max_model_len);
    parts.scheduler.budget.max_num_batched_tokens = memory.max_model_len;
  }
  TENON_RETURN_IF_ERROR(Scheduler::validate(parts.scheduler));

  AttentionLimits limits;
  limits.max_num_seqs = config.max_num_seqs;
  limits.max_num_batched_tokens = parts.scheduler.budget.max_num_batched_tokens;
  limits.max_seq_len = memory.max_model_len;
  TENON_RETURN_IF_ERROR(parts.attention->prepare(limits));
  std::vector<std::unique_ptr<AttentionImpl>> impls;
  for (LayerParams& layer : layers) {
    layer.kv = parts.kv->view(layer.layer);
    impls.push_back(parts.attention->make_impl(layer));
  }
  parts.model->attach_attention(std::move(impls));
  TENON_RETURN_IF_ERROR(parts.model->reserve(limits.max_num_batched_tokens, kLogitsSlice));

  ModelInfo& info = parts.info;
  info.architecture = model.architecture;
  info.weights = parts.model->weight_summary();
  info.vocab_size = model.vocab_size;
  info.max_model_len = memory.max_model_len;
  info.eos_token_ids = model.eos_token_ids;
  info.device = parts.ops->device();
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
  if (progress) progress(1.0, "ready");
  return parts;
}

Result<AttentionReport> report_attention_backends(const EngineConfig& config) {
  TENON_RETURN_IF_ERROR(check_device(config.device));
  TENON_ASSIGN_OR_RETURN(const ModelSummary summary, inspect_model(config.model));
  if (!summary.config) return summary.why_not;
  BackendContext context;
  context.requirements = attention_requirements(*summary.config, config);
  context.isa = config.cpu_isa;
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
