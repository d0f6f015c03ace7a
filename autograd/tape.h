// Reverse-mode automatic differentiation on an explicit tape.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/core/tensor.h>

namespace zerone {

class Tape;
class Var;

/// What a node's backward sees: the gradient of its output, and where its inputs' gradients go.
class Gradients {
 public:
  const Tensor& output() const { return output_; }
  bool needs(int input) const { return edges_[input] >= 0; }
  /// Contributes to an input's gradient. The first contribution is moved into place, later ones
  /// are added in the order of the calls. Shape and type must be the input's.
  void give(int input, Tensor gradient);

 private:
  friend class Tape;
  Gradients(Tape& tape, const char* op, Tensor output, std::span<const int> edges)
      : tape_(tape), op_(op), output_(std::move(output)), edges_(edges) {}
  Tape& tape_;
  const char* op_;
  Tensor output_;
  std::span<const int> edges_;  // tape index of each input; -1 where no gradient is wanted
};

/// One recorded operation. It keeps only what its gradient needs.
class Node {
 public:
  virtual ~Node() = default;
  virtual const char* name() const = 0;
  virtual void backward(Gradients& gradients) = 0;
};

/// A tensor kept for the backward pass, at the version it had when it was kept.
class Saved {
 public:
  Saved() = default;
  explicit Saved(Tensor tensor)
      : tensor_(std::move(tensor)), version_(tensor_.defined() ? tensor_.version() : 0) {}
  /// Throws AutogradError naming `op` and `what` if the tensor was written since.
  const Tensor& get(const char* op, const char* what) const;

 private:
  Tensor tensor_;
  std::uint64_t version_ = 0;
};

struct BackwardOptions {
  /// Gradient of the result; undefined means 1 for a one-element result, an error otherwise.
  Tensor seed;
  /// Keep the nodes' buffers, so that backward can run again.
  bool retain = false;
};

/// Operations in the order in which they ran. The order is topological, so backward is one reverse
/// loop and teardown is linear, whatever the depth. A tape is for one thread; make one a step.
class Tape {
 public:
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

  /// For ops: the result of an operation. `node` is dropped if no input wants a gradient.
  static Var record(Tensor value, std::initializer_list<const Var*> inputs,
                    std::unique_ptr<Node> node);
  /// For ops: whether record() would keep a node, so that none need be made.
  static bool wants_grad(std::initializer_list<const Var*> inputs);

  /// Runs the tape backwards from `result`. Throws AutogradError on a second run without retain.
  void backward(const Var& result, const BackwardOptions& options = {});

  /// Accumulated gradient of a leaf; undefined if no backward reached it.
  Tensor grad(const Var& leaf) const;
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  friend class Gradients;
  friend class Var;

  struct Entry {
    std::unique_ptr<Node> node;  // null for leaves, and once released
    std::int64_t first_edge = 0;
    int edge_count = 0;
    bool leaf = false;
    DType dtype = DType::f32;
    Shape shape;
  };
  struct Link {
    Tape* tape;  // null once the tape is gone
  };

  Var append(Tensor value, Entry entry);
  void accumulate(int index, Tensor gradient, const char* op);

  std::shared_ptr<Link> link_;
  std::vector<Entry> entries_;
  std::vector<int> edges_;
  std::vector<Tensor> gradients_;
  std::unordered_map<const void*, int> parameter_leaves_;
  std::vector<std::pair<int, Parameter>> parameters_;
};

/// A tensor in a computation: a plain Tensor (which records nothing), or one on a tape. Tensors
/// convert to Var and back.
class Var {
 public:
  Var() = default;
  Var(Tensor value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool defined() const noexcept { return value_.defined(); }
  const Tensor& value() const noexcept { return value_; }
  operator const Tensor&() const noexcept { return value_; }  // NOLINT
  Shape shape() const { return value_.shape(); }

  /// Null for a plain tensor; throws AutogradError if the tape is gone.
  Tape* tape() const;
  bool requires_grad() const noexcept { return index_ >= 0; }

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

}  // namespace zerone
