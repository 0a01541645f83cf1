#include <algorithm>
#include <array>
#include <optional>

#include "text/jinja/parser.h"

namespace tenon::jinja {
namespace {

int depth_of(const ExpressionPtr& node) {
  return node == nullptr ? 0 : node->depth;
}

int depth_of(const std::vector<ExpressionPtr>& nodes) {
  int depth = 0;
  for (const ExpressionPtr& node : nodes) depth = std::max(depth, depth_of(node));
  return depth;
}

int depth_of(const CallArguments& arguments) {
  int depth = std::max(
      {depth_of(arguments.positional), depth_of(arguments.star), depth_of(arguments.double_star)});
  for (const auto& [name, node] : arguments.named) depth = std::max(depth, depth_of(node));
  return depth;
}

std::optional<ComparisonOperator> comparison_operator(const Token& token) {
  static constexpr std::array<std::pair<std::string_view, ComparisonOperator>, 6> kOperators = {
      {{"==", ComparisonOperator::kEqual},
       {"!=", ComparisonOperator::kNotEqual},
       {"<", ComparisonOperator::kLess},
       {"<=", ComparisonOperator::kLessEqual},
       {">", ComparisonOperator::kGreater},
       {">=", ComparisonOperator::kGreaterEqual}}};
  if (token.kind != TokenKind::kOperator) return std::nullopt;
  for (const auto& [text, op] : kOperators) {
    if (token.text == text) return op;
  }
  return std::nullopt;
}

std::optional<BinaryOperator> product_operator(const Token& token) {
  if (token.kind != TokenKind::kOperator) return std::nullopt;
  if (token.text == "*") return BinaryOperator::kMultiply;
  if (token.text == "/") return BinaryOperator::kDivide;
  if (token.text == "//") return BinaryOperator::kFloorDivide;
  if (token.text == "%") return BinaryOperator::kModulo;
  return std::nullopt;
}

std::optional<Value> constant_of(std::string_view name) {
  if (name == "true" || name == "True") return Value::boolean(true);
  if (name == "false" || name == "False") return Value::boolean(false);
  if (name == "none" || name == "None") return Value::none();
  return std::nullopt;
}

}  // namespace

Result<ExpressionPtr> Parser::finish(std::unique_ptr<Expression> node, int line, int depth_below) {
  node->line = line;
  node->depth = depth_below + 1;
  if (node->depth > kMaxTreeDepth)
    return template_error(line, "the expression is too long or too deep");
  return node;
}

template <typename Node, typename Op>
Result<ExpressionPtr> Parser::join(Op op, ExpressionPtr left, ExpressionPtr right, int line) {
  const int depth = std::max(left->depth, right->depth);
  return finish(std::make_unique<Node>(op, std::move(left), std::move(right)), line, depth);
}

Result<ExpressionPtr> Parser::parse_expression(Condition condition) {
  const Level level(nesting_);
  TENON_RETURN_IF_ERROR(check_nesting());
  return condition == Condition::kAllowed ? parse_conditional() : parse_or();
}

Result<ExpressionPtr> Parser::parse_tuple(Condition condition, bool brackets) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  const auto at_end = [&] {
    return at(TokenKind::kExpressionEnd) || at(TokenKind::kBlockEnd) || at_operator(")") ||
           (condition == Condition::kNotAllowed && at_name("recursive"));
  };
  while (!at_end()) {
    TENON_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression(condition));
    items.push_back(std::move(item));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && items.size() == 1) return std::move(items[0]);
  if (!is_tuple && !brackets) return unexpected("an expression");
  const int depth = depth_of(items);
  return finish(std::make_unique<SequenceLiteral>(SequenceKind::kTuple, std::move(items)), line,
                depth);
}

Result<ExpressionPtr> Parser::parse_conditional() {
  const int line = current().line;
  TENON_ASSIGN_OR_RETURN(ExpressionPtr then, parse_or());
  while (skip_name("if")) {
    const Level condition_level(conditions_);
    TENON_ASSIGN_OR_RETURN(ExpressionPtr condition, parse_or());
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      TENON_ASSIGN_OR_RETURN(otherwise, parse_expression());
    }
    const int depth = std::max({depth_of(condition), depth_of(then), depth_of(otherwise)});
    TENON_ASSIGN_OR_RETURN(
        then, finish(std::make_unique<Conditional>(std::move(condition), std::move(then),
                                                   std::move(otherwise)),
                     line, depth));
  }
  return then;
}

Result<ExpressionPtr> Parser::parse_or() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
  while (at_name("or")) {
    const int line = current().line;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
    TENON_ASSIGN_OR_RETURN(left, join<LogicalOperation>(LogicalOperator::kOr, std::move(left),
                                                        std::move(right), line));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_and() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
  while (at_name("and")) {
    const int line = current().line;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
    TENON_ASSIGN_OR_RETURN(left, join<LogicalOperation>(LogicalOperator::kAnd, std::move(left),
                                                        std::move(right), line));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_not() {
  if (!at_name("not")) return parse_comparison();
  const Level level(nesting_);
  TENON_RETURN_IF_ERROR(check_nesting());
  const int line = current().line;
  advance();
  TENON_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_not());
  const int depth = operand->depth;
  return finish(std::make_unique<UnaryOperation>(UnaryOperator::kNot, std::move(operand)), line,
                depth);
}

Result<ExpressionPtr> Parser::parse_comparison() {
  const int line = current().line;
  TENON_ASSIGN_OR_RETURN(ExpressionPtr first, parse_sum());
  std::vector<ComparisonChain::Link> links;
  int depth = first->depth;
  while (true) {
    std::optional<ComparisonOperator> op = comparison_operator(current());
    if (at_name("in")) {
      op = ComparisonOperator::kIn;
    } else if (at_name("not") && next().kind == TokenKind::kName && next().text == "in") {
      advance();
      op = ComparisonOperator::kNotIn;
    }
    if (!op) break;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_sum());
    depth = std::max(depth, operand->depth);
    links.emplace_back(*op, std::move(operand));
  }
  if (links.empty()) return first;
  return finish(std::make_unique<ComparisonChain>(std::move(first), std::move(links)), line, depth);
}

Result<ExpressionPtr> Parser::parse_sum() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr left, parse_concatenation());
  while (at_operator("+") || at_operator("-")) {
    const int line = current().line;
    const BinaryOperator op = at_operator("+") ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr right, parse_concatenation());
    TENON_ASSIGN_OR_RETURN(left,
                           join<BinaryOperation>(op, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_concatenation() {
  const int line = current().line;
  TENON_ASSIGN_OR_RETURN(ExpressionPtr first, parse_product());
  if (!at_operator("~")) return first;
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(first));
  while (skip_operator("~")) {
    TENON_ASSIGN_OR_RETURN(ExpressionPtr part, parse_product());
    parts.push_back(std::move(part));
  }
  const int depth = depth_of(parts);
  return finish(std::make_unique<Concatenation>(std::move(parts)), line, depth);
}

Result<ExpressionPtr> Parser::parse_product() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr left, parse_power());
  while (const auto op = product_operator(current())) {
    const int line = current().line;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr right, parse_power());
    TENON_ASSIGN_OR_RETURN(left,
                           join<BinaryOperation>(*op, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_power() {
  TENON_ASSIGN_OR_RETURN(ExpressionPtr left, parse_unary());
  while (at_operator("**")) {
    const int line = current().line;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr right, parse_unary());
    TENON_ASSIGN_OR_RETURN(left, join<BinaryOperation>(BinaryOperator::kPower, std::move(left),
                                                       std::move(right), line));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_unary(bool with_filters) {
  const Level level(nesting_);
  TENON_RETURN_IF_ERROR(check_nesting());
  const int line = current().line;
  ExpressionPtr node;
  if (at_operator("-") || at_operator("+")) {
    const UnaryOperator op = at_operator("-") ? UnaryOperator::kMinus : UnaryOperator::kPlus;
    advance();
    TENON_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_unary(false));
    const int depth = operand->depth;
    TENON_ASSIGN_OR_RETURN(
        node, finish(std::make_unique<UnaryOperation>(op, std::move(operand)), line, depth));
  } else {
    TENON_ASSIGN_OR_RETURN(node, parse_primary());
  }
  TENON_ASSIGN_OR_RETURN(node, parse_postfix(std::move(node)));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

Result<ExpressionPtr> Parser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName: {
      advance();
      if (auto constant = constant_of(token.text)) {
        return finish(std::make_unique<Constant>(*std::move(constant)), token.line, 0);
      }
      for (MacroDefinition* macro : macros_) {
        macro->uses_caller |= token.text == "caller";
        macro->uses_varargs |= token.text == "varargs";
        macro->uses_kwargs |= token.text == "kwargs";
      }
      return finish(std::make_unique<Name>(token.text), token.line, 0);
    }
    case TokenKind::kString: {
      std::string text;
      for (; at(TokenKind::kString); advance()) text += current().text;  // neighbours are joined
      return finish(std::make_unique<Constant>(Value::text(text)), token.line, 0);
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      advance();
      return finish(std::make_unique<Constant>(token.number), token.line, 0);
    default: break;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  if (!skip_operator("(")) return unexpected("an expression");
  TENON_ASSIGN_OR_RETURN(ExpressionPtr inner, parse_tuple(Condition::kAllowed, true));
  TENON_RETURN_IF_ERROR(expect_operator(")"));
  return inner;
}

Result<ExpressionPtr> Parser::parse_list() {
  const int line = current().line;
  advance();
  std::vector<ExpressionPtr> items;
  while (!at_operator("]")) {
    if (!items.empty()) TENON_RETURN_IF_ERROR(expect_operator(","));
    if (at_operator("]")) break;
    TENON_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression());
    items.push_back(std::move(item));
  }
  advance();
  const int depth = depth_of(items);
  return finish(std::make_unique<SequenceLiteral>(SequenceKind::kList, std::move(items)), line,
                depth);
}

Result<ExpressionPtr> Parser::parse_dict() {
  const int line = current().line;
  advance();
  std::vector<DictLiteral::Entry> entries;
  int depth = 0;
  while (!at_operator("}")) {
    if (!entries.empty()) TENON_RETURN_IF_ERROR(expect_operator(","));
    if (at_operator("}")) break;
    TENON_ASSIGN_OR_RETURN(ExpressionPtr key, parse_expression());
    TENON_RETURN_IF_ERROR(expect_operator(":"));
    TENON_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    depth = std::max({depth, key->depth, value->depth});
    entries.emplace_back(std::move(key), std::move(value));
  }
  advance();
  return finish(std::make_unique<DictLiteral>(std::move(entries)), line, depth);
}

Result<ExpressionPtr> Parser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (at_operator(".")) {
      TENON_ASSIGN_OR_RETURN(node, parse_member(std::move(node)));
    } else if (at_operator("[")) {
      TENON_ASSIGN_OR_RETURN(node, parse_subscript(std::move(node)));
    } else if (at_operator("(")) {
      TENON_ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> Parser::parse_filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (at_operator("|")) {
      TENON_ASSIGN_OR_RETURN(node, parse_filter_chain(std::move(node)));
    } else if (at_name("is")) {
      TENON_ASSIGN_OR_RETURN(node, parse_test(std::move(node)));
    } else if (at_operator("(")) {
      TENON_ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> Parser::parse_member(ExpressionPtr object) {
  const int line = current().line;
  const int depth = object->depth;
  advance();
  if (at(TokenKind::kInteger)) {
    TENON_ASSIGN_OR_RETURN(ExpressionPtr index,
                           finish(std::make_unique<Constant>(current().number), line, 0));
    advance();
    return finish(std::make_unique<ItemAccess>(std::move(object), std::move(index)), line, depth);
  }
  TENON_ASSIGN_OR_RETURN(std::string name, take_name());
  return finish(std::make_unique<AttributeAccess>(std::move(object), std::move(name)), line, depth);
}

Result<ExpressionPtr> Parser::parse_subscript(ExpressionPtr object) {
  const int line = current().line;
  advance();
  std::array<ExpressionPtr, 3> parts;
  std::vector<ExpressionPtr> keys;
  size_t colons = 0;
  while (!at_operator("]")) {
    if (at_operator(":")) {
      if (++colons > 2 || !keys.empty()) return unexpected("']'");
      advance();
      continue;
    }
    if (parts[colons] != nullptr && colons == 0 && skip_operator(",")) {
      keys.push_back(std::move(parts[0]));
      if (at_operator("]")) return unexpected("an expression");
    }
    if (parts[colons] != nullptr) return unexpected("']'");
    TENON_ASSIGN_OR_RETURN(parts[colons], parse_expression());
  }
  const bool is_empty = colons == 0 && parts[0] == nullptr;
  if (is_empty) return unexpected("an expression");
  advance();
  const int depth = std::max(
      {object->depth, depth_of(parts[0]), depth_of(parts[1]), depth_of(parts[2]), depth_of(keys)});
  if (colons > 0) {
    SliceAccess::Bounds bounds{std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
    return finish(std::make_unique<SliceAccess>(std::move(object), std::move(bounds)), line, depth);
  }
  ExpressionPtr key = std::move(parts[0]);
  if (!keys.empty()) {
    keys.push_back(std::move(key));
    TENON_ASSIGN_OR_RETURN(
        key, finish(std::make_unique<SequenceLiteral>(SequenceKind::kTuple, std::move(keys)), line,
                    depth));
  }
  return finish(std::make_unique<ItemAccess>(std::move(object), std::move(key)), line, depth + 1);
}

Result<CallArguments> Parser::parse_arguments() {
  TENON_RETURN_IF_ERROR(expect_operator("("));
  CallArguments arguments;
  bool first = true;
  while (!at_operator(")")) {
    if (!first) TENON_RETURN_IF_ERROR(expect_operator(","));
    first = false;
    if (at_operator(")")) break;
    const bool is_named =
        at(TokenKind::kName) && next().kind == TokenKind::kOperator && next().text == "=";
    if (arguments.double_star != nullptr ||
        (arguments.star != nullptr && !is_named && !at_operator("**")) ||
        (!arguments.named.empty() && !is_named && !at_operator("*") && !at_operator("**"))) {
      return fail("invalid order of arguments in a call");
    }
    if (skip_operator("*")) {
      TENON_ASSIGN_OR_RETURN(arguments.star, parse_expression());
    } else if (skip_operator("**")) {
      TENON_ASSIGN_OR_RETURN(arguments.double_star, parse_expression());
    } else if (is_named) {
      std::string name = current().text;
      advance();
      advance();
      TENON_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      TENON_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      arguments.positional.push_back(std::move(value));
    }
  }
  advance();
  return arguments;
}

Result<ExpressionPtr> Parser::parse_call(ExpressionPtr callee) {
  const int line = current().line;
  TENON_ASSIGN_OR_RETURN(CallArguments arguments, parse_arguments());
  const int depth = std::max(callee->depth, depth_of(arguments));
  return finish(std::make_unique<Call>(std::move(callee), std::move(arguments)), line, depth);
}

Result<std::string> Parser::parse_dotted_name() {
  TENON_ASSIGN_OR_RETURN(std::string name, take_name());
  while (skip_operator(".")) {
    TENON_ASSIGN_OR_RETURN(const std::string part, take_name());
    name += "." + part;
  }
  return name;
}

Result<ExpressionPtr> Parser::parse_filter_chain(ExpressionPtr subject) {
  while (skip_operator("|")) {
    TENON_ASSIGN_OR_RETURN(subject, parse_filter(std::move(subject)));
  }
  return subject;
}

Result<ExpressionPtr> Parser::parse_filter(ExpressionPtr subject) {
  const int line = current().line;
  TENON_ASSIGN_OR_RETURN(std::string name, parse_dotted_name());
  const Native filter = find_filter(name);
  if (filter == nullptr && conditions_ == 0)
    return template_error(line, "there is no filter named '" + name + "'");
  CallArguments arguments;
  if (at_operator("(")) {
    TENON_ASSIGN_OR_RETURN(arguments, parse_arguments());
  }
  const int depth = std::max(subject->depth, depth_of(arguments));
  return finish(std::make_unique<FilterUse>(std::move(subject), std::move(name), filter,
                                            std::move(arguments)),
                line, depth);
}

Result<ExpressionPtr> Parser::parse_test(ExpressionPtr subject) {
  const int line = current().line;
  advance();
  const bool negated = skip_name("not");
  TENON_ASSIGN_OR_RETURN(std::string name, parse_dotted_name());
  const Native test = find_test(name);
  if (test == nullptr && conditions_ == 0)
    return template_error(line, "there is no test named '" + name + "'");
  CallArguments arguments;
  if (at_operator("(")) {
    TENON_ASSIGN_OR_RETURN(arguments, parse_arguments());
  } else if (at(TokenKind::kString) || at(TokenKind::kInteger) || at(TokenKind::kFloat) ||
             at_operator("[") || at_operator("{") ||
             (at(TokenKind::kName) && !at_name("else") && !at_name("or") && !at_name("and") &&
              !at_name("if") && !at_name("in") && !at_name("not") && !at_name("recursive"))) {
    // One argument without brackets: x is divisibleby 3.
    if (at_name("is")) return fail("tests cannot be chained with 'is'");
    TENON_ASSIGN_OR_RETURN(ExpressionPtr argument, parse_primary());
    TENON_ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    arguments.positional.push_back(std::move(argument));
  }
  const int depth = std::max(subject->depth, depth_of(arguments));
  TENON_ASSIGN_OR_RETURN(ExpressionPtr node,
                         finish(std::make_unique<TestUse>(std::move(subject), std::move(name), test,
                                                          std::move(arguments)),
                                line, depth));
  if (!negated) return node;
  return finish(std::make_unique<UnaryOperation>(UnaryOperator::kNot, std::move(node)), line,
                depth + 1);
}

}  // namespace tenon::jinja
