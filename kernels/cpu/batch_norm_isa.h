// The loops that batch_norm_isa.cpp defines once for each instruction set, and their choice;
// private to batch_norm.cpp.
#pragma once

#include <zerone/kernels/cpu/elementwise_isa.h>

namespace zerone::kernels::cpu {

constexpr int channel_block = 64;  // channels of one call where channels are the columns

template <class T>
using OfChannels = std::array<T, channel_block>;

/// What is summed over values of one channel or of several.
struct ChannelTotals {
  double count = 0;  // values of each channel
  OfChannels<double> first{}, second{};
  // statistics: mean, and sum of (x - mean)^2; gradients: sum of dy, and of dy (x - mean)
};

/// Numbers of each channel that a loop applies.
struct ChannelMap {
  OfChannels<double> shift, scale, offset, slope;
};

/// Rows hold one channel, the first, or, `across`, one channel a column.
struct BatchNormLoops {
  /// Joins the statistics of x to `totals`.
  void (*statistics)(const Rows<1>&, DType, bool across, const void* x, ChannelTotals& totals);
  /// Adds the sums of dy and of dy (x - shift); operands x and dy.
  void (*gradient_sums)(const Rows<2>&, DType, bool across, const void* x, const void* dy,
                        const ChannelMap&, ChannelTotals& totals);
  /// y = (x - shift) scale + offset
  void (*normalize)(const Rows<2>&, DType, bool across, void* y, const void* x, const ChannelMap&);
  /// dx = dy scale + ((x - shift) slope + offset)
  void (*input_gradient)(const Rows<3>&, DType, bool across, void* dx, const void* dy,
                         const void* x, const ChannelMap&);
  /// Joins statistics of the first `channels`.
  void (*join)(ChannelTotals& totals, const ChannelTotals& more, int channels);
};

namespace baseline {
extern const BatchNormLoops batch_norm_loops;
}
#if defined(ZERONE_CPU_ISA_LEVELS)
namespace x86_64_v3 {
extern const BatchNormLoops batch_norm_loops;
}
namespace x86_64_v4 {
extern const BatchNormLoops batch_norm_loops;
}
#endif

}  // namespace zerone::kernels::cpu
