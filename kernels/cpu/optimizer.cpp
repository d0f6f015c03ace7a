#include <zerone/kernels/cpu/optimizer.h>

#include <algorithm>

#include <zerone/kernels/cpu/optimizer_isa.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/optimizer_formulas.h>

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index chunk_elements = 1 << 14;
constexpr Index grain = 2;  // chunks per thread, at least

const OptimizerLoops& optimizer_loops() {
#if defined(ZERONE_CPU_ISA_LEVELS)
  switch (isa()) {
    case Isa::x86_64_v4: return x86_64_v4::optimizer_loops;
    case Isa::x86_64_v3: return x86_64_v3::optimizer_loops;
    case Isa::baseline: break;
  }
#endif
  return baseline::optimizer_loops;
}

Index chunks_of(Index elements) {
  return (elements + chunk_elements - 1) / chunk_elements;
}

template <class T>
Index chunks_of(std::span<const T> tensors) {
  Index chunks = 0;
  for (const T& tensor : tensors) chunks += chunks_of(tensor.count);
  return chunks;
}

/// f(tensor, first element, end) for chunks first to last of all tensors laid end to end.
template <class T, class F>
void for_each_chunk(std::span<const T> tensors, Index first, Index last, F&& f) {
  Index before = 0;  // chunks of the tensors before this one
  for (const T& tensor : tensors) {
    const Index chunks = chunks_of(tensor.count);
    const Index end = std::min(last - before, chunks);
    for (Index chunk = std::max<Index>(first - before, 0); chunk < end; ++chunk)
      f(tensor, chunk * chunk_elements, std::min((chunk + 1) * chunk_elements, tensor.count));
    before += chunks;
    if (before >= last) return;
  }
}

template <class T, class F>
void parallel_chunks(std::span<const T> tensors, int threads, F&& f) {
  parallel_for(threads, chunks_of(tensors), grain,
               [&](Index begin, Index end) { for_each_chunk(tensors, begin, end, f); });
}

}  // namespace

void optimizer_step(const OptimizerStep& step, std::span<const OptimizerTensor> tensors,
                    int threads) {
  if (step.skip != nullptr && *step.skip != 0) return;
  for (const OptimizerTensor& tensor : tensors)
    if (tensor.clock != nullptr && tensor.count > 0) advance(*tensor.clock, step.beta1, step.beta2);
  parallel_chunks(tensors, threads, [&](const OptimizerTensor& tensor, Index begin, Index end) {
    optimizer_loops().step(step, tensor, begin, end);
  });
}

void gradient_norm(std::span<const GradientTensor> tensors, double max_norm, GradientNorm* out,
                   int threads) {
  constexpr Index most_parts = 256;
  double partials[most_parts];
  const Index chunks = chunks_of(tensors), parts = std::min(chunks, most_parts);
  parallel_for(threads, parts, grain, [&](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      partials[part] = 0;
      for_each_chunk(tensors, part * chunks / parts, (part + 1) * chunks / parts,
                     [&](const GradientTensor& tensor, Index first, Index last) {
                       partials[part] += optimizer_loops().sum_of_squares(tensor, first, last);
                     });
    }
  });
  double sum = 0;
  for (Index part = 0; part < parts; ++part) sum += partials[part];
  *out = gradient_norm_of(sum, max_norm);
}

void scale_gradients(std::span<const GradientTensor> tensors, const double* factor, int threads) {
  if (*factor == 1) return;
  parallel_chunks(tensors, threads, [&](const GradientTensor& tensor, Index begin, Index end) {
    optimizer_loops().scale(tensor, begin, end, *factor);
  });
}

void clamp_gradients(std::span<const GradientTensor> tensors, double limit, int threads) {
  parallel_chunks(tensors, threads, [&](const GradientTensor& tensor, Index begin, Index end) {
    optimizer_loops().clamp(tensor, begin, end, limit);
  });
}

void advance_loss_scale(LossScale* state, const LossScaleRule& rule, const double* overflow) {
  advance(*state, rule, *overflow != 0);
}

}  // namespace zerone::kernels::cpu
