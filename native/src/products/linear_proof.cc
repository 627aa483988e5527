// Small products of every format, on the path in question and by definition.
//
// Every format must have the bits of the definition, but for bfloat16 on matrix tiles, which round inputs and add in another
// order: where all sums are exact they must agree to the bit, elsewhere within the rounding of k additions. Everywhere a row
// computed alone must have the bits that it has among others.
#include "products/linear_proof.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "cpu/proof_numbers.h"

namespace relevo {
namespace {

constexpr int64_t kRows = 37, kOutputs = 40;  // of inputs, of the weight; arbitrary, with remainders
constexpr int64_t kRowCounts[] = {1, 3, 21};                // compared with the same rows among all
constexpr int64_t kRowStep = 6;                             // every how many rows are computed by definition, too
constexpr int64_t kDefinedRows = (kRows + kRowStep - 1) / kRowStep;

// Inputs of a row; arbitrary, with a remainder where the format has one.
constexpr int64_t depth_of(Format format) { return is_super(format) ? 512 : 160; }

struct Named {
  Format format;
  const char* name;
};
constexpr Named kFormats[] = {{Format::f32, "float32"},
                              {Format::f16, "float16"},
                              {Format::bf16, "bfloat16"},
                              {Format::bf16_rounded, "bfloat16 with bfloat16 inputs"},
                              {Format::q8_0, "q8_0"},
                              {Format::q4_0, "q4_0"},
                              {Format::q4_1, "q4_1"},
                              {Format::q8_channel, "q8_channel"},
                              {Format::q8_0_wide, "q8_0 with 16-bit inputs"},
                              {Format::q4_0_wide, "q4_0 with 16-bit inputs"},
                              {Format::q4_1_wide, "q4_1 with 16-bit inputs"},
                              {Format::q8_channel_wide, "q8_channel with 16-bit inputs"},
                              {Format::q5_0, "q5_0"},
                              {Format::q5_1, "q5_1"},
                              {Format::q4_k, "q4_k"},
                              {Format::q5_k, "q5_k"},
                              {Format::q6_k, "q6_k"},
                              {Format::q5_0_wide, "q5_0 with 16-bit inputs"},
                              {Format::q5_1_wide, "q5_1 with 16-bit inputs"},
                              {Format::q4_k_wide, "q4_k with 16-bit inputs"},
                              {Format::q5_k_wide, "q5_k with 16-bit inputs"},
                              {Format::q6_k_wide, "q6_k with 16-bit inputs"}};

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : data_(static_cast<uint8_t*>(::operator new(size + 1, std::align_val_t{64}))) {
    std::memset(data_, 0, size);
  }
  ~AlignedBytes() { ::operator delete(data_, std::align_val_t{64}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_;
};

template <class Element>
void put(std::vector<uint8_t>* raw, size_t at, Element value) {
  std::memcpy(raw->data() + at, &value, sizeof value);
}

// kOutputs rows as a file holds them. Numbers have few bits, halves and scales are between 1/4 and 1/2.
std::vector<uint8_t> stored_rows(Format format, bool exact, Numbers* numbers) {
  const Format stored = narrowed(format);
  std::vector<uint8_t> raw(kOutputs * raw_row_bytes(stored, depth_of(stored)));
  const auto half = [&] { return static_cast<uint16_t>(0x3400 + numbers->bits() % 0x400 + (numbers->bits() % 2 << 15)); };
  if (stored == Format::f32 || stored == Format::q8_channel) {
    for (size_t at = 0; at < raw.size(); at += 4) put(&raw, at, exact ? numbers->eighth() : numbers->uneven());
  } else if (stored == Format::bf16) {
    for (size_t at = 0; at < raw.size(); at += 2) {
      const float value = exact ? numbers->eighth() : numbers->uneven();
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      put(&raw, at, static_cast<uint16_t>(bits >> 16));
    }
  } else if (stored == Format::f16) {
    for (size_t at = 0; at < raw.size(); at += 2) put(&raw, at, half());
  } else {
    const size_t block_bytes = raw_row_bytes(stored, is_super(stored) ? 256 : 32);
    for (uint8_t& byte : raw) byte = static_cast<uint8_t>(numbers->bits());
    for (size_t at = 0; at < raw.size(); at += block_bytes) {
      put(&raw, stored == Format::q6_k ? at + 208 : at, half());
      if (stored == Format::q4_1 || stored == Format::q5_1 || (is_super(stored) && stored != Format::q6_k)) put(&raw, at + 2, half());
    }
  }
  return raw;
}

class Weight {
 public:
  Weight(const LinearKernels& kernels, Format format, const std::vector<uint8_t>& raw)
      : kernels_(kernels),
        panel_rows_(kernels.panel_rows(format)),
        packed_(num_panels() * kernels.panel_bytes(format, depth_of(format))),
        linear_{format, kOutputs, depth_of(format), packed_.data()} {
    const size_t row_bytes = raw.size() / kOutputs;
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      std::vector<const uint8_t*> rows;
      for (int64_t row = panel * panel_rows_; row < std::min((panel + 1) * panel_rows_, kOutputs); ++row)
        rows.push_back(raw.data() + row * row_bytes);
      kernels.pack(linear_, panel, rows.data(), static_cast<int64_t>(rows.size()));
    }
  }

  // y [m, kOutputs] for the first m rows of x.
  std::vector<float> product(const std::vector<float>& x, int64_t m) const {
    const AlignedBytes inputs(kernels_.input_bytes(linear_.format, m, linear_.k));
    std::vector<float> y(m * kOutputs);
    kernels_.prepare(linear_.format, x.data(), linear_.k, m, linear_.k, 0, m, inputs.data());
    kernels_.multiply(linear_, inputs.data(), m, 0, num_panels(), nullptr, false, y.data(), kOutputs);
    return y;
  }

  std::vector<float> row(int64_t n) const {
    std::vector<float> values(linear_.k);
    kernels_.unpack_row(linear_, n, values.data());
    return values;
  }

 private:
  int64_t num_panels() const { return (kOutputs + panel_rows_ - 1) / panel_rows_; }

  const LinearKernels& kernels_;
  int64_t panel_rows_;
  AlignedBytes packed_;
  Linear linear_;
};

std::string difference(const std::vector<float>& found, const std::vector<float>& expected, const char* than) {
  for (size_t i = 0; i < found.size(); ++i)
    if (std::memcmp(&found[i], &expected[i], sizeof(float)) != 0)
      return std::to_string(found[i]) + " instead of " + std::to_string(expected[i]) + than;
  return "";
}

// Every kRowStep-th of kRows rows.
std::vector<float> some_rows(const std::vector<float>& values, int64_t width) {
  std::vector<float> some;
  for (int64_t row = 0; row < kRows; row += kRowStep)
    some.insert(some.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
  return some;
}

// Whether y is within the rounding of the additions of x times the rows of `weight`.
std::string distance(const std::vector<float>& y, const std::vector<float>& x, const Weight& weight) {
  for (int64_t n = 0; n < kOutputs; ++n) {
    const std::vector<float> w = weight.row(n);
    const int64_t depth = static_cast<int64_t>(w.size());
    for (int64_t t = 0; t < kDefinedRows; ++t) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double product = static_cast<double>(x[t * depth + k]) * w[k];
        sum += product;
        magnitude += std::fabs(product);
      }
      const float found = y[t * kOutputs + n];
      if (!(std::fabs(found - sum) <= depth * 0x1p-24 * magnitude))
        return std::to_string(found) + " instead of about " + std::to_string(sum);
    }
  }
  return "";
}

// `exact`: whether all sums are exact, so that their order does not matter.
std::string defect_of_format(const LinearKernels& kernels, const LinearKernels& reference, Format format, bool exact) {
  Numbers numbers;
  const std::vector<uint8_t> raw = stored_rows(format, exact, &numbers);
  const int64_t depth = depth_of(format);
  std::vector<float> x(kRows * depth);
  for (float& value : x) value = exact ? numbers.eighth() : numbers.uneven();
  const Weight weight(kernels, format, raw), defined(reference, format, raw);
  const std::vector<float> y = weight.product(x, kRows), some_x = some_rows(x, depth), some_y = some_rows(y, kOutputs);
  std::string defect = exact || narrowed(format) != Format::bf16 || kernels.path != Path::amx
                           ? difference(some_y, defined.product(some_x, kDefinedRows), "")
                           : distance(some_y, some_x, defined);
  for (const int64_t m : kRowCounts) {
    if (!defect.empty()) break;
    const std::vector<float> among(y.begin(), y.begin() + m * kOutputs);
    defect = difference(weight.product(x, m), among, " for fewer rows");
  }
  return defect;
}

}  // namespace

std::string linear_defect(const LinearKernels& kernels, const LinearKernels& reference) {
  for (const Named& named : kFormats) {
    std::string defect = defect_of_format(kernels, reference, named.format, false);
    if (defect.empty() && narrowed(named.format) == Format::bf16) defect = defect_of_format(kernels, reference, named.format, true);
    if (!defect.empty()) return std::string("gives wrong products of ") + named.name + " weights: " + defect;
  }
  return "";
}

}  // namespace relevo
