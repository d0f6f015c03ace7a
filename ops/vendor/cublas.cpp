#include <zerone/ops/vendor/cublas.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <zerone/core/cuda_context.h>

namespace zerone::vendor {
namespace {

std::string failed(const char* call, cublasStatus_t status) {
  return std::string(call) + ": " + cublasLtGetStatusString(status);
}

/// How cuBLASLt sees an r x c matrix of any two strides, one of them unit: stored by columns of
/// length `rows`, `ld` apart, and transposed on the way in or not.
struct Stored {
  bool transposed = false;
  std::int64_t rows = 0, cols = 0, ld = 0;
  bool row_order = false;
};

std::optional<Stored> by_columns(std::int64_t r, std::int64_t c, std::int64_t row_stride,
                                 std::int64_t col_stride) {
  if ((r > 1 && row_stride != 1) || (c > 1 && col_stride < r)) return std::nullopt;
  return Stored{false, r, c, c > 1 ? col_stride : r, false};
}

std::optional<Stored> as_operand(std::int64_t r, std::int64_t c, std::int64_t row_stride,
                                 std::int64_t col_stride) {
  if (auto stored = by_columns(r, c, row_stride, col_stride)) return stored;
  if (auto stored = by_columns(c, r, col_stride, row_stride)) {
    stored->transposed = true;
    return stored;
  }
  return std::nullopt;
}

/// The same memory described by rows: what was a transposed column-ordered matrix is a plain
/// row-ordered one and the other way round.
Stored in_row_order(const Stored& s) {
  return {!s.transposed, s.cols, s.rows, s.ld, true};
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(DType dtype, Math math) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  if (dtype != DType::f32) return CUBLAS_COMPUTE_32F;
  switch (math) {
    case Math::strict: return CUBLAS_COMPUTE_32F_PEDANTIC;
    case Math::fp32: return CUBLAS_COMPUTE_32F;
    case Math::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Math::bf16: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case Math::fp16: return CUBLAS_COMPUTE_32F_FAST_16F;
  }
  return CUBLAS_COMPUTE_32F;
}

/// The pixel axes as one GEMM axis (the innermost) and at most one batch axis.
struct Pixels {
  std::int64_t count = 1, x_stride = 0, y_stride = 0;
  std::int64_t batch = 1, x_batch_stride = 0, y_batch_stride = 0;
};

std::string split_pixels(const kernels::PointwiseShape& s, Pixels& out) {
  for (const std::int64_t n : {s.pixels[0], s.pixels[1], s.pixels[2], s.c_in, s.c_out}) {
    if (n < 1) return "an axis is empty";
    if (n > std::numeric_limits<std::int32_t>::max()) return "an axis exceeds 2^31 - 1";
  }
  if (s.pixels[0] > 1 && s.pixels[1] > 1) return "the pixels form three axes that do not merge";
  const std::size_t outer = s.pixels[0] > 1 ? 0 : 1;
  out = {s.pixels[2],     s.x_strides[2],     s.y_strides[2],
         s.pixels[outer], s.x_strides[outer], s.y_strides[outer]};
  if (out.count == 1 && out.batch > 1) {  // no inner axis: the outer one is as good
    out = {out.batch, out.x_batch_stride, out.y_batch_stride, 1, 0, 0};
  }
  if (out.batch > 65535) return "the batch axis exceeds 65,535";
  return {};
}

template <class T, cublasStatus_t (*destroy)(T)>
struct Descriptor {
  T raw = nullptr;

  Descriptor() = default;
  ~Descriptor() {
    if (raw) (void)destroy(raw);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

// ---------------------------------------------------------------------------------------------

/// D = epilogue(op(A) op(B)), batched. Shared by the forward and the weight gradient.
struct CublasLtPointwise::Gemm {
  struct Spec {
    std::int64_t m = 0, n = 0, k = 0, batch = 1;
    Stored a, b, d;
    std::int64_t a_batch_stride = 0, b_batch_stride = 0, d_batch_stride = 0;
    cudaDataType_t type = CUDA_R_32F, result_type = CUDA_R_32F;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    std::uint32_t alignment = 16;
  };

  Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, d;
  cublasLtMatmulAlgo_t algo{};
  std::size_t workspace_bytes = 0;
  std::string text;
  bool has_bias = false;
  const void* bias = nullptr;  // as set in `operation`
  std::uintptr_t alignment_mask = 0;
  double one_f64 = 1, zero_f64 = 0;
  float one_f32 = 1, zero_f32 = 0;
  bool f64 = false;

  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, const void* value,
                     std::size_t bytes) {
    return cublasLtMatmulDescSetAttribute(operation.raw, attribute, value, bytes);
  }

  static cublasStatus_t make_layout(cublasLtMatrixLayout_t& raw, const Stored& stored,
                                    cudaDataType_t type, std::int64_t batch,
                                    std::int64_t batch_stride) {
    cublasStatus_t status =
        cublasLtMatrixLayoutCreate(&raw, type, static_cast<std::uint64_t>(stored.rows),
                                   static_cast<std::uint64_t>(stored.cols), stored.ld);
    const auto put = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = cublasLtMatrixLayoutSetAttribute(raw, attribute, &value, sizeof value);
    };
    if (stored.row_order) put(CUBLASLT_MATRIX_LAYOUT_ORDER, std::int32_t{CUBLASLT_ORDER_ROW});
    if (batch > 1) {
      put(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
      put(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
    }
    return status;
  }

  /// Empty, or why cuBLASLt has no algorithm. Leaves `candidates` best first.
  std::string prepare(cublasLtHandle_t lt, const Spec& spec, std::size_t workspace_limit,
                      int requested, std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    f64 = spec.type == CUDA_R_64F;
    alignment_mask = spec.alignment - 1;
    has_bias =
        spec.epilogue == CUBLASLT_EPILOGUE_BIAS || spec.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    cublasStatus_t status =
        cublasLtMatmulDescCreate(&operation.raw, spec.compute, f64 ? CUDA_R_64F : CUDA_R_32F);
    if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtMatmulDescCreate", status);
    const std::int32_t op_a = spec.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const std::int32_t op_b = spec.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    status = set(CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = set(CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = set(CUBLASLT_MATMUL_DESC_EPILOGUE, &spec.epilogue, sizeof spec.epilogue);
    }
    if (status == CUBLAS_STATUS_SUCCESS && has_bias) {
      // The heuristics look at the pointer's alignment only.
      bias = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(spec.alignment));
      status = set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtMatmulDescSetAttribute", status);
    status = make_layout(a.raw, spec.a, spec.type, spec.batch, spec.a_batch_stride);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = make_layout(b.raw, spec.b, spec.type, spec.batch, spec.b_batch_stride);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = make_layout(d.raw, spec.d, spec.result_type, spec.batch, spec.d_batch_stride);
    }
    if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtMatrixLayoutCreate", status);

    Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    status = cublasLtMatmulPreferenceCreate(&preference.raw);
    const auto put = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status =
          cublasLtMatmulPreferenceSetAttribute(preference.raw, attribute, &value, sizeof value);
    };
    put(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_limit});
    // In-place and output-type reductions round partial sums to the storage type.
    put(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    // What the base pointers promise has to hold for every matrix of the batch.
    const auto alignment = [&](std::int64_t batch_stride, cudaDataType_t type) {
      const std::int64_t element = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
      const std::int64_t bytes = (spec.batch > 1 ? batch_stride : 0) * element;
      return bytes == 0 ? spec.alignment
                        : static_cast<std::uint32_t>(
                              std::min<std::int64_t>(spec.alignment, bytes & -bytes));
    };
    const std::uint32_t d_alignment = alignment(spec.d_batch_stride, spec.result_type);
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(spec.a_batch_stride, spec.type));
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(spec.b_batch_stride, spec.type));
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d_alignment);
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d_alignment);
    if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtMatmulPreference", status);

    candidates.resize(static_cast<std::size_t>(std::max(1, requested)));
    int returned = 0;
    status = cublasLtMatmulAlgoGetHeuristic(lt, operation.raw, a.raw, b.raw, d.raw, d.raw,
                                            preference.raw, static_cast<int>(candidates.size()),
                                            candidates.data(), &returned);
    candidates.resize(static_cast<std::size_t>(std::max(0, returned)));
    std::erase_if(candidates, [](const auto& c) { return c.state != CUBLAS_STATUS_SUCCESS; });
    if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtMatmulAlgoGetHeuristic", status);
    if (candidates.empty()) return "cublasLtMatmulAlgoGetHeuristic found no algorithm";
    take(candidates.front());
    return {};
  }

  void take(const cublasLtMatmulHeuristicResult_t& candidate) {
    algo = candidate.algo;
    workspace_bytes = candidate.workspaceSize;
    const auto value = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      std::int32_t v = -1;
      std::size_t written = 0;
      (void)cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &v, sizeof v, &written);
      return v;
    };
    std::array<char, 128> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "algo %d tile %d stages %d split-k %d reduction %d",
                  value(CUBLASLT_ALGO_CONFIG_ID), value(CUBLASLT_ALGO_CONFIG_TILE_ID),
                  value(CUBLASLT_ALGO_CONFIG_STAGES_ID), value(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                  value(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
    text = buffer.data();
  }

  cublasStatus_t run(const CublasHandles& handles, const void* a_data, const void* b_data,
                     void* d_data, const void* bias_data, void* workspace) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(a_data) |
                                reinterpret_cast<std::uintptr_t>(b_data) |
                                reinterpret_cast<std::uintptr_t>(d_data) |
                                (has_bias ? reinterpret_cast<std::uintptr_t>(bias_data) : 0);
    if (bits & alignment_mask) return CUBLAS_STATUS_INVALID_VALUE;
    if ((has_bias && !bias_data) || (workspace_bytes > 0 && !workspace)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (has_bias && bias_data != bias) {
      const cublasStatus_t status =
          set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_data, sizeof bias_data);
      if (status != CUBLAS_STATUS_SUCCESS) return status;
      bias = bias_data;
    }
    const void* one = f64 ? static_cast<const void*>(&one_f64) : &one_f32;
    const void* zero = f64 ? static_cast<const void*>(&zero_f64) : &zero_f32;
    return cublasLtMatmul(handles.lt(), operation.raw, one, a_data, a.raw, b_data, b.raw, zero,
                          d_data, d.raw, d_data, d.raw, &algo, workspace, workspace_bytes,
                          handles.stream());
  }

  /// Times `candidates` by calling `call` (which runs this object) and keeps the fastest.
  template <class Call>
  std::string tune(cudaStream_t stream,
                   const std::vector<cublasLtMatmulHeuristicResult_t>& candidates, Call call) {
    constexpr double hopeless_factor = 4;  // of the best so far, in the first call
    const cublasLtMatmulHeuristicResult_t* best = nullptr;
    double best_us = std::numeric_limits<double>::infinity();
    std::string times;
    for (const auto& candidate : candidates) {
      take(candidate);
      const double us = device_us(
          stream, [&] { return call() == CUBLAS_STATUS_SUCCESS; }, hopeless_factor * best_us);
      if (us < 0) continue;
      times += fmt::format("{} {:.1f} us", times.empty() ? "" : ",", us);
      if (us < best_us) {
        best_us = us;
        best = &candidate;
      }
    }
    if (!best) return "no candidate ran";
    take(*best);
    text += ", fastest of:" + times;
    return {};
  }
};

// ---------------------------------------------------------------------------------------------

Built<CublasHandles> CublasHandles::create(cudaStream_t stream, void* workspace,
                                           std::size_t bytes) {
  std::unique_ptr<CublasHandles> handles(new CublasHandles());
  cublasStatus_t status = cublasCreate(&handles->blas_);
  if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasCreate", status);
  status = cublasLtCreate(&handles->lt_);
  if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasLtCreate", status);
  status = handles->set_stream(stream, workspace, bytes);
  if (status != CUBLAS_STATUS_SUCCESS) return failed("cublasSetStream", status);
  return handles;
}

CublasHandles::~CublasHandles() {
  if (lt_) (void)cublasLtDestroy(lt_);
  if (blas_) (void)cublasDestroy(blas_);
}

cublasStatus_t CublasHandles::set_stream(cudaStream_t stream, void* workspace, std::size_t bytes) {
  const cublasStatus_t status = cublasSetStream(blas_, stream);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  stream_ = stream;
  return bytes == 0 ? status : cublasSetWorkspace(blas_, workspace, bytes);
}

CublasLtPointwise::CublasLtPointwise() = default;
CublasLtPointwise::~CublasLtPointwise() = default;
std::size_t CublasLtPointwise::workspace_bytes() const {
  return gemm_->workspace_bytes;
}
const std::string& CublasLtPointwise::algorithm() const {
  return gemm_->text;
}

Built<CublasLtPointwise> CublasLtPointwise::build(const CublasHandles& handles,
                                                  const CublasLtPointwiseProblem& problem,
                                                  const CublasBuildOptions& options,
                                                  const CublasLtPointwiseBuffers& buffers) {
  const kernels::PointwiseShape& s = problem.shape;
  const std::string name = "cuBLASLt pointwise: ";
  if (!is_floating(problem.dtype)) return name + "the element type is not a float";
  Pixels pixels;
  std::string why = split_pixels(s, pixels);
  if (!why.empty()) return name + why;

  const auto w = as_operand(s.c_out, s.c_in, s.w_stride_out, s.w_stride_in);
  const auto x = as_operand(s.c_in, pixels.count, s.x_channel_stride, pixels.x_stride);
  const auto y = by_columns(s.c_out, pixels.count, s.y_channel_stride, pixels.y_stride);
  const auto y_t = by_columns(pixels.count, s.c_out, pixels.y_stride, s.y_channel_stride);
  if (!w) return name + "w has no unit stride";
  if (!x) return name + "neither the pixels nor the channels of x are contiguous";
  if (!y && !y_t) return name + "neither the pixels nor the channels of y are contiguous";

  const bool relu = problem.activation == Activation::relu;
  Gemm::Spec spec;  // D = y: (c_out x pixels)
  spec.m = s.c_out;
  spec.n = pixels.count;
  spec.k = s.c_in;
  spec.batch = pixels.batch;
  spec.a = *w;
  spec.b = *x;
  spec.b_batch_stride = pixels.x_batch_stride;
  spec.d_batch_stride = pixels.y_batch_stride;
  spec.type = spec.result_type = data_type(problem.dtype);
  spec.compute = compute_type(problem.dtype, problem.math);
  spec.epilogue = problem.bias ? (relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                               : (relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
  spec.alignment = static_cast<std::uint32_t>(problem.alignment);

  std::vector<Gemm::Spec> attempts;
  bool swapped = false;
  if (y) {
    spec.d = *y;
    attempts.push_back(spec);
  } else if (problem.bias) {
    // D by rows, so that the bias still runs along the channels: all operands by rows, then D
    // alone.
    spec.d = in_row_order(*y_t);
    spec.d.transposed = false;
    attempts.push_back(spec);
    attempts.back().a = in_row_order(spec.a);
    attempts.back().b = in_row_order(spec.b);
    attempts.push_back(spec);
  } else {  // D = y^T: (pixels x c_out)
    swapped = true;
    std::swap(spec.m, spec.n);
    spec.a = *x;
    spec.b = *w;
    spec.a.transposed = !x->transposed;
    spec.b.transposed = !w->transposed;
    spec.a_batch_stride = pixels.x_batch_stride;
    spec.b_batch_stride = 0;
    spec.d = *y_t;
    attempts.push_back(spec);
  }

  for (const Gemm::Spec& attempt : attempts) {
    std::unique_ptr<CublasLtPointwise> plan(new CublasLtPointwise());
    plan->gemm_ = std::make_unique<Gemm>();
    plan->swapped_ = swapped;
    plan->row_order_ = attempt.d.row_order;
    std::vector<cublasLtMatmulHeuristicResult_t> candidates;
    why = plan->gemm_->prepare(handles.lt(), attempt, options.workspace_limit,
                               options.tune ? options.tune_candidates : 1, candidates);
    if (why.empty() && options.tune) {
      why = plan->gemm_->tune(handles.stream(), candidates,
                              [&] { return plan->run(handles, buffers, options.workspace); });
    }
    if (why.empty()) return plan;
  }
  if (attempts.front().d.row_order) why = "no bias along a row-ordered result: " + why;
  return name + why;
}

cublasStatus_t CublasLtPointwise::run(const CublasHandles& handles,
                                      const CublasLtPointwiseBuffers& buffers, void* workspace) {
  return swapped_ ? gemm_->run(handles, buffers.x, buffers.w, buffers.y, buffers.bias, workspace)
                  : gemm_->run(handles, buffers.w, buffers.x, buffers.y, buffers.bias, workspace);
}

CublasLtPointwiseBackwardWeight::CublasLtPointwiseBackwardWeight() = default;
CublasLtPointwiseBackwardWeight::~CublasLtPointwiseBackwardWeight() = default;

std::size_t CublasLtPointwiseBackwardWeight::workspace_bytes() const {
  return gemm_->workspace_bytes;
}

const std::string& CublasLtPointwiseBackwardWeight::algorithm() const {
  return gemm_->text;
}

std::int64_t CublasLtPointwiseBackwardWeight::split_count(const kernels::PointwiseShape& shape) {
  Pixels pixels;
  return split_pixels(shape, pixels).empty() ? pixels.batch : 0;
}

Built<CublasLtPointwiseBackwardWeight> CublasLtPointwiseBackwardWeight::build(
    const CublasHandles& handles, const CublasLtPointwiseBackwardWeightProblem& problem,
    const CublasBuildOptions& options, const CublasLtPointwiseBackwardWeightBuffers& buffers) {
  using Gemm = CublasLtPointwise::Gemm;
  const kernels::PointwiseShape& s = problem.shape;
  const std::string name = "cuBLASLt pointwise backward_weight: ";
  if (!is_floating(problem.dtype)) return name + "the element type is not a float";
  Pixels pixels;
  std::string why = split_pixels(s, pixels);
  if (!why.empty()) return name + why;
  const bool split = pixels.batch > 1;

  const auto x = as_operand(s.c_in, pixels.count, s.x_channel_stride, pixels.x_stride);
  const auto dy = as_operand(s.c_out, pixels.count, s.y_channel_stride, pixels.y_stride);
  if (!x) return name + "neither the pixels nor the channels of x are contiguous";
  if (!dy) return name + "neither the pixels nor the channels of dy are contiguous";
  // Partials are dense (c_out, c_in), whatever the strides of w.
  const std::int64_t out_stride = split ? s.c_in : s.w_stride_out;
  const std::int64_t in_stride = split ? 1 : s.w_stride_in;
  const auto dw_t = by_columns(s.c_in, s.c_out, in_stride, out_stride);
  const auto dw = by_columns(s.c_out, s.c_in, out_stride, in_stride);
  if (!dw_t && !dw) return name + "w has no unit stride";

  std::unique_ptr<CublasLtPointwiseBackwardWeight> plan(new CublasLtPointwiseBackwardWeight());
  plan->gemm_ = std::make_unique<Gemm>();
  plan->split_count_ = pixels.batch;
  plan->partial_dtype_ = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  plan->partial_bytes_ = split ? static_cast<std::size_t>(pixels.batch * s.c_out * s.c_in) *
                                     size_of(plan->partial_dtype_)
                               : 0;
  plan->swapped_ = dw_t.has_value();

  Gemm::Spec spec;
  spec.k = pixels.count;
  spec.batch = pixels.batch;
  spec.type = data_type(problem.dtype);
  spec.result_type = data_type(split ? plan->partial_dtype_ : problem.dtype);
  spec.compute = compute_type(problem.dtype, problem.math);
  spec.alignment = static_cast<std::uint32_t>(problem.alignment);
  spec.d_batch_stride = s.c_out * s.c_in;
  if (plan->swapped_) {  // D = dw^T (c_in x c_out) = x (c_in x pixels) * dy^T
    spec.m = s.c_in;
    spec.n = s.c_out;
    spec.a = *x;
    spec.b = *dy;
    spec.a_batch_stride = pixels.x_batch_stride;
    spec.b_batch_stride = pixels.y_batch_stride;
    spec.d = *dw_t;
  } else {  // D = dw (c_out x c_in) = dy (c_out x pixels) * x^T
    spec.m = s.c_out;
    spec.n = s.c_in;
    spec.a = *dy;
    spec.b = *x;
    spec.a_batch_stride = pixels.y_batch_stride;
    spec.b_batch_stride = pixels.x_batch_stride;
    spec.d = *dw;
  }
  spec.b.transposed = !spec.b.transposed;

  std::vector<cublasLtMatmulHeuristicResult_t> candidates;
  why = plan->gemm_->prepare(handles.lt(), spec, options.workspace_limit,
                             options.tune ? options.tune_candidates : 1, candidates);
  if (why.empty() && options.tune) {
    why = plan->gemm_->tune(handles.stream(), candidates,
                            [&] { return plan->run(handles, buffers, options.workspace); });
  }
  if (!why.empty()) return name + why;
  return plan;
}

cublasStatus_t CublasLtPointwiseBackwardWeight::run(
    const CublasHandles& handles, const CublasLtPointwiseBackwardWeightBuffers& buffers,
    void* workspace) {
  void* result = split_count_ > 1 ? buffers.partials : buffers.dw;
  return swapped_ ? gemm_->run(handles, buffers.x, buffers.dy, result, nullptr, workspace)
                  : gemm_->run(handles, buffers.dy, buffers.x, result, nullptr, workspace);
}

}  // namespace zerone::vendor
