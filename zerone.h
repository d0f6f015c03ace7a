// Everything a user of zerone needs.
#pragma once

#include <zerone/autograd/gradcheck.h>
#include <zerone/autograd/inspect.h>
#include <zerone/autograd/tape.h>
#include <zerone/core/error.h>
#include <zerone/core/graph.h>
#include <zerone/core/npy.h>
#include <zerone/core/profile.h>
#include <zerone/core/safetensors.h>
#include <zerone/core/tensor.h>
#include <zerone/core/timing.h>
#include <zerone/ops/batch_norm.h>
#include <zerone/ops/concatenate.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/dropout.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/nn/checkpoint.h>
#include <zerone/ops/nn/gradients.h>
#include <zerone/ops/nn/layers.h>
#include <zerone/ops/nn/loss_scaler.h>
#include <zerone/ops/nn/module.h>
#include <zerone/ops/nn/optimizer.h>
#include <zerone/ops/nn/schedule.h>
#include <zerone/ops/nn/summary.h>
#include <zerone/ops/pointwise.h>
#include <zerone/ops/pool.h>
#include <zerone/ops/reduce.h>
#include <zerone/ops/selection.h>
#include <zerone/ops/softmax.h>
#include <zerone/ops/view.h>
#include <zerone/version.h>

/// Context says where and how, Tensor holds data, Tape and Var record it; free functions compute.
/// Examples, here and in the other headers, have a `const Context context`.
namespace zerone {
/// Layers, and what trains them.
namespace nn {}
}  // namespace zerone
