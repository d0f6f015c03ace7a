#include <zerone/autograd/tape.h>

#include <fmt/format.h>

#include <zerone/core/error.h>

namespace zerone {

namespace {

/// The Saved made now belong to it: set by the constructor of its base, cleared by record().
thread_local Node* node_being_made = nullptr;

}  // namespace

Node::Node() noexcept {
  node_being_made = this;
}

Node::~Node() {
  if (node_being_made == this) node_being_made = nullptr;
  while (saved_) {  // some that outlive it
    saved_->place_ = nullptr;
    saved_ = std::exchange(saved_->next_, nullptr);
  }
}

Saved::Saved(Tensor tensor)
    : tensor_(std::move(tensor)), version_(tensor_.defined() ? tensor_.version() : 0) {
  if (!node_being_made) return;
  place_ = &node_being_made->saved_;
  next_ = std::exchange(*place_, this);
  if (next_) next_->place_ = &next_;
}

Saved& Saved::operator=(const Saved& other) {
  tensor_ = other.tensor_;
  version_ = other.version_;
  return *this;
}

Saved::~Saved() {
  if (!place_) return;
  *place_ = next_;
  if (next_) next_->place_ = place_;
}

void Gradients::give(int input, Tensor gradient, bool gated) {
  if (needs(input)) tape_.accumulate(edges_[input], std::move(gradient), gated, node_);
}

bool Gradients::wants_gated(int input) const {
  const int index = edges_[input];
  if (index < 0 || tape_.hooks_.contains(index)) return false;  // hooks see the plain gradient
  const auto& node = tape_.entries_[static_cast<std::size_t>(index)].node;
  return node && node->ends_in_relu();
}

const Tensor& Saved::get(const char* op, const char* what) const {
  if (tensor_.defined() && tensor_.version() != version_)
    throw AutogradError(
        fmt::format("[{}] {} ({}) was written after the forward pass kept it: version {} now, {} "
                    "then",
                    op, what, describe(tensor_), tensor_.version(), version_));
  return tensor_;
}

Tape* Var::tape() const {
  if (!link_) return nullptr;
  if (!link_->tape) throw AutogradError("[var] used after its tape was destroyed");
  return link_->tape;
}

Var Var::with(const Parameter& parameter) const {
  if (!parameter.defined()) return Var();
  Tape* const on = tape();
  return on ? on->parameter(parameter) : Var(parameter.value());
}

Tape::Tape() : link_(std::make_shared<Link>(Link{this})) {}
Tape::~Tape() {
  link_->tape = nullptr;
}

Var Tape::append(Tensor value, Entry entry) {
  entry.dtype = value.dtype();
  entry.shape = value.shape();
  if (observer_) observer_->recorded(static_cast<int>(entries_.size()), entry.op, value);
  entries_.push_back(std::move(entry));
  return Var(std::move(value), link_, static_cast<int>(entries_.size()) - 1);
}

Var Tape::leaf(Tensor value) {
  if (!value.defined() || !is_floating(value.dtype()))
    throw DTypeError(
        fmt::format("[tape] a leaf needs a floating-point tensor, got {}", describe(value)));
  Entry entry;
  entry.leaf = true;
  return append(std::move(value), std::move(entry));
}

Var Tape::constant(Tensor value) {
  return Var(std::move(value), link_, -1);
}

Var Tape::parameter(const Parameter& parameter) {
  if (!parameter.defined()) throw AutogradError("[tape] undefined parameter");
  const auto known = parameter_leaves_.find(parameter.id());
  const bool met = known != parameter_leaves_.end();
  if (!parameter.requires_grad()) {
    if (!met) {
      parameter_leaves_[parameter.id()] = -1;
      parameters_.emplace_back(-1, parameter);
    }
    return constant(parameter.value());
  }
  if (met && known->second >= 0) return Var(parameter.value(), link_, known->second);
  Var var = leaf(parameter.value());
  parameter_leaves_[parameter.id()] = var.index_;
  parameters_.emplace_back(var.index_, parameter);
  return var;
}

bool Tape::wants_grad(std::span<const Var* const> inputs) {
  for (const Var* input : inputs)
    if (input->requires_grad()) return true;
  return false;
}

Var Tape::record(Tensor value, std::span<const Var* const> inputs, std::unique_ptr<Node> node) {
  node_being_made = nullptr;
  Tape* tape = nullptr;
  bool wanted = false;
  for (const Var* input : inputs) {
    Tape* const other = input->tape();
    if (tape && other && tape != other)
      throw AutogradError(
          fmt::format("[{}] operands are on different tapes", node ? node->name() : "op"));
    if (other) tape = other;
    wanted = wanted || input->requires_grad();
  }
  if (!tape) return Var(std::move(value));
  if (!wanted || !node) return tape->constant(std::move(value));
  Entry entry;
  entry.first_edge = static_cast<std::int64_t>(tape->edges_.size());
  entry.edge_count = static_cast<int>(inputs.size());
  entry.op = node->name();
  entry.node = std::move(node);
  for (const Var* input : inputs) tape->edges_.push_back(input->index_);
  return tape->append(std::move(value), std::move(entry));
}

namespace {

/// Only memory that nobody else sees may be added to in place.
bool owned(const Tensor& x) {
  return x.shared_storage().use_count() == 1 && x.is_dense() && !x.storage().external();
}

/// A leaf's gradient outlives the run and may be written: it must not be the caller's seed, another
/// leaf's gradient or an expanded view.
void make_own(Tensor& gradient) {
  if (owned(gradient)) return;
  gradient = gradient.known_zero()
                 ? Tensor::zeros(gradient.context(), gradient.shape(), gradient.dtype())
                 : gradient.clone();
}

/// sum += gradient; the first gradient is moved into place.
void add_to(Tensor& sum, Tensor gradient) {
  if (!sum.defined() || sum.known_zero()) {
    sum = std::move(gradient);
  } else if (gradient.known_zero()) {
    return;
  } else if (owned(sum)) {
    sum.add_(gradient);
  } else {
    if (!owned(gradient)) gradient = gradient.clone();
    gradient.add_(sum);  // a + b = b + a bit for bit
    sum = std::move(gradient);
  }
}

}  // namespace

void Tape::accumulate(int index, Tensor gradient, bool gated, int from) {
  const Entry& entry = entries_[index];
  if (gradient.shape() != entry.shape || gradient.dtype() != entry.dtype)
    throw AutogradError(fmt::format("[{}] made a gradient {} for an input of type {} and shape {}",
                                    from < 0 ? "backward" : entries_[from].op, describe(gradient),
                                    to_string(entry.dtype), to_string(entry.shape)));
  gated_[index] = gated && (!gradients_[index].defined() || gated_[index]);
  add_to(gradients_[index], std::move(gradient));
  if (observer_) observer_->contributed(from, index, gradients_[index]);
}

void Tape::run_hooks(int index) {
  for (auto hook = hooks_.lower_bound(index); hook != hooks_.end() && hook->first == index;
       ++hook) {
    Tensor replacement = hook->second(gradients_[index]);
    if (!replacement.defined()) continue;
    require_same_context("hook", gradients_[index], replacement);
    const Entry& entry = entries_[index];
    if (replacement.shape() != entry.shape || replacement.dtype() != entry.dtype)
      throw AutogradError(fmt::format(
          "[hook] replaced the gradient of entry {} ({}) of type {} and shape {} by {}", index,
          entry.op, to_string(entry.dtype), to_string(entry.shape), describe(replacement)));
    gradients_[index] = std::move(replacement);
  }
}

void Tape::backward(const Var& result, const BackwardOptions& options) {
  if (!result.defined() || result.tape() != this || !result.requires_grad())
    throw AutogradError("[backward] the result is not on this tape, or depends on no leaf");
  Tensor seed = options.seed;
  if (seed.defined()) {
    require_same_context("backward", result, seed);
  } else {
    if (result.value().numel() != 1)
      throw AutogradError(
          fmt::format("[backward] the result is {}; a seed gradient is needed "
                      "unless it has one element",
                      describe(result.value())));
    seed = Tensor::full(result.value().context(), result.shape(), 1, result.value().dtype());
  }
  gradients_.resize(entries_.size());
  gated_.resize(entries_.size());
  std::vector<std::pair<int, Tensor>> before;  // leaf gradients of earlier runs
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (gradients_[i].defined())
      before.emplace_back(static_cast<int>(i), std::exchange(gradients_[i], Tensor()));
  try {
    accumulate(result.index_, std::move(seed), false, -1);
    for (int i = result.index_; i >= 0; --i) {
      if (!gradients_[i].defined()) continue;
      if (!hooks_.empty()) run_hooks(i);
      Entry& entry = entries_[i];
      if (entry.leaf) continue;
      if (!entry.node)
        throw AutogradError(
            "[backward] the buffers of this part of the tape were released by an earlier backward; "
            "pass retain = true there to run it again");
      Gradients gradients(*this, i, std::exchange(gradients_[i], Tensor()), gated_[i], inputs(i));
      entry.node->backward(gradients);
      if (!options.retain) entry.node.reset();
    }
  } catch (...) {
    for (Tensor& gradient : gradients_) gradient = Tensor();
    for (auto& [index, gradient] : before) gradients_[index] = std::move(gradient);
    throw;
  }
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].leaf && gradients_[i].defined()) make_own(gradients_[i]);
  for (const auto& [index, parameter] : parameters_) {
    if (index < 0) continue;
    Tensor& fresh = gradients_[index];
    if (!fresh.defined()) continue;
    add_to(parameter.grad(), std::exchange(fresh, Tensor()));
  }
  for (auto& [index, gradient] : before) {
    Tensor& fresh = gradients_[index];
    if (fresh.defined()) add_to(gradient, std::exchange(fresh, Tensor()));
    fresh = std::move(gradient);
  }
}

void Tape::hook(const Var& var, Hook hook) {
  if (var.tape() != this || !var.requires_grad())
    throw AutogradError("[hook] the Var is not on this tape, or takes no gradient");
  if (!hook) throw AutogradError("[hook] an empty function");
  hooks_.emplace(var.index_, std::move(hook));
}

std::span<const int> Tape::inputs(int index) const {
  const Entry& at = entry(index);
  return std::span(edges_).subspan(static_cast<std::size_t>(at.first_edge),
                                   static_cast<std::size_t>(at.edge_count));
}

void Tape::observe(std::unique_ptr<TapeObserver> observer) {
  observer_ = std::move(observer);
}

Tensor Tape::grad(const Var& leaf) const {
  if (leaf.tape() != this || !leaf.requires_grad() || !entries_[leaf.index_].leaf)
    throw AutogradError("[grad] not a leaf of this tape");
  for (const auto& [index, parameter] : parameters_)
    if (index == leaf.index_) return parameter.grad();
  const auto index = static_cast<std::size_t>(leaf.index_);
  return index < gradients_.size() ? gradients_[index] : Tensor();
}

}  // namespace zerone
