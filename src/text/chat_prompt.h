// What a chat needs besides messages: the template a model uses, and the texts of its control
// tokens. Thread safe: plain functions.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tenon {

// `instead` (the operator's choice), else the model's own, else ChatML if its vocabulary has
// <|im_start|>. Errors: kNotFound if there is none; kInvalidArgument with the line if it does not
// parse.
Result<std::shared_ptr<const ChatTemplate>> choose_chat_template(const TextAssets& assets,
                                                                 std::string_view instead = {});

// Options with the tokenizer's BOS and EOS filled in.
ChatTemplateOptions chat_template_options(const Tokenizer& tokenizer);

}  // namespace tenon
