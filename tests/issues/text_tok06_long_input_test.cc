// TOK-06: long runs of one kind of character cost linear time and no stack (llama.cpp issue
// #27783).
#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "tests/assets.h"
#include "tests/issues/text_tiny_vocabularies.h"

namespace tenon {
namespace {

using namespace testing_support;

std::string repeat(const std::string& unit, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += unit;
  return text;
}

std::shared_ptr<const Tokenizer> smollm2() {
  Result<TextAssets> assets = load_text_assets(testing::test_model_path());
  if (!assets.ok()) throw std::runtime_error(assets.status().message());
  return assets->tokenizer;
}

std::shared_ptr<const Tokenizer> sentencepiece() {
  return load(tiny_sentencepiece("never"));
}

const std::vector<std::string>& inputs() {
  static const std::vector<std::string> kInputs = {
      repeat("Z", 131072),      repeat(".", 131072),  repeat(" ", 131072),
      repeat("é", 131072),      repeat("ab ", 65536), repeat("1234567890", 20000),
      repeat("\u0301", 131072), repeat("<|", 100000), repeat("\n ", 65536)};
  return kInputs;
}

// CPU time of this thread, so that what else runs on the machine does not count; the best of
// `runs`.
double cpu_seconds(int runs, const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double begin = now();
    work();
    best = std::min(best, now() - begin);
  }
  return best;
}

void expect_round_trip(const Tokenizer& tokenizer, const std::string& text) {
  const Ids ids = encode(tokenizer, text, {.add_special = false});
  ASSERT_TRUE(tokenizer.decode_bytes(ids, {.skip_special = false}) == text)
      << text.substr(0, 8) << "...";
}

TEST(Tok06LongInput, DecodesToTheInput) {
  for (const auto& tokenizer : {smollm2(), sentencepiece()}) {
    for (const std::string& text : inputs()) expect_round_trip(*tokenizer, text);
    expect_round_trip(*tokenizer, std::string(size_t{4} << 20, 'a'));
  }
}

TEST(Tok06LongInput, ASmallStackIsEnough) {
  struct Work {
    std::vector<std::shared_ptr<const Tokenizer>> tokenizers;
    size_t done = 0;
  } work{{smollm2(), sentencepiece()}, 0};
  inputs();
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread;
  const auto body = [](void* argument) -> void* {
    auto& shared = *static_cast<Work*>(argument);
    for (const auto& tokenizer : shared.tokenizers) {
      for (const std::string& text : inputs()) shared.done += tokenizer->encode(text).ok() ? 1 : 0;
    }
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_EQ(work.done, 2 * inputs().size());
}

// Doubling the text less than triples the time; a mebibyte takes less than a second.
TEST(Tok06LongInput, TimeGrowsLinearly) {
  for (const auto& tokenizer : {smollm2(), sentencepiece()}) {
    for (const std::string unit : {"Z", ".", " ", "é", "ab ", "7", "\u0301", "<|"}) {
      const auto time_of = [&](size_t bytes, int runs) {
        const std::string text = repeat(unit, bytes / unit.size());
        return cpu_seconds(runs, [&] { (void)tokenizer->encode(text); });
      };
      // From 128 KiB to 1 MiB in one step: 8 times the text, less than 27 times the time.
      const double small = time_of(size_t{128} << 10, 3), large = time_of(size_t{1} << 20, 1);
      EXPECT_LT(large, 1.0) << "'" << unit << "'";
      EXPECT_LT(large, 27 * small) << "'" << unit << "'";
    }
  }
}

// Marks of alternating combining classes, which a normal form has to sort.
TEST(Tok06LongInput, NormalFormsAreLinear) {
  json value = tiny_byte_level();
  value["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = load(value);
  const auto time_of = [&](size_t count) {
    const std::string text = repeat("\u0301\u0316", count);
    return cpu_seconds(2, [&] { (void)tokenizer->encode(text); });
  };
  const double small = time_of(1 << 15), large = time_of(1 << 18);
  EXPECT_LT(large, 1.0);
  EXPECT_LT(large, 27 * small);
}

}  // namespace
}  // namespace tenon
