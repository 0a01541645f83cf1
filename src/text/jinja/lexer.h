// Template source -> tokens, with the white-space rules chat templates are rendered under:
// trim_blocks and lstrip_blocks on, keep_trailing_newline off, CRLF and CR read as LF.
//
// Ownership: tokens own their text. Thread safety: pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

enum class TokenKind {
  kData,             // text between tags
  kExpressionBegin,  // {{
  kExpressionEnd,    // }}
  kBlockBegin,       // {%
  kBlockEnd,         // %}
  kName,
  kString,  // text: the unescaped value
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;
  Value number;  // of kInteger and kFloat
};

// The last token is kEnd.
Result<std::vector<Token>> tokenize(std::string_view source);

// An error with its line in front, as all errors of templates are.
Status template_error(int line, std::string_view message);

}  // namespace tenon::jinja
