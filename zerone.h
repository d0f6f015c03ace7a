// Everything a user of zerone needs.
#pragma once

#include <zerone/autograd/gradcheck.h>
#include <zerone/autograd/tape.h>
#include <zerone/core/error.h>
#include <zerone/core/graph.h>
#include <zerone/core/npy.h>
#include <zerone/core/profile.h>
#include <zerone/core/tensor.h>
#include <zerone/core/timing.h>
#include <zerone/core/version.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/nn/module.h>
#include <zerone/ops/nn/sgd.h>
#include <zerone/ops/pointwise.h>
#include <zerone/ops/reduce.h>
#include <zerone/ops/selection.h>
#include <zerone/ops/view.h>
