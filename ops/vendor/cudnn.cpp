#include <zerone/ops/vendor/cudnn.h>

#ifndef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#endif
// The parts of <cudnn_frontend.h> that are used here; the whole of it compiles five times longer.
#include <cudnn.h>

#include <cudnn_frontend_ConvDesc.h>
#include <cudnn_frontend_ExecutionPlan.h>
#include <cudnn_frontend_Heuristics.h>
#include <cudnn_frontend_Operation.h>
#include <cudnn_frontend_OperationGraph.h>
#include <cudnn_frontend_PointWiseDesc.h>
#include <cudnn_frontend_Tensor.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <zerone/core/cuda_context.h>

// The frontend reads the library's handle from here. Weak, so that a program which brings its own
// definition (and so its own use of the frontend) still links; both then share one handle.
namespace cudnn_frontend {
__attribute__((weak)) void* cudnn_dlhandle = nullptr;
}

namespace zerone::vendor {
namespace fe = cudnn_frontend;
namespace {

/// What run() and the handles call, resolved once so that no later call can miss a symbol.
struct Api {
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

struct Library {
  Api api;
  std::size_t version = 0;  // major * 10000 + minor * 100 + patch, 0 until usable
  std::string reason;
};

std::string version_text(std::size_t version) {
  if (version < 10000) version = version / 1000 * 10000 + version % 1000;  // before 9.0
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Library open_library() {
  Library library;
  const std::string name = "libcudnn.so." + std::to_string(cudnn_major);
  // A program with its own use of the frontend may have opened the library before.
  void* handle = fe::cudnn_dlhandle;
  if (!handle) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    library.reason = "cuDNN is not available: " + std::string(error ? error : name + " not found");
    return library;
  }
  std::string missing;
  const auto resolve = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    if (!function && missing.empty()) missing = symbol;
  };
  Api& api = library.api;
  resolve(api.get_version, "cudnnGetVersion");
  if (!api.get_version) {
    library.reason = "cuDNN is not usable: " + name + " has no cudnnGetVersion";
    return library;
  }
  const std::size_t version = api.get_version();
  const int major = static_cast<int>(version / (version < 10000 ? 1000 : 10000));
  const int minor = static_cast<int>(version / 100 % 100);
  if (major != cudnn_major || minor < cudnn_minimum_minor) {
    library.reason = "cuDNN " + version_text(version) + " was found, but this build needs " +
                     std::to_string(cudnn_major) + "." + std::to_string(cudnn_minimum_minor) +
                     " or a later " + std::to_string(cudnn_major) + ".x";
    return library;
  }
  resolve(api.create, "cudnnCreate");
  resolve(api.destroy, "cudnnDestroy");
  resolve(api.set_stream, "cudnnSetStream");
  resolve(api.get_error_string, "cudnnGetErrorString");
  resolve(api.get_last_error_string, "cudnnGetLastErrorString");
  resolve(api.create_descriptor, "cudnnBackendCreateDescriptor");
  resolve(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  resolve(api.set_attribute, "cudnnBackendSetAttribute");
  resolve(api.get_attribute, "cudnnBackendGetAttribute");
  resolve(api.finalize, "cudnnBackendFinalize");
  resolve(api.execute, "cudnnBackendExecute");
  if (!missing.empty()) {
    library.reason = "cuDNN " + version_text(version) + " is not usable: no symbol " + missing;
    return library;
  }
  fe::cudnn_dlhandle = handle;
  library.version = version;
  return library;
}

std::once_flag library_once;
Library* library_state = nullptr;  // never freed: plans in static storage may outlive the rest

const Library& library() {
  std::call_once(library_once, [] { library_state = new Library(open_library()); });
  return *library_state;
}

// ---------------------------------------------------------------------------------------------
// Texts

const char* pass_name(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward: return "forward";
    case ConvPass::backward_data: return "backward_data";
    case ConvPass::backward_weight: return "backward_weight";
  }
  return "?";
}

const char* dtype_name(DType dtype) {
  constexpr const char* names[] = {"f64", "f32", "bf16", "f16", "i64", "u8"};
  return names[static_cast<int>(dtype)];
}

const char* math_name(Math math) {
  constexpr const char* names[] = {"strict", "fp32", "tf32", "bf16", "fp16"};
  return names[static_cast<int>(math)];
}

std::string describe(const CudnnConv2dProblem& problem) {
  const kernels::Conv2dShape& s = problem.shape;
  std::string text = std::string("cuDNN ") + cudnn_version_text() + " conv2d " +
                     pass_name(problem.pass) + " " + dtype_name(problem.dtype) + "/" +
                     math_name(problem.math);
  const auto add = [&](const char* name, std::int64_t a, std::int64_t b) {
    text += std::string(" ") + name + " " + std::to_string(a) + "x" + std::to_string(b);
  };
  text +=
      " n " + std::to_string(s.n) + " c " + std::to_string(s.c_in) + "->" + std::to_string(s.c_out);
  add("image", s.h, s.w);
  add("kernel", s.kh, s.kw);
  add("out", s.h_out, s.w_out);
  add("stride", s.stride_h, s.stride_w);
  add("pad", s.pad_top, s.pad_left);
  add("dilation", s.dilation_h, s.dilation_w);
  text += " groups " + std::to_string(s.groups);
  if (problem.bias) text += " +bias";
  if (problem.activation == Activation::relu) text += " +relu";
  return text;
}

template <class Note>
std::string join_notes(const std::vector<Note>& notes, std::string_view prefix) {
  std::string text;
  for (const Note note : notes) {
    std::string name = fe::to_string(note);
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// ---------------------------------------------------------------------------------------------
// The problem in cuDNN's terms

using Axes = std::array<std::int64_t, 4>;  // N,C,H,W

Axes nchw_strides(const Axes& s) {
  return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}
Axes nhwc_strides(const Axes& s) {
  return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
}

bool same_layout(const Axes& sizes, const Axes& strides, const Axes& dense) {
  for (int i = 0; i < 4; ++i) {
    if (sizes[i] > 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

struct Tensors {
  Axes x, w, y;  // sizes
  Axes x_strides, w_strides, y_strides, bias_strides;
};

/// Post padding of one axis for which cuDNN computes `out`: equal to `pre` where that fits (more
/// engines take symmetric padding), else the least that does. Negative: none does.
std::int64_t post_padding(std::int64_t in, std::int64_t kernel, std::int64_t dilation,
                          std::int64_t stride, std::int64_t pre, std::int64_t out) {
  const std::int64_t extent = (kernel - 1) * dilation + 1;
  const auto outputs = [&](std::int64_t post) {
    const std::int64_t room = in + pre + post - extent;
    return room < 0 ? std::int64_t{0} : room / stride + 1;
  };
  if (outputs(pre) == out) return pre;
  const std::int64_t least = std::max<std::int64_t>(0, (out - 1) * stride + extent - in - pre);
  return outputs(least) == out ? least : -1;
}

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    case DType::f16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// Fills `tensors` or says why this row does not offer the problem.
std::string reject(const CudnnConv2dProblem& problem, Tensors& tensors) {
  const kernels::Conv2dShape& s = problem.shape;
  if (!is_floating(problem.dtype)) {
    return std::string("not offered for ") + dtype_name(problem.dtype);
  }
  if (problem.dtype == DType::f32 && (problem.math == Math::bf16 || problem.math == Math::fp16)) {
    return std::string("f32 storage with ") + math_name(problem.math) +
           " arithmetic is not offered by this row";
  }
  if (problem.pass != ConvPass::forward &&
      (problem.bias || problem.activation != Activation::none)) {
    return "bias and activation belong to the forward pass";
  }
  if (s.groups < 1 || s.c_in % s.groups != 0 || s.c_out % s.groups != 0) {
    return "the groups do not divide the channels";
  }
  tensors.x = {s.n, s.c_in, s.h, s.w};
  tensors.w = {s.c_out, s.c_in / s.groups, s.kh, s.kw};
  tensors.y = {s.n, s.c_out, s.h_out, s.w_out};
  for (const Axes* sizes : {&tensors.x, &tensors.w, &tensors.y}) {
    for (const std::int64_t size : *sizes) {
      if (size < 1) return "an axis is empty";
      if (size > std::numeric_limits<std::int32_t>::max()) return "an axis exceeds 2^31 - 1";
    }
  }
  const auto all_match = [&](auto dense) {
    return same_layout(tensors.x, s.x_strides, dense(tensors.x)) &&
           same_layout(tensors.w, s.w_strides, dense(tensors.w)) &&
           same_layout(tensors.y, s.y_strides, dense(tensors.y));
  };
  const bool nchw = all_match(nchw_strides);
  const bool nhwc = all_match(nhwc_strides);
  if (!nchw && !nhwc) return "x, w and y are neither all dense NCHW nor all dense NHWC";
  // Where both readings fit, the tensor-core engines for 16-bit data want NHWC.
  const bool half = problem.dtype == DType::bf16 || problem.dtype == DType::f16;
  const auto dense = nhwc && (half || !nchw) ? nhwc_strides : nchw_strides;
  tensors.x_strides = dense(tensors.x);
  tensors.w_strides = dense(tensors.w);
  tensors.y_strides = dense(tensors.y);
  tensors.bias_strides = {s.c_out, 1, s.c_out, s.c_out};
  return {};
}

enum Uid : std::int64_t { uid_x = 1, uid_w, uid_y, uid_bias, uid_conv, uid_sum };

/// conv, or conv -> add bias -> relu with virtual tensors between. Throws fe::cudnnException.
fe::OperationGraph_v8 build_graph(cudnnHandle_t handle, const CudnnConv2dProblem& problem,
                                  const Tensors& tensors, const Axes& padding) {
  const kernels::Conv2dShape& s = problem.shape;
  const cudnnDataType_t type = data_type(problem.dtype);
  const cudnnDataType_t compute =
      problem.dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const auto tensor = [&](std::int64_t uid, const Axes& sizes, const Axes& strides,
                          bool is_virtual) {
    return fe::TensorBuilder_v8()
        .setDim(4, sizes.data())
        .setStride(4, strides.data())
        .setId(uid)
        .setAlignment(problem.alignment)
        .setDataType(is_virtual ? compute : type)
        .setVirtual(is_virtual)
        .build();
  };
  const std::int64_t pre[] = {s.pad_top, s.pad_left};
  const std::int64_t post[] = {padding[2], padding[3]};
  const std::int64_t stride[] = {s.stride_h, s.stride_w};
  const std::int64_t dilation[] = {s.dilation_h, s.dilation_w};
  const auto conv = fe::ConvDescBuilder_v8()
                        .setComputeType(compute)
                        .setMathMode(CUDNN_CROSS_CORRELATION)
                        .setSpatialDimCount(2)
                        .setSpatialStride(2, stride)
                        .setPrePadding(2, pre)
                        .setPostPadding(2, post)
                        .setDilation(2, dilation)
                        .build();

  const bool relu = problem.activation == Activation::relu;
  const auto x = tensor(uid_x, tensors.x, tensors.x_strides, false);
  const auto w = tensor(uid_w, tensors.w, tensors.w_strides, false);
  const auto y = tensor(uid_y, tensors.y, tensors.y_strides, false);
  std::vector<fe::Operation_v8> operations;
  if (problem.pass == ConvPass::backward_data) {
    operations.push_back(
        fe::OperationBuilder_v8(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
            .setdxDesc(x)
            .setwDesc(w)
            .setdyDesc(y)
            .setcDesc(conv)
            .build());
  } else if (problem.pass == ConvPass::backward_weight) {
    operations.push_back(
        fe::OperationBuilder_v8(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
            .setxDesc(x)
            .setdwDesc(w)
            .setdyDesc(y)
            .setcDesc(conv)
            .build());
  } else {
    const bool fused = problem.bias || relu;
    const auto conv_out = tensor(fused ? std::int64_t{uid_conv} : std::int64_t{uid_y}, tensors.y,
                                 tensors.y_strides, fused);
    operations.push_back(
        fe::OperationBuilder_v8(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
            .setxDesc(x)
            .setwDesc(w)
            .setyDesc(conv_out)
            .setcDesc(conv)
            .build());
    const auto sum = tensor(relu ? std::int64_t{uid_sum} : std::int64_t{uid_y}, tensors.y,
                            tensors.y_strides, relu);
    if (problem.bias) {
      const auto bias = tensor(uid_bias, {1, s.c_out, 1, 1}, tensors.bias_strides, false);
      const auto add = fe::PointWiseDescBuilder_v8()
                           .setMode(CUDNN_POINTWISE_ADD)
                           .setComputeType(compute)
                           .build();
      operations.push_back(fe::OperationBuilder_v8(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                               .setxDesc(conv_out)
                               .setbDesc(bias)
                               .setyDesc(sum)
                               .setpwDesc(add)
                               .build());
    }
    if (relu) {
      const auto clamp = fe::PointWiseDescBuilder_v8()
                             .setMode(CUDNN_POINTWISE_RELU_FWD)
                             .setComputeType(compute)
                             .build();
      operations.push_back(fe::OperationBuilder_v8(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                               .setxDesc(problem.bias ? sum : conv_out)
                               .setyDesc(y)
                               .setpwDesc(clamp)
                               .build());
    }
  }
  std::vector<const fe::Operation_v8*> list;
  for (const fe::Operation_v8& operation : operations) list.push_back(&operation);
  return fe::OperationGraphBuilder_v8()
      .setHandle(handle)
      .setOperationGraph(static_cast<std::int64_t>(list.size()), list.data())
      .build();
}

// ---------------------------------------------------------------------------------------------
// Engine configurations

struct Candidate {
  fe::ManagedOpaqueDescriptor config;
  std::string engine;  // index and knobs
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::int64_t workspace = -1;  // as the configuration says before it is built; -1: it does not say
};

/// Reads what is known of a configuration before anything is compiled for it.
Candidate inspect(const fe::ManagedOpaqueDescriptor& config) {
  const Api& api = library().api;
  Candidate candidate;
  candidate.config = config;
  const cudnnBackendDescriptor_t raw = config->get_backend_descriptor();
  std::int64_t count = 0;

  const auto engine = fe::make_shared_backend_pointer(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t engine_raw = engine->get_backend_descriptor();
  std::int64_t index = -1;
  if (api.get_attribute(raw, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                        &engine_raw) == CUDNN_STATUS_SUCCESS) {
    (void)api.get_attribute(engine_raw, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                            &index);
    candidate.notes.resize(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
    count = 0;
    (void)api.get_attribute(engine_raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, candidate.notes.data());
    candidate.notes.resize(static_cast<std::size_t>(
        std::clamp<std::int64_t>(count, 0, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)));
  }
  candidate.engine = "eng" + std::to_string(index);

  std::vector<fe::ManagedOpaqueDescriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> knobs_raw;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    knobs.push_back(fe::make_shared_backend_pointer(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    knobs_raw.push_back(knobs.back()->get_backend_descriptor());
  }
  count = 0;
  (void)api.get_attribute(raw, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          CUDNN_KNOB_TYPE_COUNTS, &count, knobs_raw.data());
  count = std::clamp<std::int64_t>(count, 0, CUDNN_KNOB_TYPE_COUNTS);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    std::int64_t value = -1;
    (void)api.get_attribute(knobs_raw[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                            nullptr, &type);
    (void)api.get_attribute(knobs_raw[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                            nullptr, &value);
    candidate.engine += "_k" + std::to_string(static_cast<int>(type)) + "=" + std::to_string(value);
  }

  std::int64_t workspace = -1;
  if (api.get_attribute(raw, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                        &workspace) == CUDNN_STATUS_SUCCESS) {
    candidate.workspace = workspace;
  }
  return candidate;
}

/// The notes that an engine must not carry for this arithmetic.
bool excluded(cudnnBackendNumericalNote_t note, const CudnnConv2dProblem& problem) {
  const bool f32 = problem.dtype == DType::f32;
  const bool plain = f32 && (problem.math == Math::strict || problem.math == Math::fp32);
  switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return plain;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:  // TF32 engines of f32 data carry it too
      return plain || problem.dtype == DType::f64;
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_FFT: return true;
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: return problem.deterministic;
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
      return !f32 || problem.math == Math::strict || !problem.allow_winograd;
    default: return false;
  }
}

std::string json_field(const std::string& json, const std::string& key) {
  const std::string quoted = "\"" + key + "\":";
  std::size_t at = json.find(quoted);
  if (at == std::string::npos) return {};
  at = json.find('"', at + quoted.size());
  if (at == std::string::npos) return {};
  const std::size_t end = json.find('"', at + 1);
  return end == std::string::npos ? std::string() : json.substr(at + 1, end - at - 1);
}

}  // namespace

const std::string& load_cudnn() {
  return library().reason;
}

std::string cudnn_version_text() {
  const Library& loaded = library();
  return loaded.version == 0 ? "not loaded" : version_text(loaded.version);
}

std::string CudnnStatus::text() const {
  if (code == 0) return "success";
  if (code == misaligned) return "a pointer is less aligned than the plan was built for";
  if (code == no_workspace) return "the plan needs a workspace and was given none";
  if (!library().reason.empty()) return library().reason;
  std::array<char, 512> last{};
  library().api.get_last_error_string(last.data(), last.size());
  std::string text = library().api.get_error_string(static_cast<cudnnStatus_t>(code));
  if (last[0] != '\0') text += std::string(" (") + last.data() + ")";
  return text;
}

Built<CudnnHandle> CudnnHandle::create(cudaStream_t stream) {
  if (!load_cudnn().empty()) return load_cudnn();
  cudnnHandle_t raw = nullptr;
  CudnnStatus status{static_cast<int>(library().api.create(&raw))};
  if (!status.ok()) return "cuDNN could not make a handle: " + status.text();
  std::unique_ptr<CudnnHandle> handle(new CudnnHandle(raw, nullptr));
  status = handle->set_stream(stream);
  if (!status.ok()) return "cuDNN could not set the stream: " + status.text();
  return handle;
}

CudnnHandle::~CudnnHandle() {
  if (handle_) (void)library().api.destroy(static_cast<cudnnHandle_t>(handle_));
}

CudnnStatus CudnnHandle::set_stream(cudaStream_t stream) {
  const cudnnStatus_t status =
      library().api.set_stream(static_cast<cudnnHandle_t>(handle_), stream);
  if (status == CUDNN_STATUS_SUCCESS) stream_ = stream;
  return {static_cast<int>(status)};
}

struct CudnnConv2d::Plan {
  fe::ExecutionPlan_v8 plan;
};

CudnnConv2d::CudnnConv2d() = default;

CudnnConv2d::~CudnnConv2d() {
  if (variant_pack_) (void)library().api.destroy_descriptor(variant_pack_);
}

Built<CudnnConv2d> CudnnConv2d::build(const CudnnHandle& handle, const CudnnConv2dProblem& problem,
                                      const CudnnBuildOptions& options) {
  return select(handle, problem, options, {});
}

Built<CudnnConv2d> CudnnConv2d::from_json(const CudnnHandle& handle,
                                          const CudnnConv2dProblem& problem,
                                          const std::string& json,
                                          const CudnnBuildOptions& options) {
  const std::string version = json_field(json, "cudnn");
  const std::string engine = json_field(json, "engine");
  if (version.empty() || engine.empty()) {
    return std::string("the saved cuDNN plan has no \"cudnn\" or no \"engine\" field");
  }
  if (version != cudnn_version_text()) {
    return "the plan was saved with cuDNN " + version + ", this is " + cudnn_version_text();
  }
  return select(handle, problem, options, engine);
}

std::string CudnnConv2d::to_json() const {
  return "{\"cudnn\": \"" + cudnn_version_text() + "\", \"engine\": \"" + engine_ + "\"}";
}

/// `engine` empty: the first usable candidate, or the fastest if options.tune. Else exactly that.
Built<CudnnConv2d> CudnnConv2d::select(const CudnnHandle& handle, const CudnnConv2dProblem& problem,
                                       const CudnnBuildOptions& options,
                                       const std::string& engine) {
  if (!load_cudnn().empty()) return load_cudnn();
  Tensors tensors;
  std::string why = reject(problem, tensors);
  if (!why.empty()) return describe(problem) + ": " + why;
  const kernels::Conv2dShape& s = problem.shape;
  const Axes padding = {0, 0, post_padding(s.h, s.kh, s.dilation_h, s.stride_h, s.pad_top, s.h_out),
                        post_padding(s.w, s.kw, s.dilation_w, s.stride_w, s.pad_left, s.w_out)};
  if (padding[2] < 0 || padding[3] < 0) {
    return describe(problem) + ": no bottom or right padding gives this output size";
  }

  // Exceptions of the frontend end here: bad_alloc apart, all of them are reasons.
  try {
    const auto raw_handle = static_cast<cudnnHandle_t>(handle.get());
    fe::OperationGraph_v8 graph = build_graph(raw_handle, problem, tensors, padding);

    const auto make = [&](const Candidate& candidate) {
      std::unique_ptr<CudnnConv2d> conv(new CudnnConv2d());
      conv->plan_ = std::make_unique<Plan>(Plan{fe::ExecutionPlanBuilder_v8()
                                                    .setHandle(raw_handle)
                                                    .setEngineConfig(candidate.config)
                                                    .build()});
      const fe::ExecutionPlan_v8& plan = conv->plan_->plan;
      conv->descriptor_ = plan.get_raw_desc();
      conv->workspace_bytes_ = static_cast<std::size_t>(plan.getWorkspaceSize());
      conv->engine_ = candidate.engine;
      conv->numerical_notes_ = join_notes(plan.getAllNumericNotes(), "CUDNN_NUMERICAL_NOTE_");
      conv->behavior_notes_ = join_notes(plan.getAllBehaviorNotes(), "CUDNN_BEHAVIOR_NOTE_");
      conv->pass_ = problem.pass;
      conv->bias_ = problem.bias;
      conv->alignment_mask_ = static_cast<std::uintptr_t>(problem.alignment) - 1;
      conv->operands_ = problem.bias ? 4 : 3;
      conv->uids_ = {uid_x, uid_w, uid_y, uid_bias};
      return conv;
    };

    constexpr double hopeless_factor = 4;  // of the best so far, in the first call
    const bool tune = options.tune && engine.empty();
    std::unique_ptr<CudnnConv2d> best;
    double best_us = std::numeric_limits<double>::infinity();
    std::string times, last_failure;
    std::vector<std::string> seen;
    int offered = 0, by_notes = 0, by_workspace = 0, failed = 0, tried = 0;

    for (const char* mode : {"heuristics_mode_a", "heuristics_fallback"}) {
      if (best && !tune) break;
      fe::EngineConfigList configs;
      std::vector<std::string> modes{mode};
      (void)fe::get_heuristics_list(
          modes, graph, [](cudnnBackendDescriptor_t) { return false; }, configs, true);
      for (const fe::ManagedOpaqueDescriptor& config : configs) {
        if ((best && !tune) || (tune && tried >= options.tune_candidates)) break;
        if (!config) continue;
        const Candidate candidate = inspect(config);
        if (std::find(seen.begin(), seen.end(), candidate.engine) != seen.end()) continue;
        seen.push_back(candidate.engine);
        ++offered;
        if (!engine.empty() && candidate.engine != engine) continue;
        if (std::any_of(candidate.notes.begin(), candidate.notes.end(),
                        [&](auto note) { return excluded(note, problem); })) {
          ++by_notes;
          continue;
        }
        const auto too_large = [&](std::int64_t bytes) {
          return bytes > 0 && static_cast<std::size_t>(bytes) > options.workspace_limit;
        };
        if (too_large(candidate.workspace)) {
          ++by_workspace;
          continue;
        }
        std::unique_ptr<CudnnConv2d> conv;
        try {
          conv = make(candidate);
        } catch (const fe::cudnnException& error) {
          ++failed;
          last_failure = error.what();
          continue;
        }
        if (too_large(static_cast<std::int64_t>(conv->workspace_bytes_))) {
          ++by_workspace;
          continue;
        }
        ++tried;
        if (!tune) {
          conv->choice_ = engine.empty() ? mode : "saved plan";
          best = std::move(conv);
          break;
        }
        const auto call = [&] {
          const CudnnStatus status = conv->run(handle, options.pointers, options.workspace);
          if (!status.ok()) last_failure = status.text();
          return status.ok();
        };
        const double us = device_us(handle.stream(), call, hopeless_factor * best_us);
        if (us < 0) {
          ++failed;
          --tried;
          continue;
        }
        times += fmt::format("{} {:.1f} us", times.empty() ? "" : ",", us);
        if (us < best_us) {
          best_us = us;
          best = std::move(conv);
        }
      }
    }
    if (best) {
      if (tune) {
        best->choice_ = "fastest of " + std::to_string(tried) + ":" + times;
      }
      return best;
    }
    why = "no engine: " + std::to_string(offered) + " offered, " + std::to_string(by_notes) +
          " excluded by their numerical notes, " + std::to_string(by_workspace) +
          " need more workspace than " + std::to_string(options.workspace_limit) + " bytes, " +
          std::to_string(failed) + " failed";
    if (!last_failure.empty()) why += " (last: " + last_failure + ")";
    if (!engine.empty()) why += "; asked for " + engine;
  } catch (const fe::cudnnException& error) {
    why = error.what();
  } catch (const std::runtime_error& error) {  // a symbol that this cuDNN lacks
    why = error.what();
  }
  return describe(problem) + ": " + why;
}

CudnnStatus CudnnConv2d::run(const CudnnHandle& handle, const CudnnConv2dPointers& pointers,
                             void* workspace) {
  const Api& api = library_state->api;  // there is a plan, so the library is loaded
  // cuDNN declares all of them mutable; it writes only `result`.
  std::array<void*, 4> data = {const_cast<void*>(pointers.x), const_cast<void*>(pointers.w),
                               const_cast<void*>(pointers.y),
                               bias_ ? const_cast<void*>(pointers.bias) : nullptr};
  data[pass_ == ConvPass::forward ? 2 : pass_ == ConvPass::backward_data ? 0 : 1] = pointers.result;

  // A finalized variant pack cannot be changed, so calls with the same pointers share one and
  // others make a new one (0.3 us).
  if (!variant_pack_ || data != pack_pointers_ || workspace != pack_workspace_) {
    std::uintptr_t bits = 0;
    for (void* pointer : data) bits |= reinterpret_cast<std::uintptr_t>(pointer);
    if (bits & alignment_mask_) return {CudnnStatus::misaligned};
    if (workspace_bytes_ > 0 && !workspace) return {CudnnStatus::no_workspace};
    if (variant_pack_) {
      (void)api.destroy_descriptor(variant_pack_);
      variant_pack_ = nullptr;
    }
    cudnnBackendDescriptor_t pack = nullptr;
    cudnnStatus_t status = api.create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS) {
      status = api.set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                 operands_, data.data());
    }
    if (status == CUDNN_STATUS_SUCCESS) {
      status = api.set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                 operands_, uids_.data());
    }
    if (status == CUDNN_STATUS_SUCCESS) {
      status = api.set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                 &workspace);
    }
    if (status == CUDNN_STATUS_SUCCESS) status = api.finalize(pack);
    if (status != CUDNN_STATUS_SUCCESS) {
      if (pack) (void)api.destroy_descriptor(pack);
      return {static_cast<int>(status)};
    }
    variant_pack_ = pack;
    pack_pointers_ = data;
    pack_workspace_ = workspace;
  }
  return {static_cast<int>(
      api.execute(static_cast<cudnnHandle_t>(handle.get()), descriptor_, variant_pack_))};
}

}  // namespace zerone::vendor
