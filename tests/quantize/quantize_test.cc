// Rounding matrices to few bits, and the folders that hold them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "quantize/calibration_texts.h"
#include "quantize/fit_or_round.h"
#include "quantize/gptq.h"
#include "quantize/quantize.h"
#include "quantize/quantize_report.h"
#include "tests/support/driver.h"
#include "tests/support/quantized_model.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

std::vector<float> RandomMatrix(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& value : values) value = normal(random);
  return values;
}

double Value(const QuantizedCodes& q, int64_t columns, int64_t group, int64_t r, int64_t i) {
  return static_cast<double>(q.codes[static_cast<size_t>(r * columns + i)]) *
         static_cast<double>(
             BF16ToFloat(q.scales[static_cast<size_t>(r * (columns / group) + i / group)]));
}

TEST(Quantize, RoundingIsOffByHalfAStepAtMost) {
  const int64_t rows = 7, columns = 64;
  const std::vector<float> values = RandomMatrix(rows, columns, 1);
  const QuantizedCodes q = RoundMatrix(values, rows, columns, columns, 8);
  for (int64_t r = 0; r < rows; ++r) {
    const auto scale = static_cast<double>(BF16ToFloat(q.scales[static_cast<size_t>(r)]));
    for (int64_t i = 0; i < columns; ++i) {
      const auto value = static_cast<double>(values[static_cast<size_t>(r * columns + i)]);
      // A scale rounded down to bf16 cuts the largest values by up to half a step more.
      const double off = std::fabs(value) > 126.5 * scale ? 1.0 : 0.5001;
      EXPECT_NEAR(Value(q, columns, columns, r, i), value, scale * off);
    }
  }
}

// What GPTQ is for: a smaller error of the outputs, measured by the inputs' second moments.
TEST(Quantize, GptqErrsLessOnTheInputsItWasGiven) {
  const int64_t rows = 24, columns = 128, group = 32, samples = 400;
  const std::vector<float> values = RandomMatrix(rows, columns, 2);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> mix = RandomMatrix(columns, 16, 4),
                     moments(static_cast<size_t>(columns * columns));
  std::vector<std::vector<float>> inputs;
  for (int64_t s = 0; s < samples; ++s) {
    std::vector<float> x(static_cast<size_t>(columns)), z(16);
    for (float& value : z) value = normal(random);
    for (int64_t i = 0; i < columns; ++i) {
      x[static_cast<size_t>(i)] = 0.05f * normal(random);
      for (int64_t j = 0; j < 16; ++j)
        x[static_cast<size_t>(i)] +=
            20 * mix[static_cast<size_t>(i * 16 + j)] * z[static_cast<size_t>(j)];
    }
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        moments[static_cast<size_t>(i * columns + j)] +=
            x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)];
    }
    inputs.push_back(std::move(x));
  }
  const auto error = [&](const QuantizedCodes& q) {
    double sum = 0;
    for (const auto& x : inputs) {
      for (int64_t r = 0; r < rows; ++r) {
        double off = 0;
        for (int64_t i = 0; i < columns; ++i) {
          off += (Value(q, columns, group, r, i) -
                  static_cast<double>(values[static_cast<size_t>(r * columns + i)])) *
                 static_cast<double>(x[static_cast<size_t>(i)]);
        }
        sum += off * off;
      }
    }
    return sum;
  };
  const double rounded = error(RoundMatrix(values, rows, columns, group, 4));
  const double fitted = error(GptqMatrix(values, rows, columns, group, 4, moments, 0.01));
  EXPECT_LT(fitted, 0.5 * rounded);
  EXPECT_GT(fitted, 0);
}

// Damping leads from GPTQ to rounding: with very much of it no error is spread.
TEST(Quantize, MuchDampingIsRounding) {
  const int64_t rows = 6, columns = 64, group = 32;
  const std::vector<float> values = RandomMatrix(rows, columns, 5);
  const std::vector<float> x = RandomMatrix(columns, columns, 6);
  std::vector<float> moments(static_cast<size_t>(columns * columns));
  for (int64_t s = 0; s < columns; ++s) {
    for (int64_t i = 0; i < columns * columns; ++i)
      moments[static_cast<size_t>(i)] += x[static_cast<size_t>(s * columns + i / columns)] *
                                         x[static_cast<size_t>(s * columns + i % columns)];
  }
  const QuantizedCodes rounded = RoundMatrix(values, rows, columns, group, 4);
  EXPECT_EQ(GptqMatrix(values, rows, columns, group, 4, moments, 1e9).codes, rounded.codes);
  EXPECT_NE(GptqMatrix(values, rows, columns, group, 4, moments, 0.01).codes, rounded.codes);
}

// The built-in texts: of four kinds, in a fair order, and none of them in a file that something is
// measured with.
TEST(CalibrationTexts, AreMixedAndNobodyElses) {
  const std::vector<std::string> fitted = CalibrationPassages(), judged = JudgingPassages();
  EXPECT_GE(fitted.size() + judged.size(), 200u);
  EXPECT_GE(judged.size(), 30u);
  const auto problems = [&](size_t count) {
    return std::count_if(fitted.begin(), fitted.begin() + static_cast<std::ptrdiff_t>(count),
                         [](const std::string& text) { return text.starts_with("Question: "); });
  };
  EXPECT_NEAR(static_cast<double>(problems(fitted.size() / 4)),
              static_cast<double>(problems(fitted.size())) / 4, 1.0);
  const std::filesystem::path root = LOOPSPEC_SOURCE_DIR;
  const std::string held_out = ReadFile(root / "models/heldout_problems.jsonl");
  const std::string stories = ReadFile(root / "bench/stories.txt");
  std::set<std::string> seen;
  for (const std::vector<std::string>& passages : {fitted, judged}) {
    for (const std::string& text : passages) {
      EXPECT_GE(text.size(), 40u) << text;
      EXPECT_NE(text.front(), '\n') << text;
      EXPECT_NE(text.back(), '\n') << text;
      EXPECT_TRUE(seen.insert(text).second) << "twice: " << text;
      std::string first = text.substr(0, text.find('\n'));
      if (first.starts_with("Question: ")) first = first.substr(10);
      EXPECT_EQ(held_out.find(first), std::string::npos) << first;
      EXPECT_EQ(stories.find(first), std::string::npos) << first;
    }
  }
}

// Where GPTQ is farther from the source than rounding, the folder holds what rounding gives, byte
// for byte; else what GPTQ gives.
TEST(Quantize, KeepsTheNearerOfGptqAndRounding) {
  const TemporaryFolder base;
  QuantizeRequest request;
  request.source = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models/raven-demo";
  request.bits = 4;
  request.texts = {DemoPrompts("raven-demo")[0]};
  request.make_backend = [](const Model& model, BackendOptions options) {
    options.threads = 1;
    return MakeCpuBackend(model, options);
  };
  const Model source = Model::Load(request.source, {}, 4);
  std::vector<std::string> bytes;
  for (const double distance : {0.1, 0.3}) {
    request.output = base / std::to_string(distance);
    const FitOrRound choice =
        FitOrRoundModel(source, request, [&](const std::filesystem::path& folder) {
          Model::Load(folder, {}, 4);  // whole when it is compared
          QuantizeReport report;
          report.distance = folder == request.output ? distance : 0.2;
          return report;
        });
    EXPECT_EQ(choice.keeps_fitted, distance < 0.2);
    EXPECT_EQ(choice.fitted.distance, distance);
    EXPECT_EQ(choice.rounded.distance, 0.2);
    EXPECT_FALSE(std::filesystem::exists(request.output / "rounded"));
    bytes.push_back(ReadFile(request.output / "model.safetensors"));
  }
  const std::string rounded = ReadFile(QuantizedFolder("raven-demo", 4) / "model.safetensors");
  EXPECT_FALSE(bytes[0] == rounded);
  EXPECT_TRUE(bytes[1] == rounded);
}

TEST(Quantize, WhatIsReadBackIsCodeTimesScale) {
  for (const int bits : {8, 4}) {
    const Model source = LoadTestModel("raven-demo");
    const Model model = Model::Load(QuantizedFolder("raven-demo", bits));
    const TensorView& from = source.weights.core[1].down.parts[0];
    const TensorView& part = model.weights.core[1].down.parts[0];
    ASSERT_NE(part.quantized, nullptr);
    EXPECT_EQ(part.quantized->bits(), bits);
    EXPECT_EQ(part.shape, from.shape);
    EXPECT_EQ(model.weights.adapter.parts[0].quantized, nullptr) << "the adapter stays";
    EXPECT_EQ(model.weights.embedding.quantized, nullptr);
    EXPECT_NE(model.weights.head.parts[0].quantized, nullptr);
    std::vector<float> values;
    for (int64_t i = 0; i < from.elements(); ++i)
      values.push_back(LoadElement(from.data, from.dtype, i));
    const int64_t columns = from.shape[1], group = bits == 8 ? columns : 32;
    const QuantizedCodes q = RoundMatrix(values, from.shape[0], columns, group, bits);
    std::vector<float> row(static_cast<size_t>(columns));
    for (const int64_t r : {int64_t{0}, from.shape[0] - 1}) {
      part.quantized->DequantizeRow(r, row.data());
      for (int64_t i = 0; i < columns; ++i)
        ASSERT_EQ(row[static_cast<size_t>(i)], static_cast<float>(Value(q, columns, group, r, i)));
    }
  }
}

// Fitted to texts through a backend: another model than by rounding, nearer to the source on those
// texts, and the same bytes however many threads read them.
TEST(Quantize, GptqOverTexts) {
  const TemporaryFolder base;
  QuantizeRequest request;
  request.source = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models/raven-demo";
  request.bits = 4;
  request.texts = {DemoPrompts("raven-demo")[0]};
  const Model source = Model::Load(request.source, {}, 4);
  std::vector<std::string> bytes;
  for (const int threads : {1, 2}) {
    request.output = base / std::to_string(threads);
    request.threads = threads;
    request.make_backend = [&](const Model& model, BackendOptions options) {
      options.threads = threads;
      return MakeCpuBackend(model, options);
    };
    QuantizeModel(source, request);
    bytes.push_back(ReadFile(request.output / "model.safetensors"));
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
  BackendOptions options;
  options.readout_depths = {4};
  options.kv_positions = 256;
  options.cells = 1;
  options.threads = 1;
  const auto reference = MakeCpuBackend(source, options);
  const auto distance = [&](const std::filesystem::path& folder) {
    const Model model = Model::Load(folder, {}, 4);
    return CompareModels(*reference, *MakeCpuBackend(model, options), request.texts, {}).distance;
  };
  EXPECT_LT(distance(base / "1"), distance(QuantizedFolder("raven-demo", 4)));
}

// A run that was broken off goes on, and ends in the same bytes.
TEST(Quantize, GoesOnAfterABreak) {
  namespace fs = std::filesystem;
  const TemporaryFolder base;
  const fs::path source = fs::path(LOOPSPEC_SOURCE_DIR) / "models/raven-demo";
  const Model model = Model::Load(source);
  QuantizeRequest request;
  request.source = source;
  request.bits = 8;
  request.output = base / "broken";
  int left = 5;
  request.progress = [&](const std::string& what, int64_t, int64_t) {
    if (what == "quantizing" && --left == 0) throw Error("broken off");
  };
  EXPECT_THROW(QuantizeModel(model, request), Error);
  EXPECT_FALSE(fs::exists(request.output / "config.json"));
  EXPECT_THROW(Model::Load(request.output), Error);
  request.progress = {};
  QuantizeRequest other = request;
  other.bits = 4;
  EXPECT_THROW(QuantizeModel(model, other), Error) << "parts of another run";
  const QuantizeResult result = QuantizeModel(model, request);
  EXPECT_EQ(result.resumed, 5);
  EXPECT_EQ(ReadFile(request.output / "model.safetensors"),
            ReadFile(QuantizedFolder("raven-demo", 8) / "model.safetensors"));
  EXPECT_FALSE(fs::exists(request.output / "parts"));
  EXPECT_THROW(QuantizeModel(model, request), Error) << "the folder holds a model";
}

// Quantized twice would be worse than either.
TEST(Quantize, WhatIsQuantizedIsRefused) {
  QuantizeRequest request;
  request.source = QuantizedFolder("raven-demo", 8);
  const TemporaryFolder folder;
  request.output = folder / "twice";
  const Model model = Model::Load(request.source);
  try {
    QuantizeModel(model, request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("quantized already"), std::string::npos);
  }
}

// int8 hardly changes a model; int4 by rounding does, but leaves most choices.
TEST(Quantize, ReportAgainstTheSource) {
  const Model source = LoadTestModel("ouro-demo");
  BackendOptions options;
  options.readout_depths = {1, 2, 4};
  options.kv_positions = 256;
  options.cells = 1;
  options.threads = 1;
  const auto a = MakeTestBackend(source, options);
  std::vector<std::vector<int32_t>> texts = DemoPrompts("ouro-demo");
  for (const int bits : {8, 4}) {
    const Model model = Model::Load(QuantizedFolder("ouro-demo", bits));
    const auto b = MakeTestBackend(model, options);
    const QuantizeReport report = CompareModels(*a, *b, texts, {});
    EXPECT_GT(report.positions, 50);
    EXPECT_GT(report.agreed, bits == 8 ? 0.96 : 0.8);
    EXPECT_LT(report.distance, bits == 8 ? 0.03 : 0.2);
    EXPECT_GT(report.distance, 0);
    EXPECT_NEAR(report.perplexity, report.source_perplexity,
                report.source_perplexity * (bits == 8 ? 0.03 : 0.3));
    ASSERT_EQ(report.accepted.size(), 2u);
    EXPECT_GT(report.accepted[0], 0.5);
    EXPECT_NEAR(report.gamma, report.source_gamma, 0.15 * report.source_gamma);
  }
  const QuantizeReport same = CompareModels(*a, *a, texts, {});
  EXPECT_EQ(same.distance, 0);
  EXPECT_EQ(same.agreed, 1);
  EXPECT_EQ(same.gamma, same.source_gamma);
  // Drafts of depth 1 that hold cost one recurrence, those that do not two or four.
  const double first = same.accepted[0];
  EXPECT_LT(same.gamma, 4 / (first + 2 * (1 - first)) + 1e-9);
  EXPECT_GT(same.gamma, 4 / (first + 4 * (1 - first)) - 1e-9);
}

}  // namespace
}  // namespace loopspec
