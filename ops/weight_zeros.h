// Who knows where a convolution weight is zero, and its packed forms.
//
// A weight's zeros are known
//   * on the CPU: by counting them, once a version;
//   * from the fixed mask of a parameter: whatever the version, also inside a captured graph;
//   * on a GPU: by a census that runs behind the calls. Its summary comes back without blocking and
//     serves from the first call after it arrived. A weight that changes at every call is not
//     counted again while the last census found no zero in it. prepare() waits instead.
// A pack is made on the weight's device and kept until the weight's version changes.
#pragma once

#include <zerone/core/tensor.h>
#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/zero_skip.h>

namespace zerone {

struct WeightZeros {
  bool known = false;
  bool fixed = false;  // by a mask: holds for every version
  kernels::ZeroCensus census;

  std::int64_t nonzeros() const { return census.elements - census.zeros; }
  /// Per cent of zeros, rounded to steps of 5; 100 only if all are zero; -1 if unknown.
  int percent() const;
};

/// What is known now. `wait`: find out, even if that takes a wait for the device.
WeightZeros weight_zeros(const Tensor& w, const kernels::Conv2dShape& shape, bool wait);

/// The packed nonzeros of w for a pass, made if need be, as device bytes.
Tensor packed_weight(const Tensor& w, const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass,
                     const WeightZeros& zeros);

/// Inside a capture: the graph depends on w's present values (unless a mask fixes the zeros).
void note_frozen(const Tensor& w, const WeightZeros& zeros);

/// The device part, one implementation a device type.
struct WeightZerosBackend {
  /// Counts and waits for the result.
  kernels::ZeroCensus (*count)(const Tensor& w, const kernels::Conv2dShape& shape);
  /// Starts counting; later, `poll` on what it returned says whether the result is there.
  std::shared_ptr<void> (*start_count)(const Tensor& w, const kernels::Conv2dShape& shape);
  bool (*poll)(const std::shared_ptr<void>& counting, kernels::ZeroCensus& census);
  std::size_t (*pack_bytes)(const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass,
                            std::int64_t nonzeros, DType dtype);
  void (*pack)(const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass, const Tensor& w,
               std::int64_t nonzeros, void* pack);
};
const WeightZerosBackend& weight_zeros_cpu();
const WeightZerosBackend& weight_zeros_cuda();

}  // namespace zerone
