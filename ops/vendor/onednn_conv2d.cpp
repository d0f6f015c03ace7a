#include <zerone/ops/vendor/onednn_conv2d.h>

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include <zerone/kernels/cpu/threads.h>

namespace zerone::vendor {
namespace {

using dnnl::memory;
using kernels::Conv2dShape;
using Dims = memory::dims;

/// Sets the caller's number of OpenMP threads for a scope and puts them on the context's CPUs,
/// which threads that oneDNN's own regions start meanwhile inherit.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
    if (!cpus_.active()) return;
#pragma omp parallel num_threads(threads)
    cpus_.pin();
  }
  ~ThreadScope() {
    omp_set_num_threads(before_);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  kernels::cpu::TeamCpus cpus_;
  int before_;
};

bool is_dense(const std::array<std::int64_t, 4>& sizes, const std::array<std::int64_t, 4>& strides,
              const std::array<int, 4>& order) {
  std::int64_t expected = 1;
  for (int i = 3; i >= 0; --i) {
    const int axis = order[i];
    if (sizes[axis] != 1 && strides[axis] != expected) return false;
    expected *= sizes[axis];
  }
  return true;
}

constexpr std::array<int, 4> channels_first{0, 1, 2, 3};
constexpr std::array<int, 4> channels_last{0, 2, 3, 1};

/// Sizes and layout of a user's tensor; nullopt if it is dense in neither order.
std::optional<memory::desc> describe(const std::array<std::int64_t, 4>& sizes,
                                     const std::array<std::int64_t, 4>& strides) {
  const Dims dims(sizes.begin(), sizes.end());
  if (is_dense(sizes, strides, channels_first)) {
    return memory::desc(dims, memory::data_type::f32, memory::format_tag::abcd);
  }
  if (is_dense(sizes, strides, channels_last)) {
    return memory::desc(dims, memory::data_type::f32, memory::format_tag::acdb);
  }
  return std::nullopt;
}

std::optional<memory::desc> describe_x(const Conv2dShape& s) {
  return describe({s.n, s.c_in, s.h, s.w}, s.x_strides);
}

std::optional<memory::desc> describe_y(const Conv2dShape& s) {
  return describe({s.n, s.c_out, s.h_out, s.w_out}, s.y_strides);
}

/// With groups, oneDNN wants (groups, c_out/groups, c_in/groups, kh, kw).
std::optional<memory::desc> describe_w(const Conv2dShape& s) {
  const std::int64_t c_group = s.c_in / s.groups;
  const std::optional<memory::desc> desc = describe({s.c_out, c_group, s.kh, s.kw}, s.w_strides);
  if (!desc || s.groups == 1) return desc;
  const bool first = is_dense({s.c_out, c_group, s.kh, s.kw}, s.w_strides, channels_first);
  return memory::desc({s.groups, s.c_out / s.groups, c_group, s.kh, s.kw}, memory::data_type::f32,
                      first ? memory::format_tag::abcde : memory::format_tag::abdec);
}

/// The same sizes with the layout left to oneDNN.
memory::desc any_layout(const memory::desc& desc) {
  return memory::desc(desc.dims(), desc.data_type(), memory::format_tag::any);
}

/// Why Winograd cannot take this problem, or empty.
std::string winograd_reason(const Conv2dShape& s) {
  const bool fits = s.kh == 3 && s.kw == 3 && s.stride_h == 1 && s.stride_w == 1 &&
                    s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1;
  return fits ? "" : "oneDNN: Winograd takes 3x3 kernels of stride 1 in one group";
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

}  // namespace

struct OnednnConv2d::Plan {
  /// A user's tensor and, where the kernel wants another layout, its copy and the reorders to it
  /// (inputs) or from it (results).
  struct Operand {
    memory user, kernel, middle;
    std::optional<dnnl::reorder> reorder, from_middle;

    void prepare(const memory::desc& user_desc, const memory::desc& kernel_desc, bool is_input) {
      reorder.reset();
      from_middle.reset();
      user = memory(user_desc, cpu_engine(), nullptr);
      if (user_desc == kernel_desc) {
        kernel = user;
        return;
      }
      kernel = memory(kernel_desc, cpu_engine());
      if (!is_input) {
        reorder = dnnl::reorder(kernel, user);
        return;
      }
      try {
        reorder = dnnl::reorder(user, kernel);
      } catch (const dnnl::error&) {
        // Winograd weights can be made from KCRS order alone.
        middle = memory(memory::desc(user_desc.dims(), user_desc.data_type(),
                                     user_desc.dims().size() == 5 ? memory::format_tag::abcde
                                                                  : memory::format_tag::abcd),
                        cpu_engine());
        reorder = dnnl::reorder(user, middle);
        from_middle = dnnl::reorder(middle, kernel);
      }
    }
    void bind(const float* data) { user.set_data_handle(const_cast<float*>(data)); }
    void load(dnnl::stream& stream) {
      if (reorder) reorder->execute(stream, user, from_middle ? middle : kernel);
      if (from_middle) from_middle->execute(stream, middle, kernel);
    }
    void save(dnnl::stream& stream) {
      if (reorder) reorder->execute(stream, kernel, user);
    }
    std::size_t bytes() const {
      return (reorder ? kernel.get_desc().get_size() : 0) +
             (from_middle ? middle.get_desc().get_size() : 0);
    }
  };

  OnednnConv2dOptions options;
  dnnl::stream stream{cpu_engine()};
  dnnl::primitive primitive;
  Operand x, w, y, bias;  // values or gradients, as the pass has them
  memory scratchpad;
  std::unordered_map<int, memory> arguments;
  std::string implementation;
  const float* kept_weight = nullptr;  // whose reordered copy w.kernel holds
  std::uint64_t kept_version = unknown_version;

  explicit Plan(const OnednnConv2dOptions& given) : options(given) {
    if (options.algorithm != OnednnAlgorithm::direct && winograd_reason(options.shape).empty()) {
      try {
        build(dnnl::algorithm::convolution_winograd);
        // Tiles of 4x4 outputs are the faster kind; those of 2x2 lose to the direct kernels.
        if (options.algorithm == OnednnAlgorithm::winograd ||
            implementation.find("wino_4x3") != std::string::npos) {
          return;
        }
      } catch (const dnnl::error&) {
        if (options.algorithm == OnednnAlgorithm::winograd) throw;
      }
    }
    build(dnnl::algorithm::convolution_direct);
  }

  void build(dnnl::algorithm algorithm) {
    const Conv2dShape& s = options.shape;
    const ThreadScope scope(options.threads);
    const memory::desc x_desc = *describe_x(s), w_desc = *describe_w(s), y_desc = *describe_y(s);
    const memory::desc bias_desc({s.c_out}, memory::data_type::f32, memory::format_tag::a);
    const memory::desc any_x = any_layout(x_desc), any_w = any_layout(w_desc);
    const memory::desc any_y = any_layout(y_desc);
    const memory::desc maybe_bias = options.bias ? bias_desc : memory::desc();
    const Dims strides{s.stride_h, s.stride_w}, pad_front{s.pad_top, s.pad_left};
    const Dims dilates{s.dilation_h - 1, s.dilation_w - 1};
    const Dims pad_back{
        (s.h_out - 1) * s.stride_h + (s.kh - 1) * s.dilation_h + 1 - s.h - s.pad_top,
        (s.w_out - 1) * s.stride_w + (s.kw - 1) * s.dilation_w + 1 - s.w - s.pad_left};
    const auto forward = [&](dnnl::prop_kind prop, dnnl::algorithm how) {
      return dnnl::convolution_forward::desc(prop, how, any_x, any_w, maybe_bias, any_y, strides,
                                             dilates, pad_front, pad_back);
    };
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::engine& engine = cpu_engine();

    const auto adopt = [&](const auto& chosen, const memory::desc& x_kernel,
                           const memory::desc& w_kernel, const memory::desc& y_kernel) {
      const bool forward_pass = options.pass == Conv2dPass::forward;
      x.prepare(x_desc, x_kernel, options.pass != Conv2dPass::backward_data);
      w.prepare(w_desc, w_kernel, options.pass != Conv2dPass::backward_weight);
      y.prepare(y_desc, y_kernel, !forward_pass);
      scratchpad = memory(chosen.scratchpad_desc(), engine);
      implementation = chosen.impl_info_str();
    };
    if (options.pass == Conv2dPass::forward) {
      if (options.activation == Activation::relu) {
        dnnl::post_ops post;
        post.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
        attributes.set_post_ops(post);
      }
      const dnnl::convolution_forward::primitive_desc chosen(
          forward(dnnl::prop_kind::forward_inference, algorithm), attributes, engine);
      adopt(chosen, chosen.src_desc(), chosen.weights_desc(), chosen.dst_desc());
      primitive = dnnl::convolution_forward(chosen);
      arguments = {
          {DNNL_ARG_SRC, x.kernel}, {DNNL_ARG_WEIGHTS, w.kernel}, {DNNL_ARG_DST, y.kernel}};
    } else {
      // The backward passes want a forward description as a hint; any algorithm serves.
      const dnnl::convolution_forward::primitive_desc hint(
          forward(dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_auto), engine);
      if (options.pass == Conv2dPass::backward_data) {
        const dnnl::convolution_backward_data::primitive_desc chosen(
            {algorithm, any_x, any_w, any_y, strides, dilates, pad_front, pad_back}, attributes,
            engine, hint);
        adopt(chosen, chosen.diff_src_desc(), chosen.weights_desc(), chosen.diff_dst_desc());
        primitive = dnnl::convolution_backward_data(chosen);
        arguments = {{DNNL_ARG_DIFF_SRC, x.kernel},
                     {DNNL_ARG_WEIGHTS, w.kernel},
                     {DNNL_ARG_DIFF_DST, y.kernel}};
      } else {
        const dnnl::convolution_backward_weights::primitive_desc chosen(
            {algorithm, any_x, any_w, maybe_bias, any_y, strides, dilates, pad_front, pad_back},
            attributes, engine, hint);
        adopt(chosen, chosen.src_desc(), chosen.diff_weights_desc(), chosen.diff_dst_desc());
        primitive = dnnl::convolution_backward_weights(chosen);
        arguments = {{DNNL_ARG_SRC, x.kernel},
                     {DNNL_ARG_DIFF_WEIGHTS, w.kernel},
                     {DNNL_ARG_DIFF_DST, y.kernel}};
      }
    }
    if (options.bias && options.pass != Conv2dPass::backward_data) {
      bias.prepare(bias_desc, bias_desc, true);
      const bool gradient = options.pass == Conv2dPass::backward_weight;
      arguments[gradient ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS] = bias.kernel;
    }
    arguments[DNNL_ARG_SCRATCHPAD] = scratchpad;
  }

  void load_weight(const float* data, std::uint64_t version) {
    w.bind(data);
    const bool kept = version != unknown_version && version == kept_version && data == kept_weight;
    if (!kept) w.load(stream);
    kept_weight = data;
    kept_version = version;
  }

  void execute() { primitive.execute(stream, arguments); }
};

std::string OnednnConv2d::reject(const OnednnConv2dOptions& options) {
  const Conv2dShape& s = options.shape;
  for (const std::int64_t size : {s.n, s.c_in, s.h, s.w, s.c_out, s.kh, s.kw, s.h_out, s.w_out}) {
    if (size <= 0) return "oneDNN: a size is 0";
  }
  if (!describe_x(s)) return "oneDNN: x is dense in neither NCHW nor NHWC order";
  if (!describe_y(s)) return "oneDNN: y is dense in neither NCHW nor NHWC order";
  if (!describe_w(s)) return "oneDNN: w is dense in neither KCRS nor KRSC order";
  return options.algorithm == OnednnAlgorithm::winograd ? winograd_reason(s) : std::string();
}

OnednnConv2d::OnednnConv2d(const OnednnConv2dOptions& options) {
  if (const std::string reason = reject(options); !reason.empty()) {
    throw std::runtime_error(reason);
  }
  try {
    plan_ = std::make_unique<Plan>(options);
  } catch (const dnnl::error& error) {
    throw std::runtime_error(std::string("oneDNN: ") + error.what());
  }
}

OnednnConv2d::~OnednnConv2d() = default;
OnednnConv2d::OnednnConv2d(OnednnConv2d&&) noexcept = default;
OnednnConv2d& OnednnConv2d::operator=(OnednnConv2d&&) noexcept = default;

void OnednnConv2d::run_forward(const float* x, const float* w, const float* bias, float* y,
                               std::uint64_t version) {
  const ThreadScope scope(plan_->options.threads);
  plan_->x.bind(x);
  plan_->y.bind(y);
  if (plan_->options.bias) plan_->bias.bind(bias);
  plan_->x.load(plan_->stream);
  plan_->load_weight(w, version);
  plan_->execute();
  plan_->y.save(plan_->stream);
  plan_->stream.wait();
}

void OnednnConv2d::run_backward_data(const float* dy, const float* w, float* dx,
                                     std::uint64_t version) {
  const ThreadScope scope(plan_->options.threads);
  plan_->y.bind(dy);
  plan_->x.bind(dx);
  plan_->y.load(plan_->stream);
  plan_->load_weight(w, version);
  plan_->execute();
  plan_->x.save(plan_->stream);
  plan_->stream.wait();
}

void OnednnConv2d::run_backward_weight(const float* x, const float* dy, float* dw, float* db) {
  const ThreadScope scope(plan_->options.threads);
  plan_->x.bind(x);
  plan_->y.bind(dy);
  plan_->w.bind(dw);
  if (plan_->options.bias) plan_->bias.bind(db);
  plan_->x.load(plan_->stream);
  plan_->y.load(plan_->stream);
  plan_->execute();
  plan_->w.save(plan_->stream);
  plan_->stream.wait();
}

const std::string& OnednnConv2d::implementation() const {
  return plan_->implementation;
}

std::size_t OnednnConv2d::workspace_bytes() const {
  return plan_->scratchpad.get_desc().get_size() + plan_->x.bytes() + plan_->w.bytes() +
         plan_->y.bytes();
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace zerone::vendor
