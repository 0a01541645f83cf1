#include "server/logprobs.h"

#include <algorithm>

#include "server/served_model.h"

namespace tenon {
namespace {

double finite(float logprob) {
  return std::max(logprob, kMinLogprob);
}

OrderedJson chat_entry(const TokenNames& names, int32_t id, float logprob) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : names.tokenizer->token_bytes(id))
    bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", names(id)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string TokenNames::operator()(int32_t id) const {
  return as_ids ? fmt::format("token_id:{}", id) : token_string(*tokenizer, id);
}

OrderedJson chat_logprobs(const TokenNames& names, const std::vector<TokenLogprobs>& logprobs) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprobs& token : logprobs) {
    OrderedJson entry = chat_entry(names, token.token, token.logprob);
    OrderedJson top = OrderedJson::array();
    for (const auto& [id, logprob] : token.top) top.push_back(chat_entry(names, id, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

OrderedJson prompt_logprobs_json(const TokenNames& names,
                                 const std::vector<TokenLogprobs>& logprobs) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (i == 0) {
      list.push_back(nullptr);
      continue;
    }
    OrderedJson entry = OrderedJson::object();
    int32_t rank = 0;
    for (const auto& [id, logprob] : logprobs[i].top) {
      entry[std::to_string(id)] = {
          {"logprob", finite(logprob)}, {"rank", ++rank}, {"decoded_token", names(id)}};
    }
    const int32_t own = logprobs[i].token;
    if (!entry.contains(std::to_string(own))) {
      entry[std::to_string(own)] = {{"logprob", finite(logprobs[i].logprob)},
                                    {"rank", nullptr},
                                    {"decoded_token", names(own)}};
    }
    list.push_back(std::move(entry));
  }
  return list;
}

CompletionLogprobs::CompletionLogprobs(TokenNames names, int32_t num_top)
    : names_(std::move(names)), num_top_(num_top) {
  clear();
}

void CompletionLogprobs::clear() {
  for (OrderedJson* list : {&tokens_, &token_logprobs_, &top_logprobs_, &text_offset_})
    *list = OrderedJson::array();
}

void CompletionLogprobs::add(const TokenLogprobs& token, bool visible, bool has_logprob) {
  tokens_.push_back(names_(token.token));
  text_offset_.push_back(offset_);
  if (visible) {
    std::string complete;
    assembler_.push(names_.tokenizer->token_bytes(token.token), complete);
    offset_ += count_characters(complete);
  }
  if (!has_logprob) {
    token_logprobs_.push_back(nullptr);
    top_logprobs_.push_back(nullptr);
    return;
  }
  token_logprobs_.push_back(finite(token.logprob));
  OrderedJson top = OrderedJson::object();
  // Two tokens may have the same text (half characters): the more probable one keeps the name.
  for (const auto& [id, logprob] : token.top) top.emplace(names_(id), finite(logprob));
  top.emplace(names_(token.token), finite(token.logprob));
  top_logprobs_.push_back(std::move(top));
}

OrderedJson CompletionLogprobs::take() {
  OrderedJson result = {{"tokens", std::move(tokens_)},
                        {"token_logprobs", std::move(token_logprobs_)},
                        {"top_logprobs", num_top_ > 0 ? std::move(top_logprobs_) : OrderedJson()},
                        {"text_offset", std::move(text_offset_)}};
  clear();
  return result;
}

}  // namespace tenon
