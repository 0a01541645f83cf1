// Tokens -> syntax tree.
//
// Ownership: the parser owns the tokens, the result owns the tree. Thread safety: one thread a
// parser.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/lexer.h"
#include "text/jinja/statements.h"

namespace tenon::jinja {

inline constexpr int kMaxNesting = 100;    // of brackets, operators and blocks in the source
inline constexpr int kMaxTreeDepth = 400;  // of an expression's tree: a + b + c + ... grows it too

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<Block> parse();

 private:
  using Words = std::initializer_list<std::string_view>;

  // ---- statements (parser_statements.cc)
  // Up to a block tag whose name is in `ends`, which stays the current token. Empty `ends`: up to
  // the end.
  Result<Block> parse_block(Words ends);
  Result<Block> parse_body(Words ends);  // the end of the opening tag, then parse_block
  Result<StatementPtr> parse_statement();
  Result<StatementPtr> parse_statement_of(const std::string& name);
  Result<StatementPtr> parse_if();
  Result<StatementPtr> parse_for();
  Result<StatementPtr> parse_set();
  Result<StatementPtr> parse_macro();
  Result<StatementPtr> parse_call_block();
  Result<StatementPtr> parse_filter_block();
  Result<StatementPtr> parse_with();
  Result<StatementPtr> parse_scoped(std::string_view end);
  Result<StatementPtr> parse_loop_jump(Flow flow);
  Status parse_signature(MacroDefinition& definition);
  Status parse_macro_body(MacroDefinition& definition, std::string_view end);
  Result<Target> parse_target(bool allow_attribute);
  Result<Target> parse_single_target(bool allow_attribute);

  // ---- expressions (parser_expressions.cc)
  enum class Condition { kAllowed, kNotAllowed };  // whether `x if y` may follow
  Result<ExpressionPtr> parse_expression(Condition condition = Condition::kAllowed);
  // A comma makes a tuple. `brackets`: () is the empty tuple.
  Result<ExpressionPtr> parse_tuple(Condition condition = Condition::kAllowed,
                                    bool brackets = false);
  Result<ExpressionPtr> parse_conditional();
  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_comparison();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concatenation();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_power();
  Result<ExpressionPtr> parse_unary(bool with_filters = true);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();
  Result<ExpressionPtr> parse_postfix(ExpressionPtr node);
  Result<ExpressionPtr> parse_filters_and_tests(ExpressionPtr node);
  Result<ExpressionPtr> parse_member(ExpressionPtr object);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr object);
  Result<ExpressionPtr> parse_call(ExpressionPtr callee);
  Result<ExpressionPtr> parse_filter(ExpressionPtr subject);        // at its name
  Result<ExpressionPtr> parse_filter_chain(ExpressionPtr subject);  // at '|'
  Result<ExpressionPtr> parse_test(ExpressionPtr subject);
  Result<CallArguments> parse_arguments();
  Result<std::string> parse_dotted_name();
  // A node of a left-leaning chain: left OP right OP right ...
  template <typename Node, typename Op>
  Result<ExpressionPtr> join(Op op, ExpressionPtr left, ExpressionPtr right, int line);
  // Sets line and depth.
  static Result<ExpressionPtr> finish(std::unique_ptr<Expression> node, int line, int depth_below);

  // ---- tokens (parser_statements.cc)
  [[nodiscard]] const Token& current() const { return tokens_[position_]; }
  [[nodiscard]] const Token& next() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
  }
  void advance() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  [[nodiscard]] bool at(TokenKind kind) const { return current().kind == kind; }
  [[nodiscard]] bool at_operator(std::string_view text) const {
    return at(TokenKind::kOperator) && current().text == text;
  }
  [[nodiscard]] bool at_name(std::string_view text) const {
    return at(TokenKind::kName) && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect_operator(std::string_view text);
  Status expect_name(std::string_view text);
  Status expect(TokenKind kind, std::string_view what);
  Result<std::string> take_name();
  [[nodiscard]] Status unexpected(std::string_view expected) const;
  [[nodiscard]] Status fail(std::string_view message) const {
    return template_error(current().line, message);
  }

  // Counts levels of recursion for as long as it lives.
  class Level {
   public:
    explicit Level(int& level) : level_(level) { ++level_; }
    ~Level() { --level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& level_;
  };
  [[nodiscard]] Status check_nesting() const {
    return nesting_ > kMaxNesting ? fail("the template is nested too deeply") : ok_status();
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // open for loops that break and continue could refer to
  int conditions_ =
      0;  // open conditions; an unknown filter below one is an error only when it is used
  std::vector<MacroDefinition*> macros_;  // open ones, innermost last
};

}  // namespace tenon::jinja
