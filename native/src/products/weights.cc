// Owns the memory of weights and their packing. Knows formats, not models.
#include "products/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

namespace relevo {

namespace {

constexpr size_t HUGE_PAGE_BYTES = 2u << 20;
constexpr size_t MAPPING_BYTES = 256u << 20;  // arbitrary: address space, not memory
constexpr size_t LINE_BYTES = 64;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  uint32_t out;
  if (magnitude >= 0x7c00u) {
    out = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    out = (magnitude << 13) + 0x38000000u;
  } else {  // zero or subnormal: exact in float
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&out, &value, 4);
  }
  out |= sign;
  float value;
  std::memcpy(&value, &out, 4);
  return value;
}

// Rounds to nearest, ties to even, as IEEE 754 asks.
uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    float absolute;
    std::memcpy(&absolute, &magnitude, 4);
    const float shifted = absolute + 0.5f;  // the last bit of 0.5 is worth 2^-24: the addition rounds
    uint32_t rounded;
    std::memcpy(&rounded, &shifted, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void from_float(Format stored, const float* values, int64_t count, uint8_t* out) {
  if (stored == Format::f16 || stored == Format::bf16) {
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t bits = stored == Format::f16 ? float_to_half(values[i]) : float_to_bfloat(values[i]);
      std::memcpy(out + 2 * i, &bits, 2);
    }
  } else {
    std::memcpy(out, values, static_cast<size_t>(count) * 4);
  }
}

// What pack() takes for a format: q8_channel is quantised from floats.
Format raw_type(Format packed) { return packed == Format::q8_channel ? Format::f32 : packed; }

// The consecutive parts that make one segment.
struct Source {
  const StoredRows* parts;
  size_t num_parts;
  int64_t k;

  // Row `row` in the form pack() takes; `room` holds it if it must be converted.
  const uint8_t* row(int64_t row, uint8_t* room, float* values) const {
    const StoredRows* part = parts;
    for (; row >= part->num_rows; ++part) row -= part->num_rows;
    const uint8_t* data = part->data + static_cast<size_t>(row) * raw_row_bytes(part->stored, k);
    const Format raw = raw_type(part->packed);
    if (raw == part->stored) return data;
    to_float(part->stored, data, k, values);
    from_float(raw, values, k, room);
    return room;
  }
};

struct Packing {
  const Linear& linear;
  const Source& source;
  const LinearKernels& kernels;
  int64_t num_panels;
  Tasks tasks;

  void work() {
    const int64_t panel_rows = kernels.panel_rows(linear.format);
    const size_t row_bytes = raw_row_bytes(raw_type(linear.format), linear.k);
    std::vector<uint8_t> room(static_cast<size_t>(panel_rows) * row_bytes);
    std::vector<float> values(static_cast<size_t>(linear.k));
    std::vector<const uint8_t*> rows(static_cast<size_t>(panel_rows));
    for (int64_t panel; (panel = tasks.take(num_panels)) >= 0;) {
      const int64_t first = panel * panel_rows, count = std::min(panel_rows, linear.n - first);
      for (int64_t i = 0; i < count; ++i) {
        rows[static_cast<size_t>(i)] =
            source.row(first + i, room.data() + static_cast<size_t>(i) * row_bytes, values.data());
      }
      kernels.pack(linear, panel, rows.data(), count);
    }
  }
};

void pack_segment(const Linear& linear, const Source& source, const LinearKernels& kernels, ThreadPool& pool) {
  const int64_t panel_rows = kernels.panel_rows(linear.format);
  Packing packing{linear, source, kernels, (linear.n + panel_rows - 1) / panel_rows, {}};
  pool.run([](void* context, int) { static_cast<Packing*>(context)->work(); }, &packing);
}

}  // namespace

WeightRegion::~WeightRegion() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.bytes);
}

uint8_t* WeightRegion::allocate(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), LINE_BYTES);
  if (bytes > room_) {
    const size_t size = std::max(MAPPING_BYTES, round_up(bytes, HUGE_PAGE_BYTES)) + HUGE_PAGE_BYTES;
    void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    mappings_.push_back({address, size});
#ifdef MADV_HUGEPAGE
    madvise(address, size, MADV_HUGEPAGE);  // a kernel without huge pages: ordinary ones do
#endif
    const size_t start = reinterpret_cast<uintptr_t>(address);
    next_ = static_cast<uint8_t*>(address) + (round_up(start, HUGE_PAGE_BYTES) - start);
    room_ = size - (round_up(start, HUGE_PAGE_BYTES) - start);
  }
  uint8_t* result = next_;
  next_ += bytes;
  room_ -= bytes;
  used_bytes_ += bytes;
  return result;
}

Matrix pack_matrix(const std::vector<StoredRows>& parts, int64_t k, const LinearKernels& kernels, ThreadPool& pool,
                   WeightRegion& region) {
  Matrix matrix;
  matrix.k = k;
  for (size_t first = 0, end; first < parts.size(); first = end) {
    const Format format = parts[first].packed;
    int64_t n = 0;
    for (end = first; end < parts.size() && parts[end].packed == format; ++end) n += parts[end].num_rows;
    const int64_t panel_rows = kernels.panel_rows(format);
    const size_t bytes = static_cast<size_t>((n + panel_rows - 1) / panel_rows) * kernels.panel_bytes(format, k);
    const Linear linear{format, n, k, region.allocate(bytes)};
    pack_segment(linear, Source{&parts[first], end - first, k}, kernels, pool);
    matrix.segments.push_back({linear, matrix.n});
    if (std::find(matrix.formats.begin(), matrix.formats.end(), format) == matrix.formats.end()) {
      matrix.formats.push_back(format);
    }
    matrix.n += n;
  }
  return matrix;
}

Matrix twin(const Matrix& matrix, Format (*twin_of)(Format)) {
  Matrix other = matrix;
  for (Matrix::Segment& segment : other.segments) segment.linear.format = twin_of(segment.linear.format);
  for (Format& format : other.formats) format = twin_of(format);
  return other;
}

int64_t prepared_together(const Matrix& matrix, const LinearKernels& kernels) {
  int64_t group = 1;
  for (const Format format : matrix.formats) group = std::lcm(group, kernels.input_group(format));
  return group;
}

void unpack_row(const Matrix& matrix, int64_t row, const LinearKernels& kernels, float* out) {
  size_t segment = matrix.segments.size() - 1;
  while (row < matrix.segments[segment].first_output) --segment;
  kernels.unpack_row(matrix.segments[segment].linear, row - matrix.segments[segment].first_output, out);
}

void to_float(Format stored, const uint8_t* data, int64_t count, float* out) {
  if (stored == Format::f32) {
    std::memcpy(out, data, static_cast<size_t>(count) * 4);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, 2);
    if (stored == Format::f16) {
      out[i] = half_to_float(bits);
    } else {
      const uint32_t wide = static_cast<uint32_t>(bits) << 16;
      std::memcpy(&out[i], &wide, 4);
    }
  }
}

}  // namespace relevo
