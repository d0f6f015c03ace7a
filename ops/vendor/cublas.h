// cuBLAS and cuBLASLt as peers of the own pointwise and linear kernels: a plan holds the
// descriptors and the chosen algorithm, so that a call is one cublasLtMatmul.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <zerone/kernels/pointwise.h>
#include <zerone/kernels/types.h>
#include <zerone/ops/vendor/built.h>

namespace zerone::vendor {

/// A cuBLAS and a cuBLASLt handle on one stream. The cuBLAS handle scratches in the caller's
/// workspace, so nothing moves under graph capture; it never multiplies f32 in less than f32.
/// One object serves one thread at a time.
class CublasHandles {
 public:
  /// `workspace` (device memory, 256-byte aligned, `bytes` long) serves calls through blas() only
  /// and has to outlive the object and every graph captured through it. With 0 bytes cuBLAS keeps
  /// a pool of its own, which is enough where only the plans below run: they bring theirs.
  static Built<CublasHandles> create(cudaStream_t stream, void* workspace, std::size_t bytes);
  ~CublasHandles();
  CublasHandles(const CublasHandles&) = delete;
  CublasHandles& operator=(const CublasHandles&) = delete;

  /// Sets both at once: cuBLAS forgets its workspace when the stream changes.
  [[nodiscard]] cublasStatus_t set_stream(cudaStream_t stream, void* workspace, std::size_t bytes);
  cudaStream_t stream() const { return stream_; }
  cublasHandle_t blas() const { return blas_; }
  cublasLtHandle_t lt() const { return lt_; }

 private:
  CublasHandles() = default;

  cublasHandle_t blas_ = nullptr;
  cublasLtHandle_t lt_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

struct CublasBuildOptions {
  std::size_t workspace_limit = std::size_t{32} << 20;  // bytes
  /// Times the first `tune_candidates` of the heuristics on the buffers given below, which it
  /// overwrites, and keeps the fastest. Waits for the stream; not under capture.
  bool tune = false;
  int tune_candidates = 8;
  void* workspace = nullptr;  // workspace_limit bytes
};

/// Every plan below: results are the same bits from call to call (split-K only through the
/// workspace, in the compute type); run() enqueues on the handles' stream, is capturable and
/// allocates nothing; one plan serves one thread at a time.
///
/// Arithmetic: f64 in f64; bf16 and f16 accumulate in f32; f32 by Math: strict
/// CUBLAS_COMPUTE_32F_PEDANTIC, fp32 CUBLAS_COMPUTE_32F, tf32, bf16 and fp16 the FAST modes.

struct CublasLtPointwiseProblem {
  kernels::PointwiseShape shape;
  DType dtype = DType::f32;  // of every tensor
  Math math = Math::fp32;
  bool bias = false;  // (c_out)
  Activation activation = Activation::none;
  int alignment = 16;  // bytes that every pointer is a multiple of
};

struct CublasLtPointwiseBuffers {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};

/// y = act(W x + b) as one (strided-batched) GEMM. Channels contiguous in y: the pixels are columns
/// of D and the epilogue adds the bias. Pixels contiguous in y: without bias D is transposed; with
/// bias D has to be row-ordered for the epilogue to run along the channels, and where cuBLASLt
/// offers no such kernel the reason says so: the caller then builds without bias and activation.
/// x may be either way, with stride 0 over a batch axis; one non-merged pixel axis becomes the
/// batch (at most 65,535).
class CublasLtPointwise {
 public:
  static Built<CublasLtPointwise> build(const CublasHandles& handles,
                                        const CublasLtPointwiseProblem& problem,
                                        const CublasBuildOptions& options,
                                        const CublasLtPointwiseBuffers& buffers = {});
  ~CublasLtPointwise();
  CublasLtPointwise(const CublasLtPointwise&) = delete;
  CublasLtPointwise& operator=(const CublasLtPointwise&) = delete;

  [[nodiscard]] cublasStatus_t run(const CublasHandles& handles,
                                   const CublasLtPointwiseBuffers& buffers, void* workspace);

  std::size_t workspace_bytes() const;
  const std::string& algorithm() const;  // ids of the algorithm, its reduction, times if tuned
  bool row_order() const { return row_order_; }  // the bias went along a row-ordered D

 private:
  struct Gemm;
  friend class CublasLtPointwiseBackwardWeight;
  CublasLtPointwise();

  std::unique_ptr<Gemm> gemm_;
  bool swapped_ = false;  // D is y^T: x is the first operand
  bool row_order_ = false;
};

struct CublasLtPointwiseBackwardWeightProblem {
  kernels::PointwiseShape shape;  // of the forward: dy has y's strides, dw has w's
  DType dtype = DType::f32;
  Math math = Math::fp32;
  int alignment = 16;
};

struct CublasLtPointwiseBackwardWeightBuffers {
  const void* x = nullptr;
  const void* dy = nullptr;
  void* dw = nullptr;        // written if split_count() is 1
  void* partials = nullptr;  // written if split_count() exceeds 1
};

/// dw[k, c] = sum over p of dy[p, k] * x[p, c], overwritten. With one merged pixel axis it is one
/// GEMM. Otherwise each slice of the outer axis gives a partial result and the caller adds them in
/// order: partials is a dense (split_count, c_out, c_in) array of partial_dtype().
class CublasLtPointwiseBackwardWeight {
 public:
  static Built<CublasLtPointwiseBackwardWeight> build(
      const CublasHandles& handles, const CublasLtPointwiseBackwardWeightProblem& problem,
      const CublasBuildOptions& options,
      const CublasLtPointwiseBackwardWeightBuffers& buffers = {});
  ~CublasLtPointwiseBackwardWeight();
  CublasLtPointwiseBackwardWeight(const CublasLtPointwiseBackwardWeight&) = delete;
  CublasLtPointwiseBackwardWeight& operator=(const CublasLtPointwiseBackwardWeight&) = delete;

  [[nodiscard]] cublasStatus_t run(const CublasHandles& handles,
                                   const CublasLtPointwiseBackwardWeightBuffers& buffers,
                                   void* workspace);

  std::int64_t split_count() const { return split_count_; }
  /// Of the whole array; 0 if there is one split.
  std::size_t partial_bytes() const { return partial_bytes_; }
  DType partial_dtype() const { return partial_dtype_; }  // f64 or f32
  /// What build() will find for this problem, so that the partials can be allocated before it; 0
  /// where build() will give a reason.
  static std::int64_t split_count(const kernels::PointwiseShape& shape);
  std::size_t workspace_bytes() const;  // cuBLASLt's own, without the partials
  const std::string& algorithm() const;

 private:
  CublasLtPointwiseBackwardWeight();

  std::unique_ptr<CublasLtPointwise::Gemm> gemm_;
  bool swapped_ = false;  // D is dw^T: x is the first operand
  std::int64_t split_count_ = 1;
  std::size_t partial_bytes_ = 0;
  DType partial_dtype_ = DType::f32;
};

}  // namespace zerone::vendor
