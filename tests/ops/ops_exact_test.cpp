// SPDX-License-Identifier: BSD-3-Clause
// Properties that hold bit for bit or nearly so: masks, rounding, zeros, skipped steps, layout independence.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/ops/op_run.hpp"
#include "tests/support/backend_fixture.hpp"

namespace mylos {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

class OpsExactTest : public testing::TestWithParam<std::string> {
 protected:
  /// A tensor in device memory with its content.
  template <class T>
  class Device {
   public:
    Device(ComputeBackend& backend, std::vector<T> values) : backend_(backend), size_(values.size()) {
      memory_ = backend.allocate(size_ * sizeof(T), "mylos::tests::tensor");
      backend.copy_to_device(values.data(), memory_.get(), size_ * sizeof(T));
      backend.synchronize();
    }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    T* data() const { return static_cast<T*>(memory_.get()); }
    TensorRef ref(std::initializer_list<std::int64_t> shape) const {
      return {memory_.get(), dtype_of<T>(), shape};
    }
    TensorRef ref() const { return ref({static_cast<std::int64_t>(size_)}); }
    std::vector<T> values() const {
      std::vector<T> values(size_);
      backend_.copy_to_host(memory_.get(), values.data(), size_ * sizeof(T));
      backend_.synchronize();
      return values;
    }

   private:
    ComputeBackend& backend_;
    std::size_t size_;
    Allocation memory_;
  };

  ComputeBackend& backend() { return test_backends().at(GetParam()); }
  template <class T>
  Device<T> device(std::vector<T> values) {
    return Device<T>(backend(), std::move(values));
  }
};

std::vector<float> ramp(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<float>(i + 1));
  return values;
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> words;
  for (const float v : values) words.push_back(std::bit_cast<std::uint32_t>(v));
  return words;
}

TEST_P(OpsExactTest, CastRoundsToNearestEven) {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               1.0F,
                               infinity,
                               -infinity,
                               nan,
                               -nan,
                               0x1.01p0F,
                               0x1.03p0F,
                               0x1.02p0F,
                               0x1.010002p0F,
                               0x1.00fffep0F,
                               -0x1.01p0F,
                               -0x1.03p0F,
                               0x1p-149F,
                               0x1.01p-126F,
                               0x1.81p-130F,
                               0x1.fffffep127F,
                               0x1.fefffep127F,
                               0x1.ffp127F,
                               std::bit_cast<float>(0x7f800001U)};
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const auto word = static_cast<std::uint32_t>(mix64(i));
    values.push_back(std::bit_cast<float>(word));
    values.push_back(std::bit_cast<float>((word & 0xffff0000U) | 0x8000U));  // halfway between two bf16
    // Between two fp16, or above the largest.
    const float near_one = std::bit_cast<float>(0x3f801000U + ((word & 0x3ffU) << 13U));
    values.push_back(std::ldexp(near_one, static_cast<int>(word >> 27U) - 15));
  }
  const auto x = device(values);
  const auto back = device(std::vector<float>(values.size()));
  const auto check = [&](auto element) {
    using T = decltype(element);
    SCOPED_TRACE(name_of(dtype_of<T>()));
    const auto y = device(std::vector<T>(values.size()));
    backend().run(Cast{.x = x.ref(), .y = y.ref()});
    backend().run(Cast{.x = y.ref(), .y = back.ref()});
    const std::vector<T> rounded = y.values();
    const std::vector<float> widened = back.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto as_float = static_cast<float>(rounded[i]);
      if (std::isnan(values[i])) {
        EXPECT_TRUE(std::isnan(as_float) && std::isnan(widened[i])) << std::hex << bits(values)[i];
        continue;
      }
      if (std::fpclassify(values[i]) == FP_SUBNORMAL && as_float == 0.0F) {  // allowed
        EXPECT_EQ(std::signbit(as_float), std::signbit(values[i])) << std::hex << bits(values)[i];
        continue;
      }
      EXPECT_EQ(rounded[i].bits, T(values[i]).bits) << std::hex << bits(values)[i];
      EXPECT_EQ(std::bit_cast<std::uint32_t>(widened[i]), std::bit_cast<std::uint32_t>(as_float));
    }
  };
  check(bf16());
  check(fp16());
}

TEST_P(OpsExactTest, NormalStreamDoesNotDependOnCuts) {
  const PhiloxKey key = stream_key(3, "cuts");
  const auto whole = device(std::vector<float>(1003));
  backend().run(FillNormal{.y = whole.ref(), .key = key, .stddev = 0.02F});
  const std::vector<float> expected = whole.values();
  for (const std::int64_t first : {1, 2, 7, 500, 1002}) {
    const auto part = device(std::vector<float>(static_cast<std::size_t>(1003 - first)));
    backend().run(FillNormal{.y = part.ref(), .key = key, .index = {.first = first}, .stddev = 0.02F});
    EXPECT_EQ(bits(part.values()), bits({expected.begin() + first, expected.end()})) << first;
  }
}

TEST_P(OpsExactTest, NormalStreamContinuesBeyond32Bits) {
  constexpr std::int64_t first = (std::int64_t{1} << 33U) - 2;  // its pair counter crosses 2^32
  const auto y = device(std::vector<float>(8));
  backend().run(
      FillNormal{.y = y.ref(), .key = stream_key(3, "far"), .index = {.first = first}, .stddev = 1.0F});
  const oracle::Array expected = oracle::fill_normal(8, stream_key(3, "far"), {.first = first}, 1.0);
  const std::vector<float> values = y.values();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected.values[i], 1e-6);
}

TEST_P(OpsExactTest, SumOfSquaresShowsWhatIsNotFinite) {
  for (const float bad : {infinity, -infinity, nan}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{517}, std::size_t{999}}) {
      std::vector<float> values = ramp(1000);
      values[place] = bad;
      const auto x = device(values);
      const auto out = device(std::vector<float>{1.0F});
      backend().run(SumOfSquares{.x = x.ref(), .out = out.ref(), .factor = 0.5F, .accumulate = true});
      EXPECT_FALSE(std::isfinite(out.values()[0])) << bad << " at " << place;
      const auto check_narrow = [&](auto element) {
        const auto narrow = device(std::vector<decltype(element)>(1000));
        backend().run(Cast{.x = x.ref(), .y = narrow.ref()});
        backend().run(SumOfSquares{.x = narrow.ref(), .out = out.ref(), .factor = 0.5F});
        EXPECT_FALSE(std::isfinite(out.values()[0]))
            << bad << " at " << place << ", " << name_of(narrow.ref().dtype);
      };
      check_narrow(bf16());
      check_narrow(fp16());
    }
  }
}

TEST_P(OpsExactTest, GeluSaturates) {
  const std::vector<float> values = {-1e30F, -300.0F, -40.0F, -12.0F, -0.0F,
                                     0.0F,   12.0F,   40.0F,  300.0F, 1e30F};
  const auto x = device(values);
  const auto y = device(std::vector<float>(values.size(), nan));
  const auto dy = device(std::vector<float>(values.size(), 1.0F));
  backend().run(GeluForward{.x = x.ref(), .y = y.ref()});
  backend().run(GeluBackward{.x = x.ref(), .dy = dy.ref(), .dx = dy.ref()});
  const std::vector<float> results = y.values();
  const std::vector<float> slopes = dy.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(results[i], std::max(values[i], 0.0F), 1e-20 * std::max(std::abs(values[i]), 1.0F))
        << values[i];
    EXPECT_NEAR(slopes[i], values[i] == 0.0F ? 0.5 : values[i] > 0.0F ? 1.0 : 0.0, 1e-20) << values[i];
  }
}

TEST_P(OpsExactTest, DropoutMask) {
  constexpr std::int64_t samples = 3, length = 65, width = 64;
  constexpr std::size_t size = samples * length * width;
  const auto scalars = device(std::vector<std::uint8_t>(sizeof(StepScalars)));
  const StepScalars host{.step = 17};
  backend().copy_to_device(&host, scalars.data(), sizeof(host));
  Dropout dropout{.probability = 0.1F,
                  .key = stream_key(5, "mask"),
                  .first_sample = 9,
                  .index = {},
                  .scalars = reinterpret_cast<const StepScalars*>(scalars.data())};
  const auto x = device(std::vector<float>(size, 1.0F));
  const auto y = device(std::vector<float>(size, nan));
  backend().run(DropoutAdd{
      .x = x.ref({samples, length, width}), .y = y.ref({samples, length, width}), .dropout = dropout});
  const std::vector<float> values = y.values();
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(size); ++i) {
    const bool keeps =
        oracle::dropout_keeps(dropout, host.step, 9 + i / (length * width), i % (length * width));
    ASSERT_EQ(values[static_cast<std::size_t>(i)] != 0.0F, keeps) << i;
    kept += keeps ? 1 : 0;
  }
  // Within five standard deviations of 0.9.
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(size), 0.9, 5.0 * std::sqrt(0.09 / size));

  // The last sample alone, as another rank would hold it.
  dropout.first_sample = 11;
  const auto alone = device(std::vector<float>(length * width, nan));
  backend().run(
      DropoutAdd{.x = x.ref({1, length, width}), .y = alone.ref({1, length, width}), .dropout = dropout});
  EXPECT_EQ(bits(alone.values()), bits({values.end() - length * width, values.end()}));
}

TEST_P(OpsExactTest, AttentionDropoutMask) {
  // With one-hot values of width Tk, the output is the row of probabilities.
  constexpr std::int64_t queries = 5, keys = 16, heads = 2, offset = 11;
  const auto scalars = device(std::vector<std::uint8_t>(sizeof(StepScalars)));
  const StepScalars host{.step = 4};
  backend().copy_to_device(&host, scalars.data(), sizeof(host));
  const auto query = device(ramp(queries * heads * keys));
  const auto key = device(ramp(keys * heads * keys));
  std::vector<float> one_hot(keys * heads * keys);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t h = 0; h < heads; ++h)
      one_hot[static_cast<std::size_t>((j * heads + h) * keys + j)] = 1.0F;
  }
  const auto value = device(one_hot);
  const auto output = device(std::vector<float>(queries * heads * keys, nan));
  const auto lse = device(std::vector<float>(heads * queries, nan));
  const Dropout dropout{.probability = 0.5F,
                        .key = stream_key(5, "attention"),
                        .first_sample = 2,
                        .index = {},
                        .scalars = reinterpret_cast<const StepScalars*>(scalars.data())};
  const AttentionPlace place{.first_head = 3, .first_query = 20, .first_key = 5, .positions = 43};
  backend().run(AttentionForward{.query = query.ref({1, queries, heads, keys}),
                                 .key = key.ref({1, keys, heads, keys}),
                                 .value = value.ref({1, keys, heads, keys}),
                                 .output = output.ref({1, queries, heads, keys}),
                                 .lse = lse.ref({1, heads, queries}),
                                 .query_offset = offset,
                                 .scale = 0.25F,
                                 .dropout = dropout,
                                 .place = place});
  const std::vector<float> values = output.values();
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t j = 0; j < keys; ++j) {
        const bool seen = j <= offset + i;
        const bool keeps = oracle::dropout_keeps(dropout, host.step, 2, ((3 + h) * 43 + 20 + i) * 43 + 5 + j);
        EXPECT_EQ(values[static_cast<std::size_t>((i * heads + h) * keys + j)] != 0.0F, seen && keeps)
            << "query " << i << " head " << h << " key " << j;
      }
    }
  }
}

TEST_P(OpsExactTest, EmbeddingRowsWithoutTokenAreZero) {
  constexpr std::int64_t vocab = 50, context = 20, width = 25;
  const auto tokens = device(std::vector<std::int32_t>{3, 49, 3, 7});
  const auto dout = device(std::vector<float>(4 * width, 1.0F));
  const auto dwte = device(std::vector<float>(vocab * width, nan));
  const auto dwpe = device(std::vector<float>(context * width, nan));
  backend().run(EmbeddingBackward{.tokens = tokens.ref({2, 2}),
                                  .dout = dout.ref({2, 2, width}),
                                  .dwte = dwte.ref({vocab, width}),
                                  .dwpe = dwpe.ref({context, width}),
                                  .position = 5});
  const std::vector<float> token_rows = dwte.values();
  const std::vector<float> position_rows = dwpe.values();
  for (std::int64_t v = 0; v < vocab; ++v) {
    const float expected = v == 3 ? 2.0F : v == 49 || v == 7 ? 1.0F : 0.0F;
    for (std::int64_t c = 0; c < width; ++c)
      EXPECT_EQ(token_rows[static_cast<std::size_t>(v * width + c)], expected);
  }
  for (std::int64_t s = 0; s < context; ++s) {
    const float expected = s == 5 || s == 6 ? 2.0F : 0.0F;
    for (std::int64_t c = 0; c < width; ++c)
      EXPECT_EQ(position_rows[static_cast<std::size_t>(s * width + c)], expected);
  }
}

/// Of four parts of a vocabulary, the third has one token and the last has none.
TEST_P(OpsExactTest, CrossEntropyOfPartsIsThatOfTheWhole) {
  constexpr std::int64_t rows = 37, vocab = 33, part = 16, parts = 4;
  constexpr std::int64_t count = SoftmaxStatistics::count;
  std::vector<float> whole(rows * part * parts, nan);
  std::vector<std::int32_t> targets(rows);
  for (std::int64_t n = 0; n < rows; ++n) {
    const auto hash = [&](std::int64_t v) { return mix64(static_cast<std::uint64_t>(n * vocab + v)); };
    // Whole numbers: the largest often occurs more than once.
    for (std::int64_t v = 0; v < vocab; ++v)
      whole[static_cast<std::size_t>(n * part * parts + v)] = static_cast<float>(hash(v) % 8);
    targets[static_cast<std::size_t>(n)] = n % 5 == 4 ? -1 : static_cast<std::int32_t>(hash(vocab) % vocab);
  }
  const StepScalars step{.loss_scale = 4.0F};
  std::vector<std::uint8_t> raw(sizeof(step));
  std::memcpy(raw.data(), &step, sizeof(step));
  const auto scalars = device(raw);
  const auto target = device(targets);
  const auto expected = device(whole);
  const auto expected_losses = device(std::vector<float>(rows, nan));
  const auto expected_hits = device(std::vector<std::int32_t>(rows, -7));
  const auto run = [&](CrossEntropy op) {
    op.targets = target.ref();
    op.gradient_scale = 0.5F;
    op.scalars = static_cast<const StepScalars*>(scalars.ref().data);
    backend().run(op);
  };
  run({.logits = expected.ref({rows, part * parts}),
       .losses = expected_losses.ref(),
       .correct = expected_hits.ref(),
       .vocab = vocab});

  const auto statistics = device(std::vector<float>(parts * count * rows, nan));
  std::deque<Device<float>> logits;
  const auto of_part = [&](std::int64_t p) { return std::clamp<std::int64_t>(vocab - p * part, 0, part); };
  for (std::int64_t p = 0; p < parts; ++p) {
    std::vector<float> own;
    for (std::int64_t n = 0; n < rows; ++n) {
      const auto from = whole.begin() + (n * parts + p) * part;
      own.insert(own.end(), from, from + part);
    }
    logits.emplace_back(backend(), own);
    backend().run(SoftmaxStatistics{.logits = logits.back().ref({rows, part}),
                                    .targets = target.ref(),
                                    .statistics = statistics.ref({parts, count, rows}).rows(p, 1),
                                    .vocab = of_part(p),
                                    .first_token = std::min(vocab, p * part)});
  }
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto losses = device(std::vector<float>(rows, nan));
    const auto hits = device(std::vector<std::int32_t>(rows, -7));
    run({.logits = logits[static_cast<std::size_t>(p)].ref({rows, part}),
         .losses = losses.ref(),
         .correct = hits.ref(),
         .statistics = statistics.ref({parts, count, rows}),
         .vocab = of_part(p),
         .first_token = std::min(vocab, p * part)});
    EXPECT_EQ(hits.values(), expected_hits.values());
    const std::vector<float> gradient = logits[static_cast<std::size_t>(p)].values();
    for (std::int64_t n = 0; n < rows; ++n) {
      EXPECT_NEAR(losses.values()[static_cast<std::size_t>(n)],
                  expected_losses.values()[static_cast<std::size_t>(n)], 2e-6);
      for (std::int64_t v = 0; v < part; ++v) {
        EXPECT_NEAR(gradient[static_cast<std::size_t>(n * part + v)],
                    expected.values()[static_cast<std::size_t>((n * parts + p) * part + v)], 4e-6)
            << p << ", " << n << ", " << v;
      }
    }
  }
}

/// The loss of a row whose target has nearly all of the probability is small, and not lost in the rounding of
/// large logits.
TEST_P(OpsExactTest, CrossEntropyOfConfidentRows) {
  constexpr std::int64_t rows = 40, vocab = 64;
  std::vector<float> logits;
  std::vector<std::int32_t> targets;
  std::vector<double> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float largest = 45.0F + 1.37F * static_cast<float>(row);
    const float other = largest - (row % 2 == 0 ? 60.0F : 9.0F);
    targets.push_back(static_cast<std::int32_t>(7 * row % vocab));
    for (std::int64_t v = 0; v < vocab; ++v) logits.push_back(v == targets.back() ? largest : other);
    expected.push_back(
        std::log1p(static_cast<double>(vocab - 1) * std::exp(static_cast<double>(other - largest))));
  }
  const auto x = device(logits);
  const auto t = device(targets);
  const auto losses = device(std::vector<float>(rows));
  backend().run(CrossEntropy{
      .logits = x.ref({rows, vocab}), .targets = t.ref(), .losses = losses.ref(), .vocab = vocab});
  const std::vector<float> values = losses.values();
  for (std::size_t row = 0; row < expected.size(); ++row)
    EXPECT_NEAR(values[row], expected[row], 5e-7) << row;
}

TEST_P(OpsExactTest, CrossEntropyPaddingTiesAndNegativeTargets) {
  constexpr std::int64_t rows = 4, vocab = 5, padded = 16;
  // The padding must not be read: it holds NaN.
  std::vector<float> logits(rows * padded, nan);
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t v = 0; v < vocab; ++v)
      logits[static_cast<std::size_t>(n * padded + v)] = v == 1 || v == 3 ? 2.0F : 0.0F;
  }
  const auto x = device(logits);
  const auto targets = device(std::vector<std::int32_t>{1, 3, -1, 0});
  const auto losses = device(std::vector<float>(rows, nan));
  const auto correct = device(std::vector<std::int32_t>(rows, -7));
  backend().run(CrossEntropy{.logits = x.ref({rows, padded}),
                             .targets = targets.ref(),
                             .losses = losses.ref(),
                             .correct = correct.ref(),
                             .vocab = vocab,
                             .gradient_scale = 0.5F});
  EXPECT_EQ(bits(x.values()), bits(logits)) << "logits changed without scalars";
  const std::vector<std::int32_t> hits = correct.values();
  EXPECT_EQ(hits[0], 1) << "the first of equal largest logits";
  EXPECT_EQ(hits[1], 0);
  EXPECT_EQ(hits[3], 0);
  EXPECT_EQ(losses.values()[2], 0.0F);
  EXPECT_EQ(losses.values()[0], losses.values()[1]);

  const StepScalars step;
  std::vector<std::uint8_t> raw(sizeof(step));
  std::memcpy(raw.data(), &step, sizeof(step));
  const auto scalars = device(raw);
  backend().run(CrossEntropy{.logits = x.ref({rows, padded}),
                             .targets = targets.ref(),
                             .losses = losses.ref(),
                             .vocab = vocab,
                             .gradient_scale = 0.5F,
                             .scalars = static_cast<const StepScalars*>(scalars.ref().data)});
  const std::vector<float> gradient = x.values();
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t v = 0; v < padded; ++v) {
      const float g = gradient[static_cast<std::size_t>(n * padded + v)];
      if (v >= vocab || n == 2) {
        EXPECT_EQ(g, 0.0F) << n << ", " << v;
      } else {
        EXPECT_TRUE(std::isfinite(g) && g != 0.0F) << n << ", " << v;
      }
    }
  }
}

// In AgreesWithOracle, large elements hide errors of small ones.
TEST_P(OpsExactTest, SumsOfRoutersAndDepthPredictorsOneByOne) {
  for (const OpCase& c : op_cases()) {
    if ((c.op != Op::router_statistics && c.op != Op::depth_predictor_loss) || c.full_size) continue;
    SCOPED_TRACE(c.name());
    const std::int64_t losses = c.op == Op::router_statistics ? 2 : 1;  // the others are counts
    const Contents initial = initial_contents(c);
    Arrays arrays = read_all(c, initial);
    run_oracle(c, arrays);
    const oracle::Array& expected = arrays.at("sums");
    OpRun run(c, backend(), initial);
    run.run();
    const oracle::Array sums = read(*c.find("sums"), run.contents());
    for (std::int64_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(sums[i], expected[i], i < losses ? 4e-6 * std::max(expected[i], 1.0) : 0.0) << i;
    }
  }
}

TEST_P(OpsExactTest, TopTokensCompareZerosAndInfinities) {
  const auto scores = device(std::vector<float>{-0.0F, 0.0F, -infinity, infinity, 0.0F, -0.0F, 1.0F, -1.0F});
  const std::vector<std::vector<std::int32_t>> taken = {
      {3}, {3, 6}, {0, 3, 6}, {0, 1, 3, 6}, {0, 1, 3, 4, 6}, {0, 1, 3, 4, 5, 6}, {0, 1, 3, 4, 5, 6, 7}};
  for (const std::vector<std::int32_t>& expected : taken) {
    const auto places = device(std::vector<std::int32_t>(8));
    const auto pairs = device(std::vector<std::int32_t>(expected.size()));
    const auto offsets = device(std::vector<std::int32_t>(2));
    backend().run(TopTokens{.scores = scores.ref({1, 8, 1}),
                            .places = places.ref({1, 8, 1}),
                            .pairs = pairs.ref({1, static_cast<std::int64_t>(expected.size())}),
                            .offsets = offsets.ref({1, 2})});
    EXPECT_EQ(pairs.values(), expected);
  }
}

TEST_P(OpsExactTest, PositiveTokensHaveScoresAboveZero) {
  const auto check = [&](auto element, float smallest) {
    using T = decltype(element);
    SCOPED_TRACE(name_of(dtype_of<T>()));
    std::vector<T> values;
    for (const float value : {-0.0F, smallest, 0.0F, -smallest, infinity, -infinity})
      values.push_back(static_cast<T>(value));
    const auto scores = device(values);
    const auto places = device(std::vector<std::int32_t>(6));
    const auto pairs = device(std::vector<std::int32_t>(6));
    const auto offsets = device(std::vector<std::int32_t>(2));
    backend().run(PositiveTokens{.scores = scores.ref({1, 6, 1}),
                                 .places = places.ref({1, 6, 1}),
                                 .pairs = pairs.ref({1, 6}),
                                 .offsets = offsets.ref({1, 2})});
    EXPECT_EQ(places.values(), (std::vector<std::int32_t>{-1, 0, -1, -1, 1, -1}));
  };
  check(0.0F, 0x1p-126F);
  check(bf16(), 0x1p-126F);
  check(fp16(), 0x1p-24F);
}

TEST_P(OpsExactTest, SkippedStepLeavesEverythingAsItIs) {
  for (const OpCase& table_case : op_cases()) {
    if (!is_step(table_case.op) || table_case.full_size) continue;
    OpCase c = table_case;
    c.scalars.skip = 1;
    c.scalars.clip_factor = 0.0F;
    Contents initial = initial_contents(c);
    // A skipped step usually has gradients that are not finite.
    std::ranges::fill(initial.at("gradient"), std::byte{0xFF});
    OpRun run(c, backend(), initial);
    run.run();
    EXPECT_TRUE(run.contents() == initial) << c.name();
  }
}

TEST_P(OpsExactTest, SteppedWeightsAreTheRoundedMaster) {
  for (const OpCase& c : op_cases()) {
    if (!is_step(c.op) || c.full_size || c.find("master") == nullptr) continue;
    const Contents initial = initial_contents(c);
    OpRun run(c, backend(), initial);
    run.run();
    const Contents contents = run.contents();
    const oracle::Array master = read(*c.find("master"), contents);
    const oracle::Array weights = read(*c.find("weights"), contents);
    dispatch_float(c.find("weights")->view.dtype, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t i = 0; i < master.size(); ++i) {
        ASSERT_EQ(static_cast<float>(weights[i]), static_cast<float>(T(static_cast<float>(master[i]))))
            << c.name();
      }
    });
  }
}

TEST_P(OpsExactTest, OptimizersRoundByTheBitsOfTheElement) {
  const auto check = [&]<class Step, class T>(Step, T) {
    SCOPED_TRACE(fmt::format("{}, {}", Step::name, name_of(dtype_of<T>())));
    using Gradient = std::conditional_t<std::is_same_v<Step, MuonStep>, float, T>;
    std::vector<T> initial;
    for (int i = 0; i < 5003; ++i) {
      const float value = std::ldexp(std::sin(static_cast<float>(i)), -(i % 24));
      initial.push_back(T(value));
    }
    const auto n = static_cast<std::int64_t>(initial.size());
    const auto gradient = device(std::vector<Gradient>(initial.size()));
    const auto moment = device(std::vector<float>(initial.size()));
    // Without a gradient, only the decay is left, here by a factor that fp32 multiplies exactly.
    const StepScalars step{.step = 3, .learning_rate = 0x1p-6F};
    const auto scalars = device(std::vector<StepScalars>{step});
    const PhiloxKey keys[] = {stream_key(5, "rounding"), stream_key(6, "rounding")};
    for (const GlobalIndex& index : {GlobalIndex{}, GlobalIndex{.first = 20}, GlobalIndex{.first = 7},
                                     GlobalIndex{.first = (std::int64_t{1} << 35U) - 6},
                                     GlobalIndex{8, 24, 96}, GlobalIndex{3, 5, 11, 7}}) {
      const auto weights = device(initial);
      const std::int64_t cut = n / 3;  // not a multiple of the elements that a kernel processes together
      const auto segments =
          device(std::vector<Segment>{{0, cut, 1.0F, {keys[0], index}}, {cut, n, 1.0F, {keys[1], index}}});
      Step args;
      args.weights = weights.ref();
      args.gradient = gradient.ref();
      if constexpr (std::is_same_v<Step, AdamWStep>) {
        args.first_moment = moment.ref();
        args.second_moment = moment.ref();
      }
      args.segments = segments.data();
      args.num_segments = 2;
      args.weight_decay = 0x1p-7F;
      args.scalars = scalars.data();
      backend().run(args);
      const std::vector<T> stepped = weights.values();
      for (std::int64_t i = 0; i < n; ++i) {
        const auto e = static_cast<std::uint64_t>(index(i < cut ? i : i - cut));
        const PhiloxBlock words = rounding_words(keys[i < cut ? 0 : 1], step.step, e / 8);
        const std::uint16_t chance = chance_of(words, static_cast<int>(e % 8));
        const auto place = static_cast<std::size_t>(i);
        const float exact = static_cast<float>(initial[place]) * (1.0F - 0x1p-13F);
        ASSERT_EQ(stepped[place].bits, round_stochastically<T>(exact, chance).bits)
            << index.first << ", " << i;
      }
    }
  };
  check(AdamWStep(), bf16());
  check(AdamWStep(), fp16());
  check(MuonStep(), bf16());
  check(MuonStep(), fp16());
}

TEST_P(OpsExactTest, StepsSmallerThanTheSpacingAddUp) {
  const auto check = [&]<class Step, class T>(Step, T) {
    SCOPED_TRACE(fmt::format("{}, {}", Step::name, name_of(dtype_of<T>())));
    constexpr std::int64_t n = 4096;
    T neighbour(1.0F);
    --neighbour.bits;
    const double spacing = 1.0 - static_cast<double>(static_cast<float>(neighbour));
    const auto weights = device(std::vector<T>(n, T(1.0F)));
    const auto gradient = device(std::vector<float>(n, 1.0F));
    const auto first_moment = device(std::vector<float>(n));
    const auto second_moment = device(std::vector<float>(n));
    const auto segments = device(std::vector<Segment>{{0, n, 0.0F, {stream_key(5, "rounding"), {}}}});
    StepScalars step{.learning_rate = static_cast<float>(spacing / 3.0)};
    EXPECT_EQ(static_cast<float>(T(1.0F - step.learning_rate)), 1.0F) << "rounding to nearest stands still";
    const auto scalars = device(std::vector<StepScalars>{step});
    Step args;
    args.weights = weights.ref();
    args.gradient = gradient.ref();
    if constexpr (std::is_same_v<Step, AdamWStep>) {
      args.first_moment = first_moment.ref();
      args.second_moment = second_moment.ref();
    } else {
      args.rate_factor = 0.25F;
      args.scale = 4.0F;
    }
    args.segments = segments.data();
    args.num_segments = 1;
    args.scalars = scalars.data();
    for (step.step = 1; step.step <= 30; ++step.step) {
      backend().copy_to_device(&step, scalars.data(), sizeof(step));
      backend().run(args);
      double mean = 0.0;
      for (const T weight : weights.values()) {
        const auto value = static_cast<float>(weight);
        EXPECT_TRUE(step.step > 1 || value == 1.0F || value == static_cast<float>(neighbour)) << value;
        mean += static_cast<double>(value) / static_cast<double>(n);
      }
      // On average, each of n elements has gone down by a spacing in a third of its steps; the tolerance is
      // five standard deviations.
      const auto steps = static_cast<double>(step.step);
      const double expected = 1.0 - steps * spacing / 3.0;
      EXPECT_NEAR(mean, expected, 5.0 * spacing * std::sqrt(steps * 2.0 / 9.0 / static_cast<double>(n)));
    }
  };
  check(AdamWStep(), bf16());
  check(AdamWStep(), fp16());
  check(MuonStep(), bf16());
  check(MuonStep(), fp16());
}

template <class T>
void expect_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0);
}

/// From one version of the weights to another, a step computes what it computes in place; one that is skipped
/// copies the version.
TEST_P(OpsExactTest, OptimizersWriteAnotherVersion) {
  constexpr std::int64_t n = 16384 + 37;
  const auto check = [&]<class Step, class T>(Step, T, bool has_master) {
    SCOPED_TRACE(fmt::format("{}, {}, master {}", Step::name, name_of(dtype_of<T>()), has_master));
    std::vector<T> initial;
    std::vector<float> exact, gradients;
    for (std::int64_t i = 0; i < n; ++i) {
      exact.push_back(std::sin(static_cast<float>(i)));
      initial.emplace_back(exact.back());
      gradients.push_back(std::cos(static_cast<float>(3 * i)));
    }
    const auto gradient = device(gradients);
    const auto segments = device(std::vector<Segment>{{0, n, 1.0F, {stream_key(5, "rounding"), {}}}});
    const auto run = [&](bool has_previous, int skip) {
      const auto scalars = device(std::vector<StepScalars>{{.step = 3, .learning_rate = 0.1F, .skip = skip}});
      const auto first = device(initial);
      const auto second = device(std::vector<T>(static_cast<std::size_t>(n), T(7.0F)));
      const auto& weights = has_previous ? second : first;
      const auto master = device(exact);
      const auto moment = device(std::vector<float>(static_cast<std::size_t>(n), 0.25F));
      const auto square = device(std::vector<float>(static_cast<std::size_t>(n), 0.5F));
      Step args;
      args.weights = weights.ref();
      if (has_previous) args.previous = first.ref();
      args.gradient = gradient.ref();
      if (std::is_same_v<T, float>) args.master = weights.ref();
      if (!std::is_same_v<T, float> && has_master) args.master = master.ref();
      if constexpr (std::is_same_v<Step, AdamWStep>) {
        args.first_moment = moment.ref();
        args.second_moment = square.ref();
      } else if constexpr (std::is_same_v<Step, SgdStep>) {
        args.momentum = moment.ref();
      }
      args.segments = segments.data();
      args.num_segments = 1;
      args.scalars = scalars.data();
      backend().run(args);
      if (has_previous) expect_same_bits(first.values(), initial);
      return std::tuple(weights.values(), master.values(), moment.values());
    };
    for (const int skip : {0, 1}) {
      const auto [weights, master, moment] = run(true, skip);
      const auto [own_weights, own_master, own_moment] = run(false, skip);
      expect_same_bits(weights, own_weights);
      EXPECT_EQ(master, own_master);
      EXPECT_EQ(moment, own_moment);
      if (skip != 0) expect_same_bits(weights, initial);
    }
  };
  for (const bool has_master : {true, false}) {
    check(AdamWStep(), bf16(), has_master);
    check(SgdStep(), bf16(), has_master);
    check(MuonStep(), bf16(), has_master);
    check(AdamWStep(), fp16(), has_master);
    check(MuonStep(), fp16(), has_master);
  }
  check(AdamWStep(), float(), true);
  check(SgdStep(), float(), true);
  check(MuonStep(), float(), true);
}

/// A skipped step usually has gradients that are not finite.
TEST_P(OpsExactTest, SkippedMomentumIsKeptAndHasNoDirection) {
  const std::vector<float> kept = ramp(4099);
  const auto check = [&]<class T>(T) {
    SCOPED_TRACE(name_of(dtype_of<T>()));
    const auto gradient = device(std::vector<T>(kept.size(), T(nan)));
    const auto momentum = device(kept);
    const auto direction = device(std::vector<float>(kept.size(), nan));
    const auto scalars = device(std::vector<StepScalars>{{.step = 3, .clip_factor = 0.0F, .skip = 1}});
    backend().run(NesterovMomentum{.gradient = gradient.ref(),
                                   .momentum = momentum.ref(),
                                   .direction = direction.ref(),
                                   .scalars = scalars.data()});
    EXPECT_EQ(bits(momentum.values()), bits(kept));
    EXPECT_EQ(direction.values(), std::vector<float>(kept.size()));
  };
  check(float());
  check(bf16());
  check(fp16());
}

TEST_P(OpsExactTest, NormalisedMatricesHaveNormOneOrAreZero) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{48}, std::size_t{100003}}) {
    const std::vector<float> matrix = ramp(n);
    std::vector<float> values;
    constexpr float factors[] = {1.0F, 0.0F, 1e12F, -0.0F, 1e-3F};
    for (const float factor : factors) {
      for (const float value : matrix) values.push_back(factor * value);
    }
    const auto x = device(values);
    backend().run(NormaliseMatrices{.x = x.ref({std::ssize(factors), static_cast<std::int64_t>(n)})});
    const std::vector<float> normalised = x.values();
    for (std::size_t m = 0; m < std::size(factors); ++m) {
      double square = 0.0;
      for (std::size_t i = m * n; i < (m + 1) * n; ++i) square += std::pow(double{normalised[i]}, 2);
      EXPECT_NEAR(std::sqrt(square), factors[m] == 0.0F ? 0.0 : 1.0, factors[m] == 0.0F ? 0.0 : 2e-6)
          << n << ", " << factors[m];
    }
  }
}

TEST_P(OpsExactTest, GuardStepIsGuardUpdate) {
  const OpCase c{.op = Op::guard_step};
  const Contents none;
  OpRun run(c, backend(), none);
  OpRun::Control control = run.control();
  for (const float norm_squared : {4.0F, 0.25F, 1e-12F, 0.0F, nan, infinity, 9.0F}) {
    for (const float loss : {3.5F, nan}) {
      control.scalars.loss_scale = 2.0F;
      control.guard_input = {loss, norm_squared};
      run.set_control(control);
      run.run();
      guard_update({}, control.guard_input, control.guard_state, control.scalars);
      const OpRun::Control result = run.control();
      EXPECT_EQ(result.scalars.skip, control.scalars.skip);
      EXPECT_FLOAT_EQ(result.scalars.clip_factor, control.scalars.clip_factor);
      EXPECT_DOUBLE_EQ(result.guard_state.mean, control.guard_state.mean);
      EXPECT_DOUBLE_EQ(result.guard_state.variance, control.guard_state.variance);
      EXPECT_EQ(result.guard_state.seen, control.guard_state.seen);
      EXPECT_EQ(result.guard_state.skipped, control.guard_state.skipped);
      EXPECT_EQ(result.guard_state.skipped_in_row, control.guard_state.skipped_in_row);
      EXPECT_EQ(result.guard_state.loss_scale, control.guard_state.loss_scale);
      EXPECT_EQ(result.scalars.loss_scale, control.scalars.loss_scale);
      control = result;
    }
  }
}

TEST_P(OpsExactTest, RowsDoNotDependOnTheBatch) {
  // Evaluation with another batch size relies on this.
  constexpr std::int64_t rows = 37, width = 100;
  const auto x = device(ramp(rows * width));
  const auto gamma = device(ramp(width));
  const auto whole = device(std::vector<float>(rows * width, nan));
  const auto one = device(std::vector<float>(width, nan));
  const auto mean = device(std::vector<float>(rows, nan));
  const auto rstd = device(std::vector<float>(rows, nan));
  backend().run(LayernormForward{.x = x.ref({rows, width}),
                                 .gamma = gamma.ref(),
                                 .beta = gamma.ref(),
                                 .y = whole.ref({rows, width}),
                                 .mean = mean.ref(),
                                 .rstd = rstd.ref()});
  backend().run(LayernormForward{.x = x.ref({rows, width}).rows(20, 1),
                                 .gamma = gamma.ref(),
                                 .beta = gamma.ref(),
                                 .y = one.ref({1, width}),
                                 .mean = mean.ref().rows(0, 1),
                                 .rstd = rstd.ref().rows(0, 1)});
  const std::vector<float> values = whole.values();
  EXPECT_EQ(bits(one.values()), bits({values.begin() + 20 * width, values.begin() + 21 * width}));
}

/// Generation relies on this: a text is the same alone and beside others.
TEST_P(OpsExactTest, FewRowsDoNotDependOnOtherRowsOrColumns) {
  if (!backend().host_accessible()) GTEST_SKIP() << "promised on the host only";
  const auto check = [&](auto element, std::int64_t in, std::int64_t out, bool transposed) {
    using T = decltype(element);
    SCOPED_TRACE(std::string(name_of(dtype_of<T>())) + (transposed ? " transposed" : " row-major"));
    constexpr std::int64_t rows = 8;
    const auto narrow = [&](std::int64_t n) {
      std::vector<T> values;
      for (const float value : ramp(static_cast<std::size_t>(n))) values.push_back(T(value));
      return device(values);
    };
    const auto x = narrow(rows * in);
    const auto w = narrow(in * out);
    const auto bias = narrow(out);
    const auto residual = narrow(rows * out);
    const auto y = narrow(rows * out);
    const auto pre = narrow(rows * out);
    // Results of rows [first, first + count) and columns [from, to), row by row.
    const auto run = [&](int operation, std::int64_t first, std::int64_t count, std::int64_t from,
                         std::int64_t to) {
      TensorRef part = w.ref({in, to - from});
      part.stride = transposed ? std::array<std::int64_t, 5>{1, in} : std::array<std::int64_t, 5>{out, 1};
      part.data = w.data() + from * (transposed ? in : 1);
      const TensorRef some = x.ref({rows, in}).rows(first, count);
      const TensorRef added(bias.data() + from, dtype_of<T>(), {to - from});
      const TensorRef result = y.ref().flat(0, count * (to - from)).reshaped({count, to - from});
      if (operation == 0) backend().run(LinearForward{.x = some, .w = part, .bias = added, .y = result});
      if (operation == 1) {
        backend().run(LinearGeluForward{.x = some,
                                        .w = part,
                                        .bias = added,
                                        .pre = pre.ref().flat(0, result.size()).reshaped({count, to - from}),
                                        .y = result});
      }
      if (operation == 2) {
        backend().run(LinearAddForward{.x = some,
                                       .w = part,
                                       .bias = added,
                                       .residual = residual.ref({rows, out}).rows(first, count),
                                       .y = result});
      }
      std::vector<float> values;
      for (const T value : y.values()) values.push_back(static_cast<float>(value));
      values.resize(static_cast<std::size_t>(result.size()));
      return bits(values);
    };
    for (const int operation : {0, 1, 2}) {
      const std::vector<std::uint32_t> all = run(operation, 0, rows, 0, out);
      for (std::int64_t count = 1; count <= rows; ++count) {
        for (const std::int64_t first : {std::int64_t{0}, rows - count}) {
          EXPECT_EQ(run(operation, first, count, 0, out),
                    std::vector(all.begin() + first * out, all.begin() + (first + count) * out))
              << operation << ": rows " << first << " to " << first + count;
        }
      }
      if (operation == 2) continue;  // its residual has no parts
      // Other numbers of threads divide the columns at other places.
      for (const auto& [from, to] : {std::pair<std::int64_t, std::int64_t>{0, 70}, {64, out}, {129, 200}}) {
        const std::vector<std::uint32_t> some = run(operation, 5, 1, from, to);
        EXPECT_EQ(some, std::vector(all.begin() + 5 * out + from, all.begin() + 5 * out + to))
            << operation << ": columns " << from << " to " << to;
      }
    }
  };
  const auto check_type = [&](auto element) {
    for (const bool transposed : {false, true}) {
      check(element, 85, 333, transposed);
      check(element, 64, 1400, transposed);
    }
  };
  check_type(float());
  check_type(bf16());
  check_type(fp16());
}

TEST_P(OpsExactTest, FewRowsAreLeftToTheBackendThatReadsWeightsOnce) {
  if (!backend().host_accessible()) GTEST_SKIP() << "a device has other kernels";
  constexpr std::int64_t width = 32;
  const auto x = device(ramp(9 * width));
  const auto w = device(ramp(width * width));
  const auto y = device(std::vector<float>(9 * width));
  const auto taker = [&](std::int64_t rows) {
    const TensorRef result = y.ref({9, width}).rows(0, rows);
    return std::string(backend().operations().take(
        LinearForward{.x = x.ref({9, width}).rows(0, rows), .w = w.ref({width, width}), .y = result}));
  };
  for (std::int64_t rows = 1; rows <= 8; ++rows) EXPECT_EQ(taker(rows), "kokkos") << rows;
  // Where no backend on top takes products, nine rows are Kokkos', too.
  EXPECT_EQ(taker(9), GetParam() == "onednn" ? "onednn" : "kokkos");
}

/// The result for a query depends on the keys and values that it sees, not on batch, chunk, row or capacity.
TEST_P(OpsExactTest, CachedAttentionDoesNotDependOnTheBatch) {
  constexpr std::int64_t heads = 5, size = 17, length = 150;
  const auto check = [&](auto element) {
    using T = decltype(element);
    SCOPED_TRACE(name_of(dtype_of<T>()));
    const auto narrow = [](std::size_t n, float factor) {
      std::vector<T> values;
      for (const float value : ramp(n)) values.push_back(T(factor * value));
      return values;
    };
    const std::vector<T> tokens = narrow(length * 3 * heads * size, 2.0F);  // (T, 3, H, D) of one text
    const auto part_of = [&](const Device<T>& all, std::int64_t texts, std::int64_t count,
                             std::int64_t part) {
      TensorRef view = all.ref({texts, count, heads, size});
      view.data = all.data() + part * heads * size;
      view.stride = {count * 3 * heads * size, 3 * heads * size, size, 1};
      return view;
    };
    /// Reads the text in chunks of `chunk` tokens, in row `row` of `num_rows`, beside a text that is `lag`
    /// tokens behind; returns the outputs (T, H, D).
    const auto run = [&](std::int64_t chunk, std::int64_t num_rows, std::int32_t row, std::int64_t capacity,
                         std::int32_t lag) {
      const auto size_of_cache = static_cast<std::size_t>(num_rows * heads * capacity * size);
      const auto keys = device(std::vector<T>(size_of_cache, T(nan)));
      const auto values = device(keys.values());
      const std::int64_t texts = lag > 0 ? 2 : 1;
      const std::int64_t token_size = 3 * heads * size;
      std::vector<float> outputs;
      for (std::int64_t at = 0; at < length; at += chunk) {
        // The other text is first in the batch; before it begins, its tokens are written, again and again, to
        // the first positions.
        std::vector<T> batch;
        std::vector<std::int32_t> rows, positions;
        const auto add = [&](std::int64_t first, std::int32_t its_row) {
          for (std::int64_t t = first; t < first + chunk; ++t) {
            const std::int64_t token = std::min(t, length - 1);
            batch.insert(batch.end(), tokens.begin() + token * token_size,
                         tokens.begin() + (token + 1) * token_size);
          }
          rows.push_back(its_row);
          positions.push_back(static_cast<std::int32_t>(first));
        };
        if (lag > 0) add(std::max<std::int64_t>(0, at - lag), row == 0 ? 1 : 0);
        add(at, row);
        const auto qkv = device(batch);
        const auto row_data = device(rows);
        const auto position_data = device(positions);
        const auto output = device(std::vector<T>(static_cast<std::size_t>(texts * chunk * heads * size)));
        const TensorRef cache_of_keys = keys.ref({num_rows, heads, capacity, size});
        const TensorRef cache_of_values = values.ref({num_rows, heads, capacity, size});
        backend().run(CacheAppend{.key = part_of(qkv, texts, chunk, 1),
                                  .value = part_of(qkv, texts, chunk, 2),
                                  .rows = row_data.ref(),
                                  .positions = position_data.ref(),
                                  .keys = cache_of_keys,
                                  .values = cache_of_values});
        backend().run(CachedAttention{.query = part_of(qkv, texts, chunk, 0),
                                      .keys = cache_of_keys,
                                      .values = cache_of_values,
                                      .rows = row_data.ref(),
                                      .positions = position_data.ref(),
                                      .output = output.ref({texts, chunk, heads, size}),
                                      .scale = 0.25F});
        const std::vector<T> of_chunk = output.values();
        for (std::int64_t t = 0; t < std::min(chunk, length - at); ++t) {
          for (std::int64_t e = 0; e < heads * size; ++e) {
            const std::int64_t place = ((texts - 1) * chunk + t) * heads * size + e;
            outputs.push_back(static_cast<float>(of_chunk[static_cast<std::size_t>(place)]));
          }
        }
      }
      return bits(outputs);
    };
    const std::vector<std::uint32_t> expected = run(1, 1, 0, length, 0);
    EXPECT_TRUE(std::ranges::all_of(expected, [](std::uint32_t word) {
      return std::isfinite(std::bit_cast<float>(word));
    })) << "positions that no text has reached were read";
    EXPECT_EQ(run(1, 4, 2, length + 50, 0), expected) << "another row of a larger cache";
    EXPECT_EQ(run(7, 1, 0, length, 0), expected) << "chunks of 7, the last one beyond the end";
    EXPECT_EQ(run(64, 3, 1, length, 0), expected) << "chunks of 64";
    EXPECT_EQ(run(1, 2, 1, length, 40), expected) << "beside another text";
    EXPECT_EQ(run(33, 3, 0, length + 1, 50), expected) << "chunks of 33 beside another text";
  };
  check(float());
  check(bf16());
  check(fp16());
}

TEST_P(OpsExactTest, MemoryAndQueue) {
  ComputeBackend& b = backend();
  EXPECT_FALSE(b.description().empty());
  const std::vector<float> values = ramp(10007);
  const auto first = device(values);
  const auto second = device(std::vector<float>(values.size(), nan));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 64, 0U);
  const Event ready = b.create_event();
  b.run(Fill{.y = first.ref(), .value = 2.5F});
  b.copy(first.data(), second.data(), values.size() * sizeof(float));
  b.record(ready);
  b.host_wait(ready);
  EXPECT_EQ(bits(second.values()), bits(std::vector<float>(values.size(), 2.5F)));
}

INSTANTIATE_TEST_SUITE_P(Backends, OpsExactTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace

}  // namespace mylos
