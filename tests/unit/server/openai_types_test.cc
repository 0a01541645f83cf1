// Parsing and validation of requests. API-04, API-05, API-07 and API-09 as tables.
#include "server/openai_types.h"

#include <gtest/gtest.h>

namespace tenon {
namespace {

constexpr int32_t kVocab = 1000;
const RequestLimits kLimits{.vocab_size = kVocab, .max_choices = 100};

Result<CompletionRequest> completion(const std::string& fields) {
  const auto body = parse_json(R"({"model":"m")" + (fields.empty() ? "" : "," + fields) + "}", {});
  EXPECT_TRUE(body.ok()) << fields << ": " << body.status().message();
  return parse_completion_request(*body, kLimits);
}
Result<ChatRequest> chat(const std::string& fields) {
  std::string text = R"({"model":"m")" + (fields.empty() ? "" : "," + fields);
  if (fields.find("messages") == std::string::npos)
    text += R"(,"messages":[{"role":"user","content":"hi"}])";
  const auto body = parse_json(text + "}", {});
  EXPECT_TRUE(body.ok()) << fields << ": " << body.status().message();
  return parse_chat_request(*body, kLimits);
}

struct Row {
  std::string fields;
  std::string param;  // of the error; empty: accepted
};

template <typename Parse>
void check_rows(const std::vector<Row>& rows, const std::string& common, Parse parse) {
  for (const Row& row : rows) {
    const auto request = parse(common + row.fields);
    EXPECT_EQ(request.ok(), row.param.empty()) << row.fields << ": " << request.status().message();
    if (request.ok()) continue;
    EXPECT_EQ(request.status().param(), row.param) << row.fields;
    EXPECT_FALSE(request.status().message().empty());
  }
}

TEST(OpenAiTypes, Api05PromptForms) {
  const std::vector<Row> rows = {
      {R"("prompt":"")", ""},
      {R"("prompt":[""])", ""},
      {R"("prompt":[])", "prompt"},
      {R"("prompt":[[]])", "prompt"},
      {R"("prompt":[1,2,3])", ""},
      {R"("prompt":[[1,2],[3]])", ""},
      {R"("prompt":["a","b"])", ""},
      {R"("prompt":[1,"a"])", "prompt"},
      {R"("prompt":["a",1])", "prompt"},
      {R"("prompt":[[1],"a"])", "prompt"},
      {R"("prompt":[[1],[]])", "prompt"},
      {R"("prompt":[999])", ""},
      {R"("prompt":[1000])", "prompt"},
      {R"("prompt":[-1])", "prompt"},
      {R"("prompt":[4294967297])", "prompt"},
      {R"("prompt":[9223372036854775808])", "prompt"},
      {R"("prompt":[18446744073709551617])", "prompt"},
      {R"("prompt":[1.5])", "prompt"},
      {R"("prompt":[1.0])", "prompt"},
      {R"("prompt":[true])", "prompt"},
      {R"("prompt":null)", "prompt"},
      {R"("prompt":true)", "prompt"},
      {R"("prompt":7)", "prompt"},
      {R"("prompt":{"x":1})", "prompt"},
      {R"("echo":false)", "prompt"},
  };
  check_rows(rows, "", completion);
  const auto lists = completion(R"("prompt":[[1,2],[3]])");
  ASSERT_EQ(lists->prompts.size(), 2U);
  EXPECT_EQ(std::get<std::vector<int32_t>>(lists->prompts[0]), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(completion(R"("prompt":[1,2,3])")->prompts.size(), 1U);
}

TEST(OpenAiTypes, Api05TooManyChoicesAreRefused) {
  std::string prompts = "\"prompt\":[[1]";
  for (int i = 1; i < 101; ++i) prompts += ",[1]";
  EXPECT_EQ(completion(prompts + "]").status().param(), "prompt");
  EXPECT_TRUE(completion(R"("prompt":[[1],[2]],"n":50)").ok());
  EXPECT_FALSE(completion(R"("prompt":[[1],[2]],"n":51)").ok());
}

TEST(OpenAiTypes, Api04MaxTokens) {
  const std::vector<Row> shared = {
      {R"("max_tokens":null)", ""},
      {R"("max_tokens":1)", ""},
      {R"("max_tokens":8.0)", ""},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":"8")", "max_tokens"},
      {R"("max_tokens":true)", "max_tokens"},
      {R"("max_tokens":2147483648)", ""},  // clamped
      {R"("max_tokens":9223372036854775808)", "max_tokens"},
      {R"("max_completion_tokens":-5)", "max_completion_tokens"},
  };
  check_rows(shared, R"("prompt":"x",)", completion);
  check_rows(shared, "", chat);
  EXPECT_TRUE(completion(R"("prompt":"x","max_tokens":0,"echo":true)").ok());

  EXPECT_EQ(completion(R"("prompt":"x")")->params.max_tokens, 16);
  EXPECT_EQ(completion(R"("prompt":"x","max_tokens":null)")->params.max_tokens, 16);
  EXPECT_EQ(chat("")->params.max_tokens, std::nullopt);
  EXPECT_EQ(chat("\"max_tokens\":2147483648")->params.sampling.max_tokens, 2147483647);
  EXPECT_EQ(chat("\"max_tokens\":5,\"max_completion_tokens\":3")->params.sampling.max_tokens, 3);
  EXPECT_EQ(completion(R"("prompt":"x","max_completion_tokens":3)")->params.sampling.max_tokens, 3);
}

TEST(OpenAiTypes, Api09SamplingRanges) {
  const std::vector<Row> rows = {
      {R"("temperature":0)", ""},
      {R"("temperature":1e-45)", ""},
      {R"("temperature":2)", ""},
      {R"("temperature":3)", "temperature"},
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":1e300)", "temperature"},
      {R"("top_p":0)", ""},
      {R"("top_p":1.01)", "top_p"},
      {R"("top_k":0)", ""},
      {R"("top_k":-1)", ""},
      {R"("top_k":100000)", ""},
      {R"("top_k":-2)", "top_k"},
      {R"("min_p":1)", ""},
      {R"("min_p":-0.1)", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("presence_penalty":-2)", ""},
      {R"("presence_penalty":2.5)", "presence_penalty"},
      {R"("frequency_penalty":[1])", "frequency_penalty"},
      {R"("seed":-9223372036854775808)", ""},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("seed":"x")", "seed"},
      {R"("logit_bias":{"5":-100,"999":100})", ""},
      {R"("logit_bias":{"1000":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias"},
      {R"("logit_bias":{"5":"a"})", "logit_bias"},
      {R"("logit_bias":{"5 ":1})", "logit_bias"},
      {R"("logit_bias":{"4294967301":1})", "logit_bias"},
      {R"("logit_bias":[5])", "logit_bias"},
      {R"("logit_bias":{"05":1})", "logit_bias"},
      {R"("logit_bias":{"-0":1})", "logit_bias"},
      {R"("logit_bias":{"0":1})", ""},
      {R"("cache_salt":")" + std::string(256, 's') + "\"", ""},
      {R"("cache_salt":")" + std::string(257, 's') + "\"", "cache_salt"},
      {R"("stop":"a")", ""},
      {R"("stop":["a","b"])", ""},
      {R"("stop":null)", ""},
      {R"("stop":"")", "stop"},
      {R"("stop":[""])", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":7)", "stop"},
      {R"("stop_token_ids":[1,2])", ""},
      {R"("stop_token_ids":[1000])", "stop_token_ids"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":3)", "stop_token_ids"},
      {R"("min_tokens":3,"max_tokens":4)", ""},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":2)", ""},
      {R"("n":2.5)", "n"},
      {R"("best_of":1)", ""},
      {R"("best_of":3)", "best_of"},
      {R"("stream":"yes")", "stream"},
      {R"("stream":true,"stream_options":{"include_usage":true})", ""},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":true)", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("ignore_eos":0)", "ignore_eos"},
      {R"("ignore_eos":true)", ""},
  };
  check_rows(rows, R"("prompt":"x",)", completion);
  check_rows(rows, "", chat);
}

TEST(OpenAiTypes, Api02Logprobs) {
  check_rows({{R"("logprobs":true)", ""},
              {R"("logprobs":true,"top_logprobs":0)", ""},
              {R"("logprobs":true,"top_logprobs":20)", ""},
              {R"("logprobs":false,"top_logprobs":0)", ""},
              {R"("top_logprobs":2)", "top_logprobs"},
              {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
              {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs"},
              {R"("logprobs":2)", "logprobs"}},
             "", chat);
  check_rows({{R"("logprobs":0)", ""},
              {R"("logprobs":20)", ""},
              {R"("logprobs":21)", "logprobs"},
              {R"("logprobs":-1)", "logprobs"},
              {R"("logprobs":true)", "logprobs"}},
             R"("prompt":"x",)", completion);
  EXPECT_EQ(completion(R"("prompt":"x","logprobs":0)")->params.sampling.logprobs, 0);
  EXPECT_EQ(completion(R"("prompt":"x","logprobs":0)")->params.sampling.prompt_logprobs,
            std::nullopt);
  EXPECT_EQ(completion(R"("prompt":"x","logprobs":2,"echo":true)")->params.sampling.prompt_logprobs,
            2);
  EXPECT_EQ(chat(R"("logprobs":true)")->params.sampling.logprobs, 0);
  EXPECT_EQ(chat("")->params.sampling.logprobs, std::nullopt);
}

TEST(OpenAiTypes, Api05Messages) {
  const auto messages = [](const std::string& list) { return chat("\"messages\":" + list); };
  check_rows(
      {{"[]", "messages"},
       {"null", "messages"},
       {"{}", "messages"},
       {"[1]", "messages[0]"},
       {R"([{"role":"user"}])", "messages[0].content"},
       {R"([{"role":"user","content":null}])", "messages[0].content"},
       {R"([{"role":"user","content":5}])", "messages[0].content"},
       {R"([{"content":"x"}])", "messages[0].role"},
       {R"([{"role":"user","content":"x"},{"role":"narrator","content":"x"}])", "messages[1].role"},
       {R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
        ""},
       {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        "messages[0].content"},
       {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content"},
       {R"([{"role":"user","content":["a"]}])", "messages[0].content"},
       {R"([{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}])", ""},
       {R"([{"role":"developer","content":"x"},{"role":"tool","content":"y","tool_call_id":"1"}])",
        ""}},
      "", messages);
  const auto parts = messages(
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"}])");
  EXPECT_EQ(dump_json(parts->input.messages), R"([{"role":"user","content":"a\nb","name":"n"}])");
}

TEST(OpenAiTypes, UnsupportedFieldsAreRefusedUnlessTheyChangeNothing) {
  check_rows(
      {{R"("tools":[])", ""},
       {R"("tools":null,"tool_choice":"none")", ""},
       {R"("tools":[{"type":"function"}])", "tools"},
       {R"("tool_choice":"required")", "tool_choice"},
       {R"("response_format":{"type":"text"})", ""},
       {R"("response_format":{"type":"json_object"})", "response_format"},
       {R"("response_format":"json")", "response_format"},
       {R"("structured_outputs":{"regex":"a"})", "structured_outputs"},
       {R"("guided_json":{})", ""},
       {R"("use_beam_search":true)", "use_beam_search"},
       {R"("use_beam_search":false)", ""},
       {R"("user":"me","metadata":{"a":[1]},"store":true,"no_such_field":{"x":[[]]})", ""},
       {R"("continue_final_message":true)", ""},
       {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message"},
       {R"("echo":true)", "echo"},
       {R"("echo":false)", ""},
       {R"("function_call":{"name":"f"})", "function_call"},
       {R"("function_call":"none")", ""},
       {R"("json_schema":{"type":"object"})", "json_schema"},
       {R"("regex":"a+")", "regex"},
       {R"("ebnf":"root ::= x")", "ebnf"},
       {R"("grammar":"root ::= x")", "grammar"},
       {R"("spaces_between_special_tokens":false)", "spaces_between_special_tokens"},
       {R"("spaces_between_special_tokens":true)", ""},
       {R"("thinking_token_budget":0)", "thinking_token_budget"},
       {R"("truncation_side":"left")", "truncation_side"},
       {R"("length_penalty":2)", "length_penalty"},
       {R"("length_penalty":1.0)", ""},
       {R"("repetition_detection":{"max_pattern_size":3})", "repetition_detection"},
       {R"("regex":null,"grammar":"","length_penalty":null)", ""},
       {R"("chat_template_kwargs":[])", "chat_template_kwargs"}},
      "", chat);
  check_rows({{R"("suffix":"x")", "suffix"}, {R"("suffix":"")", ""}, {R"("suffix":null)", ""}},
             R"("prompt":"x",)", completion);
}

// "[0,1,...]" or "{"0":1,...}" with `count` entries.
std::string many(int count, bool object) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string id = std::to_string(i);
    text += (i == 0 ? "" : ",") + (object ? "\"" + id + "\":1" : id);
  }
  return object ? "{" + text + "}" : "[" + text + "]";
}

// Every choice has copies of these: a small body must not become gigabytes.
TEST(OpenAiTypes, Rob04WhatIsCopiedForEveryChoiceIsBounded) {
  const auto parse = [](const std::string& fields, int n) {
    const auto body = parse_json(
        R"({"model":"m","prompt":"x","n":)" + std::to_string(n) + "," + fields + "}", {});
    return parse_completion_request(*body, {.vocab_size = 100'000, .max_choices = 1024});
  };
  const auto repeated = parse(R"("stop_token_ids":[7,5,7,7,5])", 1);
  EXPECT_EQ(repeated->params.sampling.stop_token_ids, (std::vector<int32_t>{5, 7}));
  EXPECT_TRUE(parse(R"("stop_token_ids":)" + many(1024, false), 128).ok());
  EXPECT_EQ(parse(R"("stop_token_ids":)" + many(1025, false), 1).status().param(),
            "stop_token_ids");
  const std::string biases = R"("logit_bias":)" + many(100'000, true);
  EXPECT_TRUE(parse(biases, 1).ok());
  EXPECT_EQ(parse(biases, 128).status().param(), "logit_bias");
  std::string stops = R"("stop":[")" + std::string(4096, 'a') + "\"";
  for (int i = 1; i < 64; ++i) stops += ",\"" + std::string(4096, 'a') + "\"";
  EXPECT_TRUE(parse(stops + "]", 4).ok());
  EXPECT_EQ(parse(stops + "]", 128).status().param(), "stop");
}

TEST(OpenAiTypes, ChoicesAreLimitedInChatToo) {
  check_rows({{R"("n":100)", ""}, {R"("n":101)", "n"}}, "", chat);
}

TEST(OpenAiTypes, ArgumentsOfToolCallsBecomeObjects) {
  const auto arguments = [](const std::string& text) {
    const auto request = chat(
        R"("messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":)" +
        text + "}}]}]");
    EXPECT_TRUE(request.ok()) << request.status().message();
    return dump_json(request->input.messages[0]["tool_calls"][0]["function"]["arguments"]);
  };
  EXPECT_EQ(arguments(R"("{\"a\": [1]}")"), R"({"a":[1]})");
  EXPECT_EQ(arguments(R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(arguments(R"("{\"a\": ")"), R"("{\"a\": ")");
  EXPECT_EQ(arguments(R"("7")"), R"("7")");
}

TEST(OpenAiTypes, Api07BodiesThatAreNoRequests) {
  for (const char* text : {"[]", "1", "\"x\"", "null"}) {
    const auto body = parse_json(text, {});
    EXPECT_FALSE(parse_completion_request(*body, kLimits).ok());
    EXPECT_FALSE(parse_chat_request(*body, kLimits).ok());
    EXPECT_FALSE(parse_tokenize_request(*body).ok());
    EXPECT_FALSE(parse_detokenize_request(*body, kVocab).ok());
  }
  const auto no_model = parse_json(R"({"prompt":"x"})", {});
  EXPECT_EQ(parse_completion_request(*no_model, kLimits).status().param(), "model");
}

TEST(OpenAiTypes, Tokenize) {
  const auto parse = [](const char* text) { return parse_tokenize_request(*parse_json(text, {})); };
  EXPECT_TRUE(parse(R"({"prompt":"x"})")->parse_special);
  EXPECT_FALSE(parse(R"({"prompt":"x","parse_special":false,"add_special_tokens":false})")
                   ->add_special_tokens);
  EXPECT_TRUE(std::holds_alternative<ChatInput>(
      parse(R"({"messages":[{"role":"user","content":"x"}]})")->input));
  EXPECT_EQ(parse("{}").status().param(), "prompt");
  EXPECT_EQ(parse(R"({"prompt":5})").status().param(), "prompt");
  const auto detokenize = [](const char* text) {
    return parse_detokenize_request(*parse_json(text, {}), kVocab);
  };
  EXPECT_EQ(detokenize(R"({"tokens":[1,2]})")->tokens.size(), 2U);
  EXPECT_TRUE(detokenize(R"({"tokens":[]})").ok());
  EXPECT_EQ(detokenize(R"({"tokens":[1000]})").status().param(), "tokens");
  EXPECT_EQ(detokenize(R"({"tokens":"a"})").status().param(), "tokens");
}

}  // namespace
}  // namespace tenon
