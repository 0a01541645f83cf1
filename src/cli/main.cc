// The command line: flags, environment, configuration file -> options of the commands.
// Every flag can be given as --max-model-len, as TENON_MAX_MODEL_LEN in the environment, and as
// max-model-len in the file of --config; the first of these that is present wins. Unknown names are
// errors everywhere.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/settings.h"

namespace tenon::cli {

int fail(const Status& status) {
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return 2;
    default: return 1;
  }
}

namespace {

template <typename T>
void add_choice(CLI::App* app,
                const std::string& name,
                T& value,
                const std::map<std::string, T>& choices,
                const std::string& help) {
  app->add_option(name, value, help)
      ->transform(CLI::CheckedTransformer(choices).description(""))
      ->option_text("{" + [&] {
        std::string names;
        for (const auto& [choice, ignored] : choices) names += (names.empty() ? "" : ",") + choice;
        return names;
      }() + "}");
}

void add_bytes(CLI::App* app, const std::string& name, int64_t& value, const std::string& help) {
  app->add_option(name, value, help)
      ->transform(CLI::AsSizeValue(false))
      ->option_text("BYTES (512MiB, 2GiB, ...)");
}

void add_dtype_options(CLI::App* app, ModelDType& dtype, KvCacheDType& kv_cache_dtype) {
  add_choice<ModelDType>(app, "--dtype", dtype,
                         {{"auto", ModelDType::kAuto},
                          {"float32", ModelDType::kFloat32},
                          {"bfloat16", ModelDType::kBFloat16},
                          {"float16", ModelDType::kFloat16}},
                         "auto: weights as stored, on a GPU bfloat16; float32: exact mode on the "
                         "CPU; bfloat16, float16: on a GPU");
  add_choice<KvCacheDType>(
      app, "--kv-cache-dtype", kv_cache_dtype,
      {{"auto", KvCacheDType::kAuto},
       {"float32", KvCacheDType::kF32},
       {"float16", KvCacheDType::kF16},
       {"bfloat16", KvCacheDType::kBF16},
       {"fp8", KvCacheDType::kFp8},
       {"int8", KvCacheDType::kInt8}},
      "type of cached keys and values; fp8: e4m3; int8: with a scale for each token and head");
}

void add_engine_options(CLI::App* app, EngineConfig& config) {
  app->add_option("-m,--model", config.model,
                  "GGUF file, or folder with config.json and safetensors")
      ->option_text("PATH");
  add_choice<LoadFormat>(app, "--load-format", config.load_format,
                         {{"auto", LoadFormat::kAuto},
                          {"gguf", LoadFormat::kGguf},
                          {"safetensors", LoadFormat::kSafetensors},
                          {"dummy", LoadFormat::kDummy}},
                         "dummy: random weights for a config.json alone");
  add_dtype_options(app, config.dtype, config.kv_cache_dtype);
  app->add_option("--device", config.device, "auto, cpu or cuda")->option_text("NAME");
  app->add_option("--attention-backend", config.attention_backend,
                  "auto, or a name from `tenon backends`")
      ->option_text("NAME");
  add_choice<AttentionSplitMode>(app, "--attention-split", config.attention_split,
                                 {{"auto", AttentionSplitMode::kAuto},
                                  {"unified", AttentionSplitMode::kUnified},
                                  {"split", AttentionSplitMode::kSplit}},
                                 "kernels for steps that mix decode and prefill rows");
  add_choice<CascadePolicy>(
      app, "--cascade", config.cascade,
      {{"auto", CascadePolicy::kAuto}, {"on", CascadePolicy::kOn}, {"off", CascadePolicy::kOff}},
      "requests that share a prefix read its keys together: where it pays, "
      "wherever they can, never");
  app->add_option("--cpu-isa", config.cpu_isa, "auto, portable, avx2 or avx512")
      ->option_text("NAME");
  app->add_option("-t,--threads", config.threads, "0: one per physical core")
      ->check(CLI::Range(0, 1024))
      ->option_text("N");
  app->add_option("--seed", config.seed, "for requests that bring none")->option_text("N");
  app->add_option("--max-model-len", config.max_model_len, "context in tokens; 0: the model's own")
      ->check(CLI::NonNegativeNumber)
      ->option_text("N");
  app->add_option("--block-size", config.block_size, "tokens per KV block")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  app->add_option("--num-kv-blocks", config.num_kv_blocks, "0: from --kv-cache-memory")
      ->check(CLI::NonNegativeNumber)
      ->option_text("N");
  add_bytes(app, "--kv-cache-memory", config.kv_cache_memory,
            "size of the KV cache; 0: chosen from the model and free memory");
  add_bytes(app, "--swap-space", config.swap_space, "host memory for swapped-out requests");
  app->add_option("--gpu-memory-utilization", config.gpu_memory_utilization,
                  "share of the GPU's memory that may be taken")
      ->check(CLI::Range(0.01, 1.0))
      ->option_text("X");
  app->add_flag("--async-scheduling,!--no-async-scheduling", config.async_scheduling,
                "GPU: plan the next step while one runs (on)");
  app->add_flag("--enforce-eager", config.enforce_eager, "GPU: no CUDA graphs");
  app->add_option("--max-num-seqs", config.max_num_seqs,
                  "requests running at once; 0: 64, on a GPU 256")
      ->check(CLI::Range(0, 65536))
      ->option_text("N");
  app->add_option("--max-num-batched-tokens", config.max_num_batched_tokens,
                  "token budget of a step; 0: 512, on a GPU 8192")
      ->check(CLI::Range(0, 1 << 20))
      ->option_text("N");
  app->add_option("--max-queue", config.max_queue, "waiting requests before new ones get 429")
      ->check(CLI::Range(1, 1 << 24))
      ->option_text("N");
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
                "reuse KV blocks of equal prefixes (on)");
  app->add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill",
                config.enable_chunked_prefill, "split long prompts over steps (on)");
  add_choice<SchedulingPolicy>(
      app, "--scheduling-policy", config.scheduling_policy,
      {{"fcfs", SchedulingPolicy::kFcfs}, {"priority", SchedulingPolicy::kPriority}},
      "order of waiting requests");
  add_choice<PreemptionMode>(app, "--preemption-mode", config.preemption_mode,
                             {{"auto", PreemptionMode::kAuto},
                              {"recompute", PreemptionMode::kRecompute},
                              {"swap", PreemptionMode::kSwap}},
                             "what happens to a request that loses its blocks");
}

void add_sampling_options(CLI::App* app, SamplingParams& sampling) {
  app->add_option("-n,--max-tokens", sampling.max_tokens, "longest answer")
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("N");
  app->add_option("--temperature", sampling.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->option_text("X");
  app->add_option("--top-k", sampling.top_k, "0: off")->option_text("N");
  app->add_option("--top-p", sampling.top_p, "1: off")
      ->check(CLI::Range(0.0, 1.0))
      ->option_text("X");
  app->add_option("--min-p", sampling.min_p, "0: off")
      ->check(CLI::Range(0.0, 1.0))
      ->option_text("X");
  app->add_option("--repetition-penalty", sampling.repetition_penalty, "1: off")->option_text("X");
  app->add_flag("--ignore-eos", sampling.ignore_eos, "go on after the model's end token");
}

// Everything the parser writes into.
struct Options {
  std::string config_file;
  std::string log_level;  // empty: what suits the command
  ServeOptions serve;
  std::string chat_template_file;
  RunOptions run;
  ChatOptions chat;
  ThroughputOptions throughput;
  LatencyOptions latency;
  AttentionBenchOptions attention_bench;
  ProbeOptions probe;
  BackendsOptions backends;
  InspectOptions inspect;
};

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return command;
}

void add_common_options(CLI::App* command, Options& options) {
  command->add_option("--config", options.config_file, "YAML file with flags as keys")
      ->option_text("FILE");
  command->add_option("--log-level", options.log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->option_text("LEVEL");
}

void define_bench_commands(CLI::App& app, Options& options) {
  CLI::App* bench = app.add_subcommand("bench", "measurements");
  bench->require_subcommand(1);
  CLI::App* throughput = add_command(*bench, "throughput", "many requests at once");
  add_common_options(throughput, options);
  add_engine_options(throughput, options.throughput.engine);
  throughput->add_option("--num-prompts", options.throughput.num_prompts, "requests")
      ->check(CLI::Range(1, 1 << 30));
  throughput->add_option("--input-len", options.throughput.input_len, "tokens in")
      ->check(CLI::Range(1, 1 << 30));
  throughput->add_option("--output-len", options.throughput.output_len, "tokens out")
      ->check(CLI::Range(1, 1 << 30));
  throughput->add_option("--max-concurrency", options.throughput.max_concurrency, "0: all at once")
      ->check(CLI::NonNegativeNumber);
  throughput->add_flag("--profile", options.throughput.profile,
                       "where the steps spend their time (no graphs)");
  throughput->add_flag("--json", options.throughput.json, "print JSON");
  CLI::App* latency =
      add_command(*bench, "latency", "rates of a single request, or steps of a steady batch");
  add_common_options(latency, options);
  add_engine_options(latency, options.latency.engine);
  latency->add_option("--prompt-len", options.latency.prompt_lens, "prefill lengths")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 1 << 30));
  latency->add_option("--output-len", options.latency.output_lens, "decode lengths")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 1 << 30));
  latency->add_option("-r,--repetitions", options.latency.repetitions, "samples of each")
      ->check(CLI::Range(1, 1 << 30));
  latency
      ->add_option("--batch-size", options.latency.batch_sizes,
                   "instead: steady decode of so many requests at once")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 65536))
      ->option_text("N ...");
  latency->add_option("--input-len", options.latency.input_lens, "their context in tokens")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("N ...");
  latency->add_flag("--profile", options.latency.profile,
                    "where the steps spend their time (no graphs)");
  latency->add_flag("--json", options.latency.json, "print JSON");
  CLI::App* probe = add_command(*bench, "probe", "ceilings: read bandwidth, FMA or matrix rate");
  add_common_options(probe, options);
  probe->add_option("--device", options.probe.device, "auto, cpu or cuda")->option_text("NAME");
  probe->add_option("-t,--threads", options.probe.threads, "0: one per physical core")
      ->check(CLI::Range(0, 1024));
  probe->add_flag("--json", options.probe.json, "print JSON");

  AttentionBenchOptions& attention = options.attention_bench;
  CLI::App* kernels =
      add_command(*bench, "attention", "attention backends on batches, against the ceilings");
  add_common_options(kernels, options);
  kernels->add_option("--device", attention.device, "auto, cpu or cuda")->option_text("NAME");
  kernels->add_option("--batch", attention.batches, "batches: 2q2k_32q1s8k, 64q1s1k, ...")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("BATCH ...");
  kernels
      ->add_option("--backends", attention.backends,
                   "NAME[:auto|unified|split][:plain|cascade][:f32|f16|bf16|fp8|int8], also "
                   "separated by commas; all that run on the device")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("NAME ...");
  kernels->add_option("--split", attention.split, "of backends that name none")
      ->check(CLI::IsMember({"auto", "unified", "split"}))
      ->option_text("{auto,unified,split}");
  kernels->add_option("--block-size", attention.block_sizes, "tokens per KV block")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 4096))
      ->option_text("N ...");
  for (const auto& [name, value, help] :
       {std::tuple("--num-heads", &attention.num_heads, "query heads"),
        std::tuple("--num-kv-heads", &attention.num_kv_heads, "heads of keys and values"),
        std::tuple("--head-dim", &attention.head_dim, "features a head"),
        std::tuple("--rounds", &attention.rounds, "turns that the backends take")}) {
    kernels->add_option(name, *value, help)->check(CLI::Range(1, 65536))->option_text("N");
  }
  add_dtype_options(kernels, attention.dtype, attention.kv_cache_dtype);
  kernels->add_option("--cpu-isa", attention.cpu_isa, "auto, portable, avx2 or avx512")
      ->option_text("NAME");
  kernels->add_option("-t,--threads", attention.threads, "0: one per physical core")
      ->check(CLI::Range(0, 1024))
      ->option_text("N");
  kernels->add_option("--seconds", attention.seconds, "for each backend and batch")
      ->check(CLI::Range(0.0, 3600.0))
      ->option_text("X");
  kernels->add_option("--json", attention.json, "write JSON; - prints it instead of the table")
      ->option_text("FILE");
}

void define_commands(CLI::App& app, Options& options) {
  CLI::App* serve = add_command(app, "serve", "OpenAI-compatible HTTP server");
  add_common_options(serve, options);
  add_engine_options(serve, options.serve.engine);
  serve->add_option("--host", options.serve.server.host, "address to listen on")
      ->option_text("HOST");
  serve->add_option("-p,--port", options.serve.server.port, "0: any free port")
      ->check(CLI::Range(0, 65535))
      ->check(CLI::Range(0, 65535))
      ->option_text("PORT");
  serve
      ->add_option("--api-key", options.serve.server.api_keys,
                   "required as `Authorization: Bearer KEY`")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("KEY ...");
  serve
      ->add_option("--served-model-name", options.serve.server.served_model_names,
                   "names of the model in the API")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("NAME ...");
  serve
      ->add_option("--chat-template", options.chat_template_file,
                   "Jinja file instead of the model's own")
      ->option_text("FILE");
  serve->add_flag("--trust-request-chat-template", options.serve.server.allow_request_chat_template,
                  "requests may bring their own template");
  serve
      ->add_option("--drain-timeout", options.serve.server.drain_timeout,
                   "seconds to let requests end on SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->option_text("SECONDS");

  CLI::App* run = add_command(app, "run", "one prompt, one answer (also from stdin)");
  add_common_options(run, options);
  add_engine_options(run, options.run.engine);
  add_sampling_options(run, options.run.sampling);
  run->add_option("-p,--prompt", options.run.prompt, "the prompt; piped text is appended")
      ->option_text("TEXT");
  run->add_option("--system", options.run.system, "system message")->option_text("TEXT");
  run->add_flag("--raw", options.run.raw, "no chat template");

  CLI::App* chat = add_command(app, "chat", "a conversation in the terminal");
  add_common_options(chat, options);
  add_engine_options(chat, options.chat.engine);
  add_sampling_options(chat, options.chat.sampling);
  chat->add_option("--system", options.chat.system, "system message")->option_text("TEXT");

  define_bench_commands(app, options);

  CLI::App* backends =
      add_command(app, "backends", "attention backends: which can serve a model, and why not");
  add_common_options(backends, options);
  add_engine_options(backends, options.backends.engine);
  backends
      ->add_option("--verify", options.backends.verify,
                   "run the conformance suite against a backend")
      ->option_text("NAME");
  add_choice<ConformanceLevel>(backends, "--verify-level", options.backends.verify_level,
                               {{"smoke", ConformanceLevel::kSmoke},
                                {"quick", ConformanceLevel::kQuick},
                                {"full", ConformanceLevel::kFull}},
                               "a handful of cases, each axis on its own, products of the axes");

  CLI::App* inspect =
      add_command(app, "inspect", "architecture, tensors and memory plan of a model");
  add_common_options(inspect, options);
  inspect->add_option("path,-m,--model", options.inspect.path, "GGUF file or model folder")
      ->required()
      ->option_text("PATH");
  inspect->add_flag("--all", options.inspect.all, "every tensor and key");
}

Result<std::string> read_template_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return not_found("{}: there is no such chat template file", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    return invalid_argument("{}: the chat template cannot be read or is empty", path);
  return text.str();
}

int run_selected(CLI::App& app, Options& options) {
  const auto with_model = [](EngineConfig& config) {
    if (config.model.empty()) config.model = default_model_path();
    if (config.model.empty()) {
      return invalid_argument(
          "no model: give --model PATH, or run `make demo` once to fetch the default model");
    }
    return ok_status();
  };
  if (app.got_subcommand("serve")) {
    ServeOptions& serve = options.serve;
    if (const Status status = with_model(serve.engine); !status.ok()) return fail(status);
    if (serve.server.served_model_names.empty()) {
      const std::filesystem::path path(serve.engine.model);
      const std::string name =
          path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
      serve.server.served_model_names = {name.empty() ? serve.engine.model : name};
      if (serve.server.served_model_names.front() != serve.engine.model) {
        serve.server.served_model_names.push_back(serve.engine.model);
      }
    }
    serve.server.model_root = serve.engine.model;
    if (!options.chat_template_file.empty()) {
      auto text = read_template_file(options.chat_template_file);
      if (!text.ok()) return fail(text.status());
      serve.server.chat_template = std::move(*text);
    }
    // More choices than may wait could never all be accepted.
    serve.server.limits.max_choices =
        std::min(serve.server.limits.max_choices, serve.engine.max_queue);
    return serve_command(serve);
  }
  if (app.got_subcommand("run")) {
    if (const Status status = with_model(options.run.engine); !status.ok()) return fail(status);
    return run_command(options.run);
  }
  if (app.got_subcommand("chat")) {
    if (const Status status = with_model(options.chat.engine); !status.ok()) return fail(status);
    return chat_command(options.chat);
  }
  if (CLI::App* bench = app.get_subcommand("bench"); app.got_subcommand(bench)) {
    if (bench->got_subcommand("attention")) {
      return bench_attention_command(options.attention_bench);
    }
    if (bench->got_subcommand("probe")) return bench_probe_command(options.probe);
    if (bench->got_subcommand("latency")) {
      if (const Status status = with_model(options.latency.engine); !status.ok())
        return fail(status);
      return bench_latency_command(options.latency);
    }
    if (const Status status = with_model(options.throughput.engine); !status.ok())
      return fail(status);
    return bench_throughput_command(options.throughput);
  }
  if (app.got_subcommand("backends")) {
    if (!options.backends.verify.empty()) return backends_command(options.backends);
    if (const Status status = with_model(options.backends.engine); !status.ok())
      return fail(status);
    return backends_command(options.backends);
  }
  return inspect_command(options.inspect);
}

// The command the arguments name ("bench throughput" is two deep), and how many arguments name it.
std::pair<CLI::App*, size_t> selected_command(CLI::App& app,
                                              const std::vector<std::string>& arguments) {
  CLI::App* command = &app;
  size_t used = 0;
  while (used < arguments.size()) {
    const auto children = command->get_subcommands(
        [&](CLI::App* child) { return child->check_name(arguments[used]); });
    if (children.empty()) break;
    command = children.front();
    ++used;
  }
  return {command, used};
}

bool knows(const CLI::App* command, const std::string& flag) {
  return command->get_option_no_throw("--" + flag) != nullptr;
}

bool any_command_knows(const CLI::App& app, const std::string& flag) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (knows(command, flag) || any_command_knows(*command, flag)) return true;
  }
  return false;
}

// What the environment and the configuration file add to a command line.
struct Completed {
  std::vector<std::string> arguments;
  Settings added;  // for messages: a bad value names where it came from
};

// Adds the settings of one source that no stronger source gave (`given`), and remembers them there.
Status add_settings(const CLI::App& app,
                    const CLI::App& command,
                    const Settings& settings,
                    std::set<const CLI::Option*>& given,
                    Settings& added) {
  std::set<const CLI::Option*> here;  // a list gives the same flag several times
  for (const Setting& setting : settings) {
    if (setting.value.empty()) continue;  // NAME= is how shells and compose files say "not set"
    const CLI::Option* option = command.get_option_no_throw("--" + setting.name);
    if (option == nullptr) {
      // One file or environment serves all commands, so a flag of another command is fine here.
      if (any_command_knows(app, setting.name)) continue;
      return invalid_argument("{}: no command has a flag --{}", setting.source, setting.name);
    }
    if (given.count(option) > 0) continue;
    here.insert(option);
    added.push_back(setting);
  }
  given.insert(here.begin(), here.end());
  return ok_status();
}

Result<Completed> with_settings(CLI::App& app, std::vector<std::string> arguments) {
  Completed completed;
  const auto [command, used] = selected_command(app, arguments);
  if (command == &app) {
    completed.arguments = std::move(arguments);
    return completed;
  }
  TENON_ASSIGN_OR_RETURN(const Settings environment, settings_from_environment());
  std::string file;
  for (const Setting& setting : environment) {
    if (setting.name == "config") file = setting.value;
  }
  std::set<const CLI::Option*> given;
  for (size_t i = used; i < arguments.size(); ++i) {
    if (arguments[i].empty() || arguments[i].front() != '-') continue;
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (const CLI::Option* option = command->get_option_no_throw(name)) given.insert(option);
    if (name != "--config") continue;
    file = name != arguments[i]       ? arguments[i].substr(name.size() + 1)
           : i + 1 < arguments.size() ? arguments[i + 1]
                                      : "";
  }
  TENON_RETURN_IF_ERROR(add_settings(app, *command, environment, given, completed.added));
  if (!file.empty()) {
    TENON_ASSIGN_OR_RETURN(const Settings settings, settings_from_yaml(file));
    TENON_RETURN_IF_ERROR(add_settings(app, *command, settings, given, completed.added));
  }
  std::vector<std::string> inserted;
  for (const Setting& setting : completed.added)
    inserted.push_back("--" + setting.name + "=" + setting.value);
  arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(used), inserted.begin(),
                   inserted.end());
  completed.arguments = std::move(arguments);
  return completed;
}

// Says which of the added settings a complaint of the parser is about.
void print_source(const std::string& message, const Settings& added) {
  for (const Setting& setting : added) {
    if (message.find("--" + setting.name) != std::string::npos) {
      std::fprintf(stderr, "(%s was set by %s)\n", ("--" + setting.name).c_str(),
                   setting.source.c_str());
    }
  }
}

int main_impl(std::vector<std::string> arguments) {
  CLI::App app{"Tenon: LLM inference and serving", "tenon"};
  app.set_version_flag("--version", "tenon 0.1.0");
  app.require_subcommand(1);
  Options options;
  options.run.sampling.max_tokens = 512;
  options.chat.sampling.max_tokens = 1024;
  options.run.sampling.temperature = 0.0F;
  options.chat.sampling.temperature = 0.7F;
  options.chat.sampling.top_p = 0.95F;
  define_commands(app, options);

  auto complete = with_settings(app, std::move(arguments));
  if (!complete.ok()) return fail(complete.status());
  std::vector<std::string>& all = complete->arguments;
  std::reverse(all.begin(), all.end());  // CLI11 takes them last first
  try {
    app.parse(all);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    if (code != 0) print_source(error.what(), complete->added);
    return code == 0 ? 0 : 2;
  }
  static const std::map<std::string, LogLevel> kLevels = {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError}};
  // Only the server's log is of interest by default; the others print their results.
  const char* usual = app.got_subcommand("serve") ? "info" : "warning";
  set_log_level(kLevels.at(options.log_level.empty() ? usual : options.log_level));
  return run_selected(app, options);
}

}  // namespace
}  // namespace tenon::cli

int main(int argc, char** argv) {
  try {
    return tenon::cli::main_impl(std::vector<std::string>(argv + 1, argv + argc));
  } catch (
      const std::exception& error) {  // of a third party, missed where it entered; or no memory
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
