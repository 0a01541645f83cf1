#include "text/jinja/template.h"

#include "text/jinja/globals.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace tenon::jinja {

Result<Template> Template::parse(std::string_view source) {
  TENON_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  TENON_ASSIGN_OR_RETURN(Block body, Parser(std::move(tokens)).parse());
  return Template(std::move(body));
}

Result<MarkedText> Template::render(const Variables& variables, int64_t now_unix) const {
  Runtime runtime(now_unix);
  define_globals(runtime);
  for (const auto& [name, value] : variables) runtime.assign(name, value);
  TENON_RETURN_IF_ERROR(runtime.execute(body_).status());
  return runtime.take_output();
}

}  // namespace tenon::jinja
