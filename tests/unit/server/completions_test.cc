// POST /v1/completions through the whole server over a scripted engine. API-02, API-04, API-05,
// API-07, TOK-04.
#include <map>

#include "tests/unit/server/server_fixture.h"

namespace tenon::testing {
namespace {

using CompletionsTest = ServerTest;

// The engine says these bytes, then ends.
FakeEngine::Script say(std::string text) {
  return [text = std::move(text)](const GenerationRequest&, int32_t position) {
    return position < static_cast<int32_t>(text.size())
               ? static_cast<int32_t>(static_cast<uint8_t>(text[static_cast<size_t>(position)]))
               : FakeEngine::kEos;
  };
}

std::string joined_text(const std::vector<json>& events, int index = 0) {
  std::string text;
  for (const json& event : events) {
    for (const json& choice : event["choices"]) {
      if (choice["index"] == index) text += choice["text"].get<std::string>();
    }
  }
  return text;
}

TEST_F(CompletionsTest, AnswersWhole) {
  start_ready();
  const HttpAnswer answer = completion({{"prompt", "xyz"}, {"max_tokens", 4}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json body = answer.json();
  EXPECT_EQ(body["id"].get<std::string>().rfind("cmpl-", 0), 0U);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(
      body["choices"],
      json::parse(
          R"([{"index":0,"text":"abcd","logprobs":null,"finish_reason":"length","stop_reason":null}])"));
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,
                                           "prompt_tokens_details":{"cached_tokens":0}})"));
}

TEST_F(CompletionsTest, StreamsTheSameText) {
  start_ready();
  const auto events =
      http_stream(port, "/v1/completions",
                  {{"model", "alias"}, {"prompt", "x"}, {"max_tokens", 5}, {"stream", true}});
  EXPECT_EQ(joined_text(events), "abcde");
  for (const json& event : events) {
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    EXPECT_EQ(event["model"], "alias");
    EXPECT_EQ(event["choices"].size(), 1U);
    EXPECT_FALSE(event.contains("usage"));
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(), &event != &events.back());
  }
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
}

TEST_F(CompletionsTest, StreamOptions) {
  start_ready();
  json request = {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 3}, {"stream", true}};
  request["stream_options"] = {{"include_usage", true}};
  auto events = http_stream(port, "/v1/completions", request);
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i].at("usage").is_null());
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 3);
  request["stream_options"] = {{"continuous_usage_stats", true}};
  events = http_stream(port, "/v1/completions", request);
  for (const json& event : events) EXPECT_FALSE(event.contains("usage"));
  // Each event has the counts of its own choice, the last one those of the request.
  request["stream_options"]["include_usage"] = true;
  request["n"] = 2;
  events = http_stream(port, "/v1/completions", request);
  std::map<int, int> last;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json& usage = events[i].at("usage");
    EXPECT_EQ(usage["prompt_tokens"], 1);
    last[events[i]["choices"][0]["index"]] = usage["completion_tokens"];
  }
  EXPECT_EQ(last, (std::map<int, int>{{0, 3}, {1, 3}}));
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
}

TEST_F(CompletionsTest, Api05ListsOfPromptsAndNGiveIndexedChoices) {
  engine.set_script(
      [](const GenerationRequest& request, int32_t) { return request.prompt[0] + 1; });
  start_ready();
  const json ids = completion({{"prompt", {{65, 66}, {77}}}, {"max_tokens", 2}}).json();
  ASSERT_EQ(ids["choices"].size(), 2U);
  EXPECT_EQ(ids["choices"][0]["text"], "BB");
  EXPECT_EQ(ids["choices"][1]["text"], "NN");
  EXPECT_EQ(ids["choices"][1]["index"], 1);
  EXPECT_EQ(ids["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(ids["usage"]["completion_tokens"], 4);
  const json both =
      completion({{"prompt", {"a", "m"}}, {"max_tokens", 1}, {"n", 2}, {"seed", 7}}).json();
  ASSERT_EQ(both["choices"].size(), 4U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(both["choices"][i]["text"], i < 2 ? "b" : "n");
  EXPECT_EQ(both["usage"]["prompt_tokens"], 2);
  std::vector<int64_t> seeds;
  for (const GenerationRequest& request : engine.seen()) {
    if (request.sampling.seed) seeds.push_back(*request.sampling.seed);
  }
  EXPECT_EQ(seeds, (std::vector<int64_t>{7, 8, 7, 8}));
  const auto events = http_stream(
      port, "/v1/completions",
      {{"model", "m"}, {"prompt", {"a", "m"}}, {"max_tokens", 3}, {"n", 2}, {"stream", true}});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(joined_text(events, i), i < 2 ? "bbb" : "nnn");
}

TEST_F(CompletionsTest, Api05EmptyTextNeedsABos) {
  start_ready(false);
  expect_error(completion({{"prompt", ""}}), 400, "prompt");
  expect_error(completion({{"prompt", json::array({""})}}), 400, "prompt");
  attach(true);
  EXPECT_EQ(completion({{"prompt", ""}}).json()["usage"]["prompt_tokens"], 1);
  EXPECT_EQ(completion({{"prompt", json::array({""})}}).json()["usage"]["prompt_tokens"], 1);
  expect_error(completion({{"prompt", ""}, {"add_special_tokens", false}}), 400, "prompt");
  expect_healthy();
}

TEST_F(CompletionsTest, Tok03RawPromptsParseSpecialTokensUnlessToldNotTo) {
  start_ready();
  const std::string prompt = "A<|im_end|>\n<|im_start|>";
  EXPECT_EQ(completion({{"prompt", prompt}, {"max_tokens", 1}}).json()["usage"]["prompt_tokens"],
            4);
  EXPECT_EQ(completion({{"prompt", prompt}, {"max_tokens", 1}, {"parse_special", false}})
                .json()["usage"]["prompt_tokens"],
            prompt.size());
}

TEST_F(CompletionsTest, Tpl06BosOfTextPromptsFollowsTheTokenizer) {
  start_ready(true);
  const auto prompt_tokens = [this](const json& prompt) {
    return completion({{"prompt", prompt}, {"max_tokens", 1}})
        .json()["usage"]["prompt_tokens"]
        .get<int>();
  };
  EXPECT_EQ(prompt_tokens("ab"), 3);
  EXPECT_EQ(prompt_tokens("<s>ab"), 4);    // doubled by the caller: kept
  EXPECT_EQ(prompt_tokens({256, 97}), 2);  // ids are used as they are
  EXPECT_EQ(prompt_tokens({97}), 1);
  attach(false);
  EXPECT_EQ(prompt_tokens("ab"), 2);
}

TEST_F(CompletionsTest, Api02LogprobShapes) {
  start_ready();
  const json prompt = {120, 121, 122};
  const json zero = completion({{"prompt", prompt}, {"max_tokens", 2}, {"logprobs", 0}})
                        .json()["choices"][0]["logprobs"];
  EXPECT_EQ(
      zero,
      json::parse(
          R"({"tokens":["a","b"],"token_logprobs":[-0.5,-0.5],"top_logprobs":null,"text_offset":[0,1]})"));
  const json two = completion({{"prompt", prompt}, {"max_tokens", 2}, {"logprobs", 2}})
                       .json()["choices"][0]["logprobs"];
  EXPECT_EQ(two["top_logprobs"], json::parse(R"([{"a":-0.5,"b":-1.5},{"b":-0.5,"c":-1.5}])"));
  const json echo =
      completion({{"prompt", prompt}, {"max_tokens", 2}, {"logprobs", 2}, {"echo", true}})
          .json()["choices"][0];
  EXPECT_EQ(echo["text"], "xyzab");
  EXPECT_EQ(echo["logprobs"]["tokens"], json::parse(R"(["x","y","z","a","b"])"));
  EXPECT_EQ(echo["logprobs"]["text_offset"], json::parse("[0,1,2,3,4]"));
  EXPECT_EQ(echo["logprobs"]["token_logprobs"], json::parse("[null,-0.5,-0.5,-0.5,-0.5]"));
  EXPECT_TRUE(echo["logprobs"]["top_logprobs"][0].is_null());
  const auto events = http_stream(port, "/v1/completions",
                                  {{"model", "m"},
                                   {"prompt", prompt},
                                   {"max_tokens", 2},
                                   {"logprobs", 2},
                                   {"echo", true},
                                   {"stream", true}});
  json merged = {{"tokens", json::array()},
                 {"token_logprobs", json::array()},
                 {"top_logprobs", json::array()},
                 {"text_offset", json::array()}};
  for (const json& event : events) {
    for (auto& [key, list] : merged.items()) {
      for (const json& item : event["choices"][0]["logprobs"][key]) list.push_back(item);
    }
  }
  EXPECT_EQ(merged, echo["logprobs"]);
  EXPECT_EQ(joined_text(events), "xyzab");
  const json scored =
      completion({{"prompt", prompt}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}}).json();
  EXPECT_EQ(scored["choices"][0]["text"], "xyz");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 3U);
  EXPECT_EQ(scored["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionsTest, Api02OffsetsCountCharactersAndSkipWhatIsNotShown) {
  engine.set_script(say("\xC3\xA9x\xF0\x9F\x98\x80!"));
  start_ready(true);
  const json choice =
      completion({{"prompt", "\xC3\xA4"}, {"max_tokens", 20}, {"logprobs", 1}, {"echo", true}})
          .json()["choices"][0];
  EXPECT_EQ(choice["text"], "\xC3\xA4\xC3\xA9x\xF0\x9F\x98\x80!");
  // <s> (automatic, not shown), 2 bytes, 2 bytes, x, 4 bytes, !, <|im_end|>
  EXPECT_EQ(choice["logprobs"]["text_offset"], json::parse("[0,0,0,1,1,2,3,3,3,3,4,5]"));
  EXPECT_EQ(choice["logprobs"]["tokens"][1], "\xEF\xBF\xBD");
  EXPECT_EQ(choice["logprobs"]["tokens"].back(), "<|im_end|>");
}

TEST_F(CompletionsTest, PromptLogprobsAndTokenIds) {
  start_ready();
  const json choice = completion({{"prompt", {120, 121}},
                                  {"max_tokens", 2},
                                  {"prompt_logprobs", 1},
                                  {"return_token_ids", true}})
                          .json()["choices"][0];
  EXPECT_EQ(choice["prompt_logprobs"],
            json::parse(R"([null,{"121":{"logprob":-0.5,"rank":1,"decoded_token":"y"}}])"));
  EXPECT_EQ(choice["prompt_token_ids"], json::parse("[120,121]"));
  EXPECT_EQ(choice["token_ids"], json::parse("[97,98]"));
  EXPECT_TRUE(choice["logprobs"].is_null());
  const json named = completion({{"prompt", {120}},
                                 {"max_tokens", 1},
                                 {"logprobs", 0},
                                 {"return_tokens_as_token_ids", true}})
                         .json()["choices"][0]["logprobs"];
  EXPECT_EQ(named["tokens"][0], "token_id:97");
}

TEST_F(CompletionsTest, StopsAtStringsAndTokens) {
  start_ready();
  const auto choice = [this](json fields) {
    fields.update({{"prompt", "x"}, {"max_tokens", 20}});
    const json body = completion(fields).json();
    json result = body["choices"][0];
    result["count"] = body["usage"]["completion_tokens"];
    return result;
  };
  json stopped = choice({{"stop", {"zz", "de"}}});
  EXPECT_EQ(stopped["text"], "abc");
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], "de");
  EXPECT_EQ(stopped["count"], 5);
  EXPECT_EQ(choice({{"stop", "de"}, {"include_stop_str_in_output", true}})["text"], "abcde");
  EXPECT_EQ(choice({{"stop", "b"}, {"min_tokens", 5}})["text"], "abcdefghijklmnopqrst");
  stopped = choice({{"stop_token_ids", {100}}});
  EXPECT_EQ(stopped["text"], "abc");
  EXPECT_EQ(stopped["stop_reason"], 100);
  EXPECT_EQ(choice({{"stop_token_ids", {100}}, {"include_stop_str_in_output", true}})["text"],
            "abcd");
  // Streamed: held text is never shown and then taken back.
  const auto events = http_stream(
      port, "/v1/completions",
      {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 20}, {"stop", "de"}, {"stream", true}});
  EXPECT_EQ(joined_text(events), "abc");
  EXPECT_EQ(events.back()["choices"][0]["stop_reason"], "de");
  expect_healthy();  // what ran past a stop string was aborted
  // A request counts when the engine has let go of it, which may be a step after the client has its
  // answer.
  EXPECT_TRUE(eventually([this] {
    return metric_value(http_get(port, "/metrics").body, "vllm:request_success_total") == 6;
  }));
  const std::string page = http_get(port, "/metrics").body;
  EXPECT_EQ(metric_value(page, "vllm:request_success_total"), 6);
  EXPECT_NE(page.find("finished_reason=\"stop\"} 5\n"), std::string::npos);
  EXPECT_NE(page.find("finished_reason=\"abort\"} 0\n"), std::string::npos);
}

TEST_F(CompletionsTest, EndOfTextHasNoStopReason) {
  engine.set_script(say("hi"));
  start_ready();
  const json body = completion({{"prompt", "x"}}).json();
  EXPECT_EQ(body["choices"][0]["text"], "hi");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(completion({{"prompt", "x"}, {"ignore_eos", true}, {"max_tokens", 4}})
                .json()["choices"][0]["text"],
            "hi");
  EXPECT_EQ(completion({{"prompt", "x"},
                        {"ignore_eos", true},
                        {"max_tokens", 4},
                        {"skip_special_tokens", false}})
                .json()["choices"][0]["text"],
            "hi<|im_end|><|im_end|>");
}

TEST_F(CompletionsTest, Tok04HalfCharactersAreHeldBack) {
  const std::string text =
      "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"
      "e\xCC\x81x";
  engine.set_script(say(text));
  start_ready();
  const auto events =
      http_stream(port, "/v1/completions",
                  {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 40}, {"stream", true}});
  EXPECT_EQ(joined_text(events), text);
  for (const json& event : events) {
    EXPECT_EQ(event["choices"][0]["text"].get<std::string>().find("\xEF\xBF\xBD"),
              std::string::npos);
  }
  EXPECT_EQ(completion({{"prompt", "x"}, {"max_tokens", 40}}).json()["choices"][0]["text"], text);
}

TEST_F(CompletionsTest, Rob04InvalidBytesOfTheModelStayValidUtf8) {
  engine.set_script([](const GenerationRequest&, int32_t) { return 0xC3; });
  start_ready();
  const json body = completion({{"prompt", "x"}, {"max_tokens", 3}, {"logprobs", 1}})
                        .json();  // parses: valid UTF-8
  EXPECT_EQ(body["choices"][0]["text"], "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  const auto events =
      http_stream(port, "/v1/completions",
                  {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 3}, {"stream", true}});
  EXPECT_EQ(joined_text(events), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_F(CompletionsTest, Api07ContextOverflow) {
  start_ready();
  const auto ids = [](int count) { return json(std::vector<int>(static_cast<size_t>(count), 65)); };
  for (const bool stream : {false, true}) {
    for (const auto& [prompt, max_tokens] :
         {std::pair{201, 1}, std::pair{200, 1}, std::pair{5000, 16}}) {
      const HttpAnswer answer =
          completion({{"prompt", ids(prompt)}, {"max_tokens", max_tokens}, {"stream", stream}});
      expect_error(answer, 400, "prompt");
      const json error = answer.json()["error"];
      EXPECT_EQ(error["code"], "context_length_exceeded");
      EXPECT_NE(error["message"].get<std::string>().find("maximum context length is 200 tokens"),
                std::string::npos);
      EXPECT_NE(error["message"].get<std::string>().find(std::to_string(prompt)),
                std::string::npos);
    }
  }
  const json last = completion({{"prompt", ids(199)}, {"max_tokens", 16}}).json();
  EXPECT_EQ(last["usage"]["completion_tokens"], 1);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(completion({{"prompt", ids(200)}, {"max_tokens", 0}, {"echo", true}}).status, 200);
  // So long that it is not even tokenised.
  expect_error(completion({{"prompt", std::string(1 << 20, 'a')}}), 400, "prompt");
  expect_healthy();
}

TEST_F(CompletionsTest, EngineErrors) {
  engine.set_max_queue(3);
  start_ready();
  expect_error(completion({{"prompt", "x"}, {"n", 4}}), 429);
  expect_healthy();  // the three that were accepted are gone
  engine.fail_next(internal_error("broken"));
  expect_error(completion({{"prompt", "x"}, {"n", 2}}), 500);
  expect_healthy();
  engine.fail_next(internal_error("broken"));
  HttpClient client(port);
  client.send(
      HttpClient::format("POST", "/v1/completions", R"({"model":"m","prompt":"x","stream":true})"));
  EXPECT_EQ(client.read_head().status, 200);
  const auto events = stream_events(client);
  EXPECT_EQ(events.back()["error"]["message"], "broken");
  expect_healthy();
}

TEST_F(CompletionsTest, ExceptionsEndTheRequestAlone) {
  start_ready();
  // Where choices are submitted: those that were are taken back.
  engine.hold();
  engine.throw_at(2);
  expect_error(completion({{"prompt", "x"}, {"n", 3}}), 500);
  expect_healthy();
  engine.throw_at(1000);
  engine.release();
  // Where text is made, on an I/O thread.
  tokenizer->failing = 'b';
  expect_error(completion({{"prompt", "x"}, {"stop", "zz"}}), 500);
  HttpClient client(port);
  client.send(
      HttpClient::format("POST", "/v1/completions", R"({"model":"m","prompt":"x","stream":true})"));
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_EQ(stream_events(client).back()["error"]["type"], "server_error");
  // Where a long answer is written, on a worker thread: the alternatives of 'a' have a 'c'.
  tokenizer->failing = 'c';
  expect_error(completion({{"prompt", "x"}, {"max_tokens", 1}, {"logprobs", 3}}), 500);
  tokenizer->failing = -1;
  EXPECT_EQ(completion({{"prompt", "x"}}).status, 200);
  expect_healthy();
}

TEST_F(CompletionsTest, Api08ClientsThatGoAwayFreeTheirRequests) {
  engine.set_step_time(std::chrono::milliseconds(1));
  start_ready();
  int closed = 0;
  for (const bool held : {false, true}) {  // running and queued
    for (const bool stream : {false, true}) {
      for (const bool reset : {false, true}) {
        if (held) engine.hold();
        HttpClient client(port);
        client.send(HttpClient::format("POST", "/v1/completions",
                                       json({{"model", "m"},
                                             {"prompt", {"x", "y"}},
                                             {"n", 2},
                                             {"max_tokens", 190},
                                             {"ignore_eos", true},
                                             {"stream", stream}})
                                           .dump()));
        ASSERT_TRUE(eventually([this] { return engine.active() == 4; }));
        if (reset) {
          client.reset();
        } else {
          client.close();
        }
        closed += 4;
        EXPECT_TRUE(eventually([this] { return engine.active() == 0; }, 1))
            << held << stream << reset;
        engine.release();
      }
    }
  }
  const std::string series =
      "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"} ";
  EXPECT_TRUE(eventually([&] {
    return http_get(port, "/metrics").body.find(series + std::to_string(closed) + "\n") !=
           std::string::npos;
  }));
  EXPECT_EQ(http_get(port, "/load").json()["server_load"], 0);
}

}  // namespace
}  // namespace tenon::testing
