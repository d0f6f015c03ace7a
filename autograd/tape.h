// Reverse-mode automatic differentiation on an explicit tape.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/core/tensor.h>

namespace zerone {

class Saved;
class Tape;
class Var;

/// What a node's backward sees: the gradient of its output, and where its inputs' gradients go.
class Gradients {
 public:
  const Tensor& output() const { return output_; }  ///< the output's gradient
  bool needs(int input) const {
    return edges_[input] >= 0;
  }  ///< whether an input's gradient is wanted
  /// Contributes to an input's gradient. The first contribution is moved into place, later ones
  /// are added in the order of the calls. Shape and type must be the input's. `gated`: it is 0
  /// already where the input is not positive.
  void give(int input, Tensor gradient, bool gated = false);

  /// Whether a ReLU made the input, so that it is of use to give() it a gated gradient: who writes
  /// that gradient may have the input at hand and save the ReLU a pass.
  bool wants_gated(int input) const;
  /// Whether all of output() was given gated.
  bool output_gated() const { return output_gated_; }

 private:
  friend class Tape;
  Gradients(Tape& tape, int node, Tensor output, bool output_gated, std::span<const int> edges)
      : tape_(tape),
        node_(node),
        output_(std::move(output)),
        output_gated_(output_gated),
        edges_(edges) {}
  Tape& tape_;
  int node_;  // tape index of what gives
  Tensor output_;
  bool output_gated_;
  std::span<const int> edges_;  // tape index of each input; -1 where no gradient is wanted
};

/// One recorded operation. It keeps only what its gradient needs.
class Node {
 public:
  Node() noexcept;
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  /// A string that outlives the tape.
  virtual const char* name() const = 0;
  /// Gives the gradients of the inputs that need one.
  virtual void backward(Gradients& gradients) = 0;
  /// Whether backward() begins by zeroing its gradient where the node's output is not positive.
  virtual bool ends_in_relu() const { return false; }

  /// f(tensor) for every tensor in a Saved that was made between this node and its record().
  template <class F>
  void for_each_saved(F&& f) const;

 private:
  friend class Saved;
  Saved* saved_ = nullptr;  // head of a list through the Saved themselves
};

/// A tensor kept for the backward pass, at the version it had when it was kept.
class Saved {
 public:
  Saved() : Saved(Tensor()) {}
  /// Keeps `tensor` at its present version; undefined ones may be kept, too.
  explicit Saved(Tensor tensor);
  Saved(const Saved& other) : Saved(other.tensor_) { version_ = other.version_; }
  /// Keeps the same tensor at the same version.
  Saved& operator=(const Saved& other);
  ~Saved();
  /// Throws AutogradError naming `op` and `what` if the tensor was written since.
  const Tensor& get(const char* op, const char* what) const;

 private:
  friend class Node;
  Tensor tensor_;
  std::uint64_t version_ = 0;
  Saved* next_ = nullptr;    // in the list of its node, if any
  Saved** place_ = nullptr;  // the pointer to this one
};

template <class F>
void Node::for_each_saved(F&& f) const {
  for (const Saved* saved = saved_; saved; saved = saved->next_)
    if (saved->tensor_.defined()) f(saved->tensor_);
}

/// Watches a tape at work: what tools are made of. A throw ends the record() or backward() at hand.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;
  /// `value` is about to become entry `index`; `op` is "leaf" for an input.
  virtual void recorded(int index, const char* op, const Tensor& value) = 0;
  /// Entry `from` (-1: the seed) contributed to the gradient of entry `to`, which is `sum` by now.
  virtual void contributed(int from, int to, const Tensor& sum) = 0;
};

/// How backward starts, and what it leaves.
struct BackwardOptions {
  /// Gradient of the result; undefined means 1 for a one-element result, an error otherwise.
  Tensor seed = {};
  /// Keep the nodes' buffers, so that backward can run again.
  bool retain = false;
};

/// Operations in the order in which they ran. The order is topological, so backward is one reverse
/// loop and teardown is linear, whatever the depth. A tape is for one thread; make one a step.
/// @code
/// Tape tape;
/// const Var x = tape.leaf(Tensor::full(context, {2, 2}, 3));
/// const Var y = sum(x * x);
/// tape.backward(y);
/// const Tensor dx = tape.grad(x);  // 6 everywhere
/// @endcode
class Tape {
 public:
  /// One leaf or operation, as tools see it.
  struct Entry {
    const char* op = "leaf";
    std::unique_ptr<Node> node;  // null for leaves, and once released
    std::int64_t first_edge = 0;
    int edge_count = 0;
    bool leaf = false;
    DType dtype = DType::f32;
    Shape shape;
  };
  /// Gets a gradient and gives what replaces it, of the same shape and type, or an undefined tensor
  /// to leave it. The gradient may share memory with others: a hook must not write it.
  using Hook = std::function<Tensor(const Tensor& gradient)>;

  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// An input whose gradient is wanted: see grad().
  Var leaf(Tensor value);
  /// An input without a gradient. Operations on it still record what parameters they meet.
  Var constant(Tensor value);
  /// The leaf of a parameter; backward adds to parameter.grad(). One leaf a parameter.
  Var parameter(const Parameter& parameter);

  /// For ops: the result of an operation. `node` is dropped if no input wants a gradient. @{
  static Var record(Tensor value, std::span<const Var* const> inputs, std::unique_ptr<Node> node);
  static Var record(Tensor value, std::initializer_list<const Var*> inputs,
                    std::unique_ptr<Node> node);
  /// @}
  /// For ops: whether record() would keep a node, so that none need be made. @{
  static bool wants_grad(std::span<const Var* const> inputs);
  static bool wants_grad(std::initializer_list<const Var*> inputs) {
    return wants_grad(std::span(inputs.begin(), inputs.size()));
  }
  /// @}

  /// Runs the tape backwards from `result`. Throws AutogradError on a second run without retain.
  void backward(const Var& result, const BackwardOptions& options = {});

  /// Accumulated gradient of a leaf; undefined if no backward reached it.
  Tensor grad(const Var& leaf) const;

  /// Every backward from now on calls `hook` with the gradient of `var` that it found, complete,
  /// before anything below `var` sees it. Hooks of one Var run in the order in which they were
  /// added, each on what the one before gave. On a leaf or a parameter they see what this backward
  /// contributes, not what earlier ones left. AutogradError if `var` takes no gradient.
  void hook(const Var& var, Hook hook);

  // For tools: what is on the tape, in the order of execution (see inspect.h).
  std::size_t size() const noexcept { return entries_.size(); }  ///< number of entries
  /// The entry at an index below size().
  const Entry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  /// Index of each input of an entry; -1 where no gradient is wanted.
  std::span<const int> inputs(int index) const;
  /// The parameters met so far and their leaves' indices; -1 for those that take no gradient.
  const std::vector<std::pair<int, Parameter>>& parameters() const { return parameters_; }
  /// One at a time; null takes it away.
  void observe(std::unique_ptr<TapeObserver> observer);

 private:
  friend class Gradients;
  friend class Var;

  struct Link {
    Tape* tape;  // null once the tape is gone
  };

  Var append(Tensor value, Entry entry);
  void accumulate(int index, Tensor gradient, bool gated, int from);
  void run_hooks(int index);

  std::shared_ptr<Link> link_;
  std::vector<Entry> entries_;
  std::vector<int> edges_;
  std::vector<Tensor> gradients_;
  std::vector<bool> gated_;  // of gradients_: see Gradients::give
  std::unordered_map<const void*, int> parameter_leaves_;
  std::vector<std::pair<int, Parameter>> parameters_;
  std::multimap<int, Hook> hooks_;
  std::unique_ptr<TapeObserver> observer_;
};

/// A tensor in a computation: a plain Tensor (which records nothing), or one on a tape. Tensors
/// convert to Var and back.
class Var {
 public:
  Var() = default;
  Var(Tensor value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool defined() const noexcept { return value_.defined(); }  ///< whether there is a tensor
  const Tensor& value() const noexcept { return value_; }     ///< the tensor
  /// The tensor, where one is expected.
  operator const Tensor&() const noexcept { return value_; }  // NOLINT
  Shape shape() const { return value_.shape(); }              ///< its sizes

  /// Null for a plain tensor; throws AutogradError if the tape is gone.
  Tape* tape() const;
  bool requires_grad() const noexcept {
    return index_ >= 0;
  }  ///< whether backward passes through it

  /// `parameter` as an operand beside this one: on this one's tape, if it has one.
  Var with(const Parameter& parameter) const;

 private:
  friend class Tape;
  Var(Tensor value, std::shared_ptr<Tape::Link> link, int index)
      : value_(std::move(value)), link_(std::move(link)), index_(index) {}

  Tensor value_;
  std::shared_ptr<Tape::Link> link_;
  int index_ = -1;  // place on the tape; -1 where no gradient is wanted
};

inline Var Tape::record(Tensor value, std::initializer_list<const Var*> inputs,
                        std::unique_ptr<Node> node) {
  return record(std::move(value), std::span(inputs.begin(), inputs.size()), std::move(node));
}

}  // namespace zerone
