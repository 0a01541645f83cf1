// What Hugging Face transformers computed in float32 (model_smollm2.json, made by
// model_smollm2.py).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/json_text.h"
#include "tests/assets.h"

namespace tenon::testing {

struct GoldenPrompt {
  std::string name;
  std::vector<int32_t> ids, greedy, top_ids;
  std::vector<float> top_logits, fixed_logits, gaps;
};

struct Golden {
  std::vector<GoldenPrompt> prompts;
  std::vector<int32_t> text_ids;
  std::vector<float> text_nll;
  double text_mean_nll = 0;
  int32_t fixed_step = 0;
};

inline Golden read_golden() {
  const auto parsed = read_json_file(source_path("tests/golden/model_smollm2.json"), 1 << 20);
  if (!parsed.ok()) throw std::runtime_error(parsed.status().message());
  const nlohmann::json& root = *parsed;
  Golden golden;
  root.at("text_ids").get_to(golden.text_ids);
  root.at("text_nll").get_to(golden.text_nll);
  root.at("text_mean_nll").get_to(golden.text_mean_nll);
  root.at("fixed_step").get_to(golden.fixed_step);
  for (const nlohmann::json& item : root.at("prompts")) {
    GoldenPrompt& prompt = golden.prompts.emplace_back();
    item.at("name").get_to(prompt.name);
    item.at("ids").get_to(prompt.ids);
    item.at("greedy").get_to(prompt.greedy);
    item.at("top_ids").get_to(prompt.top_ids);
    item.at("top_logits").get_to(prompt.top_logits);
    item.at("fixed_logits").get_to(prompt.fixed_logits);
    item.at("gaps").get_to(prompt.gaps);
    if (prompt.ids.empty()) {  // raw-long
      prompt.ids.assign(golden.text_ids.begin(), golden.text_ids.begin() + 1500);
    }
  }
  return golden;
}

}  // namespace tenon::testing
