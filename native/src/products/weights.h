// The weights of one model: a region of memory that is filled once, in the order of use, and read by every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/threads.h"
#include "products/linear.h"

namespace relevo {

// Memory that only grows: anonymous mappings with huge pages, so that streaming through it misses few translations.
// Pages cost nothing before they are written.
class WeightRegion {
 public:
  WeightRegion() = default;
  ~WeightRegion();
  WeightRegion(const WeightRegion&) = delete;
  WeightRegion& operator=(const WeightRegion&) = delete;

  // Zeroed, aligned to a cache line, valid as long as the region. Throws std::bad_alloc.
  uint8_t* allocate(size_t bytes);
  size_t used_bytes() const { return used_bytes_; }

 private:
  struct Mapping {
    void* address;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
  uint8_t* next_ = nullptr;
  size_t room_ = 0;
  size_t used_bytes_ = 0;
};

// Rows of a weight as they lie in a file or an array.
struct StoredRows {
  Format stored;  // f32, f16 or bf16: converted if `packed` differs; otherwise equal to `packed`
  Format packed;
  int64_t num_rows;
  const uint8_t* data;  // rows one after the other, raw_row_bytes(stored, k) each; no alignment
};

// A matrix [n, k] of one or more segments: consecutive output rows of one format.
struct Matrix {
  struct Segment {
    Linear linear;
    int64_t first_output;
  };
  int64_t n = 0;
  int64_t k = 0;
  std::vector<Segment> segments;
  std::vector<Format> formats;  // each once, in order of appearance: inputs are prepared once per format
};

// Pack `parts`, stacked along their rows, on all threads of the pool.
Matrix pack_matrix(const std::vector<StoredRows>& parts, int64_t k, const LinearKernels& kernels, ThreadPool& pool,
                   WeightRegion& region);

// The same packed weights as another format, which is packed alike: widened or rounded.
Matrix twin(const Matrix& matrix, Format (*twin_of)(Format));

// Rows of inputs that are prepared together: whole groups of every format of the matrix.
int64_t prepared_together(const Matrix& matrix, const LinearKernels& kernels);

// Row `row` of the matrix as float32[k].
void unpack_row(const Matrix& matrix, int64_t row, const LinearKernels& kernels, float* out);

// `count` numbers of type `stored` (f32, f16 or bf16) as float32.
void to_float(Format stored, const uint8_t* data, int64_t count, float* out);

}  // namespace relevo
