#include "formats/json_text.h"

#include <set>
#include <vector>

#include "base/mapped_file.h"
#include "formats/quote.h"

namespace tenon {
namespace {

// nlohmann's DOM builder with two checks in front. Returning false from a SAX event ends the parse.
class CheckedDomBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit CheckedDomBuilder(nlohmann::json& root) : dom_(root, /*allow_exceptions=*/false) {}
  [[nodiscard]] const Status& status() const { return status_; }

  bool null() override { return dom_.null(); }
  bool boolean(bool value) override { return dom_.boolean(value); }
  bool number_integer(number_integer_t value) override { return dom_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return dom_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return dom_.number_float(value, text);
  }
  bool string(string_t& value) override { return dom_.string(value); }
  bool binary(binary_t& value) override { return dom_.binary(value); }
  bool start_object(size_t elements) override {
    keys_.emplace_back();
    return enter() && dom_.start_object(elements);
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second) {
      status_ = data_loss("the key {} appears twice", quote_name(value));
      return false;
    }
    return dom_.key(value);
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return dom_.end_object();
  }
  bool start_array(size_t elements) override { return enter() && dom_.start_array(elements); }
  bool end_array() override {
    --depth_;
    return dom_.end_array();
  }
  bool parse_error(size_t position,
                   const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    status_ = data_loss("not valid JSON at byte {}", position);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= kMaxJsonDepth) return true;
    status_ = data_loss("nested deeper than {} levels", kMaxJsonDepth);
    return false;
  }

  nlohmann::detail::json_sax_dom_parser<nlohmann::json> dom_;
  std::vector<std::set<std::string>> keys_;  // of each open object
  int depth_ = 0;
  Status status_;
};

}  // namespace

Result<nlohmann::json> parse_json_text(std::string_view text) {
  nlohmann::json root;
  CheckedDomBuilder builder(root);
  const bool ok = nlohmann::json::sax_parse(text, &builder);
  if (!builder.status().ok()) return builder.status();
  if (!ok) return data_loss("not valid JSON");
  return root;
}

Result<nlohmann::json> read_json_file(const std::string& path, size_t max_bytes) {
  TENON_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  if (file->size() > max_bytes) {
    return data_loss("{}: {} bytes are above the limit of {}", path, file->size(), max_bytes);
  }
  auto parsed =
      parse_json_text({reinterpret_cast<const char*>(file->bytes().data()), file->size()});
  if (!parsed.ok()) return parsed.status().with_context(path);
  return parsed;
}

}  // namespace tenon
