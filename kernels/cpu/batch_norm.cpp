// Channels are walked alone (NCHW) or, where they lie innermost, in blocks of neighbors (NHWC); the
// other axes are cut into parts (parts.h). Sums over a channel take its parts in chunks that run in
// parallel and are joined in order. Floor: x is read twice, by the statistics and by the map.
#include <zerone/kernels/cpu/batch_norm.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <zerone/kernels/cpu/batch_norm_isa.h>
#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/cpu/parts.h>

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index part_elements = 1 << 14;
constexpr Index part_pixels = 256;  // where a part holds a block of channels
constexpr Index max_chunks = 64;    // of the parts of a channel
constexpr Index max_partials = 64;  // ChannelTotals on the stack

const BatchNormLoops& loops() {
#if defined(ZERONE_CPU_ISA_LEVELS)
  switch (isa()) {
    case Isa::x86_64_v4: return x86_64_v4::batch_norm_loops;
    case Isa::x86_64_v3: return x86_64_v3::batch_norm_loops;
    case Isa::baseline: break;
  }
#endif
  return baseline::batch_norm_loops;
}

/// Views (N, C, ...) of equal sizes, walked together: blocks of channels times parts of the rest.
template <int Operands>
struct Space {
  using Offsets = std::array<Index, Operands>;

  Index channels;
  Offsets channel_strides;
  Index values;  // of a channel
  bool across;   // a block is several channels, which are the columns of its rows
  Index block, blocks;
  Parts<Operands> parts;

  explicit Space(const std::array<const Layout*, Operands>& layouts)
      : Space(layouts, without_channels(layouts)) {}

  /// f(rows, offsets of their first elements) for the rows of one part of one block.
  template <class F>
  void visit(Index block_index, Index part_index, F&& f) const {
    auto part = parts.part(part_index);
    for (int k = 0; k < Operands; ++k) {
      part.offsets[k] += block_index * block * channel_strides[k];
    }
    if (!across) return f(part.rows, part.offsets);
    const Rows<Operands> rows{part.rows.columns, size_of_block(block_index), part.rows.inner,
                              channel_strides};
    for (Index row = 0; row < part.rows.rows; ++row) {
      f(rows, part.offsets);
      for (int k = 0; k < Operands; ++k) part.offsets[k] += part.rows.outer[k];
    }
  }

  Index size_of_block(Index block_index) const {
    return std::min(block, channels - block_index * block);
  }

 private:
  static CollapsedAxes<Operands> without_channels(
      const std::array<const Layout*, Operands>& layouts) {
    std::array<Layout, Operands> rest;
    std::array<const Layout*, Operands> pointers;
    for (int k = 0; k < Operands; ++k) {
      rest[k] = *layouts[k];
      rest[k].sizes[1] = 1;
      pointers[k] = &rest[k];
    }
    return collapse_axes<Operands>(pointers);
  }

  Space(const std::array<const Layout*, Operands>& layouts, const CollapsedAxes<Operands>& rest)
      : channels(layouts[0]->sizes[1]),
        values(rest.numel()),
        across(channels >= 4 &&
               (rest.rank == 0 || layouts[0]->strides[1] < rest.strides[0][rest.rank - 1])),
        block(across ? channel_block : 1),
        blocks((channels + block - 1) / block),
        parts(across ? Parts<Operands>(rest, part_pixels) : Parts<Operands>(rest, part_elements)) {
    for (int k = 0; k < Operands; ++k) channel_strides[k] = layouts[k]->strides[1];
  }
};

/// Sums of each block's channels: add(block, part, totals) takes a part, join(totals, more) two
/// sums, finish(block, totals) the result.
template <int Operands, class Add, class Join, class Finish>
void sum_channels(const Space<Operands>& space, int threads, Add&& add, Join&& join,
                  Finish&& finish) {
  const Index parts = space.parts.count;
  const Index chunks =
      std::clamp<Index>(max_partials / space.blocks, 1, std::min(parts, max_chunks));
  ChannelTotals partials[max_partials];  // (block, chunk), if there are several chunks
  const Index per_item = space.values * space.channels / (space.blocks * chunks);
  const Index grain = (1 << 15) / std::max<Index>(per_item, 1);
  parallel_for(threads, space.blocks * chunks, grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index block = i / chunks, chunk = i % chunks;
      ChannelTotals totals;
      const Index last = (chunk + 1) * parts / chunks;
      for (Index part = chunk * parts / chunks; part < last; ++part) add(block, part, totals);
      if (chunks == 1) {
        finish(block, totals);
      } else {
        partials[i] = totals;
      }
    }
  });
  for (Index block = 0; chunks > 1 && block < space.blocks; ++block) {
    ChannelTotals totals = partials[block * chunks];
    for (Index chunk = 1; chunk < chunks; ++chunk) join(totals, partials[block * chunks + chunk]);
    finish(block, totals);
  }
}

/// f(block, part) for all, in parallel.
template <int Operands, class F>
void for_each_part(const Space<Operands>& space, int threads, F&& f) {
  const Index parts = space.parts.count;
  const Index per_item = space.values * space.channels / (space.blocks * parts);
  const Index grain = (1 << 15) / std::max<Index>(per_item, 1);
  parallel_for(threads, space.blocks * parts, grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) f(i / parts, i % parts);
  });
}

template <class Void>
Void* advance(Void* data, Index elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<Index>(size_of(dtype));
}

double load(const void* data, DType dtype, Index at) {
  return with_float_type(dtype, [&](auto zero) {
    return static_cast<double>(static_cast<const decltype(zero)*>(data)[at]);
  });
}

void store(void* data, DType dtype, Index at, double value) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(data)[at] = static_cast<T>(static_cast<Compute<T>>(value));
  });
}

/// Element c of a view (C), or `missing` without data.
double at(const ConstView& view, Index c, double missing) {
  return view.data ? load(view.data, view.dtype, c * view.layout.strides[0]) : missing;
}

void set(const View& view, Index c, double value) {
  if (view.data) store(view.data, view.dtype, c * view.layout.strides[0], value);
}

DType compute_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// value + momentum * (target - value)
void move_toward(const View& view, Index c, double target, double momentum) {
  const double value = at(view, c, 0);
  set(view, c, value + momentum * (target - value));
}

/// mean and inv_std of all channels, and the running statistics.
void find_statistics(const BatchNormForward& args, int threads) {
  const DType dtype = args.x.dtype, compute = compute_type(dtype);
  const Space<1> space({&args.x.layout});
  const auto keep = [&](Index c, double mean, double variance) {
    store(args.mean, compute, c, mean);
    store(args.inv_std, compute, c, 1 / std::sqrt(variance + args.eps));
  };
  if (!args.training) {
    for (Index c = 0; c < space.channels; ++c) {
      keep(c, at(args.given_mean, c, 0), at(args.given_var, c, 1));
    }
    return;
  }
  sum_channels(
      space, threads,
      [&](Index block, Index part, ChannelTotals& totals) {
        space.visit(block, part, [&](const Rows<1>& rows, const auto& offsets) {
          loops().statistics(rows, dtype, space.across, advance(args.x.data, offsets[0], dtype),
                             totals);
        });
      },
      [](ChannelTotals& totals, const ChannelTotals& more) {
        loops().join(totals, more, channel_block);
      },
      [&](Index block, const ChannelTotals& totals) {
        for (Index j = 0; j < space.size_of_block(block); ++j) {
          const Index c = block * space.block + j;
          keep(c, totals.first[j], totals.second[j] / totals.count);
          move_toward(args.running_mean, c, totals.first[j], args.momentum);
          move_toward(args.running_var, c, totals.second[j] / (totals.count - 1), args.momentum);
        }
      });
}

}  // namespace

void batch_norm(const BatchNormForward& args, int threads) {
  if (args.x.layout.numel() == 0) return;
  const DType dtype = args.x.dtype, compute = compute_type(dtype);
  find_statistics(args, threads);
  const Space<2> space({&args.y.layout, &args.x.layout});
  for_each_part(space, threads, [&](Index block, Index part) {
    ChannelMap map;
    for (Index j = 0; j < space.size_of_block(block); ++j) {
      const Index c = block * space.block + j;
      map.shift[j] = load(args.mean, compute, c);
      map.scale[j] = load(args.inv_std, compute, c) * at(args.weight, c, 1);
      map.offset[j] = at(args.bias, c, -0.0);  // which leaves -0 as it is
    }
    space.visit(block, part, [&](const Rows<2>& rows, const auto& offsets) {
      loops().normalize(rows, dtype, space.across, advance(args.y.data, offsets[0], dtype),
                        advance(args.x.data, offsets[1], dtype), map);
    });
  });
}

void batch_norm_backward(const BatchNormBackward& args, int threads) {
  const Index channels = args.x.layout.sizes[1];
  if (args.x.layout.numel() == 0) {
    for (Index c = 0; c < channels; ++c) set(args.dweight, c, 0), set(args.dbias, c, 0);
    return;
  }
  const DType dtype = args.x.dtype, compute = compute_type(dtype);
  const bool input = args.dx.data != nullptr;
  const auto mean = [&](Index c) { return load(args.mean, compute, c); };
  const auto inv_std = [&](Index c) { return load(args.inv_std, compute, c); };

  // Sums of dy and of dy (x - mean) go into these until the map needs them.
  const bool sums = args.dweight.data || args.dbias.data || (input && args.training);
  std::vector<double> sum_dy, sum_product;
  if (input && args.training) sum_dy.resize(channels), sum_product.resize(channels);
  if (sums) {
    const Space<2> space({&args.x.layout, &args.dy.layout});
    sum_channels(
        space, threads,
        [&](Index block, Index part, ChannelTotals& totals) {
          ChannelMap map;
          for (Index j = 0; j < space.size_of_block(block); ++j) {
            map.shift[j] = mean(block * space.block + j);
          }
          space.visit(block, part, [&](const Rows<2>& rows, const auto& offsets) {
            loops().gradient_sums(rows, dtype, space.across,
                                  advance(args.x.data, offsets[0], dtype),
                                  advance(args.dy.data, offsets[1], dtype), map, totals);
          });
        },
        [](ChannelTotals& totals, const ChannelTotals& more) {
          for (Index j = 0; j < channel_block; ++j) {
            totals.first[j] += more.first[j];
            totals.second[j] += more.second[j];
          }
        },
        [&](Index block, const ChannelTotals& totals) {
          for (Index j = 0; j < space.size_of_block(block); ++j) {
            const Index c = block * space.block + j;
            set(args.dbias, c, totals.first[j]);
            set(args.dweight, c, totals.second[j] * inv_std(c));
            if (!sum_dy.empty()) sum_dy[c] = totals.first[j], sum_product[c] = totals.second[j];
          }
        });
  }
  if (!input) return;

  if (!args.training) {  // dx = dy * weight * inv_std; x may hold anything
    const Space<2> space({&args.dx.layout, &args.dy.layout});
    for_each_part(space, threads, [&](Index block, Index part) {
      ChannelMap map;
      for (Index j = 0; j < space.size_of_block(block); ++j) {
        const Index c = block * space.block + j;
        map.shift[j] = 0;
        map.scale[j] = at(args.weight, c, 1) * inv_std(c);
        map.offset[j] = -0.0;
      }
      space.visit(block, part, [&](const Rows<2>& rows, const auto& offsets) {
        loops().normalize(rows, dtype, space.across, advance(args.dx.data, offsets[0], dtype),
                          advance(args.dy.data, offsets[1], dtype), map);
      });
    });
    return;
  }
  const Space<3> space({&args.dx.layout, &args.dy.layout, &args.x.layout});
  const double count = static_cast<double>(space.values);
  for_each_part(space, threads, [&](Index block, Index part) {
    ChannelMap map;
    for (Index j = 0; j < space.size_of_block(block); ++j) {
      const Index c = block * space.block + j;
      const double inverse = inv_std(c), scale = at(args.weight, c, 1) * inverse;
      map.shift[j] = mean(c);
      map.scale[j] = scale;
      map.offset[j] = -scale * sum_dy[c] / count;
      map.slope[j] = -scale * inverse * inverse * sum_product[c] / count;
    }
    space.visit(block, part, [&](const Rows<3>& rows, const auto& offsets) {
      loops().input_gradient(rows, dtype, space.across, advance(args.dx.data, offsets[0], dtype),
                             advance(args.dy.data, offsets[1], dtype),
                             advance(args.x.data, offsets[2], dtype), map);
    });
  });
}

}  // namespace zerone::kernels::cpu
