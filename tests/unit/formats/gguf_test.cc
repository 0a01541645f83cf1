#include "formats/gguf.h"

#include <gtest/gtest.h>

#include "tests/assets.h"

namespace tenon {
namespace {

using testing::test_model_path;

TEST(Gguf, ReadsARealModel) {
  const auto opened = GgufFile::open(test_model_path());
  ASSERT_TRUE(opened.ok()) << opened.status().message() << "; `make test` fetches the model";
  const GgufFile& file = **opened;
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.tensors().size(), 272U);
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  EXPECT_EQ(*file.get_int("llama.block_count"), 30);
  EXPECT_EQ(*file.get_int("llama.embedding_length"), 576);
  EXPECT_FLOAT_EQ(static_cast<float>(*file.get_float("llama.attention.layer_norm_rms_epsilon")),
                  1e-5F);
  const auto tokens = file.get_array("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ((*tokens)->count, 49152U);
  EXPECT_EQ((*tokens)->strings[1], "<|im_start|>");
  const auto types = file.get_array("tokenizer.ggml.token_type");
  ASSERT_TRUE(types.ok());
  EXPECT_EQ((*types)->int_at(1), 3);  // control
  EXPECT_EQ((*types)->int_at(49151), 1);
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (std::vector<int64_t>{49152, 576}));
  const GgmlTypeInfo* type = ggml_type_info(embedding->type);
  ASSERT_NE(type, nullptr);
  EXPECT_EQ(static_cast<int64_t>(embedding->data.size()),
            49152 * 576 / type->block_elements * type->block_bytes);
}

TEST(Gguf, TypedAccessNamesTheKey) {
  const auto opened = GgufFile::open(test_model_path());
  ASSERT_TRUE(opened.ok()) << opened.status().message() << "; `make test` fetches the model";
  const auto missing = (*opened)->get_int("llama.no_such_key");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("llama.no_such_key"), std::string::npos);
  const auto wrong = (*opened)->get_int("general.architecture");
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.status().message().find("general.architecture"), std::string::npos);
}

}  // namespace
}  // namespace tenon
