#include <algorithm>

#include "text/jinja/parser.h"

namespace tenon::jinja {
namespace {

template <typename Node, typename... Args>
StatementPtr make_statement(int line, Args&&... args) {
  auto node = std::make_unique<Node>(std::forward<Args>(args)...);
  node->line = line;
  return node;
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd: return "the end of the template";
    case TokenKind::kData: return "text";
    case TokenKind::kExpressionBegin: return "'{{'";
    case TokenKind::kExpressionEnd: return "'}}'";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kBlockEnd: return "'%}'";
    case TokenKind::kString: return "a string";
    default: return "'" + token.text + "'";
  }
}

// Names that stand for values and cannot be assigned.
bool is_constant_name(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" ||
         name == "None";
}

}  // namespace

Result<Block> Parser::parse() {
  return parse_block({});
}

Result<Block> Parser::parse_block(Words ends) {
  Block block;
  while (true) {
    const int line = current().line;
    if (at(TokenKind::kData)) {
      block.push_back(make_statement<Data>(line, current().text));
      advance();
    } else if (at(TokenKind::kExpressionBegin)) {
      advance();
      TENON_ASSIGN_OR_RETURN(ExpressionPtr expression, parse_tuple());
      TENON_RETURN_IF_ERROR(expect(TokenKind::kExpressionEnd, "'}}'"));
      block.push_back(make_statement<Output>(line, std::move(expression)));
    } else if (at(TokenKind::kBlockBegin)) {
      advance();
      if (!at(TokenKind::kName)) return unexpected("the name of a tag");
      if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return block;
      TENON_ASSIGN_OR_RETURN(StatementPtr statement, parse_statement());
      statement->line = line;
      TENON_RETURN_IF_ERROR(expect(TokenKind::kBlockEnd, "'%}'"));
      block.push_back(std::move(statement));
    } else if (at(TokenKind::kEnd) && ends.size() == 0) {
      return block;
    } else {
      return unexpected(ends.size() == 0 ? "a tag" : "'" + std::string(*(ends.end() - 1)) + "'");
    }
  }
}

Result<Block> Parser::parse_body(Words ends) {
  skip_operator(":");
  TENON_RETURN_IF_ERROR(expect(TokenKind::kBlockEnd, "'%}'"));
  return parse_block(ends);
}

Result<StatementPtr> Parser::parse_statement() {
  const Level level(nesting_);
  TENON_RETURN_IF_ERROR(check_nesting());
  const std::string name = current().text;
  if (name != "include" && name != "import" && name != "extends" && name != "from" &&
      name != "autoescape") {
    return parse_statement_of(name);
  }
  return fail("the tag '" + name + "' is not supported in chat templates");
}

Result<StatementPtr> Parser::parse_statement_of(const std::string& name) {
  const int line = current().line;
  advance();
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call_block();
  if (name == "filter") return parse_filter_block();
  if (name == "with") return parse_with();
  if (name == "break") return parse_loop_jump(Flow::kBreak);
  if (name == "continue") return parse_loop_jump(Flow::kContinue);
  if (name == "generation") return parse_scoped("endgeneration");
  if (name == "block") {
    TENON_ASSIGN_OR_RETURN(const std::string block_name, take_name());
    TENON_ASSIGN_OR_RETURN(StatementPtr block, parse_scoped("endblock"));
    skip_name(block_name);
    return block;
  }
  if (name == "print") {
    std::vector<ExpressionPtr> parts;
    do {
      TENON_ASSIGN_OR_RETURN(ExpressionPtr part, parse_expression());
      parts.push_back(std::move(part));
    } while (skip_operator(","));
    return make_statement<Output>(line, std::make_unique<Concatenation>(std::move(parts)));
  }
  return template_error(line, "unknown tag '" + name + "'");
}

Result<StatementPtr> Parser::parse_if() {
  std::vector<If::Branch> branches;
  const Level condition(conditions_);
  while (true) {
    TENON_ASSIGN_OR_RETURN(ExpressionPtr test, parse_tuple(Condition::kNotAllowed));
    TENON_ASSIGN_OR_RETURN(Block body, parse_body({"elif", "else", "endif"}));
    branches.push_back({std::move(test), std::move(body)});
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      TENON_ASSIGN_OR_RETURN(Block otherwise, parse_body({"endif"}));
      branches.push_back({nullptr, std::move(otherwise)});
    }
    TENON_RETURN_IF_ERROR(expect_name("endif"));
    return make_statement<If>(0, std::move(branches));
  }
}

Result<StatementPtr> Parser::parse_for() {
  For::Parts parts;
  TENON_ASSIGN_OR_RETURN(parts.target, parse_target(false));
  TENON_RETURN_IF_ERROR(expect_name("in"));
  TENON_ASSIGN_OR_RETURN(parts.iterable, parse_tuple(Condition::kNotAllowed));
  if (skip_name("if")) {
    TENON_ASSIGN_OR_RETURN(parts.condition, parse_expression());
  }
  parts.recursive = skip_name("recursive");
  {
    const Level loop(loops_);
    TENON_ASSIGN_OR_RETURN(parts.body, parse_body({"else", "endfor"}));
  }
  if (skip_name("else")) {
    TENON_ASSIGN_OR_RETURN(parts.otherwise, parse_body({"endfor"}));
  }
  TENON_RETURN_IF_ERROR(expect_name("endfor"));
  return make_statement<For>(0, std::move(parts));
}

Result<StatementPtr> Parser::parse_loop_jump(Flow flow) {
  if (loops_ == 0) return fail("'break' or 'continue' outside of a loop");
  return make_statement<LoopJump>(0, flow);
}

Result<StatementPtr> Parser::parse_set() {
  TENON_ASSIGN_OR_RETURN(Target target, parse_target(true));
  if (skip_operator("=")) {
    TENON_ASSIGN_OR_RETURN(ExpressionPtr value, parse_tuple());
    return make_statement<Set>(0, std::move(target), std::move(value));
  }
  ExpressionPtr filter;
  if (at_operator("|")) {
    TENON_ASSIGN_OR_RETURN(filter, parse_filter_chain(std::make_unique<CapturedText>()));
  }
  TENON_ASSIGN_OR_RETURN(Block body, parse_body({"endset"}));
  TENON_RETURN_IF_ERROR(expect_name("endset"));
  return make_statement<SetBlock>(0, std::move(target), std::move(filter), std::move(body));
}

Status Parser::parse_signature(MacroDefinition& definition) {
  TENON_RETURN_IF_ERROR(expect_operator("("));
  while (!at_operator(")")) {
    if (!definition.parameters.empty()) TENON_RETURN_IF_ERROR(expect_operator(","));
    MacroDefinition::Parameter parameter;
    TENON_ASSIGN_OR_RETURN(parameter.name, take_name());
    if (is_constant_name(parameter.name)) return fail("can't assign to '" + parameter.name + "'");
    if (skip_operator("=")) {
      TENON_ASSIGN_OR_RETURN(parameter.fallback, parse_expression());
    } else if (!definition.parameters.empty() && definition.parameters.back().fallback != nullptr) {
      return fail("a parameter without a default follows one that has a default");
    }
    definition.parameters.push_back(std::move(parameter));
  }
  return expect_operator(")");
}

Status Parser::parse_macro_body(MacroDefinition& definition, std::string_view end) {
  const int outer_loops = std::exchange(loops_, 0);
  macros_.push_back(&definition);
  TENON_ASSIGN_OR_RETURN(definition.body, parse_body({end}));
  macros_.pop_back();
  loops_ = outer_loops;
  return expect_name(end);
}

Result<StatementPtr> Parser::parse_macro() {
  MacroDefinition definition;
  TENON_ASSIGN_OR_RETURN(definition.name, take_name());
  TENON_RETURN_IF_ERROR(parse_signature(definition));
  TENON_RETURN_IF_ERROR(parse_macro_body(definition, "endmacro"));
  return make_statement<MacroStatement>(0, std::move(definition));
}

Result<StatementPtr> Parser::parse_call_block() {
  MacroDefinition caller;
  caller.name = "caller";
  if (at_operator("(")) TENON_RETURN_IF_ERROR(parse_signature(caller));
  TENON_ASSIGN_OR_RETURN(ExpressionPtr expression, parse_expression());
  if (dynamic_cast<Call*>(expression.get()) == nullptr)
    return fail("a call is expected after 'call'");
  std::unique_ptr<Call> call(static_cast<Call*>(expression.release()));
  TENON_RETURN_IF_ERROR(parse_macro_body(caller, "endcall"));
  return make_statement<CallBlock>(0, std::move(call), std::move(caller));
}

Result<StatementPtr> Parser::parse_filter_block() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr filter, parse_filter(std::make_unique<CapturedText>()));
  TENON_ASSIGN_OR_RETURN(filter, parse_filter_chain(std::move(filter)));
  TENON_ASSIGN_OR_RETURN(Block body, parse_body({"endfilter"}));
  TENON_RETURN_IF_ERROR(expect_name("endfilter"));
  return make_statement<FilterBlock>(0, std::move(filter), std::move(body));
}

Result<StatementPtr> Parser::parse_with() {
  std::vector<ScopedBlock::Assignment> assignments;
  while (!at(TokenKind::kBlockEnd)) {
    if (!assignments.empty()) TENON_RETURN_IF_ERROR(expect_operator(","));
    TENON_ASSIGN_OR_RETURN(Target target, parse_single_target(false));
    TENON_RETURN_IF_ERROR(expect_operator("="));
    TENON_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    assignments.emplace_back(std::move(target), std::move(value));
  }
  TENON_ASSIGN_OR_RETURN(Block body, parse_body({"endwith"}));
  TENON_RETURN_IF_ERROR(expect_name("endwith"));
  return make_statement<ScopedBlock>(0, std::move(assignments), std::move(body));
}

Result<StatementPtr> Parser::parse_scoped(std::string_view end) {
  TENON_ASSIGN_OR_RETURN(Block body, parse_body({end}));
  TENON_RETURN_IF_ERROR(expect_name(end));
  return make_statement<ScopedBlock>(0, std::vector<ScopedBlock::Assignment>(), std::move(body));
}

Result<Target> Parser::parse_target(bool allow_attribute) {
  TENON_ASSIGN_OR_RETURN(Target first, parse_single_target(allow_attribute));
  if (!at_operator(",")) return first;
  Target tuple;
  tuple.line = first.line;
  tuple.is_tuple = true;
  tuple.items.push_back(std::move(first));
  while (skip_operator(",")) {
    if (!at(TokenKind::kName) && !at_operator("(")) break;
    if (at_name("in")) break;
    TENON_ASSIGN_OR_RETURN(Target item, parse_single_target(allow_attribute));
    tuple.items.push_back(std::move(item));
  }
  return tuple;
}

Result<Target> Parser::parse_single_target(bool allow_attribute) {
  const Level level(nesting_);
  TENON_RETURN_IF_ERROR(check_nesting());
  if (skip_operator("(")) {
    TENON_ASSIGN_OR_RETURN(Target inner, parse_target(allow_attribute));
    TENON_RETURN_IF_ERROR(expect_operator(")"));
    return inner;
  }
  Target target;
  target.line = current().line;
  TENON_ASSIGN_OR_RETURN(target.name, take_name());
  if (is_constant_name(target.name)) return fail("can't assign to '" + target.name + "'");
  if (allow_attribute && skip_operator(".")) {
    TENON_ASSIGN_OR_RETURN(target.attribute, take_name());
  }
  return target;
}

bool Parser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  advance();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  advance();
  return true;
}

Status Parser::expect_operator(std::string_view text) {
  return skip_operator(text) ? ok_status() : unexpected("'" + std::string(text) + "'");
}

Status Parser::expect_name(std::string_view text) {
  return skip_name(text) ? ok_status() : unexpected("'" + std::string(text) + "'");
}

Status Parser::expect(TokenKind kind, std::string_view what) {
  if (!at(kind)) return unexpected(what);
  advance();
  return ok_status();
}

Result<std::string> Parser::take_name() {
  if (!at(TokenKind::kName)) return unexpected("a name");
  std::string name = current().text;
  advance();
  return name;
}

Status Parser::unexpected(std::string_view expected) const {
  return fail("expected " + std::string(expected) + ", got " + describe(current()));
}

}  // namespace tenon::jinja
