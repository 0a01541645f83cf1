#include "server/openai_types.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>

#include "server/field_reader.h"

namespace tenon {
namespace {

constexpr int32_t kMaxN = 128;
constexpr size_t kMaxStopStrings = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxStopTokens = 1024;
constexpr size_t kMaxSaltBytes = 256;
// Every choice has its own copy of the biases and its own matcher of the stop strings.
constexpr size_t kMaxCopiedBytes = size_t{16} << 20;
constexpr size_t kMatcherBytes = 6;  // for each byte of a stop string
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

// Fields that would change the answer and that nothing here acts on yet.
constexpr std::array<std::string_view, 21> kUnsupportedFields = {"structured_outputs",
                                                                 "guided_json",
                                                                 "guided_regex",
                                                                 "guided_choice",
                                                                 "guided_grammar",
                                                                 "use_beam_search",
                                                                 "prompt_embeds",
                                                                 "truncate_prompt_tokens",
                                                                 "bad_words",
                                                                 "allowed_token_ids",
                                                                 "logits_processors",
                                                                 "kv_transfer_params",
                                                                 "logprob_token_ids",
                                                                 "json_schema",
                                                                 "regex",
                                                                 "ebnf",
                                                                 "grammar",
                                                                 "truncation_side",
                                                                 "thinking_token_budget",
                                                                 "length_penalty",
                                                                 "repetition_detection"};

bool is_inert(std::string_view name, const OrderedJson& value) {
  if (name == "length_penalty" && value == 1) return true;
  return value.is_null() || value == false ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

void refuse(FieldReader& fields, std::string_view name, std::string_view why) {
  const OrderedJson* value = fields.find(name);
  if (value == nullptr || is_inert(name, *value)) return;
  fields.fail(unsupported("{} is not supported{}{}", name, why.empty() ? "" : ": ", why)
                  .with_param(std::string(name)));
}

Status out_of_vocabulary(std::string_view name, int32_t vocab_size) {
  return invalid_argument("{} holds a token id that is not in the vocabulary of {} tokens", name,
                          vocab_size)
      .with_param(std::string(name));
}

// A list of token ids; checked at full width before anything is narrowed.
Result<std::vector<int32_t>> parse_ids(const OrderedJson& list,
                                       std::string_view name,
                                       int32_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    if (!item.is_number_integer()) {
      return invalid_argument("{} must hold token ids (integers)", name)
          .with_param(std::string(name));
    }
    const std::optional<int64_t> id = json_integer(item);
    if (!id || *id < 0 || *id >= vocab_size) return out_of_vocabulary(name, vocab_size);
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

void read_logit_bias(FieldReader& fields, SamplingParams& sampling, int32_t vocab_size) {
  const OrderedJson* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.fail_type("logit_bias", "an object of token id to number");
  for (const auto& [key, value] : bias->get_ref<const OrderedJson::object_t&>()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    // "01" and "-0" would name a token a second time.
    const bool canonical = error == std::errc() && std::to_string(id) == key;
    if (!canonical || !value.is_number()) {
      return fields.fail_type("logit_bias", "an object of token id to number");
    }
    if (id < 0 || id >= vocab_size) {
      return fields.fail(out_of_vocabulary("logit_bias", vocab_size));
    }
    sampling.logit_bias.emplace_back(id, static_cast<float>(value.get<double>()));
  }
}

void read_stop(FieldReader& fields, std::vector<std::string>& stop) {
  const OrderedJson* value = fields.find("stop");
  if (value == nullptr) return;
  const auto add = [&](const OrderedJson& item) {
    if (!item.is_string()) return fields.fail_type("stop", "a string or a list of strings");
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      return fields.fail(
          invalid_argument("stop: a stop string must have 1 to {} bytes", kMaxStopBytes)
              .with_param("stop"));
    }
    stop.push_back(text);
  };
  if (!value->is_array()) return add(*value);
  if (value->size() > kMaxStopStrings) {
    return fields.fail(
        invalid_argument("stop: at most {} stop strings are possible", kMaxStopStrings)
            .with_param("stop"));
  }
  for (const OrderedJson& item : *value) add(item);
}

void read_stop_tokens(FieldReader& fields, SamplingParams& sampling, int32_t vocab_size) {
  const OrderedJson* list = fields.find("stop_token_ids");
  if (list == nullptr) return;
  if (!list->is_array()) return fields.fail_type("stop_token_ids", "a list of token ids");
  auto parsed = parse_ids(*list, "stop_token_ids", vocab_size);
  if (!parsed.ok()) return fields.fail(parsed.status());
  std::vector<int32_t>& ids = *parsed;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() > kMaxStopTokens) {
    return fields.fail(
        invalid_argument("stop_token_ids: at most {} ids are possible", kMaxStopTokens)
            .with_param("stop_token_ids"));
  }
  ids.shrink_to_fit();
  sampling.stop_token_ids = std::move(ids);
}

void read_cache_salt(FieldReader& fields, GenerationParams& params) {
  fields.read("cache_salt", params.cache_salt);
  if (params.cache_salt.size() <= kMaxSaltBytes) return;
  fields.fail(invalid_argument("cache_salt must have at most {} bytes", kMaxSaltBytes)
                  .with_param("cache_salt"));
}

void read_max_tokens(FieldReader& fields, GenerationParams& params) {
  const std::string_view name =
      fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  fields.read(name, params.max_tokens);
  if (fields.ok() && params.max_tokens && *params.max_tokens < 0) {
    fields.fail(invalid_argument("{} must be at least 0, got {}", name, *params.max_tokens)
                    .with_param(std::string(name)));
  }
}

void read_stream(FieldReader& fields, StreamParams& stream) {
  fields.read("stream", stream.enabled);
  const OrderedJson* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail_type("stream_options", "an object");
  if (!stream.enabled) {
    return fields.fail(
        invalid_argument("stream_options needs stream to be true").with_param("stream_options"));
  }
  FieldReader inner(*options);
  inner.read("include_usage", stream.include_usage);
  inner.read("continuous_usage_stats", stream.continuous_usage);
  stream.continuous_usage = stream.continuous_usage && stream.include_usage;
  if (inner.ok()) return;
  Status status = inner.status();
  fields.fail(status.with_param("stream_options." + status.param()));
}

void read_n(FieldReader& fields, GenerationParams& params) {
  fields.read("n", params.n);
  if (fields.ok() && (params.n < 1 || params.n > kMaxN)) {
    fields.fail(invalid_argument("n must be in [1, {}], got {}", kMaxN, params.n).with_param("n"));
  }
  int32_t best_of = params.n;
  fields.read("best_of", best_of);
  if (fields.ok() && best_of != params.n) {
    fields.fail(unsupported("best_of is not supported; use n").with_param("best_of"));
  }
}

void read_response_format(FieldReader& fields) {
  const OrderedJson* format = fields.find("response_format");
  if (format == nullptr) return;
  const bool is_text =
      format->is_object() && format->contains("type") && (*format)["type"] == "text";
  if (is_text) return;
  fields.fail(unsupported("response_format: only {{\"type\": \"text\"}} is supported so far")
                  .with_param("response_format"));
}

void read_generation_params(FieldReader& fields, GenerationParams& params, int32_t vocab_size) {
  if (fields.find("model") == nullptr) {
    fields.fail(invalid_argument("model is missing: name the model, as GET /v1/models lists it")
                    .with_param("model"));
  }
  fields.read("model", params.model);
  SamplingParams& sampling = params.sampling;
  fields.read("temperature", sampling.temperature);
  fields.read("top_k", sampling.top_k);
  fields.read("top_p", sampling.top_p);
  fields.read("min_p", sampling.min_p);
  fields.read("repetition_penalty", sampling.repetition_penalty);
  fields.read("presence_penalty", sampling.presence_penalty);
  fields.read("frequency_penalty", sampling.frequency_penalty);
  read_logit_bias(fields, sampling, vocab_size);
  fields.read("seed", sampling.seed);
  fields.read("min_tokens", sampling.min_tokens);
  fields.read("ignore_eos", sampling.ignore_eos);
  read_stop_tokens(fields, sampling, vocab_size);
  fields.read("prompt_logprobs", sampling.prompt_logprobs);
  params.return_prompt_logprobs = sampling.prompt_logprobs.has_value();
  read_max_tokens(fields, params);
  read_stop(fields, params.stop);
  read_n(fields, params);
  read_stream(fields, params.stream);
  if (params.return_prompt_logprobs && params.stream.enabled) {
    fields.fail(unsupported("prompt_logprobs cannot be streamed").with_param("prompt_logprobs"));
  }
  fields.read("include_stop_str_in_output", params.include_stop_string);
  fields.read("skip_special_tokens", params.skip_special_tokens);
  fields.read("priority", params.priority);
  read_cache_salt(fields, params);
  fields.read("return_token_ids", params.return_token_ids);
  fields.read("return_tokens_as_token_ids", params.return_tokens_as_token_ids);
  for (const std::string_view name : kUnsupportedFields) refuse(fields, name, "");
  bool spaces = true;
  fields.read("spaces_between_special_tokens", spaces);
  if (!spaces) {
    fields.fail(unsupported("spaces_between_special_tokens: only true is supported")
                    .with_param("spaces_between_special_tokens"));
  }
  read_response_format(fields);
}

// The ranges that belong to the engine. max_tokens is settled once the prompt's length is known.
Status check_ranges(GenerationParams& params, int32_t vocab_size) {
  params.sampling.max_tokens = params.max_tokens.value_or(std::numeric_limits<int32_t>::max());
  return params.sampling.validate(vocab_size);
}

// What a request may ask for times the number of its choices.
Status check_choices(const GenerationParams& params, size_t prompts, const RequestLimits& limits) {
  const size_t choices = prompts * static_cast<size_t>(params.n);
  if (choices > static_cast<size_t>(limits.max_choices)) {
    return invalid_argument(
               "{} prompts with n = {} are more than the {} choices a request may ask for", prompts,
               params.n, limits.max_choices)
        .with_param(prompts > 1 ? "prompt" : "n");
  }
  const auto& bias = params.sampling.logit_bias;
  if (bias.size() * sizeof(bias[0]) * choices > kMaxCopiedBytes) {
    return invalid_argument("logit_bias: {} entries are too many for {} choices", bias.size(),
                            choices)
        .with_param("logit_bias");
  }
  size_t stop_bytes = 0;
  for (const std::string& stop : params.stop) stop_bytes += stop.size();
  if (stop_bytes * kMatcherBytes * choices > kMaxCopiedBytes) {
    return invalid_argument("stop: strings of {} bytes are too many for {} choices", stop_bytes,
                            choices)
        .with_param("stop");
  }
  return ok_status();
}

Status check_object(const OrderedJson& body) {
  return body.is_object() ? ok_status()
                          : invalid_argument("the request body must be a JSON object");
}

Result<std::vector<PromptInput>> parse_prompts(const OrderedJson* prompt, int32_t vocab_size) {
  const Status wrong = invalid_argument(
                           "prompt must be a string, a list of strings, a list of token ids or a "
                           "list of lists of token ids, "
                           "and not empty")
                           .with_param("prompt");
  if (prompt == nullptr) return wrong;
  if (prompt->is_string()) return std::vector<PromptInput>{prompt->get<std::string>()};
  if (!prompt->is_array() || prompt->empty()) return wrong;
  std::vector<PromptInput> prompts;
  if (!prompt->front().is_array() && !prompt->front().is_string()) {
    TENON_ASSIGN_OR_RETURN(auto ids, parse_ids(*prompt, "prompt", vocab_size));
    prompts.emplace_back(std::move(ids));
    return prompts;
  }
  const bool text = prompt->front().is_string();
  for (const OrderedJson& item : *prompt) {
    if (text ? !item.is_string() : (!item.is_array() || item.empty())) return wrong;
    if (text) {
      prompts.emplace_back(item.get<std::string>());
    } else {
      TENON_ASSIGN_OR_RETURN(auto ids, parse_ids(item, "prompt", vocab_size));
      prompts.emplace_back(std::move(ids));
    }
  }
  return prompts;
}

// Text parts become one text; templates expect strings.
Result<std::string> join_parts(const OrderedJson& parts, const std::string& where) {
  std::string joined;
  bool first = true;
  for (const OrderedJson& part : parts) {
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    if (typed && part["type"] != "text") {
      return unsupported("{}: only text parts are supported", where).with_param(where);
    }
    if (!typed || !part.contains("text") || !part["text"].is_string()) {
      return invalid_argument("{}: a part must be {{\"type\": \"text\", \"text\": \"...\"}}", where)
          .with_param(where);
    }
    if (!first) joined += '\n';
    joined += part["text"].get_ref<const std::string&>();
    first = false;
  }
  return joined;
}

// Clients send the arguments of a call as JSON text; templates expect the object.
void parse_call_arguments(OrderedJson& calls) {
  if (!calls.is_array()) return;
  for (OrderedJson& call : calls) {
    if (!call.is_object() || !call.contains("function")) continue;
    OrderedJson& function = call["function"];
    if (!function.is_object() || !function.contains("arguments")) continue;
    OrderedJson& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    auto parsed = parse_json(arguments.get_ref<const std::string&>(), {});
    if (parsed.ok() && parsed->is_object()) arguments = std::move(*parsed);
  }
}

Status normalise_message(OrderedJson& message, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object())
    return invalid_argument("{} must be an object", where).with_param(where);
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) ==
          kRoles.end()) {
    return invalid_argument("{}.role must be one of {}", where, fmt::join(kRoles, ", "))
        .with_param(where + ".role");
  }
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && *role == "assistant") parse_call_arguments(*calls);
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    const bool calls_tools = calls != message.end() && calls->is_array() && !calls->empty();
    if (*role == "assistant" && calls_tools) return ok_status();
    return invalid_argument("{}.content is missing", where).with_param(where + ".content");
  }
  if (content->is_string()) return ok_status();
  if (!content->is_array()) {
    return invalid_argument("{}.content must be a string or a list of text parts", where)
        .with_param(where + ".content");
  }
  TENON_ASSIGN_OR_RETURN(std::string text, join_parts(*content, where + ".content"));
  *content = std::move(text);
  return ok_status();
}

Result<ChatInput> parse_chat_input(FieldReader& fields) {
  ChatInput input;
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return invalid_argument("messages must be a list with at least one message")
        .with_param("messages");
  }
  input.messages = *messages;
  for (size_t i = 0; i < input.messages.size(); ++i) {
    TENON_RETURN_IF_ERROR(normalise_message(input.messages[i], i));
  }
  refuse(fields, "tools", "tools follow in a later version");
  refuse(fields, "functions", "tools follow in a later version");
  for (const char* name : {"tool_choice", "function_call"}) {
    const OrderedJson* choice = fields.find(name);
    if (choice == nullptr || *choice == "none" || *choice == "auto") continue;
    fields.fail(
        unsupported("{} is not supported: tools follow in a later version", name).with_param(name));
  }
  if (const OrderedJson* documents = fields.find("documents")) {
    if (!documents->is_array()) fields.fail_type("documents", "a list");
    input.documents = *documents;
  }
  if (const OrderedJson* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) fields.fail_type("chat_template_kwargs", "an object");
    input.template_kwargs = *kwargs;
  }
  fields.read("chat_template", input.chat_template);
  fields.read("continue_final_message", input.continue_final_message);
  input.add_generation_prompt = !input.continue_final_message;
  fields.read("add_generation_prompt", input.add_generation_prompt);
  if (input.continue_final_message && input.add_generation_prompt) {
    fields.fail(
        invalid_argument("continue_final_message and add_generation_prompt cannot both be true")
            .with_param("continue_final_message"));
  }
  fields.read("add_special_tokens", input.add_special_tokens);
  TENON_RETURN_IF_ERROR(fields.status());
  return input;
}

}  // namespace

Result<CompletionRequest> parse_completion_request(const OrderedJson& body,
                                                   const RequestLimits& limits) {
  TENON_RETURN_IF_ERROR(check_object(body));
  CompletionRequest request;
  GenerationParams& params = request.params;
  FieldReader fields(body);
  read_generation_params(fields, params, limits.vocab_size);
  fields.read("echo", request.echo);
  fields.read("logprobs", params.sampling.logprobs);
  fields.read("add_special_tokens", request.add_special_tokens);
  fields.read("parse_special", request.parse_special);
  refuse(fields, "suffix", "");
  TENON_RETURN_IF_ERROR(fields.status());
  if (!params.max_tokens) params.max_tokens = 16;
  if (*params.max_tokens == 0 && !request.echo) {
    return invalid_argument("max_tokens can be 0 only with echo").with_param("max_tokens");
  }
  if (request.echo && params.sampling.logprobs && !params.return_prompt_logprobs) {
    params.sampling.prompt_logprobs = params.sampling.logprobs;
  }
  TENON_RETURN_IF_ERROR(check_ranges(params, limits.vocab_size));
  TENON_ASSIGN_OR_RETURN(request.prompts, parse_prompts(fields.find("prompt"), limits.vocab_size));
  TENON_RETURN_IF_ERROR(check_choices(params, request.prompts.size(), limits));
  return request;
}

Result<ChatRequest> parse_chat_request(const OrderedJson& body, const RequestLimits& limits) {
  TENON_RETURN_IF_ERROR(check_object(body));
  ChatRequest request;
  GenerationParams& params = request.params;
  FieldReader fields(body);
  read_generation_params(fields, params, limits.vocab_size);
  bool logprobs = false;
  int32_t top_logprobs = 0;
  fields.read("logprobs", logprobs);
  fields.read("top_logprobs", top_logprobs);
  TENON_RETURN_IF_ERROR(fields.status());
  if (top_logprobs < 0 || top_logprobs > SamplingParams::kMaxLogprobs) {
    return invalid_argument("top_logprobs must be in [0, {}], got {}", SamplingParams::kMaxLogprobs,
                            top_logprobs)
        .with_param("top_logprobs");
  }
  if (top_logprobs > 0 && !logprobs) {
    return invalid_argument("top_logprobs needs logprobs to be true").with_param("top_logprobs");
  }
  if (logprobs) params.sampling.logprobs = top_logprobs;
  if (params.max_tokens && *params.max_tokens == 0) {
    return invalid_argument("max_tokens must be at least 1").with_param("max_tokens");
  }
  TENON_RETURN_IF_ERROR(check_ranges(params, limits.vocab_size));
  TENON_RETURN_IF_ERROR(check_choices(params, 1, limits));
  refuse(fields, "echo", "use completions");
  TENON_ASSIGN_OR_RETURN(request.input, parse_chat_input(fields));
  return request;
}

Result<TokenizeRequest> parse_tokenize_request(const OrderedJson& body) {
  TENON_RETURN_IF_ERROR(check_object(body));
  TokenizeRequest request;
  FieldReader fields(body);
  fields.read("model", request.model);
  fields.read("return_token_strs", request.return_token_strings);
  if (fields.find("messages") != nullptr) {
    TENON_ASSIGN_OR_RETURN(request.input, parse_chat_input(fields));
    return request;
  }
  fields.read("add_special_tokens", request.add_special_tokens);
  fields.read("parse_special", request.parse_special);
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt == nullptr || !prompt->is_string()) {
    fields.fail(invalid_argument("prompt (a string) or messages is needed").with_param("prompt"));
  }
  TENON_RETURN_IF_ERROR(fields.status());
  request.input = prompt->get<std::string>();
  return request;
}

Result<DetokenizeRequest> parse_detokenize_request(const OrderedJson& body, int32_t vocab_size) {
  TENON_RETURN_IF_ERROR(check_object(body));
  DetokenizeRequest request;
  FieldReader fields(body);
  fields.read("model", request.model);
  const OrderedJson* tokens = fields.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) fields.fail_type("tokens", "a list of token ids");
  TENON_RETURN_IF_ERROR(fields.status());
  TENON_ASSIGN_OR_RETURN(request.tokens, parse_ids(*tokens, "tokens", vocab_size));
  return request;
}

}  // namespace tenon
